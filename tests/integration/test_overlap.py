"""Runs that may not overlap, with real beats and workers of every pool, early acks, retries and crashes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from celery_zsched import Entry
from celery_zsched.runs import Runs
from tests.programs import MODULE, Program, Project
from tests.servers import RunningServer, wait_until

#: The tasks say when they begin and end, by the server's clock. A list of the server keeps it in order.
SOURCE = """
    import json
    import os
    import time

    import redis
    from celery_zsched import current

    server = redis.Redis.from_url({url!r})

    def say(what, entry, **more):
        seconds, microseconds = server.time()
        at = seconds + microseconds / 1e6
        server.rpush("said", json.dumps(dict(more, what=what, entry=entry, at=at, pid=os.getpid())))

    @app.task(name="work", bind=True)
    def work(self, entry, lasts, failures=0):
        say("begin", entry, id=self.request.id, nominal=current().nominal.isoformat())
        time.sleep(lasts)
        say("end", entry, id=self.request.id)
        if self.request.retries < failures:
            raise self.retry(countdown=1.0)
"""


@dataclass(frozen=True)
class Said:
    """A word of a task."""

    what: str
    entry: str
    at: float
    pid: int
    id: str
    nominal: str = ""


class Scene:
    """A project with a beat, whose tasks tell what they do."""

    def __init__(self, server: RunningServer, project: Project) -> None:
        self.client = redis.Redis.from_url(server.url)
        self.project = project
        self.runs = Runs(project.schedules)
        self.beat = project.beat()
        self.workers: list[Program] = []

    def worker(self, *args: str, **how: Any) -> Program:
        """Start a worker; its pool is said once, since Celery patches for gevent by the first that it finds."""
        quiet = ("--without-gossip", "--without-mingle", "--loglevel=INFO", f"--hostname={len(self.workers)}@here")
        program = self.project.start("worker", *quiet, *args, name="worker", **how)
        self.workers.append(program)
        program.says("ready.")
        return program

    def save(self, name: str, every: float, lasts: float, failures: int = 0, **rules: Any) -> None:
        """Store an entry of the task ``work``."""
        Entry(name, "work", every, (name, lasts, failures), app=self.project.app, **rules).save()

    def said(self, entry: str, what: str = "") -> list[Said]:
        """Return what the runs of an entry have said, in order."""
        words = [Said(**json.loads(text)) for text in self.client.lrange("said", 0, -1)]
        return [word for word in words if word.entry == entry and what in word.what]

    def wait_for(self, entry: str, what: str, count: int, *, timeout_s: float = 60.0) -> list[Said]:
        """Wait until an entry's runs have said something so many times."""
        wait_until(
            lambda: len(self.said(entry, what)) >= count, timeout_s=timeout_s, what=f"{count} times {what} of {entry}"
        )
        return self.said(entry, what)

    def most_at_once(self, entry: str) -> int:
        """Return how many runs of an entry went on at once at most, by their own words."""
        now, most = 0, 0
        for word in self.said(entry):
            now += 1 if word.what == "begin" else -1
            most = max(most, now)
        return most


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, start_server: Callable[..., RunningServer], start_project: Callable[..., Project],
    close_later: Callable[[Any], Any],
) -> Scene:  # fmt: skip
    """A beat on a server of its own, with kombu's own Redis transport as the broker, or ours where a test asks."""
    server = start_server(tcp=True)
    broker = SimpleNamespace(url=getattr(request, "param", "") + server.url)
    made = Scene(server, start_project(broker, SOURCE.format(url=server.url), zsched_run_lease=2.0))
    close_later(made.client)
    return made


#: Our own broker, for the fixture ``scene``.
OURS = "zsched+"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "pool", "workers"),
    [
        ("", ("--pool=prefork", "--concurrency=3"), 1),
        ("", ("--pool=threads", "--concurrency=3"), 1),
        ("", ("--pool=solo",), 2),
        ("", ("--pool=gevent", "--concurrency=3"), 1),
        (OURS, ("--pool=prefork", "--concurrency=3"), 1),
    ],
    ids=["prefork", "threads", "solo", "gevent", "prefork, our broker"],
    indirect=["scene"],
)
def test_no_two_runs_at_once_in_any_pool(scene: Scene, pool: tuple[str, ...], workers: int) -> None:
    """Tasks that are acked as they begin, and last longer than their interval and their lease, run one at a time."""
    for _ in range(workers):
        scene.worker(*pool)
    scene.save("free", 0.5, 1.2)
    scene.save("skips", 0.5, 1.2, overlap="skip")
    scene.save("long", 0.5, 5.0, overlap="skip")
    scene.save("keeps", 0.5, 1.2, overlap="buffer_one")
    scene.wait_for("long", "end", 2, timeout_s=25)
    assert [scene.most_at_once(name) for name in ("skips", "long", "keeps")] == [1, 1, 1]
    if pool != ("--pool=solo",):
        assert scene.most_at_once("free") > 1, "the rule was not tried"
    assert len(scene.said("skips", "end")) >= 2
    assert scene.project.schedules.get("long").last.held == "overlap"


