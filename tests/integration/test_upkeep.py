"""What keeps the schedule tidy: marks of entries that are gone, entries that are long finished, another zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from celery_zsched.connection import Server
from celery_zsched.entry import build
from celery_zsched.planner import first
from celery_zsched.queues import Queues
from celery_zsched.schedules import Schedules
from celery_zsched.stored import State
from celery_zsched.types import SECOND_US, Item, Mark, Outcome
from celery_zsched.upkeep import Marks, adopt_zone, forget_finished
from tests.servers import RunningServer, wait_until

HOUR_US = 3600 * SECOND_US


@pytest.fixture
def schedules(valkey: RunningServer) -> Iterator[Schedules]:
    """A schedule in UTC."""
    made = Schedules(Server.from_url(valkey.url), zone="UTC", claimer="c")
    yield made
    made.server.close()


def test_marks_of_entries_that_are_gone_go(schedules: Schedules) -> None:
    """A mark goes once its entry is deleted and its occurrence is long past; others, and other apps', stay."""
    queues = Queues(schedules.server)
    line = queues.timeline("q")
    schedules.server.client.zadd("zsched:{exchange:}:bindings", {"q\0\0q": 1})
    assert queues.names() == ["q"]
    now_us = schedules.now_us()
    schedules.save(build("kept", "t", 3600.0))
    old_us = now_us - 9 * HOUR_US
    for name, nominal_us in (("kept", old_us), ("gone", old_us), ("just gone", now_us)):
        line.put([Item(name, b"", mark=Mark(f"zsched:{name}", 1, nominal_us))])
    line.put([Item("foreign", b"", mark=Mark("other:entry", 1, old_us))])
    marks = Marks(schedules, queues)
    assert marks.sweep(now_us) == 1
    assert sorted(schedules.server.client.hkeys(line.keys.marks)) == [
        b"other:entry",
        b"zsched:just gone",
        b"zsched:kept",
    ]
    assert marks.sweep(now_us) == 0


def test_a_deleted_entry_that_is_made_anew_is_not_bound_by_its_old_mark(schedules: Schedules) -> None:
    """Its epoch is later, so an occurrence below the old mark is put all the same."""
    line = Queues(schedules.server).timeline("q")
    (old,) = line.put([Item("a", b"", mark=Mark("entry", 1, 100))])
    (again,) = line.put([Item("b", b"", mark=Mark("entry", 1, 100))])
    (anew,) = line.put([Item("c", b"", mark=Mark("entry", 2, 50))])
    assert (old.outcome, again.outcome, anew.outcome) == (Outcome.PUT, Outcome.REFUSED, Outcome.PUT)


def test_finished_entries_are_listed_for_a_while_and_then_forgotten(schedules: Schedules) -> None:
    """One that was added at run time goes; a static one stays, or the next start would begin it anew."""
    soon = datetime.now(timezone.utc) + timedelta(milliseconds=50)
    schedules.save(build("dynamic", "t", soon))
    schedules.save(build("static", "t", soon, owner="static"))
    due = wait_until(lambda: schedules.claim(10, 5 * SECOND_US).due)
    while len(due) < 2:
        due += schedules.claim(10, 5 * SECOND_US).due
    for each in due:
        schedules.timeline.bury([(each.name, each.hold.token, "finished", b"")])
    assert forget_finished(schedules, schedules.now_us() - HOUR_US) == []
    assert forget_finished(schedules, schedules.now_us() + 1) == ["dynamic"]
    assert [(stored.name, stored.state) for stored in schedules.all()] == [("static", State.FINISHED)]


def test_entries_without_a_zone_follow_the_app_into_another(schedules: Schedules) -> None:
    """Their due times are computed anew, once; an entry with a zone of its own stays."""
    schedules.save(build("follows", "t", "0 9 * * *"))
    schedules.save(build("stays", "t", "0 9 * * *", zone="Europe/Berlin"))
    assert adopt_zone(schedules) == 0
    before = {stored.name: stored.due_us for stored in schedules.all()}
    schedules.zone = "America/New_York"
    assert adopt_zone(schedules) == 1
    assert adopt_zone(schedules) == 0
    after = {stored.name: stored for stored in schedules.all()}
    assert after["stays"].due_us == before["stays"]
    spec = after["follows"].spec
    assert spec is not None
    expected = first(spec, schedules.now_us(), zone="America/New_York").next_due_us
    assert after["follows"].due_us == expected != before["follows"]
