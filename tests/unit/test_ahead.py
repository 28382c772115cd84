"""Which entries are ahead of the clock, and how they begin anew: pure decisions."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_zsched.entry import EntrySpec, LastRun, build
from celery_zsched.planner import Plan, Rules, ahead, begin_anew, due_of, first, plan, resume
from celery_zsched.types import SECOND_US, from_us, to_us

HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US

#: When entries are installed, and when the clock is looked at.
MADE_US = to_us(datetime(2026, 1, 1, tzinfo=timezone.utc))
NOW_US = to_us(datetime(2026, 1, 5, 14, 30, tzinfo=timezone.utc))

SCHEDULES: dict[str, Any] = {
    "second": 1.0,
    "hour": 3600.0,
    "week": timedelta(days=7),
    "hourly": crontab(minute=0),
    "twice": crontab(minute="0,50", hour="9"),
    "yearly": "0 0 1 1 *",
    "once": datetime(2026, 1, 5, 20, tzinfo=timezone.utc),
    "rule": "RRULE:FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0",
}


def entry(schedule: Any, made_us: int = MADE_US, **rules: Any) -> EntrySpec:
    """Return an entry that was installed at a moment."""
    return build("entry", "task", schedule, **rules).installed(made_us)


def sent_at(spec: EntrySpec, at_us: int) -> Plan:
    """Return how an entry stands that was sent when it was due first, by a clock that was at ``at_us`` then."""
    coming = first(spec, MADE_US)
    assert coming.next_due_us is not None
    return plan(spec, coming.last, coming.next_due_us, max(at_us, coming.next_due_us))


@pytest.mark.parametrize("schedule", ["second", "hour", "hourly", "twice", "rule"])
@pytest.mark.parametrize("ahead_us", [DAY_US, 365 * DAY_US])
@pytest.mark.parametrize("jitter", [0.0, 1800.0])
def test_an_entry_that_was_sent_while_the_clock_was_ahead_is_ahead(schedule: str, ahead_us: int, jitter: float) -> None:
    """It waits for what follows; begun anew it is due by its grid, which stays, and is ahead no more."""
    spec = entry(SCHEDULES[schedule], jitter=jitter)
    stood = sent_at(spec, NOW_US + ahead_us)
    found = ahead(spec, stood.last, stood.next_due_us, NOW_US)
    assert found is not None
    assert found.waits_us == stood.next_due_us
    fresh, coming = begin_anew(spec, stood.last, NOW_US, 0)
    assert (coming.next_due_us, fresh.anchor_us, fresh.epoch) == (found.owed_us, spec.anchor_us, spec.epoch + 1)
    assert coming.next_due_us == first(spec, NOW_US).next_due_us
    assert coming.last.fired == stood.last.fired == 1
    assert ahead(fresh, coming.last, coming.next_due_us, NOW_US) is None


@given(
    schedule=st.sampled_from(sorted(SCHEDULES)),
    steps=st.lists(st.integers(min_value=0, max_value=3 * DAY_US), min_size=1, max_size=6),
    jitter_s=st.sampled_from([0.0, 5.0, 7200.0]),
    begins=st.sampled_from([None, timedelta(days=2), timedelta(days=400)]),
    misfire=st.sampled_from(["once", "skip", "all"]),
    closed=st.booleans(),
    later_jitter_s=st.sampled_from([None, 0.0, 60.0, 7200.0]),
    paused=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_an_entry_that_has_seen_the_clock_go_on_is_never_ahead(
    schedule: str, steps: list[int], jitter_s: float, begins: timedelta | None, misfire: str, closed: bool,
    later_jitter_s: float | None, paused: bool,
) -> None:  # fmt: skip
    """Whatever its rules and however late it is sent, and also where its jitter is changed while it waits."""
    start = None if begins is None else from_us(MADE_US) + begins
    spec = entry(SCHEDULES[schedule], jitter=jitter_s, start=start, misfire=misfire)
    stood, now_us = first(spec, MADE_US), MADE_US
    for step_us in steps:
        if stood.next_due_us is None:
            return
        now_us += step_us
        if stood.next_due_us <= now_us:
            if paused:
                stood = resume(spec, stood.last, stood.next_due_us, now_us)
            else:
                stood = plan(
                    spec, stood.last, stood.next_due_us, now_us, rules=Rules(misfire_limit=5),
                    blackout=lambda at_us: closed,
                )  # fmt: skip
        assert ahead(spec, stood.last, stood.next_due_us, now_us) is None
        if later_jitter_s is not None:
            changed = dataclasses.replace(spec, jitter_us=round(later_jitter_s * SECOND_US))
            assert ahead(changed, stood.last, stood.next_due_us, now_us) is None


@pytest.mark.parametrize("schedule", ["second", "hour", "week", "hourly", "twice"])
def test_an_entry_that_was_never_sent_and_waits_beyond_what_is_to_come_is_ahead(schedule: str) -> None:
    """It was made, resumed or passed over while the clock was ahead; a step of seconds is waited out."""
    spec = entry(SCHEDULES[schedule], NOW_US + 30 * DAY_US)
    coming = first(spec, NOW_US + 30 * DAY_US)
    found = ahead(spec, LastRun(), coming.next_due_us, NOW_US)
    assert found is not None and found.owed_us < NOW_US + 8 * DAY_US
    fresh, anew = begin_anew(spec, LastRun(), NOW_US, spec.epoch + 5)
    assert (anew.next_due_us, fresh.anchor_us, fresh.epoch) == (found.owed_us, NOW_US, spec.epoch + 6)
    assert ahead(fresh, anew.last, anew.next_due_us, NOW_US) is None
    soon_us = NOW_US + 20 * SECOND_US
    spec = entry(SCHEDULES[schedule], soon_us)
    assert ahead(spec, LastRun(), first(spec, soon_us).next_due_us, NOW_US) is None


def test_a_grid_that_begins_later_stays_where_it_begins() -> None:
    """An entry whose start is to come is not ahead, and a new life does not change when it starts."""
    start = from_us(NOW_US) + timedelta(days=10)
    spec = entry(3600.0, start=start)
    assert ahead(spec, LastRun(), first(spec, NOW_US).next_due_us, NOW_US) is None
    fresh, coming = begin_anew(spec, LastRun(), NOW_US, 0)
    assert fresh.anchor_us == spec.start_us == coming.next_due_us


def test_what_is_on_record_of_moments_to_come_goes_and_the_rest_stays() -> None:
    """So nothing of it binds the new life, and what was sent counts."""
    spec = entry(3600.0, count=5)
    last = LastRun(
        nominal_us=NOW_US + HOUR_US, fired_us=NOW_US + HOUR_US, cause="schedule", task_id="t", fired=3, missed=2,
        missed_total=9, held="overlap", held_us=NOW_US + 2 * HOUR_US, buffered_us=NOW_US + 2 * HOUR_US,
        asked_us=NOW_US + 1, rest={"newer": 1},
    )  # fmt: skip
    _, coming = begin_anew(spec, last, NOW_US, 0)
    assert coming.last == LastRun(
        next_nominal_us=coming.next_nominal_us, fired_us=NOW_US + HOUR_US, cause="schedule", task_id="t", fired=3,
        missed_total=9, rest={"newer": 1},
    )  # fmt: skip
    before = dataclasses.replace(
        last, nominal_us=NOW_US - 2, held_us=NOW_US - 1, buffered_us=NOW_US - 1, asked_us=NOW_US - 1
    )
    _, coming = begin_anew(spec, before, NOW_US, 0)
    assert coming.last == dataclasses.replace(before, next_nominal_us=coming.next_nominal_us)


@pytest.mark.parametrize(
    ("rules", "fired", "owed"),
    [({}, 1, True), ({"count": 1}, 1, False), ({"end": from_us(NOW_US)}, 1, False)],
    ids=["moment", "count", "end"],
)
def test_one_that_has_run_out_is_ahead_if_something_of_it_is_to_come(
    rules: dict[str, Any], fired: int, owed: bool
) -> None:
    """A single moment that was sent before its time; not what has reached its count or its end."""
    spec = entry(SCHEDULES["once"], **rules)
    moment_us = first(entry(SCHEDULES["once"]), NOW_US).next_due_us
    found = ahead(spec, LastRun(nominal_us=moment_us, fired=fired), None, NOW_US)
    assert (found is not None and (found.waits_us, found.owed_us) == (None, moment_us)) == owed
    assert ahead(spec, LastRun(nominal_us=NOW_US, fired=fired), None, NOW_US) is None


def test_a_changed_schedule_that_waits_for_its_first_occurrence_is_not_ahead() -> None:
    """Though it was sent for a moment to come before, nothing of it is kept waiting."""
    spec = entry(SCHEDULES["yearly"])
    last = LastRun(nominal_us=NOW_US + DAY_US, fired=1)
    assert ahead(spec, last, first(spec, NOW_US, last=last).next_due_us, NOW_US) is None


def test_what_holds_an_entry_by_a_moment_to_come_is_told_by_who_sees_it() -> None:
    """A claim that was made while the clock was ahead: the entry's own moment may have passed."""
    spec = entry(3600.0)
    found = ahead(spec, LastRun(), NOW_US - HOUR_US, NOW_US, stuck_us=NOW_US + DAY_US)
    assert found is not None and found.waits_us == NOW_US + DAY_US
    assert found.owed_us == due_of(spec, found.owed_us) == first(spec, NOW_US).next_due_us
