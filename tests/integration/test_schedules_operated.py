"""Entries on a real server that are changed while they are sent, paused and resumed, finished, broken and mended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery.schedules import crontab

from celery_zsched import planner
from celery_zsched.entry import LastRun, OperatorState, encode
from celery_zsched.errors import ConflictError, EntryError, NotFoundError, ScheduleError
from celery_zsched.operations import Site, pause_task
from celery_zsched.schedules import Schedules
from celery_zsched.stored import Change, Move, State
from celery_zsched.types import SECOND_US, Item, from_us
from tests.entries import HOUR_US, LEASE_US, claimed, entry, move, paused, put_at, put_back

Open = Callable[..., Schedules]


# -- Changed while it is being sent


def test_an_entry_deleted_while_it_is_sent_stays_deleted(open_schedules: Open) -> None:
    """The sender is told that it is no longer its own."""
    schedules, operator = open_schedules(), open_schedules()
    put_back(schedules, entry(), 0)
    due = claimed(schedules)
    operator.delete("report")
    assert move(schedules, [Move(due.hold, due.due_us + HOUR_US, LastRun())]) == ["report"]
    assert list(schedules.names()) == []


def test_an_entry_whose_schedule_changes_while_it_is_sent_goes_by_the_new_one(open_schedules: Open) -> None:
    """The sender's idea of the next due is refused."""
    schedules, operator = open_schedules(), open_schedules()
    put_back(schedules, entry(), 0)
    due = claimed(schedules)
    operator.save(entry("report", 60))
    assert move(schedules, [Move(due.hold, due.due_us + HOUR_US, LastRun())]) == ["report"]
    found = schedules.get("report")
    assert found.state is State.SCHEDULED and found.due_us is not None
    assert found.due_us <= schedules.now_us() + 60 * SECOND_US


def test_an_entry_whose_arguments_change_while_it_is_sent_moves_on_with_them(open_schedules: Open) -> None:
    """The lease is not disturbed."""
    schedules, operator = open_schedules(), open_schedules()
    put_back(schedules, entry(), 0)
    due = claimed(schedules)
    operator.save(entry("report", 3600, "new"))
    assert schedules.get("report").state is State.FIRING
    assert move(schedules, [Move(due.hold, due.due_us + HOUR_US, LastRun(fired=1))]) == []
    found = schedules.get("report")
    assert (found.due_us, found.last.fired) == (due.due_us + HOUR_US, 1)
    assert found.spec is not None and found.spec.arguments is not None
    assert found.spec.arguments.arguments()[0] == ["new"]


def test_an_entry_paused_while_it_is_sent_stays_paused(open_schedules: Open) -> None:
    """It is the operator's word that counts."""
    schedules, operator = open_schedules(), open_schedules()
    put_back(schedules, entry(), 0)
    due = claimed(schedules)
    operator.pause("report", paused())
    assert move(schedules, [Move(due.hold, due.due_us + HOUR_US, LastRun())]) == ["report"]
    assert schedules.get("report").state is State.PAUSED


# -- Pausing and resuming


def test_resumed_it_is_due_at_its_next_future_occurrence_only(schedules: Schedules) -> None:
    """Hourly, due five minutes after it was paused, resumed 55 minutes after that: due in five minutes, nothing now."""
    due_us = put_back(schedules, entry(), 55 * 60 * SECOND_US)
    schedules.pause("report", paused())
    stored = schedules.get("report")
    assert (stored.state, stored.operator, stored.due_us) == (State.PAUSED, paused(), due_us)
    assert schedules.claim(10, LEASE_US).due == []
    assert schedules.resume("report") is True
    assert schedules.get("report").due_us == due_us + HOUR_US
    assert schedules.claim(10, LEASE_US).due == []
    assert schedules.get("report").operator == OperatorState()


def test_a_daily_entry_resumed_in_the_evening_is_due_tomorrow(schedules: Schedules) -> None:
    """What was due at the same time today is gone."""
    now_us = schedules.now_us()
    due_at_us = now_us - now_us % (60 * SECOND_US) - 3 * HOUR_US
    three_hours_ago = from_us(due_at_us)
    daily = entry("daily", crontab(hour=three_hours_ago.hour, minute=three_hours_ago.minute))
    put_at(schedules, [daily], due_at_us)
    before_us = schedules.get("daily").due_us
    schedules.pause("daily", paused())
    schedules.resume("daily")
    due_us = schedules.get("daily").due_us
    assert before_us is not None and due_us is not None
    assert from_us(due_us).replace(second=0, microsecond=0) - from_us(before_us).replace(
        second=0, microsecond=0
    ) == timedelta(days=1)


