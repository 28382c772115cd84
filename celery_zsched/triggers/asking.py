"""Asking a schedule class of Celery's kind when it is due: by ``is_due``, as a beat would, but without its floods.

Such a class mostly computes with wall times, by Celery's arithmetic or by its own, and where an hour of the wall clock
is repeated, the next due that it computes may lie in the past: it is then due at every question. Two things guard
against that:

- a crontab of another class is asked on a clock without changes, of one offset all the time, and the wall time that it
  answers with becomes an instant by our one rule (see :mod:`.wallclock`), as a plain crontab's does. So is any class
  that has an attribute ``follows_real_time``, which says which half of the rule is meant;
- any class that is due again at the very moment of its last run has lost its way, and is asked from later moments
  on until it is not. What it would have been due at in between is not made up for.
"""

from __future__ import annotations

import contextlib
import copy
import math
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, crontab

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.wallclock import zone_table
from celery_zsched.types import SECOND_US, from_us

#: How often a schedule is asked before it counts as never due.
_MOST_QUESTIONS = 1_000

#: The shortest step between two questions, and from a run to the next of a class that is always due.
_SHORTEST_STEP_US = 1_000
_ALWAYS_DUE_STEP_US = SECOND_US

#: In which steps, and how far, a class is followed that has lost its way: no clock is put back by more than a day.
_STRAY_STEP_US = 60 * SECOND_US
_STRAY_MOST_US = 25 * 3_600 * SECOND_US


def ask(schedule: Any, instant_us: int, zone: str) -> int | None:
    """Return the first due instant of a schedule object after another; ``None`` when there is none any more.

    :class:`~celery_zsched.errors.ScheduleError` for a class that is never due.
    """
    # A copy, since other threads may be asking the same object at another moment.
    schedule = copy.copy(schedule)
    table = zone_table(zone)
    real = _follows_real_time(schedule)
    if real is None:
        return _Questions(schedule, table.zone).due_after(instant_us)

    def next_wall(wall: int) -> int:
        offset = table.offset(table.instant(wall))
        still = timezone(timedelta(seconds=offset))
        due_us = _Questions(schedule, still).due_after((wall - offset) * SECOND_US)
        return -(-due_us // SECOND_US) + offset

    due = table.next_instant(next_wall, instant_us // SECOND_US, real=real)
    return None if due is None else due * SECOND_US


def _follows_real_time(schedule: Any) -> bool | None:
    """Return whether a class is due in both passes of a repeated hour; None where that is its own affair."""
    told = getattr(schedule, "follows_real_time", None)
    if told is None and isinstance(schedule, crontab):
        return any(str(getattr(schedule, name, "")).startswith("*") for name in ("_orig_minute", "_orig_hour"))
    return None if told is None else bool(told)


class _Questions:
    """A schedule object of our own, whose clock is put where it shall be asked."""

    def __init__(self, schedule: Any, zone: tzinfo) -> None:
        self._schedule = schedule
        self._zone = zone
        if isinstance(schedule, BaseSchedule):
            # The class's own, where it does not let itself be told.
            with contextlib.suppress(AttributeError):
                schedule.tz = zone

    def _moment(self, instant_us: int) -> datetime:
        return from_us(instant_us).astimezone(self._zone)

    def _is_due(self, last_us: int, now_us: int) -> tuple[bool, int]:
        """Return whether it is due at ``now_us`` if it ran last at ``last_us``, and when to ask again."""
        now = self._moment(now_us)
        self._schedule.nowfun = lambda: now
        due, again_s = self._schedule.is_due(self._moment(last_us))
        if isinstance(again_s, timedelta):
            again_s = again_s.total_seconds()
        return bool(due), now_us + max(math.ceil(again_s * SECOND_US), _SHORTEST_STEP_US)

    def due_after(self, instant_us: int) -> int:
        """Return the first moment after ``instant_us`` at which it is due, if it ran last at that instant."""
        last_us = now_us = instant_us
        due, again_us = self._is_due(last_us, now_us)
        if due:
            found_us = self._way_back(instant_us)
            if found_us is None:
                return max(again_us, instant_us + _ALWAYS_DUE_STEP_US)
            last_us, now_us = found_us, found_us
            due, again_us = self._is_due(last_us, now_us)
        for _ in range(_MOST_QUESTIONS):
            now_us = again_us
            due, again_us = self._is_due(last_us, now_us)
            if due:
                return now_us
        raise ScheduleError(
            f"it is never due: asked {_MOST_QUESTIONS} times, up to {from_us(now_us).isoformat()}, it said no; its "
            "is_due must depend on last_run_at and self.now() alone, or the class needs a next_after"
        )

    def _way_back(self, instant_us: int) -> int | None:
        """Return the next moment at which it is not due again as soon as it has run; None if it always is."""
        for at_us in range(instant_us + _STRAY_STEP_US, instant_us + _STRAY_MOST_US, _STRAY_STEP_US):
            if not self._is_due(at_us, at_us)[0]:
                return at_us
        return None
