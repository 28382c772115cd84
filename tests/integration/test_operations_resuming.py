"""What comes in between while messages are put back: other pauses, other resumes, and the end of who does it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_zsched import operations
from celery_zsched.operations import Site
from celery_zsched.operations.holding import end_pause
from celery_zsched.types import Hold, Item
from tests.programs import Project
from tests.servers import RunningServer

#: More than are put back at once.
MANY = 600

#: A process that dies after the first portion is back.
DYING = """
import os
from project import app
from celery_zsched import operations
operations.resume_task(operations.Site.of(app), "task:count", progress=lambda count: os._exit(9))
"""


class Bench:
    """Two operators, and a queue with messages of the tasks ``count`` (parked, paused) and ``other`` (behind them)."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.one, self.two = Site.of(project.app, by="ann@desk"), Site.of(project.app, by="bob@desk")
        project.app.send_task("other")  # declares the queue
        self.timeline = self.one.queues.timeline("celery")
        now_us = self.timeline.look([])[0]
        self.timeline.put([Item(f"m{number:03}", b"count\n{}", now_us - 60_000_000 + number) for number in range(MANY)])
        operations.pause_task(self.one, "task:count", reason="flood", lasting="1h")
        self.one.queues.park_task("celery", "count")

    def next(self) -> str | None:
        """Return the name of the task that a consumer would get now, if any; it is given back."""
        batch = self.timeline.claim(1, 60_000_000)
        for item in batch.items:
            self.timeline.release([Hold(item.id, item.token)])
            return bytes(item.body).partition(b"\n")[0].decode()
        return None

    def during_resume(self, act: Callable[[], object]) -> list[str | None]:
        """Resume ``count`` and ``act`` once meanwhile; return what a consumer would have got after each portion."""
        got: list[str | None] = []

        def progress(count: int) -> None:
            if not got:
                act()
            got.append(self.next())

        assert operations.resume_task(self.one, "task:count", progress=progress).messages == MANY
        assert len(got) > 2
        return got

    def reminders(self) -> int:
        """Return how many things a beat is to do later."""
        return self.one.schedules.timeline.counts().delayed

    def rules(self) -> set[bytes]:
        """Return what claims are told of pauses."""
        rules = self.one.queues.server.client.hgetall(self.timeline.keys.rules)
        return set(rules) & {b"paused", b"paused_tasks", b"still"}


@pytest.fixture
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server of the test's own."""
    return start_server(tcp=True)


@pytest.fixture
def bench(server: RunningServer, tmp_path: Path) -> Iterator[Bench]:
    """A queue whose messages are parked but for the last."""
    project = Project(tmp_path, f"zsched+{server.url}")
    yield Bench(project)
    project.close()


def test_a_queue_that_is_paused_during_a_resume_stays_paused(bench: Bench) -> None:
    """The end of the resume is no end of the queue's pause."""
    assert set(bench.during_resume(lambda: operations.pause_task(bench.two, "queue:celery", reason="stop"))) == {None}
    assert [(each.target, each.reason) for each in operations.paused(bench.one)] == [("queue:celery", "stop")]
    assert (bench.next(), bench.rules()) == (None, {b"paused"})
    operations.resume_task(bench.two, "queue:celery")
    assert (bench.next(), bench.rules()) == ("count", set())


@pytest.mark.parametrize("target", ["task:elsewhere", "queue:celery"])
def test_other_pauses_do_not_let_a_queue_go_on_in_which_messages_are_put_back(bench: Bench, target: str) -> None:
    """Whatever is paused and resumed meanwhile, nothing overtakes what is not back yet."""

    def both() -> None:
        operations.pause_task(bench.two, target)
        operations.resume_task(bench.two, target)

    assert set(bench.during_resume(both)) == {None}
    assert (bench.next(), bench.rules()) == ("count", set())


