"""The plan of an entry whose runs may not overlap."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from celery_zsched.entry import EntrySpec, LastRun, build
from celery_zsched.planner import Plan, plan_alone
from celery_zsched.types import SECOND_US

MINUTE_US = 60 * SECOND_US
START_US = 1_700_000_040 * SECOND_US


def entry(**rules: Any) -> EntrySpec:
    """Return a one-minute entry that was installed at START_US."""
    return build("e", "app.t", timedelta(minutes=1), **rules).installed(START_US)


def at(minutes: float) -> int:
    """Return the moment so many minutes after the start."""
    return START_US + round(minutes * MINUTE_US)


def decide(spec: EntrySpec, last: LastRun, due: float, now: float, *outstanding: float) -> Plan:
    """Plan with runs of these occurrences outstanding; all times in minutes."""
    ids = [str(at(minutes)) for minutes in outstanding]
    return plan_alone(spec, last, at(due), at(now), outstanding=ids, id_of=str)


def sent(plan: Plan) -> list[float]:
    """Return the occurrences that a plan sends, in minutes."""
    return [(send.nominal_us - START_US) / MINUTE_US for send in plan.sends]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
def test_nothing_outstanding_sends(overlap: str) -> None:
    """An entry whose last run is over is sent as any other."""
    plan = decide(entry(overlap=overlap), LastRun(next_nominal_us=at(1)), 1, 1)
    assert sent(plan) == [1]
    assert plan.next_due_us == at(2)


def test_skip_drops_what_would_overlap() -> None:
    """While a run is outstanding an occurrence is not sent, and the next one counts it as missed."""
    spec = entry(overlap="skip")
    plan = decide(spec, LastRun(next_nominal_us=at(2), nominal_us=at(1), fired=1), 2, 2, 1)
    assert sent(plan) == []
    assert plan.held == (at(2), "overlap")
    after = decide(spec, plan.last, 3, 3)
    assert sent(after) == [3]
    assert after.sends[0].missed == 1


def test_what_is_half_sent_is_sent_again() -> None:
    """A scheduler that takes over from one that died while sending is not kept from it by the dead one's mark."""
    assert sent(decide(entry(overlap="skip"), LastRun(next_nominal_us=at(1)), 1, 1.1, 1)) == [1]


def test_what_is_half_sent_keeps_back_a_later_one() -> None:
    """Where a later occurrence would go in its place, what may have been sent counts as a run."""
    assert sent(decide(entry(overlap="skip"), LastRun(next_nominal_us=at(1)), 1, 3.1, 1)) == []


def test_buffer_one_sends_when_the_run_ends() -> None:
    """The occurrence that was kept back goes at the moment at which the run has ended, and the next due stays."""
    spec = entry(overlap="buffer_one")
    held = decide(spec, LastRun(next_nominal_us=at(2), nominal_us=at(1), fired=1), 2, 2, 1)
    assert held.last.buffered_us == at(2)
    assert held.next_due_us == at(3)
    still = decide(spec, held.last, 2.3, 2.3, 1)
    assert sent(still) == []
    assert still.next_due_us == at(3)
    freed = decide(spec, still.last, 2.5, 2.5)
    assert sent(freed) == [2]
    assert freed.next_due_us == at(3)
    assert freed.last.buffered_us is None


def test_buffer_one_called_late_sends_the_kept_one_first() -> None:
    """If the next occurrence is due too by the time the entry is looked at, it waits for the one kept back."""
    spec = entry(overlap="buffer_one")
    last = LastRun(next_nominal_us=at(3), nominal_us=at(1), fired=1, buffered_us=at(2))
    plan = decide(spec, last, 2.5, 3.2)
    assert sent(plan) == [2]
    assert plan.last.buffered_us == at(3)
    assert plan.next_due_us == at(4)


def test_the_last_occurrence_is_kept_back_too() -> None:
    """An entry that has come to its end stays until what it kept back was sent."""
    spec = replace(entry(overlap="buffer_one"), end_us=at(2))
    held = decide(spec, LastRun(next_nominal_us=at(2), nominal_us=at(1), fired=1), 2, 2, 1)
    assert held.last.buffered_us == at(2)
    assert not held.finished
    still = decide(spec, held.last, 2.5, 2.5, 1)
    assert not still.finished
    done = decide(spec, still.last, 2.7, 2.7)
    assert sent(done) == [2]
    assert done.finished


def test_a_schedule_that_was_changed_meanwhile_counts() -> None:
    """With an occurrence kept back, the first due of a new schedule is an occurrence, not the end of a run."""
    spec = build("e", "app.t", timedelta(seconds=30), overlap="buffer_one").installed(at(2.1))
    last = LastRun(next_nominal_us=at(60), nominal_us=at(1), fired=1, buffered_us=at(2))
    plan = decide(spec, last, 2.6, 2.6, 1)
    assert sent(plan) == []
    assert plan.last.buffered_us == at(2.6)
    assert plan.next_due_us == at(3.1)
