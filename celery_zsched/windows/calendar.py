"""Windows from an iCalendar file (RFC 5545), as calendars of holidays and freezes are exported."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_zsched.errors import ConfigurationError, ScheduleError
from celery_zsched.triggers import Recurrence, zone_name
from celery_zsched.types import SECOND_US, from_us, to_us
from celery_zsched.windows.window import Repeat, Span, Window

_DAY = timedelta(days=1)


def read_calendar(text: bytes | str) -> list[Window]:
    """Return the events of a calendar as windows, recurring ones with their rules.

    Cancelled events are left out; an event counts whether or not it is marked as busy, since calendars of holidays
    mark theirs as free. Raises :class:`ScheduleError` for what is no calendar, or has no event, or has a rule in a zone
    without an IANA name; :class:`ConfigurationError` where the package icalendar is not installed.
    """
    try:
        from icalendar import Calendar
    except ImportError:
        raise ConfigurationError(
            "reading an .ics file needs the package icalendar; install celery-zsched[ics], or give the days as a list"
        ) from None
    try:
        calendars = Calendar.from_ical(text, multiple=True)
    except (ValueError, KeyError, IndexError) as exc:
        raise ScheduleError(f"this is no iCalendar file: {exc}") from None
    events: list[Any] = [event for calendar in calendars for event in calendar.walk("VEVENT")]
    moved: dict[str, list[Any]] = {}
    for event in events:
        if "RECURRENCE-ID" in event:
            moved.setdefault(str(event.get("UID", "")), []).append(event["RECURRENCE-ID"].dt)
    windows: list[Window] = []
    for event in events:
        if str(event.get("STATUS", "")).upper() != "CANCELLED":
            own = "RECURRENCE-ID" in event
            windows += _windows(event, [] if own else moved.get(str(event.get("UID", "")), []))
    if not windows:
        raise ScheduleError("the calendar has no events, so it closes nothing")
    return windows


def _windows(event: Any, moved: list[Any]) -> Iterator[Window]:
    name = str(event.get("SUMMARY", "without a name"))
    try:
        start = event["DTSTART"].dt
        yield from _of_event(event, start, _end(event, start), moved)
    except (KeyError, AttributeError, TypeError) as exc:
        raise ScheduleError(f"the event {name!r} of the calendar cannot be read: {type(exc).__name__} {exc}") from None
    except ScheduleError as exc:
        raise ScheduleError(f"the event {name!r} of the calendar cannot be used: {exc}") from None


def _end(event: Any, start: Any) -> Any:
    if "DTEND" in event:
        return event["DTEND"].dt
    if "DURATION" in event:
        return start + event["DURATION"].dt
    # RFC 5545 3.6.1: a day lasts a day, and a moment no time at all.
    return start if isinstance(start, datetime) else start + _DAY


def _of_event(event: Any, start: Any, end: Any, moved: list[Any]) -> Iterator[Window]:
    whole_days = not isinstance(start, datetime)
    if end <= start:
        return
    if "RRULE" not in event and "RDATE" not in event:
        yield Span(start, end - _DAY) if whole_days else Span(_plain(start), _plain(end))
        return
    zone = None if whole_days else zone_name(start.tzinfo)
    lines = [f"DTSTART:{_wall(start, zone)}"]
    rules = event.get("RRULE", [])
    for rule in rules if isinstance(rules, list) else [rules]:
        lines.append(f"RRULE:{rule.to_ical().decode()}")
    extra = [_wall(moment, zone) for moment in _moments(event, "RDATE")]
    if "RRULE" not in event:
        extra.insert(0, _wall(start, zone))  # without a rule, the first occurrence is the start itself
    lines += [f"RDATE:{wall}" for wall in extra]
    lines += [f"EXDATE:{_wall(moment, zone)}" for moment in (*_moments(event, "EXDATE"), *moved)]
    schedule = Recurrence("\n".join(lines), zone)
    if whole_days:
        yield Repeat(schedule, days=(end - start).days)
    else:
        yield Repeat(schedule, duration_us=round((end - start).total_seconds() * SECOND_US))


def _moments(event: Any, name: str) -> Iterator[Any]:
    given = event.get(name, [])
    for part in given if isinstance(given, list) else [given]:
        for one in part.dts:
            # A period among the RDATEs counts by its beginning; its own length is not kept.
            yield one.dt[0] if isinstance(one.dt, tuple) else one.dt


def _plain(moment: datetime) -> datetime:
    """Return a moment with a zone in UTC; one without is kept, and is in the zone of the blackout."""
    return moment if moment.tzinfo is None else from_us(to_us(moment))


def _wall(moment: date | datetime, zone: str | None) -> str:
    if not isinstance(moment, datetime):
        return f"{moment:%Y%m%d}T000000"
    if moment.tzinfo is not None and zone is not None and zone_name(moment.tzinfo) != zone:
        moment = moment.astimezone(ZoneInfo(zone))
    return f"{moment:%Y%m%dT%H%M%S}"
