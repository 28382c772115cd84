"""Cron text as in crontab(5): ``30 9 * * 1-5``, optionally with seconds first, ``L``, ``LW``, ``5L`` and ``1#2``.

cronsim reads the text and says which days it takes; its own walk through time is not used, because the rule at clock
changes is the same for all our kinds. Day of month and day of week: either is enough, unless one of the two begins with
``*``, as in Debian's cron.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, ClassVar

from cronsim import CronSim, CronSimError

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.base import Trigger, take
from celery_zsched.triggers.cronfields import CronFields
from celery_zsched.triggers.crontab import step_notices
from celery_zsched.triggers.wallclock import zone_table
from celery_zsched.types import SECOND_US

#: The names that cron(8) knows.
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@functools.lru_cache(maxsize=4096)
def _compile(text: str) -> CronFields:
    try:
        parsed = CronSim(NICKNAMES.get(text.lower(), text), datetime(2000, 1, 1, tzinfo=timezone.utc))
    except CronSimError as exc:
        raise ScheduleError(f"the cron text {text!r} cannot be read, or can never match: {exc}") from None

    def pick_days(first: date, length: int) -> tuple[int, ...]:
        return tuple(day for day in range(1, length + 1) if parsed.match_day(first.replace(day=day)))

    fields = CronFields(parsed.minutes, parsed.hours, parsed.months, pick_days, parsed.seconds)
    if not fields.possible():
        raise ScheduleError(f"the cron text {text!r} can never match: no month it names has such a day")
    return fields


@dataclass(frozen=True, slots=True)
class CronText(Trigger):
    """A crontab(5) line's five fields (or six, seconds first), or a nickname such as ``@daily``."""

    kind: ClassVar[str] = "cron"

    text: str
    zone: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ScheduleError(f"cron text is a string such as '30 9 * * 1-5', not {self.text!r}")
        object.__setattr__(self, "text", " ".join(self.text.split()))
        _compile(self.text)
        if self.zone is not None:
            zone_table(self.zone)

    @property
    def zoned(self) -> bool:
        return True

    @property
    def _fields(self) -> list[str]:
        return NICKNAMES.get(self.text.lower(), self.text).split()

    @property
    def follows_real_time(self) -> bool:
        """Whether the minute or the hour begins with ``*`` (see :mod:`.wallclock`)."""
        minute, hour = self._fields[-5:-3]
        return minute.startswith("*") or hour.startswith("*")

    def in_zone(self, zone: str) -> CronText:
        return CronText(self.text, zone) if self.zone is None else self

    def compute(self, instant_us: int, *, anchor_us: int | None, zone: str) -> int | None:
        due = zone_table(zone).next_instant(
            _compile(self.text).next_wall, instant_us // SECOND_US, real=self.follows_real_time
        )
        return None if due is None else due * SECOND_US

    def notices(self) -> list[str]:
        minute, hour, day_of_month, month, day_of_week = self._fields[-5:]
        notices = step_notices(
            {
                "minute": minute,
                "hour": hour,
                "day_of_month": day_of_month,
                "month_of_year": month,
                "day_of_week": day_of_week,
            }
        )
        if day_of_month != "*" and day_of_week != "*":
            both = day_of_month.startswith("*") or day_of_week.startswith("*")
            notices.append(
                f"day of month {day_of_month!r} and day of week {day_of_week!r}: "
                + ("both must match, since one begins with '*'" if both else "either is enough, as in crontab(5)")
                + "; Celery's crontab always wants both"
            )
        return notices

    def to_fields(self) -> dict[str, Any]:
        return {"text": self.text} if self.zone is None else {"text": self.text, "zone": self.zone}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> CronText:
        take(fields, cls.kind, {"text": str}, {"zone": str})
        return cls(fields["text"], fields.get("zone"))

    def __str__(self) -> str:
        return f"cron {self.text!r}{f' {self.zone}' if self.zone else ''}"
