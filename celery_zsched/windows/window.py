"""One window of a blackout: a span of days or moments, or one that comes again by a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers import Trigger, from_celery, from_json, next_after, to_json, zone_table
from celery_zsched.triggers.wallclock import wall_seconds
from celery_zsched.types import SECOND_US, from_us, to_us

#: The longest window that comes again, in days: how far back one is looked for.
LONGEST_DAYS = 366

_DAY = timedelta(days=1)
_DAY_US = 86_400 * SECOND_US


@dataclass(frozen=True, slots=True)
class Span:
    """From a day to a day, both included, or from a moment to a moment, the last one excluded.

    Days, and moments without an offset, are in the zone of the blackout.
    """

    first: date | datetime
    last: date | datetime

    def __post_init__(self) -> None:
        days = [not isinstance(each, datetime) for each in (self.first, self.last)]
        if days[0] != days[1]:
            raise ScheduleError(f"the window {self} begins with a day and ends with a moment, or the other way round")
        if days[0] and self.last < self.first:
            raise ScheduleError(f"the window {self} ends before it begins")
        if not days[0] and self.instants("UTC")[1] <= self.instants("UTC")[0]:
            raise ScheduleError(f"the window {self} ends before it begins, or lasts no time at all")

    def instants(self, zone: str) -> tuple[int, int]:
        """Return the first instant in the window and the first one after it, in microseconds."""
        if isinstance(self.last, datetime):
            return _instant(self.first, zone), _instant(self.last, zone)
        return _instant(self.first, zone), _instant(self.last + _DAY, zone)

    def to_json(self) -> str:
        """Return the stored form, an ISO 8601 interval or day."""
        return str(self)

    def __str__(self) -> str:
        same_day = self.first == self.last and not isinstance(self.first, datetime)
        return self.first.isoformat() if same_day else f"{self.first.isoformat()}/{self.last.isoformat()}"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A window that begins at each due time of ``schedule``.

    It lasts ``duration_us`` microseconds of real time, or ``days`` days up to a midnight in the zone.
    """

    schedule: Trigger
    duration_us: int | None = None
    days: int | None = None

    def __post_init__(self) -> None:
        lasts = self.days if self.duration_us is None else self.duration_us
        if (self.days is None) == (self.duration_us is None):
            raise ScheduleError("a window that comes again lasts either 'duration_us' microseconds or 'days' days")
        if not isinstance(lasts, int) or isinstance(lasts, bool) or lasts <= 0:
            raise ScheduleError(
                f"a window that comes again lasts a whole number of microseconds or days, not {lasts!r}"
            )
        if lasts > (LONGEST_DAYS if self.days else LONGEST_DAYS * _DAY_US):
            raise ScheduleError(f"a window that comes again lasts at most {LONGEST_DAYS} days")

    def spans(self, after_us: int, zone: str) -> Iterator[tuple[int, int]]:
        """Yield the windows, as instants, that end later than ``after_us``, in the order of their beginnings."""
        own = self.schedule.zone or zone
        back_us = self.duration_us if self.days is None else (self.days + 1) * _DAY_US
        start_us = next_after(self.schedule, after_us - (back_us or 0), zone=own)
        while start_us is not None:
            end_us = self._end(start_us, own)
            if end_us > after_us:
                yield start_us, end_us
            start_us = next_after(self.schedule, start_us, zone=own)

    def covers(self, instant_us: int, zone: str) -> bool:
        """Return whether an instant lies in one of the windows."""
        first = next(self.spans(instant_us, zone), None)
        return first is not None and first[0] <= instant_us

    def _end(self, start_us: int, zone: str) -> int:
        if self.duration_us is not None:
            return start_us + self.duration_us
        start_s = start_us // SECOND_US
        day = from_us((start_s + zone_table(zone).offset(start_s)) * SECOND_US).date()
        return _instant(day + timedelta(days=self.days or 0), zone)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        lasts = {"duration_us": self.duration_us} if self.days is None else {"days": self.days}
        return {"schedule": to_json(self.schedule), **lasts}

    def __str__(self) -> str:
        lasts = timedelta(microseconds=self.duration_us or 0) if self.days is None else f"{self.days} days"
        return f"{self.schedule} for {lasts}"


#: Anything that a blackout is made of.
Window = Span | Repeat


def window_of(given: Any) -> Window:
    """Make a window of what a user writes, or of its stored form; :class:`ScheduleError` says what is wrong.

    Taken are a date, a pair of dates (both included) or of datetimes (the second excluded), their ISO 8601 text
    (``2026-12-24``, ``2026-12-24/2026-12-26``, ``2026-12-31T18:00/2027-01-01T06:00``), and for one that comes again a
    mapping: ``schedule`` (anything that an entry takes) with ``days``, ``duration_us`` or ``duration`` (seconds).
    """
    if isinstance(given, (Span, Repeat)):
        return given
    if isinstance(given, str):
        first, slash, last = given.partition("/")
        return _span(_parsed(first, given), _parsed(last, given) if slash else None, given)
    if isinstance(given, Mapping):
        return _repeat(given)
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return _span(given[0], given[1], given)
    return _span(given, None, given)


def _span(first: Any, last: Any, given: Any) -> Span:
    if isinstance(first, date) and (isinstance(last, date) or (last is None and not isinstance(first, datetime))):
        return Span(first, first if last is None else last)
    raise ScheduleError(
        f"the window {given!r} is no day, nor a pair of days or moments such as '2026-12-24/2026-12-26' or "
        "'2026-12-31T18:00/2027-01-01T06:00'"
    )


def _parsed(text: str, whole: str) -> date | datetime:
    text = text.strip()
    try:
        if "T" in text.upper() or " " in text:
            # Python 3.10 does not read the Z of RFC 3339.
            return datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
        return date.fromisoformat(text)
    except ValueError as exc:
        raise ScheduleError(f"the window {whole!r} cannot be read: {exc}; write ISO 8601 days or moments") from None


def _repeat(given: Mapping[str, Any]) -> Repeat:
    known = ("schedule", "days", "duration", "duration_us")
    unknown = [key for key in given if key not in known]
    if unknown or "schedule" not in given:
        raise ScheduleError(
            f"a window that comes again has a 'schedule' and 'days' or 'duration', not {', '.join(map(repr, given))}"
        )
    schedule, duration = given["schedule"], given.get("duration")
    trigger = from_json(schedule) if isinstance(schedule, Mapping) else from_celery(schedule)
    duration_us = given.get("duration_us")
    if duration is not None:
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
            raise ScheduleError(f"the duration {duration!r} is no number of seconds")
        duration_us = round(seconds * SECOND_US)
    return Repeat(trigger, duration_us=duration_us, days=given.get("days"))


def _instant(moment: date | datetime, zone: str) -> int:
    """Return an instant in microseconds; a day begins at its midnight in the zone."""
    if not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    if moment.tzinfo is not None:
        return to_us(moment)
    return zone_table(zone).instant(wall_seconds(moment)) * SECOND_US + moment.microsecond
