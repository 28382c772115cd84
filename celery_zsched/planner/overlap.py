"""The plan of an entry whose runs may not overlap: what is outstanding decides, and what waits goes when it is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from celery_zsched.entry import EntrySpec, LastRun
from celery_zsched.planner.decide import Plan, Rules, _upcoming, over, plan, release_buffered
from celery_zsched.planner.occurrences import count_reached, is_due
from celery_zsched.triggers import DEFAULT_ZONE

#: An entry that has nothing to come but what ``buffer_one`` keeps back waits so long at most before it is looked at.
LAST_WAIT_US = 3_600_000_000


def plan_alone(
    spec: EntrySpec,
    last: LastRun,
    due_us: int,
    now_us: int,
    *,
    outstanding: Collection[str],
    id_of: Callable[[int], str],
    zone: str = DEFAULT_ZONE,
    rules: Rules | None = None,
    blackout: Callable[[int], bool] | None = None,
) -> Plan:
    """Decide about an entry that is due, or whose last run has ended, so that no two of its runs overlap.

    ``outstanding`` are the ids of its runs that are not over, ``id_of`` gives the id of an occurrence. A run that is
    outstanding is no hindrance to itself: a scheduler that finds it half sent sends it again.
    """
    if count_reached(spec, last):
        return over(last)
    if last.buffered_us is not None and not is_due(spec, due_us, zone=zone):
        # Called by the end of a run, before any further occurrence was due.
        coming = _upcoming(spec, due_us - spec.jitter_us - 1, due_us, zone, last)
        if coming.next_due_us is None or coming.next_due_us > now_us:
            if set(outstanding) - {id_of(last.buffered_us)}:
                return _patient(coming, now_us)
            return release_buffered(spec, last, coming, now_us, zone=zone)
        due_us = coming.next_due_us
    free = plan(spec, last, due_us, now_us, zone=zone, rules=rules, blackout=blackout)
    if set(outstanding) - {id_of(send.nominal_us) for send in free.sends}:
        free = plan(spec, last, due_us, now_us, zone=zone, rules=rules, blackout=blackout, running=True)
    return _patient(free, now_us)


def _patient(decided: Plan, now_us: int) -> Plan:
    """Keep an entry on the timeline that has an occurrence kept back and none to come."""
    if decided.last.buffered_us is None or decided.next_due_us is not None:
        return decided
    return dataclasses.replace(decided, next_due_us=now_us + LAST_WAIT_US)
