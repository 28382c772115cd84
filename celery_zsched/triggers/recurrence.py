"""RFC 5545 recurrences: RRULE with DTSTART, RDATE and EXDATE, on the wall clock of a zone."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ClassVar

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.base import Trigger, take
from celery_zsched.triggers.rrule_text import RuleSet, parse_rule_set
from celery_zsched.triggers.wallclock import zone_name, zone_table
from celery_zsched.types import SECOND_US, to_us

#: A rule without a start is tried out from here: a Thursday, as the epoch, with a leap year ahead.
_TRIAL_START = 0


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> RuleSet:
    rules = parse_rule_set(text)
    free = rules.start is None and any(rule.interval > 1 for rule in rules.rules)
    if not free and next_wall(rules, rules.start or _TRIAL_START, (rules.start or _TRIAL_START) - 1) is None:
        raise ScheduleError(f"the recurrence {text!r} can never match; change its BY parts, its INTERVAL or its UNTIL")
    return rules


def next_wall(rules: RuleSet, start: int, after: int) -> int | None:
    """Return the first wall time after ``after`` that any of the rules or dates names and none excludes."""
    while True:
        index = bisect_right(rules.dates, after)
        walls = [rule.next_wall(start, after) for rule in rules.rules] + list(rules.dates[index : index + 1])
        found = min((wall for wall in walls if wall is not None), default=None)
        if found is None or not rules.excludes(found):
            return found
        after = found


@dataclass(frozen=True, slots=True)
class Recurrence(Trigger):
    """iCalendar text: ``DTSTART``, ``RRULE``, ``RDATE`` and ``EXDATE`` lines, or an RRULE alone.

    Everything is wall time in ``zone``; a ``TZID``, or a DTSTART in UTC, names the zone. A rule without a DTSTART
    starts where the entry does (its ``start``, else its installation), to the second.
    """

    kind: ClassVar[str] = "rrule"

    text: str
    zone: str | None = None

    def __post_init__(self) -> None:
        text, named = _normal(self.text)
        if self.zone is not None and named is not None and named != self.zone:
            raise ScheduleError(f"the recurrence is in the zone {named}, but {self.zone} was given; say one of them")
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "zone", self.zone or named)
        if self.zone is not None:
            zone_table(self.zone)
        _parse(text)

    @classmethod
    def of(cls, rule: Any, *, zone: str | None = None) -> Recurrence:
        """Make a recurrence of a ``dateutil`` rrule or rruleset; its zone is that of its ``dtstart``."""
        rules = getattr(rule, "_rrule", None) or [rule]
        starts = {one._dtstart for one in rules}
        if len(starts) != 1 or getattr(rule, "_exrule", None):
            raise ScheduleError("only rules with one DTSTART, and no EXRULE, can be stored as one recurrence")
        (start,) = starts
        zone = zone_name(start.tzinfo) or zone
        lines = [start.strftime("DTSTART:%Y%m%dT%H%M%S")]
        for one in rules:
            parts = next(line for line in str(one).splitlines() if line.startswith("RRULE:"))
            if one._until is not None and one._until.tzinfo is not None:
                until = one._until.astimezone(timezone.utc).strftime("UNTIL=%Y%m%dT%H%M%SZ")
                parts = re.sub(r"UNTIL=\w+", until, parts)
            lines.append(parts)
        for name, moments in (("RDATE", getattr(rule, "_rdate", [])), ("EXDATE", getattr(rule, "_exdate", []))):
            lines += [f"{name}:{_local(moment, zone):%Y%m%dT%H%M%S}" for moment in moments]
        return cls("\n".join(lines), zone)

    @property
    def zoned(self) -> bool:
        return True

    @property
    def follows_real_time(self) -> bool:
        """Whether a rule's hour or minute is free (see :mod:`.wallclock`)."""
        return any(rule.follows_real_time for rule in _parse(self.text).rules)

    def in_zone(self, zone: str) -> Recurrence:
        return Recurrence(self.text, zone) if self.zone is None else self

    def compute(self, instant_us: int, *, anchor_us: int | None, zone: str) -> int | None:
        rules, table = _parse(self.text), zone_table(zone)
        start = rules.start
        if start is None:
            anchor_s = (anchor_us or 0) // SECOND_US
            start = anchor_s + table.offset(anchor_s)
        due_s = table.next_instant(
            functools.partial(next_wall, rules, start), instant_us // SECOND_US, real=self.follows_real_time
        )
        if due_s is None or (rules.until_s is not None and due_s > rules.until_s):
            return None
        return due_s * SECOND_US

    def notices(self) -> list[str]:
        if _parse(self.text).start is None:
            return ["the recurrence has no DTSTART, so it starts where the entry does"]
        return []

    def to_fields(self) -> dict[str, Any]:
        return {"text": self.text} if self.zone is None else {"text": self.text, "zone": self.zone}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Recurrence:
        take(fields, cls.kind, {"text": str}, {"zone": str})
        return cls(fields["text"], fields.get("zone"))

    def __str__(self) -> str:
        return f"recurrence {self.text!r}{f' {self.zone}' if self.zone else ''}"


def _local(moment: datetime, zone: str | None) -> datetime:
    if moment.tzinfo is None:
        return moment
    offset_s = zone_table(zone or "UTC").offset(to_us(moment) // SECOND_US)
    return datetime.fromtimestamp(to_us(moment) // SECOND_US + offset_s, timezone.utc).replace(tzinfo=None)


def _normal(text: object) -> tuple[str, str | None]:
    """Return the text with one line for each property and no zones in it, and the zone that it names."""
    if not isinstance(text, str):
        raise ScheduleError(f"a recurrence is iCalendar text such as 'RRULE:FREQ=DAILY;BYHOUR=9', not {text!r}")
    zones, lines = set(), []
    for line in text.split():
        line = line.upper() if ":" not in line else line
        name, colon, value = line.partition(":")
        if not colon:
            name, value = "RRULE", line
        name, *parameters = name.split(";")
        for parameter in parameters:
            key, _, given = parameter.partition("=")
            if key.upper() == "TZID":
                zones.add(given.strip('"'))
            elif key.upper() != "VALUE":
                raise ScheduleError(f"the recurrence has the parameter {parameter!r}, which is not known")
        name, value = name.upper(), value.upper()
        if name == "DTSTART" and value.endswith("Z"):
            zones.add("UTC")
            value = value[:-1]
        lines.append(f"{name}:{value}")
    if len(zones) > 1:
        raise ScheduleError(f"the recurrence names several zones ({', '.join(sorted(zones))}); use one")
    return "\n".join(lines), next(iter(zones), None)
