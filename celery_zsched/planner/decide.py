"""Decisions about one entry: (entry, what happened last, now, rules) -> what to send, and what comes next.

Nothing here looks at a clock or a server; whoever acts on a plan passes in the server's time. A plan can be made again
from the same values and is then the same, so a beat that dies between any two steps leaves nothing that another could
decide differently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from celery_zsched.entry import Cause, EntrySpec, LastRun
from celery_zsched.errors import ScheduleError
from celery_zsched.planner.occurrences import count_reached, due_of, due_until, expires_of, next_nominal, pending
from celery_zsched.triggers import DEFAULT_ZONE, Crontab
from celery_zsched.types import SECOND_US, from_us

#: An occurrence that is sent later than this, or later than half way to its next, has missed its time.
ON_TIME_US = 60 * SECOND_US

#: Why an occurrence that was due is not sent.
Reason = Literal["misfire", "overlap", "blackout", "buffered", "paused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What holds for entries that do not say otherwise (the app's settings)."""

    misfire: str = "once"
    grace_us: int | None = None
    #: In its place for entries with Celery's ``crontab``, where it is set.
    crontab_grace_us: int | None = None
    misfire_limit: int = 100
    overlap: str = "allow"

    def grace_of(self, spec: EntrySpec) -> int | None:
        """Return how late an occurrence of an entry may run that does not say so itself; None for however late."""
        if self.crontab_grace_us is not None and spec.trigger.kind == Crontab.kind:
            return self.crontab_grace_us
        return self.grace_us


