"""Windows of blackouts: what is taken, when they are open, and their stored form."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from celery_zsched.errors import EntryError, ScheduleError
from celery_zsched.types import to_us
from celery_zsched.windows import Blackout, Openings, read_calendar

BERLIN = ZoneInfo("Europe/Berlin")

CALENDAR = """\
BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//example//EN
BEGIN:VEVENT
UID:christmas
SUMMARY:Christmas
DTSTART;VALUE=DATE:20261225
DTEND;VALUE=DATE:20261227
TRANSP:TRANSPARENT
END:VEVENT
BEGIN:VEVENT
UID:day
SUMMARY:One day, and a summary that is folded over tw
 o lines
DTSTART;VALUE=DATE:20261031
END:VEVENT
BEGIN:VEVENT
UID:night
SUMMARY:Nightly
DTSTART;TZID=Europe/Berlin:20261001T220000
DURATION:PT8H
RRULE:FREQ=DAILY;UNTIL=20261231T230000Z
EXDATE;TZID=Europe/Berlin:20261010T220000
END:VEVENT
BEGIN:VEVENT
UID:night
SUMMARY:Nightly, moved
RECURRENCE-ID;TZID=Europe/Berlin:20261011T220000
DTSTART:20261012T100000Z
DTEND:20261012T110000Z
END:VEVENT
BEGIN:VEVENT
UID:off
SUMMARY:Off
STATUS:CANCELLED
DTSTART;VALUE=DATE:20261111
END:VEVENT
BEGIN:VEVENT
UID:yearly
SUMMARY:New Year
DTSTART;VALUE=DATE:20200101
RRULE:FREQ=YEARLY
END:VEVENT
END:VCALENDAR
"""


def opened(windows: list[Any], zone: str = "UTC") -> Openings:
    """Return the openings of a blackout of these windows in an app of this zone."""
    return Openings(Blackout.of("b", windows), zone)


def at(text: str, zone: Any = timezone.utc) -> int:
    """Return the instant of a wall time."""
    return to_us(datetime.fromisoformat(text).replace(tzinfo=zone))


@pytest.mark.parametrize(
    "window", ["2026-12-24/2026-12-26", (date(2026, 12, 24), date(2026, 12, 26))], ids=["text", "pair"]
)
def test_days_are_days_in_the_zone(window: Any) -> None:
    """A range of days is open from the first midnight to the one after the last day, in the blackout's zone."""
    apps = opened([window], zone="America/New_York")
    assert not apps.covers(at("2026-12-24T04:59"))
    assert apps.covers(at("2026-12-24T05:00"))
    own = Openings(Blackout.of("b", [window], zone="Europe/Berlin"), "America/New_York")
    assert not own.covers(at("2026-12-23T22:59"))
    assert own.covers(at("2026-12-23T23:00"))
    assert own.covers(at("2026-12-26T23:59:59", BERLIN))
    assert not own.covers(at("2026-12-27T00:00", BERLIN))


def test_moments_exclude_their_end() -> None:
    """A range of moments is open up to its end, and an offset has the last word about the zone."""
    openings = opened(["2026-12-31T18:00/2027-01-01T06:00", "2026-06-01T00:00+02:00/2026-06-01T01:00+02:00"])
    assert [openings.covers(at(f"2027-01-01T{wall}")) for wall in ("05:59:59", "06:00")] == [True, False]
    assert [openings.covers(at(f"2026-05-31T{wall}")) for wall in ("22:00", "23:00")] == [True, False]


def test_a_day_of_a_clock_change_has_its_real_length() -> None:
    """The day on which clocks go back has 25 hours in it."""
    openings = opened(["2026-10-25"], zone="Europe/Berlin")
    start, end = next(openings.coming(at("2026-10-20T00:00")))
    assert end - start == 25 * 3_600_000_000


def test_windows_come_again() -> None:
    """A nightly window by cron text is open over midnight, and one of whole days from any time of the first."""
    nightly = opened([{"schedule": "0 22 * * *", "duration": 8 * 3600}], zone="Europe/Berlin")
    assert nightly.covers(at("2026-03-01T03:00", BERLIN))
    assert not nightly.covers(at("2026-03-01T06:00", BERLIN))
    assert nightly.covers(at("2026-03-01T22:00", BERLIN))
    weekend = opened([{"schedule": "0 18 * * 5", "days": 3}], zone="Europe/Berlin")
    assert not weekend.covers(at("2026-03-06T17:59", BERLIN))
    assert weekend.covers(at("2026-03-06T18:00", BERLIN))
    assert weekend.covers(at("2026-03-08T23:59", BERLIN))
    assert not weekend.covers(at("2026-03-09T00:00", BERLIN))


