"""The text of RFC 5545 recurrences, read into values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.rrule import FREQUENCIES, UNITS_S, Rule
from celery_zsched.triggers.wallclock import DAY_S, wall_seconds

_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")

#: Part -> field of the rule, least, most, whether negative numbers count from the end.
_NUMBERS = {
    "BYMONTH": ("by_month", 1, 12, False),
    "BYWEEKNO": ("by_week_no", 1, 53, True),
    "BYYEARDAY": ("by_year_day", 1, 366, True),
    "BYMONTHDAY": ("by_month_day", 1, 31, True),
    "BYHOUR": ("by_hour", 0, 23, False),
    "BYMINUTE": ("by_minute", 0, 59, False),
    "BYSECOND": ("by_second", 0, 59, False),
    "BYSETPOS": ("by_set_pos", 1, 366, True),
}


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules and dates that belong together; times are seconds on the wall."""

    start: int | None
    rules: tuple[Rule, ...]
    dates: tuple[int, ...]
    excluded: frozenset[int]
    #: Whole days that are excluded, in days since the epoch.
    excluded_days: frozenset[int]
    #: The last instant that counts, where a rule's UNTIL is in UTC.
    until_s: int | None

    def excludes(self, wall: int) -> bool:
        """Return whether a wall time is excluded."""
        return wall in self.excluded or wall // DAY_S in self.excluded_days


def parse_rule_set(text: str) -> RuleSet:
    """Read lines of DTSTART, RRULE, RDATE and EXDATE without zones; :class:`ScheduleError` says what is wrong."""
    start: int | None = None
    rules: list[Rule] = []
    dates: list[int] = []
    excluded: set[int] = set()
    excluded_days: set[int] = set()
    ends: list[int] = []
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "DTSTART" and start is None:
            start = _moment(value)[0]
        elif name == "RRULE":
            rule, until_s = _rule(value)
            rules.append(rule)
            ends += [] if until_s is None else [until_s]
        elif name == "RDATE":
            dates += [_moment(each)[0] for each in value.split(",")]
        elif name == "EXDATE":
            for each in value.split(","):
                wall, whole_day = _moment(each)
                if whole_day:
                    excluded_days.add(wall // DAY_S)
                else:
                    excluded.add(wall)
        else:
            again = " again" if name == "DTSTART" else ""
            raise ScheduleError(
                f"the recurrence has the line {line!r}{again}; one DTSTART, and RRULE, RDATE and EXDATE are read"
            )
    if not rules and not dates:
        raise ScheduleError(f"the recurrence {text!r} has neither an RRULE nor an RDATE, so it is never due")
    if ends and len(rules) > 1:
        raise ScheduleError(
            "a recurrence of several rules cannot have an UNTIL in UTC; give it in local time, without Z"
        )
    until_s = ends[0] if ends else None
    return RuleSet(
        start, tuple(rules), tuple(sorted(set(dates))), frozenset(excluded), frozenset(excluded_days), until_s
    )


def _moment(text: str) -> tuple[int, bool]:
    """Return a DATE-TIME or DATE without a zone as seconds on the wall, and whether it is a whole day."""
    for pattern, form in ((r"\d{8}T\d{6}", "%Y%m%dT%H%M%S"), (r"\d{8}", "%Y%m%d")):
        if re.fullmatch(pattern, text):
            try:
                return wall_seconds(datetime.strptime(text, form)), "T" not in text
            except ValueError as exc:
                raise ScheduleError(f"the recurrence has the date {text!r}: {exc}") from None
    hint = "; give it in the recurrence's own zone, without Z" if text.endswith("Z") else ""
    raise ScheduleError(f"the recurrence has {text!r} where a date such as 20260105T090000 is read{hint}")


def _rule(text: str) -> tuple[Rule, int | None]:
    parts: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        name, equals, value = part.partition("=")
        if not equals or not value or name in parts:
            raise ScheduleError(f"the rule {text!r} has {part!r}, which is no NAME=VALUE, or is there twice")
        parts[name] = value
    fields: dict[str, Any] = {}
    freq = fields["freq"] = parts.pop("FREQ", "")
    if freq not in FREQUENCIES:
        raise ScheduleError(f"the rule {text!r} needs a FREQ, one of {', '.join(FREQUENCIES)}")
    until_s = None
    for name, value in parts.items():
        if name in _NUMBERS:
            field, least, most, negative = _NUMBERS[name]
            numbers = [_number(name, each, least, most, negative) for each in value.split(",")]
            fields[field] = tuple(sorted(set(numbers)))
        elif name in ("INTERVAL", "COUNT"):
            fields[name.lower()] = _number(name, value, 1, 10**9, False)
        elif name == "UNTIL" and value.endswith("Z"):
            until_s = _moment(value[:-1])[0]
        elif name == "UNTIL":
            wall, whole_day = _moment(value)
            fields["until"] = wall + DAY_S - 1 if whole_day else wall
        elif name == "BYDAY":
            fields["by_day"] = tuple(_weekday(each, freq) for each in value.split(","))
        elif name == "WKST":
            fields["week_start"] = _weekday(value, "WEEKLY")[1]
        else:
            raise ScheduleError(f"the rule {text!r} has the part {name}, which RFC 5545 does not know")
    _check(text, fields, until_s)
    return Rule(**fields), until_s


def _check(text: str, fields: dict[str, Any], until_s: int | None) -> None:
    if "count" in fields and ("until" in fields or until_s is not None):
        raise ScheduleError(f"the rule {text!r} has both COUNT and UNTIL; give one of them")
    freq = fields["freq"]
    if "by_set_pos" in fields and freq in UNITS_S:
        raise ScheduleError(f"the rule {text!r} has BYSETPOS, which is supported from FREQ=DAILY up")
    if "by_week_no" in fields and freq != "YEARLY":
        raise ScheduleError(f"the rule {text!r} has BYWEEKNO, which RFC 5545 allows with FREQ=YEARLY only")


def _number(name: str, text: str, least: int, most: int, negative: bool) -> int:
    if re.fullmatch(r"[+-]?\d{1,10}", text):
        number = int(text)
        if least <= number <= most or (negative and least <= -number <= most):
            return number
    below = f" or from -{most} to -{least}" if negative else ""
    raise ScheduleError(f"the rule part {name}={text} is not a number from {least} to {most}{below}")


def _weekday(text: str, freq: str) -> tuple[int, int]:
    match = re.fullmatch(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", text)
    if not match:
        raise ScheduleError(f"the rule has the weekday {text!r}, not one of {', '.join(_WEEKDAYS)} (or 1MO, -1FR)")
    which = int(match[1] or 0)
    if (match[1] and not which) or (which and freq not in ("MONTHLY", "YEARLY")):
        raise ScheduleError(f"the rule has the weekday {text!r}; numbers are for FREQ=MONTHLY and YEARLY, and not 0")
    return which, _WEEKDAYS.index(match[2])
