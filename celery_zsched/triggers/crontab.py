"""Celery's crontab, with Celery's meaning: day of month and day of week must both match."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar

from celery.schedules import ParseException, crontab, crontab_parser

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.base import Trigger, take
from celery_zsched.triggers.cronfields import CronFields
from celery_zsched.triggers.wallclock import zone_table
from celery_zsched.types import SECOND_US

#: Field, number of values, first value: in the order of Celery's own arguments.
FIELDS = {
    "minute": (60, 0),
    "hour": (24, 0),
    "day_of_week": (7, 0),
    "day_of_month": (31, 1),
    "month_of_year": (12, 1),
}

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip

#: Every value of a field.
_ANY = "*"


def _number_months(text: str) -> str:
    """Write month names as numbers, since Celery before 5.7 does not know them."""

    def number(match: re.Match[str]) -> str:
        name = match[0].lower()
        found = [n for n, month in enumerate(_MONTHS, 1) if len(name) >= 3 and month.startswith(name)]
        return str(found[0]) if found else match[0]

    return re.sub(r"[A-Za-z]+", number, text)


def field_text(name: str, value: object) -> str:
    """Return a crontab field as text: a number, a pattern, or a collection of numbers as Celery takes them."""
    if value is None:
        return _ANY
    if isinstance(value, str):
        return _number_months(value) if name == "month_of_year" else value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, Iterable):
        numbers = list(value)
        if numbers and all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            return ",".join(map(str, sorted(set(numbers))))
    raise ScheduleError(
        f"the crontab field {name}={value!r} is neither a number, nor a pattern such as '*/15', nor a set of numbers"
    )


@functools.lru_cache(maxsize=4096)
def _numbers(name: str, text: str) -> frozenset[int]:
    count, first = FIELDS[name]
    try:
        numbers = frozenset(crontab_parser(count, first).parse(text))
    except (ParseException, ValueError, ZeroDivisionError, IndexError) as exc:
        raise ScheduleError(f"the crontab field {name}={text!r} cannot be read: {exc}") from None
    return numbers


@functools.lru_cache(maxsize=4096)
def _compile(minute: str, hour: str, day_of_week: str, day_of_month: str, month_of_year: str) -> CronFields:
    weekdays = _numbers("day_of_week", day_of_week)
    month_days = sorted(_numbers("day_of_month", day_of_month))

    def pick_days(first: date, length: int) -> tuple[int, ...]:
        # Celery counts Sunday as 0, date.weekday() Monday.
        offset = first.weekday() + 1
        return tuple(day for day in month_days if day <= length and (offset + day - 1) % 7 in weekdays)

    months = _numbers("month_of_year", month_of_year)
    fields = CronFields(_numbers("minute", minute), _numbers("hour", hour), months, pick_days)
    if not fields.possible():
        raise ScheduleError(
            f"this crontab can never match: day_of_month={day_of_month!r} does not occur in "
            f"month_of_year={month_of_year!r}; change one of them"
        )
    return fields


@dataclass(frozen=True, slots=True)
class Crontab(Trigger):
    """Celery's ``crontab``; the fields are in Celery's syntax, as text.

    Numbers and collections are taken too, as Celery takes them, and kept as text.
    """

    kind: ClassVar[str] = "crontab"

    minute: str = _ANY
    hour: str = _ANY
    day_of_week: str = _ANY
    day_of_month: str = _ANY
    month_of_year: str = _ANY
    zone: str | None = None

    def __post_init__(self) -> None:
        for name in FIELDS:
            object.__setattr__(self, name, field_text(name, getattr(self, name)))
        self._fields()
        if self.zone is not None:
            zone_table(self.zone)

    @classmethod
    def of(cls, schedule: Any, zone: str | None = None) -> Crontab:
        """Make a trigger of a Celery crontab; a subclass may have put other numbers in place of what was written."""
        fields: dict[str, Any] = {name: getattr(schedule, f"_orig_{name}") for name in FIELDS}
        for name, written in fields.items() if type(schedule) is not crontab else ():
            numbers = frozenset(getattr(schedule, name))
            if numbers != _numbers(name, field_text(name, written)):
                fields[name] = numbers
        return cls(**fields, zone=zone)

    def _fields(self) -> CronFields:
        return _compile(self.minute, self.hour, self.day_of_week, self.day_of_month, self.month_of_year)

    @property
    def zoned(self) -> bool:
        return True

    @property
    def follows_real_time(self) -> bool:
        """Whether the minute or the hour begins with ``*`` (see :mod:`.wallclock`)."""
        return self.minute.startswith(_ANY) or self.hour.startswith(_ANY)

    def in_zone(self, zone: str) -> Crontab:
        if self.zone is not None:
            return self
        return Crontab(self.minute, self.hour, self.day_of_week, self.day_of_month, self.month_of_year, zone)

    def compute(self, instant_us: int, *, anchor_us: int | None, zone: str) -> int | None:
        due = zone_table(zone).next_instant(
            self._fields().next_wall, instant_us // SECOND_US, real=self.follows_real_time
        )
        return None if due is None else due * SECOND_US

    def notices(self) -> list[str]:
        notices = step_notices({name: getattr(self, name) for name in FIELDS})
        if self.day_of_month != _ANY and self.day_of_week != _ANY:
            notices.append(
                f"day_of_month={self.day_of_month!r} and day_of_week={self.day_of_week!r} must both match, as always "
                "in Celery's crontab; crontab(5) would fire when either does (use cron text for that)"
            )
        return notices

    def to_fields(self) -> dict[str, Any]:
        fields = {name: value for name in FIELDS if (value := getattr(self, name)) != _ANY}
        if self.zone is not None:
            fields["zone"] = self.zone
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Crontab:
        take(fields, cls.kind, {}, _STORED)
        return _crontab(tuple(fields.items()))

    def __str__(self) -> str:
        text = f"crontab {self.minute} {self.hour} {self.day_of_month} {self.month_of_year} {self.day_of_week}"
        return f"{text} {self.zone}" if self.zone else text


#: The stored fields, all of them texts.
_STORED = {**dict.fromkeys(FIELDS, str), "zone": str}


@functools.lru_cache(maxsize=4096)
def _crontab(fields: tuple[tuple[str, str], ...]) -> Crontab:
    """Return the crontab of stored fields; a frozen value, which many entries may share."""
    return Crontab(**dict(fields))


#: What to use where a step of a crontab field cannot say it.
_INSTEAD = {
    "minute": ("minutes", "an interval of {n} minutes"),
    "hour": ("hours", "an interval of {n} hours"),
    "day_of_week": ("days", "an RRULE with FREQ=DAILY;INTERVAL={n}"),
    "day_of_month": ("days", "an RRULE with FREQ=DAILY;INTERVAL={n}"),
    "month_of_year": ("months", "an RRULE with FREQ=MONTHLY;INTERVAL={n}"),
}


def step_notices(fields: Mapping[str, str]) -> list[str]:
    """Return a notice for every step that does not mean "every n units": beyond its field, or not dividing it."""
    notices = []
    for name, text in fields.items():
        count, first = FIELDS[name]
        for match in re.finditer(r"(?:^|,)\*/(\d+)", text):
            step = int(match[1])
            units, instead = _INSTEAD[name]
            if step >= count:
                notices.append(
                    f"{name}={text!r}: the step reaches beyond the field, so only {first} matches; "
                    f"for every {step} {units} use {instead.format(n=step)}"
                )
            elif step > 1 and (count % step or name.startswith("day")):
                notices.append(
                    f"{name}={text!r} counts from {first} anew each time the field starts over, so the last gap is "
                    f"uneven; for every {step} {units} use {instead.format(n=step)}"
                )
    return notices