@pytest.mark.parametrize(
    ("jitter_s", "rules"), [(0, {}), (600, {}), (0, {"misfire": "skip"}), (0, {"grace": 60})], ids=str
)
def test_asked_to_catch_up_it_runs_once_for_the_newest_occurrence_that_was_swallowed(
    schedules: Schedules, jitter_s: float, rules: dict[str, Any]
) -> None:
    """Three and a half hours went by: one run, whatever the misfire rule, and the next an hour after that."""
    spec = entry("report", 3600, jitter=jitter_s, **rules)
    now_us = schedules.now_us()
    installed = spec.installed(now_us - 5 * HOUR_US - HOUR_US // 2)
    first_us = installed.anchor_us + 2 * HOUR_US  # type: ignore[operator]
    schedules.timeline.put([Item("report", encode(installed), planner.due_of(installed, first_us))])
    schedules.pause("report", paused())
    schedules.resume("report", catch_up=True)
    due = claimed(schedules)
    plan = planner.plan(installed, schedules.last_runs(["report"])["report"], due.due_us, schedules.now_us())
    assert [(send.nominal_us, send.missed) for send in plan.sends] == [(first_us + 3 * HOUR_US, 0)]
    assert plan.next_nominal_us == first_us + 4 * HOUR_US


def test_a_second_pause_brings_the_new_reason_and_a_second_resume_nothing(schedules: Schedules) -> None:
    """Both can be said again without harm."""
    schedules.save(entry())
    schedules.pause("report", paused())
    schedules.pause("report", paused("another reason"))
    assert schedules.get("report").operator.reason == "another reason"
    assert schedules.resume("report") is True
    resumed = schedules.get("report")
    assert (schedules.resume("report"), schedules.get("report")) == (False, resumed)


def test_of_two_who_resume_at_once_one_did_it(open_schedules: Open) -> None:
    """The other finds it resumed, and says so."""
    mine, theirs = open_schedules(), open_schedules()
    mine.save(entry())
    mine.pause("report", paused())
    look = mine.timeline.look

    def look_and_be_overtaken(names: Any) -> Any:
        found = look(names)
        theirs.resume("report")
        return found

    mine.timeline.look = look_and_be_overtaken  # type: ignore[method-assign]
    assert mine.resume("report") is False


def test_an_entry_that_ended_while_it_was_paused_is_finished_when_it_is_resumed(schedules: Schedules) -> None:
    """Its one moment has passed."""
    put_back(schedules, entry("once", from_us(schedules.now_us() - SECOND_US)), SECOND_US)
    schedules.pause("once", paused())
    assert schedules.resume("once") is True
    assert schedules.get("once").state is State.FINISHED


# -- Finished, in quarantine, unreadable


def test_a_finished_entry_stays_so_until_something_is_to_come_again(schedules: Schedules) -> None:
    """Declared as it was, it does not run again; with a later moment it does."""
    once = entry("once", from_us(schedules.now_us() + HOUR_US // 2))  # to come when it is stored, however slowly
    schedules.save(once)
    schedules.timeline.park(["once"], "")
    schedules.timeline.unpark(["once"], schedules.now_us())
    move(schedules, [Move(claimed(schedules).hold, None, LastRun(fired=1))])
    assert (schedules.get("once").state, schedules.get("once").due_us) == (State.FINISHED, None)
    assert schedules.save(once) is Change.UNCHANGED
    with pytest.raises(ConflictError, match=r"'once' is finished, so there is nothing to pause"):
        schedules.pause("once", paused())
    assert schedules.save(entry("once", from_us(schedules.now_us() + HOUR_US))) is Change.UPDATED
    assert schedules.get("once").state is State.SCHEDULED


def sent_so_often(schedules: Schedules, fired: int, *, late_us: int = 0, **rules: Any) -> int:
    """Store an hourly entry that was sent so often and waits, ``late_us`` after its moment; return that moment."""
    put_back(schedules, entry("report", 3600, **rules), HOUR_US // 2)
    due = claimed(schedules)
    due_us = due.due_us + HOUR_US - late_us
    move(schedules, [Move(due.hold, due_us, LastRun(fired=fired, nominal_us=due_us - HOUR_US))])
    return due_us


@pytest.mark.parametrize("late_us", [0, 5 * HOUR_US])
def test_a_count_lowered_to_what_was_sent_finishes_an_entry_and_one_raised_again_lets_it_go_on(
    schedules: Schedules, late_us: int
) -> None:
    """It is finished at once, whatever is due; raised, it goes on with what is to come and makes up for nothing."""
    due_us = sent_so_often(schedules, 5, late_us=late_us, misfire="all")
    assert schedules.save(entry("report", 3600, misfire="all", count=3)) is Change.UPDATED
    stored = schedules.get("report")
    assert (stored.state, stored.due_us, stored.last.fired) == (State.FINISHED, None, 5)
    assert schedules.save(entry("report", 3600, misfire="all", count=4)) is Change.UPDATED
    assert schedules.get("report").state is State.FINISHED
    with pytest.raises(ConflictError, match=r"'report' is finished, so there is nothing to pause"):
        pause_task(Site(None, schedules, "me@here"), "entry:report")
    assert schedules.save(entry("report", 3600, misfire="all", count=7)) is Change.UPDATED
    stored = schedules.get("report")
    now_us = schedules.now_us()
    assert stored.state is State.SCHEDULED and stored.due_us is not None and stored.last.fired == 5
    assert now_us < stored.due_us <= now_us + HOUR_US and (stored.due_us - due_us) % HOUR_US == 0


def test_an_end_moved_before_what_an_entry_waits_for_finishes_it(schedules: Schedules) -> None:
    """At once; moved further on, it is due when it was."""
    due_us = put_back(schedules, entry(), -HOUR_US // 2)
    schedules.save(entry("report", 3600, end=from_us(due_us - SECOND_US)))
    assert (schedules.get("report").state, schedules.get("report").due_us) == (State.FINISHED, None)
    schedules.save(entry("report", 3600, end=from_us(due_us + SECOND_US)))
    assert (schedules.get("report").state, schedules.get("report").due_us) == (State.SCHEDULED, due_us)


def test_another_schedule_with_a_count_that_is_reached_does_not_leave_the_old_one_going(schedules: Schedules) -> None:
    """It is stored, and the entry is finished; a schedule that leaves nothing to come is refused."""
    due_us = sent_so_often(schedules, 5)
    with pytest.raises(ScheduleError, match=r"'report' has no occurrence to come"):
        schedules.save(entry("report", from_us(due_us - 24 * HOUR_US)))
    assert schedules.get("report").due_us == due_us
    assert schedules.save(entry("report", 60, count=3)) is Change.UPDATED
    stored = schedules.get("report")
    assert stored.spec is not None and (stored.state, stored.due_us, stored.spec.count) == (State.FINISHED, None, 3)


def test_an_entry_in_quarantine_says_why_and_returns_when_it_is_saved(schedules: Schedules) -> None:
    """Even unchanged: what was wrong may have been mended elsewhere."""
    put_back(schedules, entry(), 0)
    assert schedules.quarantine(claimed(schedules), "the moon is not full", LastRun(failures=3))
    stored = schedules.get("report")
    assert (stored.state, stored.due_us, stored.last.failures) == (State.QUARANTINED, None, 3)
    assert stored.fault is not None and stored.fault.startswith("the moon is not full")
    with pytest.raises(ConflictError, match=r"'report' is quarantined"):
        schedules.pause("report", paused())
    assert schedules.save(entry()) is Change.UPDATED
    assert schedules.get("report").state is State.SCHEDULED


@pytest.mark.parametrize("document", [b"", b"\x80", b"[]", b'{"v":99}', b'{"v":1,"name":"report"}'])
def test_a_document_that_cannot_be_read_is_listed_with_its_fault_and_can_be_replaced(
    schedules: Schedules, document: bytes
) -> None:
    """It stands in the way of nothing."""
    schedules.save(entry("other"))
    schedules.timeline.put([Item("report", document, schedules.now_us() + HOUR_US)])
    stored = {stored.name: stored for stored in schedules.all()}
    assert set(stored) == {"report", "other"}
    assert (stored["report"].spec, bool(stored["report"].fault)) == (None, True)
    schedules.pause("report", paused())
    with pytest.raises(EntryError, match=r"'report' cannot be resumed"):
        schedules.resume("report")
    assert schedules.save(entry()) is Change.UPDATED
    assert schedules.get("report").spec is not None


def test_a_record_that_cannot_be_read_counts_as_none(schedules: Schedules) -> None:
    """What happened last is lost; the entry goes on."""
    schedules.save(entry())
    schedules.server.client.hset(schedules.timeline.keys.notes, "report", b"{nonsense")
    assert schedules.last_runs(["report"]) == {"report": LastRun()}
    assert schedules.get("report").last == LastRun()


def test_what_is_not_there_is_said_so(schedules: Schedules) -> None:
    """By every verb."""
    for verb in (schedules.get, schedules.delete, schedules.resume, lambda name: schedules.pause(name, paused())):
        with pytest.raises(NotFoundError, match=r"there is no entry 'nothing'"):
            verb("nothing")