def test_what_is_kept_back_begins_as_the_run_ends(scene: Scene) -> None:
    """With ``buffer_one`` the next run follows at once, not at the next due time."""
    scene.worker("--pool=threads", "--concurrency=3")
    scene.save("keeps", 4.0, 5.0, overlap="buffer_one")
    said = scene.wait_for("keeps", "end", 2)
    begins = scene.said("keeps", "begin")
    assert begins[1].at - said[0].at < 1.0
    assert begins[0].nominal != begins[1].nominal


def test_a_message_that_waits_counts_as_a_run(scene: Scene) -> None:
    """With no worker one message waits, however often the entry is due."""
    scene.save("waits", 0.3, 0.1, overlap="skip")
    wait_until(lambda: (scene.project.schedules.get("waits").last.missed_total) >= 4, what="skipped occurrences")
    assert len(scene.project.drain()) == 1
    (run,) = scene.runs.of(["waits"])["waits"]
    assert run.state == "sent"


def test_a_message_that_expired_counts_no_more(scene: Scene) -> None:
    """What expires while it waits makes room for the next."""
    scene.save("brief", 0.5, 0.1, overlap="skip", expires=2.0)
    assert len(scene.project.collect(2)) == 2


@pytest.mark.slow
def test_a_killed_worker_keeps_the_next_run_back_no_longer_than_its_lease(scene: Scene) -> None:
    """The run of a worker that dies under it lapses, and another worker takes the next."""
    doomed = scene.worker("--pool=prefork", "--concurrency=1")
    scene.save("dies", 0.5, 3.0, overlap="skip")
    scene.wait_for("dies", "begin", 1)
    doomed.kill()
    died = scene.said("dies", "begin")[0].at
    scene.worker("--pool=prefork", "--concurrency=2")
    begins = scene.wait_for("dies", "begin", 3)
    # Lease of two seconds, the start of the second worker, and the next due time.
    assert begins[1].at - died > 1.0
    assert scene.said("dies", "end")[0].at < begins[2].at
    assert len(scene.runs.of(["dies"])["dies"]) <= 1


@pytest.mark.slow
def test_a_child_that_is_killed_lets_its_run_lapse(scene: Scene) -> None:
    """Memory killers take a pool's child and leave the worker; the lease goes with the child."""

    scene.worker("--pool=prefork", "--concurrency=2")
    scene.save("child", 0.5, 30.0, overlap="skip")
    (begin,) = scene.wait_for("child", "begin", 1)
    os.kill(begin.pid, signal.SIGKILL)
    begins = scene.wait_for("child", "begin", 2)
    assert 1.0 < begins[1].at - begin.at < 8.0


@pytest.mark.parametrize("scene", ["", OURS], ids=["kombu's broker", "our broker"], indirect=True)
def test_a_run_goes_on_through_its_retries(scene: Scene) -> None:
    """Between two tries of a task nothing else of its entry runs, and each try knows its occurrence."""
    scene.worker("--pool=threads", "--concurrency=3")
    scene.save("retries", 0.5, 0.2, failures=2, overlap="skip")
    begins = scene.wait_for("retries", "begin", 4)
    assert [word.id == begins[0].id for word in begins[:4]] == [True, True, True, False]
    assert [word.nominal == begins[0].nominal for word in begins[:4]] == [True, True, True, False]
    assert all(later.at - earlier.at > 1.0 for earlier, later in pairwise(begins[:3]))


def test_what_no_worker_can_begin_is_no_run(scene: Scene) -> None:
    """A message of a task that the worker does not know is dropped, and makes room for the next."""
    worker = scene.worker("--pool=solo")
    Entry("unknown", "nobody.knows", 0.5, overlap="skip", app=scene.project.app).save()
    wait_until(lambda: worker.output().count("unregistered task") >= 2, what="two messages of the unknown task")


def test_an_entry_that_lost_its_rule_is_left_alone(scene: Scene) -> None:
    """Runs that may overlap leave no trace on the server."""
    scene.worker("--pool=threads", "--concurrency=3")
    scene.save("free", 0.3, 0.5)
    scene.wait_for("free", "end", 3)
    assert not scene.client.exists("zsched:{schedule}:runs")


def test_a_worker_that_a_program_starts_holds_leases(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """Without the shell, and with no import in the app, using our broker is enough; its pool's children know too."""
    server = start_server(tcp=True)
    project = start_project(
        server,
        """
        import time

        @app.task(name="slow")
        def slow():
            time.sleep(3)

        if __name__ == "__main__":
            app.Worker(pool="prefork", concurrency=1, loglevel="INFO").start()
        """,
        broker_transport="celery_zsched:Transport",
    )
    project.beat()
    command = [sys.executable, f"{MODULE}.py"]
    with contextlib.closing(Program(command, directory=project.directory, name="program")) as program:
        program.says("ready.")
        Entry("slow", "slow", 0.5, overlap="skip", app=project.app).save()
        runs = Runs(project.schedules)
        wait_until(lambda: [run.state for run in runs.of(["slow"])["slow"]] == ["running"], what="a lease on the run")
        wait_until(lambda: not runs.of(["slow"])["slow"], what="the end of the run")
