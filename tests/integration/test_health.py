"""What ``health`` sees: entries that hang wherever they stand, and beats that live and cannot send."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_zsched import operations
from celery_zsched.entry import EntrySpec
from celery_zsched.operations import Site
from celery_zsched.operations.liveness import Health
from celery_zsched.schedules import Schedules
from celery_zsched.types import SECOND_US
from tests.entries import claimed, entry, put_back
from tests.programs import Project
from tests.servers import RunningServer, wait_until

Place = Callable[[Schedules, EntrySpec], None]


def waits(schedules: Schedules, spec: EntrySpec) -> None:
    """Nobody has taken it."""


def under_a_lease(schedules: Schedules, spec: EntrySpec) -> None:
    """A scheduler has it, and is silent about it."""
    claimed(schedules)


def under_an_ended_lease(schedules: Schedules, spec: EntrySpec) -> None:
    """A scheduler had it, and nobody has taken it over."""
    schedules.claim(1, 1)
    wait_until(lambda: schedules.timeline.counts().ended)


def tried_again_later(schedules: Schedules, spec: EntrySpec) -> None:
    """The broker did not take its message, so it waits for another moment than it is due for."""
    schedules.timeline.release([claimed(schedules).hold], delay_us=20 * SECOND_US)


@pytest.mark.parametrize("place", [waits, under_a_lease, under_an_ended_lease, tried_again_later])
def test_what_is_overdue_is_seen_wherever_it_stands(schedules: Schedules, place: Place) -> None:
    """It counts by the moment that it is due for until it has moved on, and is named with who has it."""
    schedules.save(entry("later"))
    put_back(schedules, entry("report"), 40 * SECOND_US)
    place(schedules, entry("report"))
    told = operations.health(Site(Celery(set_as_current=False), schedules, "me@here"), max_lag_s=30)
    assert 40 <= told.overdue_s < 60 and told.overdue == "report" and not told.ok
    assert told.problems[0].startswith("the entry 'report' is overdue by 4")
    assert "(allowed: 30 s)" in told.problems[0]


def test_what_has_moved_on_or_stands_aside_is_not_overdue(schedules: Schedules) -> None:
    """Paused, in quarantine, finished, or due later: none of them is waited for."""
    for name in ("paused", "dead", "moved"):
        put_back(schedules, entry(name), 40 * SECOND_US)
    schedules.timeline.park(["paused"], "{}")
    turn = schedules.claim(10, 60 * SECOND_US)
    holds = {due.name: due.hold for due in turn.due}
    schedules.timeline.bury([("dead", holds["dead"].token, "broken", b"")])
    schedules.timeline.reschedule([(holds["moved"], turn.now_us + 60 * SECOND_US, b"")])
    told = operations.health(Site(Celery(set_as_current=False), schedules, "me@here"))
    assert (told.overdue_s, told.overdue, told.claimed) == (0, None, 0)


def test_the_end_of_a_pause_that_nobody_attends_to_is_overdue(schedules: Schedules) -> None:
    """It stands among the entries, and is told for what it is."""
    schedules.remind("task:note", schedules.now_us() - 90 * SECOND_US)
    told = operations.health(Site(Celery(set_as_current=False), schedules, "me@here"))
    assert told.problems[0].startswith("the end of a pause (remind task:note) is overdue by 9")
    assert told.overdue is None


def test_more_than_one_part_is_looked_through(schedules: Schedules) -> None:
    """The one that is overdue by most is found among hundreds that were claimed later."""
    schedules.save_many([entry(f"e{number:03}", 1.0) for number in range(600)])
    put_back(schedules, entry("zzz"), 100 * SECOND_US)
    wait_until(lambda: schedules.timeline.counts().delayed == 0)
    (first,) = schedules.claim(1, 3600 * SECOND_US).due
    assert first.name == "zzz"
    while schedules.claim(500, 1800 * SECOND_US).due:
        pass
    told = operations.health(Site(Celery(set_as_current=False), schedules, "me@here"))
    assert told.overdue == "zzz" and told.claimed == 601


HANGS = """
    import time
    from celery.beat import BeatLazyFunc
    app.conf.beat_schedule = {
        "slow": {"task": "note", "schedule": 1.0, "kwargs": {"x": BeatLazyFunc(lambda: time.sleep(300))}}
    }
"""


def red(project: Project) -> Health:
    """Wait until health says that something is overdue, and return what it says."""
    site = Site.of(project.app)

    def told() -> Health | None:
        found = operations.health(site, max_lag_s=0.5)
        return found if found.overdue_s > 0.5 and found.beats else None

    found: Health = wait_until(told, what="health to tell that something is overdue")
    return found


def test_a_beat_that_hangs_in_what_it_sends_is_not_healthy(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """C-35: its only entry is under its lease all the time, so nothing waits; it is overdue all the same."""
    project = start_project(start_server(tcp=True), HANGS)
    beat = project.beat()
    told = red(project)
    assert told.overdue == "slow"
    assert f":{beat.pid} has claimed it" in told.problems[0]
    done = project.celery("zsched", "health", "--max-lag", "0.5")
    assert done.returncode == 1 and "'slow' is overdue" in done.stdout and "1 with a beat" in done.stdout


@pytest.mark.slow
def test_a_beat_whose_broker_is_away_says_so(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project], close_later: Callable[[Any], Any]
) -> None:
    """It stays on the roll while its turns fail, with what fails, and health tells."""
    server = start_server(tcp=True)
    source = 'app.conf.beat_schedule = {"each": {"task": "note", "schedule": 1.0}}'
    taken = close_later(socket.socket())
    taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets it
    away = f"redis://127.0.0.1:{taken.getsockname()[1]}/0"
    project = start_project(server, source, broker=away, zsched_url=server.url, zsched_settle_time=2)
    beat = project.beat()
    beat.says("the broker takes no messages")
    site = Site.of(project.app)
    row = wait_until(lambda: next((row for row in operations.beats(site) if row.fault), None), what="the beat's fault")
    called = row.called
    assert row.alive and row.pid == beat.pid and row.failing
    assert "the broker did not take each" in row.fault
    later = wait_until(lambda: [row for row in operations.beats(site) if row.called > called], what="another call")
    assert later[0].failing == row.failing and later[0].fault
    problems = red(project).problems
    assert len(problems) == 2 and "'each' is overdue" in problems[0]
    assert f":{beat.pid} has failed since {row.failing}: the broker did not take each" in problems[1]
    wait_until(lambda: "has failed since" in "".join(operations.explain(site, "each").because), what="explain to tell")
