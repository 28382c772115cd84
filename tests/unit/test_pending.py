"""Which occurrence a moment on the timeline stands for: told from the moment, whatever is on record."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_zsched import planner
from celery_zsched.entry import EntrySpec, LastRun, build
from celery_zsched.types import SECOND_US, to_us

HOUR_US = 3_600 * SECOND_US
MIDNIGHT_US = to_us(datetime(2026, 3, 1, tzinfo=timezone.utc))


def at(hours: float) -> int:
    """Return a moment of 1 March 2026, UTC."""
    return MIDNIGHT_US + round(hours * HOUR_US)


def hourly(**rules: Any) -> EntrySpec:
    """Return an hourly entry whose grid stands at midnight."""
    return build("report", "tasks.report", timedelta(hours=1), **rules).installed(MIDNIGHT_US)


def test_a_moment_without_jitter_is_its_own_occurrence_whatever_is_on_record() -> None:
    """A record from before the schedule was changed does not rename the occurrence."""
    for stale in (None, at(2.5), at(3), at(9)):
        assert planner.pending(hourly(), LastRun(next_nominal_us=stale), at(3)) == at(3)


def test_a_jittered_moment_belongs_to_the_occurrence_whose_due_it_is() -> None:
    """The jitter is taken off again, with a stale record or none."""
    spec = hourly(jitter=1800)
    due_us = planner.due_of(spec, at(3))
    assert due_us != at(3)
    for stale in (None, at(2.5), at(2), at(9)):
        assert planner.pending(spec, LastRun(next_nominal_us=stale), due_us) == at(3)


@pytest.mark.parametrize("jitter_s", [0, 60])
def test_the_record_tells_the_occurrence_when_the_jitter_was_changed_under_a_waiting_entry(jitter_s: int) -> None:
    """Nobody's due is that moment any more, so the occurrence on record keeps its name."""
    due_us = planner.due_of(hourly(jitter=1800), at(3))
    assert planner.pending(hourly(jitter=jitter_s), LastRun(next_nominal_us=at(3)), due_us) == at(3)


@pytest.mark.parametrize("recorded_h", [None, 1, 2.25, 5])
def test_a_moment_that_nothing_explains_stands_for_itself(recorded_h: float | None) -> None:
    """A record that is off the grid, long past or still to come explains nothing."""
    record = LastRun(next_nominal_us=None if recorded_h is None else at(recorded_h))
    assert planner.pending(hourly(), record, at(3.5)) == at(3.5)


def test_a_failed_sending_that_was_put_off_keeps_its_occurrence() -> None:
    """The timeline keeps the due moment through delayed retries, so the plan is for the first moment, late."""
    plan = planner.plan(hourly(), LastRun(next_nominal_us=at(1)), at(3), at(3) + 20 * SECOND_US)
    assert [send.nominal_us for send in plan.sends] == [at(3)]
    assert plan.next_due_us == at(4)


def test_a_schedule_changed_before_its_first_run_sends_its_own_occurrence() -> None:
    """Daily at noon became every 10 minutes: what is sent at 03:10 is for 03:10 and stands for nothing else."""
    spec = build("report", "tasks.report", timedelta(minutes=10)).installed(MIDNIGHT_US)
    plan = planner.plan(spec, LastRun(next_nominal_us=at(3)), at(19 / 6), at(19 / 6))
    assert [(send.nominal_us, send.missed) for send in plan.sends] == [(at(19 / 6), 0)]


def test_resume_counts_from_the_moment_that_the_pause_took_off_the_timeline() -> None:
    """The schedule was changed while paused: what it swallowed is told from the new moment, not from the old record."""
    plan = planner.resume(hourly(), LastRun(next_nominal_us=at(1)), at(7), at(9.5))
    assert (plan.sends, plan.next_due_us, plan.last.missed) == ((), at(10), 3)


def test_resume_with_catch_up_stands_for_the_newest_swallowed_occurrence() -> None:
    """Two were swallowed: one run for the later, which says that it stands for the earlier too."""
    plan = planner.resume(hourly(), LastRun(), at(8), at(9.5), catch_up=True)
    assert [(send.nominal_us, send.missed) for send in plan.sends] == [(at(9), 1)]
    assert plan.next_due_us == at(10)
