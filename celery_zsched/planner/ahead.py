"""An entry that is ahead of the clock: it fired, or was put in order, while the server's clock was ahead.

Its next occurrence counts from a moment that is still to come, so nothing of it is sent until the clock has caught up.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from celery_zsched.entry import EntrySpec, LastRun
from celery_zsched.planner.decide import Plan, first
from celery_zsched.planner.occurrences import next_nominal
from celery_zsched.triggers import DEFAULT_ZONE
from celery_zsched.types import SECOND_US

#: An entry that is ahead of the clock by no more than this, in microseconds, is left to wait it out.
LEAST_US = 60 * SECOND_US


@dataclass(frozen=True, slots=True)
class Ahead:
    """An entry is ahead of the clock: it waits until one moment and should be due at an earlier one."""

    #: None for an entry that has run out, and has something to come by the clock.
    waits_us: int | None
    owed_us: int


def ahead(
    spec: EntrySpec,
    last: LastRun,
    due_us: int | None,
    now_us: int,
    *,
    zone: str = DEFAULT_ZONE,
    stuck_us: int | None = None,
) -> Ahead | None:
    """Return by how much an entry that waits for ``due_us`` is ahead of the clock; None if it is not.

    ``due_us`` is None for one that has run out. ``stuck_us`` says that something which holds it back has a moment that
    no clock can have given it by now. An entry of which nothing else is known is ahead if it waits beyond an occurrence
    that it should be due for; one that was never sent, that begins later, or is due later by its jitter is not.
    """
    _, owed = begin_anew(spec, last, now_us, 0, zone=zone)
    if owed.next_nominal_us is None or owed.next_due_us is None:
        return None
    if stuck_us is not None:
        return Ahead(stuck_us, owed.next_due_us)
    if due_us is None:
        return Ahead(None, owed.next_due_us) if _is_far(last.nominal_us, now_us) else None
    if due_us <= owed.next_due_us:
        return None
    made_ahead = _is_far(spec.epoch, now_us) and _is_far(spec.anchor_us, now_us) and spec.anchor_us != spec.start_us
    if made_ahead or _is_far(last.nominal_us, now_us) or _passes_over(spec, due_us, owed, zone):
        return Ahead(due_us, owed.next_due_us)
    return None


def begin_anew(
    spec: EntrySpec, last: LastRun, now_us: int, above: int, *, zone: str = DEFAULT_ZONE
) -> tuple[EntrySpec, Plan]:
    """Return an entry at the beginning of a new life, of a higher epoch than ``above``, and the plan that it waits by.

    Its grid stays where it stands, unless that is in what is still to come. How often it was sent stays on record, and
    so counts towards its count; what is on record of moments to come does not.
    """
    anchor_us = spec.anchor_us
    if anchor_us is not None and anchor_us > now_us and anchor_us != spec.start_us:
        anchor_us = now_us
    fresh = dataclasses.replace(spec, anchor_us=anchor_us, epoch=max(spec.epoch, above) + 1)
    return fresh, first(fresh, now_us, zone=zone, last=_by_the_clock(last, now_us))


def _by_the_clock(last: LastRun, now_us: int) -> LastRun:
    """Return the record without the occurrences that are still to come by the clock."""

    def past(at_us: int | None) -> int | None:
        return None if at_us is None or at_us > now_us else at_us

    ahead_of_it = last.nominal_us != past(last.nominal_us) or last.held_us != past(last.held_us)
    return last.but(
        nominal_us=past(last.nominal_us),
        held=last.held if past(last.held_us) is not None else None,
        held_us=past(last.held_us),
        buffered_us=past(last.buffered_us),
        asked_us=past(last.asked_us),
        missed=0 if ahead_of_it else last.missed,
    )


def _is_far(at_us: int | None, now_us: int) -> bool:
    return at_us is not None and at_us > now_us + LEAST_US


def _passes_over(spec: EntrySpec, due_us: int, owed: Plan, zone: str) -> bool:
    """Return whether an entry waits for a later occurrence than the one after that which it should be due for.

    So a jitter that was changed while it waits, which moves it by less than to the next occurrence, is told from it. A
    class of the user's need not answer twice the same, so it proves nothing.
    """
    if spec.trigger.kind == "custom" or owed.next_nominal_us is None or owed.next_due_us is None:
        return False
    following_us = next_nominal(spec, owed.next_nominal_us, zone=zone)
    return following_us is not None and due_us >= following_us and due_us > owed.next_due_us + LEAST_US
