"""Every so often, on a grid that neither restarts nor lateness can move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.base import Trigger, take
from celery_zsched.triggers.wallclock import DAY_S, zone_table
from celery_zsched.types import SECOND_US

#: A shorter interval is a mistake: no beat and no broker keeps up with it.
SHORTEST_US = 1_000

_DAY_US = DAY_S * SECOND_US

#: Celery's resolutions of a ``relative`` schedule, coarsest first.
_RESOLUTIONS_US = (_DAY_US, 3_600 * SECOND_US, 60 * SECOND_US, SECOND_US)


@dataclass(frozen=True, slots=True)
class Interval(Trigger):
    """Due at ``anchor + k * every``, for every whole ``k``.

    ``relative`` is Celery's: the grid stands on whole days, hours, minutes or seconds of the wall clock in ``zone``,
    whichever is the coarsest that the interval reaches, and the interval is cut to whole ones of them.
    """

    kind: ClassVar[str] = "interval"

    every_us: int
    relative: bool = False
    zone: str | None = None

    def __post_init__(self) -> None:
        if self.every_us < SHORTEST_US:
            raise ScheduleError(
                f"an interval of {self.every_us / SECOND_US:g} s cannot be kept; "
                f"give at least {SHORTEST_US / SECOND_US:g} s"
            )
        if self.zone is not None:
            zone_table(self.zone)

    @classmethod
    def of(cls, every: float | timedelta, *, relative: bool = False, zone: str | None = None) -> Interval:
        """Make an interval from seconds or a timedelta, to the microsecond."""
        if isinstance(every, timedelta):
            every_us = every // timedelta(microseconds=1)
        elif isinstance(every, bool) or not isinstance(every, (int, float)):
            raise ScheduleError(f"an interval is a number of seconds or a timedelta, not {every!r}")
        elif not math.isfinite(every):
            raise ScheduleError(f"an interval of {every!r} seconds is never over; give a finite number")
        else:
            every_us = round(every * SECOND_US)
        return cls(every_us, relative, zone)

    @property
    def zoned(self) -> bool:
        return self.relative

    def _resolution_us(self) -> int:
        return next((step for step in _RESOLUTIONS_US if self.every_us >= step), 1)

    def in_zone(self, zone: str) -> Interval:
        if self.zone is None and self.relative:
            return Interval(self.every_us, self.relative, zone)
        return self

    def compute(self, instant_us: int, *, anchor_us: int | None, zone: str) -> int | None:
        anchor_us, every_us = anchor_us or 0, self.every_us
        if self.relative:
            resolution_us = self._resolution_us()
            every_us -= every_us % resolution_us
            table = zone_table(zone)
            anchor_s = anchor_us // SECOND_US
            wall_us = (anchor_s + table.offset(anchor_s)) * SECOND_US
            wall_us -= wall_us % resolution_us
            if resolution_us == _DAY_US:
                # Whole days are days of the calendar, 23 or 25 hours long when the clock changes.
                first_s, every_s = wall_us // SECOND_US, every_us // SECOND_US
                due_s = table.next_instant(
                    lambda wall: wall + every_s - (wall - first_s) % every_s, instant_us // SECOND_US, real=False
                )
                return None if due_s is None else due_s * SECOND_US
            anchor_us = wall_us - table.offset(anchor_s) * SECOND_US
        return instant_us + every_us - (instant_us - anchor_us) % every_us

    def notices(self) -> list[str]:
        if self.relative and (rest_us := self.every_us % self._resolution_us()):
            every, kept = timedelta(microseconds=self.every_us), timedelta(microseconds=self.every_us - rest_us)
            return [f"a relative interval of {every} fires every {kept}, as in Celery"]
        return []

    def to_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"every_us": self.every_us}
        if self.relative:
            fields["relative"] = True
        if self.zone is not None:
            fields["zone"] = self.zone
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Interval:
        take(fields, cls.kind, {"every_us": int}, {"relative": bool, "zone": str})
        return cls(fields["every_us"], fields.get("relative", False), fields.get("zone"))

    def __str__(self) -> str:
        every = timedelta(microseconds=self.every_us)
        return f"every {every}{' on the clock' if self.relative else ''}"
