"""RFC 5545 recurrences: python-dateutil as a second opinion, and what we read and refuse."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import DAILY, FR, MONTHLY, rrule, rruleset, rrulestr
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers import Recurrence, from_celery, preview
from celery_zsched.types import from_us, to_us

START = datetime(2026, 1, 5, 9)


def utc(moment: datetime) -> int:
    """Return a naive moment, read as UTC, as an instant."""
    return to_us(moment.replace(tzinfo=timezone.utc))


def subset(values: list[object], most: int = 3) -> st.SearchStrategy[str]:
    """Return a strategy of comma-separated values."""
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True).map(
        lambda chosen: ",".join(map(str, chosen))
    )


WEEKDAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
NUMBERED = [f"{number}{day}" for day in WEEKDAYS for number in (1, 2, 5, -1, -2)]


@st.composite
def rules(draw: st.DrawFn) -> str:
    """Draw a rule of any frequency; the few mixtures that dateutil gets wrong are left out."""
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]))
    parts = {"FREQ": freq}
    optional: dict[str, st.SearchStrategy[object]] = {
        "INTERVAL": st.sampled_from([1, 2, 3, 5, 7, 13]),
        "BYMONTH": subset([*range(1, 13)]),
        "BYMONTHDAY": subset([*range(1, 32), -1, -2, -31]),
        "BYDAY": subset([*WEEKDAYS]),
        "BYHOUR": subset([*range(24)]),
        "BYMINUTE": subset([*range(60)]),
        "BYSECOND": subset([*range(60)]),
        "COUNT": st.integers(1, 30),
        "WKST": st.sampled_from(["MO", "SU", "WE"]),
    }
    if freq in ("YEARLY", "MONTHLY"):
        optional["BYDAY"] = subset([*WEEKDAYS]) | subset([*NUMBERED])
    if freq == "YEARLY":
        optional["BYYEARDAY"] = subset([*range(1, 367), -1, -366], 9)
        optional["BYWEEKNO"] = subset([*range(1, 53), -1, -9], 5)
    if freq in ("YEARLY", "MONTHLY", "WEEKLY"):
        optional["BYSETPOS"] = subset([1, 2, -1, -2], 2)
    for name, values in optional.items():
        if draw(st.integers(0, 3)) == 0:
            parts[name] = str(draw(values))
    if parts.keys() & {"BYWEEKNO"} and any(character.isdigit() for character in parts.get("BYDAY", "")):
        del parts["BYWEEKNO"]
    if not any(name.startswith("BY") and name != "BYSETPOS" for name in parts):
        parts.pop("BYSETPOS", None)
    return ";".join(f"{name}={value}" for name, value in parts.items())


@given(rules(), st.integers(0, 10**8))
@example("FREQ=WEEKLY;BYDAY=MO,WE;BYSETPOS=1", 0)
@settings(max_examples=150, deadline=None)
def test_a_rule_names_the_moments_that_dateutil_names(rule: str, seconds: int) -> None:
    """Every frequency with every part, from any start: the first twelve moments are the same."""
    start = datetime(2020, 1, 1) + timedelta(seconds=seconds)
    text = f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{rule}"
    try:
        trigger = Recurrence(text, "UTC")
    except ScheduleError:
        return
    ours = preview(trigger, 12, utc(start) - 1)
    theirs = [utc(moment) for moment in islice(rrulestr(text), max(len(ours), 1))]
    assert ours == theirs


@pytest.mark.alone
def test_a_rule_that_has_run_for_years_is_computed_at_once() -> None:
    """The walk begins where it is asked, not at the start of the rule."""
    trigger = Recurrence("DTSTART:19800101T000000 RRULE:FREQ=SECONDLY;INTERVAL=7", "UTC")
    begun = datetime.now()
    (due,) = preview(trigger, 1, utc(START))
    assert datetime.now() - begun < timedelta(seconds=0.1)
    assert (due - utc(datetime(1980, 1, 1))) % 7_000_000 == 0


def test_dates_are_added_and_taken_away() -> None:
    """RDATE adds, EXDATE takes away a moment or a whole day."""
    trigger = Recurrence(
        "DTSTART:20260105T090000\nRRULE:FREQ=DAILY\nRDATE:20260106T120000\nEXDATE:20260107T090000\n"
        "EXDATE;VALUE=DATE:20260108",
        "UTC",
    )
    assert [from_us(due).strftime("%d %H") for due in preview(trigger, 4, utc(START))] == [
        "06 09",
        "06 12",
        "09 09",
        "10 09",
    ]


def test_until_is_inclusive_and_may_be_in_utc() -> None:
    """A rule ends after its UNTIL: a local moment, a whole day, or an instant."""
    for until, days in (("20260107T090000", 2), ("20260107", 2), ("20260107T140000Z", 2), ("20260107T135959Z", 1)):
        trigger = Recurrence(f"DTSTART;TZID=America/New_York:20260105T090000\nRRULE:FREQ=DAILY;UNTIL={until}")
        assert len(preview(trigger, 9, utc(datetime(2026, 1, 5, 14)))) == days, until


def test_a_rule_without_a_start_starts_with_its_entry() -> None:
    """The anchor of the entry, on the wall clock of its zone, stands for DTSTART."""
    trigger = from_celery("FREQ=WEEKLY;INTERVAL=2", zone="America/New_York")
    anchor_us = to_us(datetime(2026, 2, 23, 9, tzinfo=ZoneInfo("America/New_York")))
    assert [from_us(due).isoformat() for due in preview(trigger, 2, anchor_us, anchor_us=anchor_us)] == [
        "2026-03-09T13:00:00+00:00",
        "2026-03-23T13:00:00+00:00",
    ]
    assert trigger.notices()


def test_a_fixed_hour_fires_once_when_the_clock_goes_back_and_a_free_one_twice() -> None:
    """The rule at clock changes holds for recurrences too."""
    start = to_us(datetime(2026, 10, 25, 0, 15, tzinfo=timezone.utc))
    fixed = Recurrence("DTSTART:20260101T023000 RRULE:FREQ=DAILY", "Europe/Paris")
    free = Recurrence("DTSTART:20260101T003000 RRULE:FREQ=HOURLY", "Europe/Paris")
    assert [from_us(due).strftime("%d %H:%M") for due in preview(fixed, 2, start)] == ["25 00:30", "26 01:30"]
    assert [from_us(due).strftime("%d %H:%M") for due in preview(free, 3, start)] == [
        "25 00:30",
        "25 01:30",
        "25 02:30",
    ]


def test_dateutil_objects_are_taken_with_their_zone() -> None:
    """A rule or a set of rules becomes text, its zone a name."""
    zone = ZoneInfo("America/New_York")
    rule = rrule(MONTHLY, dtstart=START.replace(tzinfo=zone), byweekday=FR(-1), until=datetime(2026, 7, 1, tzinfo=zone))
    trigger = from_celery(rule)
    assert trigger.zone == "America/New_York"
    assert preview(trigger, 20, utc(START) - 1) == [to_us(moment) for moment in rule]
    rules = rruleset()
    rules.rrule(rrule(DAILY, dtstart=START, count=5))
    rules.exdate(START + timedelta(days=1))
    rules.rdate(START + timedelta(days=30))
    assert preview(from_celery(rules, zone="UTC"), 20, utc(START) - 1) == [utc(moment) for moment in rules]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("FREQ=FORTNIGHTLY", "needs a FREQ"),
        ("RRULE:INTERVAL=2", "needs a FREQ"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL=0 is not a number from 1"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR=24"),
        ("FREQ=DAILY;BYMONTHDAY=0", "BYMONTHDAY=0"),
        ("FREQ=DAILY;BYEASTER=1", "BYEASTER"),
        ("FREQ=DAILY;COUNT=3;UNTIL=20260101", "both COUNT and UNTIL"),
        ("FREQ=WEEKLY;BYDAY=1MO", "1MO"),
        ("FREQ=HOURLY;BYSETPOS=1", "BYSETPOS"),
        ("FREQ=DAILY;FREQ=DAILY", "twice"),
        ("DTSTART:20261301T000000 RRULE:FREQ=DAILY", "20261301T000000"),
        ("DTSTART:yesterday RRULE:FREQ=DAILY", "YESTERDAY"),
        ("EXRULE:FREQ=DAILY", "EXRULE"),
        ("DTSTART:20260101T000000", "neither an RRULE nor an RDATE"),
        ("DTSTART;TZID=Mars/Olympus:20260101T000000 RRULE:FREQ=DAILY", "Mars/Olympus"),
        ("DTSTART:20260101T000000Z RRULE:FREQ=DAILY;COUNT=1000000", "COUNT=1000000 is too high"),
    ],
)
def test_a_rule_that_cannot_be_read_says_why(text: str, reason: str) -> None:
    """The message names the part and the value."""
    with pytest.raises(ScheduleError, match=reason):
        Recurrence(text)


def test_two_zones_are_refused() -> None:
    """A recurrence is in one zone."""
    with pytest.raises(ScheduleError, match="say one of them"):
        Recurrence("DTSTART;TZID=Asia/Tokyo:20260101T000000 RRULE:FREQ=DAILY", "Europe/Paris")