def test_what_comes_is_in_order_and_joined() -> None:
    """Spans that touch are one, and recurring windows stand among them by their beginnings."""
    openings = opened(
        ["2026-01-05/2026-01-06", "2026-01-07", "2026-01-20", {"schedule": "0 0 10 * *", "duration": 3600}]
    )
    found = [(start, end) for start, end in islice(openings.coming(at("2026-01-06T12:00")), 3)]
    assert found == [
        (at("2026-01-05T00:00"), at("2026-01-08T00:00")),
        (at("2026-01-10T00:00"), at("2026-01-10T01:00")),
        (at("2026-01-20T00:00"), at("2026-01-21T00:00")),
    ]


def test_a_calendar_gives_windows() -> None:
    """Days, moments, rules with exceptions, moved and cancelled events of an .ics file mean what they say."""
    openings = opened(list(read_calendar(CALENDAR)), zone="Europe/Berlin")
    for wall, expected in {
        "2026-12-24T23:59": True,  # the nightly one
        "2026-12-25T12:00": True,
        "2026-12-26T12:00": True,
        "2026-12-27T12:00": False,
        "2026-10-31T12:00": True,
        "2026-10-09T23:00": True,
        "2026-10-10T23:00": False,  # excluded
        "2026-10-11T23:00": False,  # moved
        "2026-10-12T12:30": True,  # to here
        "2026-10-25T04:59": True,  # eight hours of real time, of which one comes twice
        "2026-10-25T05:00": False,
        "2026-10-26T05:59": True,
        "2026-11-11T12:00": False,  # cancelled
        "2027-01-01T23:00": True,
        "2027-01-02T01:00": False,
        "2041-01-01T01:00": True,
    }.items():
        assert openings.covers(at(wall, BERLIN)) is expected, wall


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no events"), ("hello", "no iCalendar file"), ("BEGIN:VCALENDAR\nEND:VCALENDAR\n", "no events")],
)
def test_what_is_no_calendar_is_refused(text: str, words: str) -> None:
    """A file without events would silently close nothing."""
    with pytest.raises(ScheduleError, match=words):
        read_calendar(text)


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ("2026-13-01", "cannot be read"),
        ("2026-12-26/2026-12-24", "ends before it begins"),
        ("2026-12-26T10:00/2026-12-26T10:00", "lasts no time"),
        ("2026-12-26T10:00", "no day, nor a pair"),
        ("2026-12-26/2026-12-27T10:00", "begins with a day"),
        (7, "no day, nor a pair"),
        ({"schedule": "0 22 * * *"}, "lasts either"),
        ({"schedule": "0 22 * * *", "days": 0}, "whole number"),
        ({"schedule": "0 22 * * *", "hours": 1}, "'hours'"),
        ({"schedule": "61 22 * * *", "days": 1}, "61"),
    ],
)
def test_a_window_that_means_nothing_is_refused(window: Any, words: str) -> None:
    """Each fault is told with the value and what to write instead."""
    with pytest.raises(ScheduleError, match=words):
        Blackout.of("b", ["2026-01-01", window])


def test_all_faults_are_told_at_once() -> None:
    """A list of days with two mistakes names both."""
    with pytest.raises(ScheduleError, match=r"nonsense.*31st") as caught:
        Blackout.of("b", ["nonsense", "31st"])
    assert "'b'" in str(caught.value)


def test_the_stored_form_says_the_same() -> None:
    """What is stored reads back as the same blackout, whatever its windows were made of."""
    windows: list[Any] = [
        date(2026, 12, 24),
        (datetime(2026, 1, 1, 9), datetime(2026, 1, 1, 10)),
        {"schedule": timedelta(hours=6), "duration": timedelta(minutes=5)},
        *read_calendar(CALENDAR),
    ]
    blackout = Blackout.of("holidays", windows, zone="Europe/Berlin", note="as agreed")
    assert Blackout.from_json(blackout.to_json()) == blackout
    document = json.loads(blackout.to_json())
    assert document["windows"][:2] == ["2026-12-24", "2026-01-01T09:00:00/2026-01-01T10:00:00"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"v": 2}, "version 2"), ({"more": 1}, "'more'"), ({"windows": 3}, "windows"), ({"zone": "Mars"}, "Mars")],
)
def test_a_stored_form_that_is_not_known_is_refused(change: dict[str, Any], words: str) -> None:
    """A newer release's blackout is not guessed at."""
    document = json.loads(Blackout.of("b", ["2026-01-01"]).to_json()) | change
    with pytest.raises(EntryError, match=words):
        Blackout.from_json(json.dumps(document))