def test_of_two_resumes_at_once_each_ends_only_its_own_standing_still(bench: Bench) -> None:
    """A queue goes on when the last of those who put back is at the end."""
    operations.pause_task(bench.two, "task:other")
    assert set(bench.during_resume(lambda: operations.resume_task(bench.two, "task:other"))) == {None}
    assert (bench.next(), bench.rules()) == ("count", set())


def test_a_resume_whose_process_dies_is_seen_and_finished(bench: Bench) -> None:
    """It stays on record as being resumed, with a reminder for a beat, which finishes it; nothing is left behind."""
    done = subprocess.run([sys.executable, "-c", DYING], cwd=bench.project.directory, check=False, timeout=60)
    assert done.returncode == 9
    parked = bench.timeline.counts().parked
    assert 0 < parked < MANY
    (held,) = operations.paused(bench.one)
    assert (held.target, held.state, held.reason, held.by) == ("task:count", "resuming", "flood", "ann@desk")
    assert (bench.rules(), bench.reminders()) == ({b"still"}, 1)
    found = [each for each in operations.doctor(bench.one) if each.check == "parked"]
    assert [(each.verdict, each.remedy) for each in found] == [("look", "celery zsched resume task:count")]
    assert "task:count is being resumed" in found[0].said
    end_pause(bench.project.app, bench.one.schedules, "task:count")
    assert bench.timeline.counts().parked == 0
    assert operations.paused(bench.one) == []
    assert bench.reminders() == 0


def test_whoever_asks_again_finishes_a_resume_that_failed(bench: Bench) -> None:
    """What is put back already is not parked any more; the rest follows, and the record goes with the last."""

    def fail(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        operations.resume_task(bench.one, "task:count", progress=fail)
    parked = bench.timeline.counts().parked
    assert (bench.next(), bench.rules(), bench.timeline.counts().parked) == ("count", set(), parked)
    again = operations.resume_task(bench.two, "task:count")
    assert (again.changed, again.messages, operations.paused(bench.one)) == (True, parked, [])
    assert bench.reminders() == 0


def test_a_task_that_is_paused_again_during_its_resume_stays_paused(bench: Bench) -> None:
    """It is a pause of its own, with its own reason and end, whose record and reminder the resume leaves alone."""
    changes: list[bool] = []

    def progress(count: int) -> None:
        if not changes:
            changes.append(operations.pause_task(bench.two, "task:count", reason="more", lasting="2h").changed)

    operations.resume_task(bench.one, "task:count", progress=progress)
    (held,) = operations.paused(bench.one)
    assert (changes, held.state, held.reason, held.by) == ([True], "paused", "more", "bob@desk")
    assert (bench.rules(), bench.reminders()) == ({b"paused_tasks"}, 1)


def test_what_a_pause_parks_behind_a_resume_is_put_back(bench: Bench) -> None:
    """A pause that is still parking as its task is resumed leaves nothing behind."""
    operations.resume_task(bench.one, "task:count")
    resumed: list[object] = []

    def progress(count: int) -> None:
        if not resumed:
            resumed.append(operations.resume_task(bench.two, "task:count"))

    operations.pause_task(bench.one, "task:count", sweep_s=None, progress=progress)
    assert (operations.paused(bench.one), bench.timeline.counts().parked, bench.rules()) == ([], 0, set())


def test_what_is_parked_for_nothing_on_record_is_found(bench: Bench) -> None:
    """The check-up names it with its remedy, which puts it back."""
    found = {each.said: each for each in operations.doctor(bench.one) if each.check == "parked"}
    assert [each.verdict for each in found.values()] == ["good"]
    bench.one.queues.note("task:count", None)
    bench.one.queues.enforce()
    found = {each.said: each for each in operations.doctor(bench.one) if each.check == "parked"}
    (one,) = found.values()
    assert (one.verdict, one.remedy) == ("look", "celery zsched resume task:count")
    assert f"{MANY} of the messages looked at are parked, and task:count is not on record as paused" in one.said
    assert operations.resume_task(bench.one, "task:count").messages == MANY
    assert bench.next() == "count"