@dataclass(frozen=True, slots=True)
class Send:
    """An occurrence to send."""

    nominal_us: int
    cause: Cause
    #: How many occurrences before it were due and are not sent.
    missed: int
    #: When its message is of no more use.
    expires_us: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send now, in this order, and where the entry stands afterwards."""

    sends: tuple[Send, ...]
    #: The occurrence to come and the moment it is due (nominal and jitter); ``None`` when the entry is finished.
    next_nominal_us: int | None
    next_due_us: int | None
    #: What to record once everything is sent; the sender fills in ``task_id`` and ``fired_us``.
    last: LastRun
    #: The newest occurrence that was due and is not sent, and why.
    held: tuple[int, Reason] | None = None

    @property
    def finished(self) -> bool:
        """Whether no occurrence is to come."""
        return self.next_due_us is None


def first(spec: EntrySpec, now_us: int, *, zone: str = DEFAULT_ZONE, last: LastRun | None = None) -> Plan:
    """Return the plan of an entry that is installed or changed: nothing to send, its first future occurrence."""
    last = last or LastRun()
    after_us = max(now_us, last.nominal_us) if last.nominal_us is not None else now_us
    return _upcoming(spec, after_us, now_us, zone, last)


def plan(
    spec: EntrySpec,
    last: LastRun,
    due_us: int,
    now_us: int,
    *,
    zone: str = DEFAULT_ZONE,
    rules: Rules | None = None,
    running: bool = False,
    blackout: Callable[[int], bool] | None = None,
) -> Plan:
    """Decide about an entry whose moment ``due_us`` on the timeline has come.

    ``running`` says that its last run goes on; ``blackout`` answers whether an instant lies in one of its windows.
    The next due is later than ``due_us`` and later than ``now_us``; :class:`ScheduleError` when the trigger cannot
    answer.
    """
    if count_reached(spec, last):
        return over(last)
    rules = rules or Rules()
    nominal_us = pending(spec, last, due_us, zone=zone)
    real_due_us = due_of(spec, nominal_us, zone=zone)
    if real_due_us > now_us:
        # Claimed too early, by a moment written by hand or a clock that was set back.
        return Plan((), nominal_us, real_due_us, dataclasses.replace(last, next_nominal_us=nominal_us))
    due, total, following_us = due_until(spec, nominal_us, now_us, zone, spec.misfire_limit or rules.misfire_limit)
    held: Reason = "misfire"
    allowed = due
    if blackout is not None and due:
        allowed = [] if blackout(now_us) else [at_us for at_us in due if not blackout(at_us)]
        held = "blackout" if due[-1] not in allowed else held
    chosen, buffered_us = _choose(spec, allowed, now_us, zone, rules), last.buffered_us
    if not chosen and last.asked_us is not None and last.asked_us in allowed:
        chosen = [last.asked_us]  # an operator's word stands above the misfire rule
    overlap = spec.overlap or rules.overlap
    if overlap == "skip" and (running or len(chosen) > 1):
        chosen, held = [] if running else chosen[:1], "overlap"
    elif overlap == "buffer_one":
        # What was kept back goes first; of all that cannot go now, the newest is kept back.
        queue = chosen if buffered_us is None or buffered_us in chosen else [buffered_us, *chosen]
        chosen, queue = ([], queue) if running else (queue[:1], queue[1:])
        buffered_us, held = (queue[-1], "buffered") if queue else (None, held)
    if spec.count is not None and len(chosen) > spec.count - last.fired:
        # What is beyond the last that may be sent is no occurrence of the entry, so it is not missed.
        chosen = chosen[: spec.count - last.fired]
        beyond = len([at_us for at_us in due if at_us > chosen[-1]])
        due, total = due[: len(due) - beyond], total - beyond
    result = _conclude(spec, last, due, total, chosen, held, buffered_us, following_us, now_us, zone)
    if result.next_due_us is not None and result.next_due_us <= max(due_us, now_us):
        raise ScheduleError(
            f"the entry {spec.name!r} was due at {from_us(due_us).isoformat()} and would be due next at "
            f"{from_us(result.next_due_us).isoformat()}, which is not later"
        )
    return result


def over(last: LastRun) -> Plan:
    """Return the plan of an entry that has been sent as often as it may be: nothing, what was kept back neither."""
    return Plan((), None, None, last.but(next_nominal_us=None, buffered_us=None, asked_us=None, failures=0, error=None))


def release_buffered(spec: EntrySpec, last: LastRun, coming: Plan, now_us: int, *, zone: str = DEFAULT_ZONE) -> Plan:
    """Return the plan for the moment at which a run has ended: send what ``buffer_one`` kept back, if anything.

    ``coming`` is the plan that only waits for the next occurrence: the one on record may be of an older schedule.
    """
    if last.buffered_us is None:
        return coming
    return _conclude(spec, last, [], 0, [last.buffered_us], "buffered", None, coming.next_nominal_us, now_us, zone)


def resume(
    spec: EntrySpec, last: LastRun, due_us: int, now_us: int, *, zone: str = DEFAULT_ZONE, catch_up: bool = False
) -> Plan:
    """Return the plan of an entry that is resumed: its next future occurrence; with ``catch_up`` one run at once.

    ``due_us`` is the moment for which it was waiting when it was paused. The run stands for the newest occurrence that
    the pause has swallowed; if it has swallowed none, there is no run.
    """
    if count_reached(spec, last):
        return over(last)
    waiting_us = pending(spec, last, due_us, zone=zone)
    due, total, _ = due_until(spec, waiting_us, now_us, zone, 1)
    following_us = _upcoming(spec, due[-1] if due else waiting_us - 1, now_us, zone, last).next_nominal_us
    chosen = due if catch_up else []
    return _conclude(spec, last, due, total, chosen, "paused", last.buffered_us, following_us, now_us, zone)


def _upcoming(spec: EntrySpec, after_us: int, now_us: int, zone: str, last: LastRun) -> Plan:
    """Return the plan that only waits: for the first occurrence after ``after_us`` that is due later than now."""
    nominal_us = next_nominal(spec, after_us, zone=zone, fired=last.fired)
    while nominal_us is not None:
        due_us = due_of(spec, nominal_us, zone=zone)
        if due_us > now_us:
            return Plan((), nominal_us, due_us, dataclasses.replace(last, next_nominal_us=nominal_us))
        # An occurrence from before now may be due later, by its jitter.
        nominal_us = next_nominal(spec, max(nominal_us, now_us - spec.jitter_us - 1), zone=zone, fired=last.fired)
    return Plan((), None, None, dataclasses.replace(last, next_nominal_us=None))


def _choose(spec: EntrySpec, newest: list[int], now_us: int, zone: str, rules: Rules) -> list[int]:
    """Return which of the occurrences that are due the misfire rule lets run."""
    grace_us = spec.grace_us if spec.grace_us is not None else rules.grace_of(spec)
    if grace_us is not None:
        newest = [at_us for at_us in newest if now_us - due_of(spec, at_us, zone=zone) <= grace_us]
    if spec.expires_at_us is not None and spec.expires_at_us <= now_us:
        return []  # nobody would run it
    policy = spec.misfire or rules.misfire
    if policy == "all":
        return newest
    if policy == "skip" and newest and grace_us is None:
        following_us = next_nominal(spec, newest[-1], zone=zone)
        return newest[-1:] if _on_time(spec, newest[-1], following_us, now_us, zone) else []
    return newest[-1:]


def _on_time(spec: EntrySpec, nominal_us: int, following_us: int | None, now_us: int, zone: str) -> bool:
    """Return whether an occurrence that is sent now, ``following_us`` being the next, counts as sent in its time."""
    late_us = now_us - due_of(spec, nominal_us, zone=zone)
    return late_us <= ON_TIME_US and (following_us is None or late_us <= (following_us - nominal_us) // 2)


def _conclude(
    spec: EntrySpec, last: LastRun, due: list[int], total: int, chosen: list[int], held: Reason,
    buffered_us: int | None, following_us: int | None, now_us: int, zone: str,
) -> Plan:  # fmt: skip
    """Put a plan together: ``due`` are the newest of the ``total`` occurrences due, ``chosen`` those to be sent.

    ``following_us`` is the first occurrence that is not due yet.
    """
    kept = 0 if buffered_us is None or buffered_us == last.buffered_us else 1
    dropped = 1 if last.buffered_us not in (None, buffered_us, *chosen) else 0
    missed = total - len([at_us for at_us in chosen if at_us != last.buffered_us]) - kept + dropped
    expires_us = expires_of(spec, now_us, following_us, zone=zone)
    sends: list[Send] = []
    for at_us in chosen:
        in_time = at_us == last.buffered_us or (at_us == due[-1] and _on_time(spec, at_us, following_us, now_us, zone))
        stands_for = 0 if sends else last.missed + missed
        sends.append(Send(at_us, "schedule" if in_time else "catch-up", stands_for, expires_us))
    if spec.count is not None and last.fired + len(sends) >= spec.count:
        following_us = None
    news: dict[str, Any] = {
        "next_nominal_us": following_us,
        "missed": 0 if sends else last.missed + missed,
        "missed_total": last.missed_total + missed,
        "buffered_us": buffered_us,
        "asked_us": None,
        "failures": 0,
        "error": None,
    }
    unsent = [at_us for at_us in due if at_us not in chosen]
    if unsent:
        news.update(held_us=unsent[-1], held=held)
    if sends:
        newest, fired = sends[-1], last.fired + len(sends)
        news.update(nominal_us=newest.nominal_us, fired_us=now_us, cause=newest.cause, task_id=None, fired=fired)
    next_due_us = None if following_us is None else due_of(spec, following_us, zone=zone)
    return Plan(tuple(sends), following_us, next_due_us, last.but(**news), (unsent[-1], held) if unsent else None)
