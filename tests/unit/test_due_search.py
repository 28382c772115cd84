"""Due times against an independent search, minute by minute, over real clock changes; and what holds for all."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_zsched.triggers import (
    At,
    Crontab,
    CronText,
    Interval,
    Recurrence,
    Trigger,
    from_json,
    next_after,
    occurrences,
    preview,
    to_json,
)
from celery_zsched.types import SECOND_US, to_us

#: Zone and the day (UTC) around which its clock was changed.
CHANGES = {
    "Lord Howe moves half an hour, spring": ("Australia/Lord_Howe", "2026-10-03"),
    "Lord Howe moves half an hour, autumn": ("Australia/Lord_Howe", "2026-04-04"),
    "Samoa skips a day": ("Pacific/Apia", "2011-12-30"),
    "Kwajalein skips a day": ("Pacific/Kwajalein", "1993-08-21"),
    "Casablanca goes back for Ramadan": ("Africa/Casablanca", "2026-02-15"),
    "Casablanca comes out of Ramadan": ("Africa/Casablanca", "2026-03-22"),
    "Kathmandu moves a quarter of an hour": ("Asia/Kathmandu", "1985-12-31"),
    "Havana has no midnight": ("America/Havana", "2026-03-08"),
    "Sao Paulo has two last hours": ("America/Sao_Paulo", "2018-02-18"),
    "St John's changes a minute past midnight": ("America/St_Johns", "2006-10-29"),
    "Troll moves two hours": ("Antarctica/Troll", "2026-03-29"),
    "Caracas moves half an hour for good": ("America/Caracas", "2016-05-01"),
    "Pyongyang moves half an hour before midnight": ("Asia/Pyongyang", "2018-05-04"),
    "Monrovia drops an offset with seconds": ("Africa/Monrovia", "1972-01-07"),
    "Chatham is at three quarters": ("Pacific/Chatham", "2026-04-04"),
    "Kolkata never changes": ("Asia/Kolkata", "2026-03-29"),
    "Paris goes back": ("Europe/Paris", "2026-10-25"),
    "New York goes forward": ("America/New_York", "2026-03-08"),
}

MINUTES = ["*", "*/5", "*/7", "0", "30", "0,30", "15-45/10", "1,59", "0-59"]
HOURS = ["*", "*/2", "*/5", "0", "1", "2", "23", "0,1,2,3", "1-3", "0-23", "22-23,0-1"]
WEEKDAYS = ["*", "*", "sun", "mon-fri", "0,6"]
MONTH_DAYS = ["*", "*", "1", "29,30", "1-7", "31", "*/3"]


def numbers(text: str, low: int, high: int) -> set[int]:
    """Expand a field by the plainest reading of it."""
    names = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            first, last = str(low), str(high)
        begin = names.get(first, -1) if first in names else int(first)
        end = names[last] if last in names else int(last or begin)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def search(trigger: Crontab, zone: str, start: datetime, end: datetime) -> list[int]:
    """Return all dues after ``start`` up to ``end``, by trying every minute with zoneinfo's own arithmetic."""
    minutes, hours = numbers(trigger.minute, 0, 59), numbers(trigger.hour, 0, 23)
    weekdays, days = numbers(trigger.day_of_week, 0, 6), numbers(trigger.day_of_month, 1, 31)
    tz = ZoneInfo(zone)

    def matches(wall: datetime) -> bool:
        return (
            wall.second == 0
            and wall.minute in minutes
            and wall.hour in hours
            and wall.day in days
            and wall.isoweekday() % 7 in weekdays
        )

    found = set()
    if trigger.minute.startswith("*") or trigger.hour.startswith("*"):
        # Half minutes too, for offsets with seconds.
        for step in range(int((end - start) / timedelta(seconds=30)) + 1):
            instant = start + step * timedelta(seconds=30)
            if matches(instant.astimezone(tz).replace(tzinfo=None)):
                found.add(instant)
    else:
        wall = (start - timedelta(days=2)).replace(tzinfo=None)
        while wall <= end.replace(tzinfo=None) + timedelta(days=2):
            if matches(wall):
                found.add(wall.replace(tzinfo=tz, fold=0).astimezone(timezone.utc))
            wall += timedelta(minutes=1)
    return sorted(to_us(instant) for instant in found if start < instant <= end)


def ours(trigger: Trigger, zone: str, start: datetime, end: datetime) -> list[int]:
    """Return all dues after ``start`` up to ``end``, by the function under test."""
    return list(itertools.takewhile(lambda due: due <= to_us(end), occurrences(trigger, to_us(start), zone=zone)))


def window(day: str, hours: int = 36) -> tuple[datetime, datetime]:
    """Return the hours around a day's noon."""
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=timezone.utc)
    return noon - timedelta(hours=hours), noon + timedelta(hours=hours)


@pytest.mark.parametrize("change", CHANGES)
def test_every_shape_of_expression_agrees_with_the_search(change: str) -> None:
    """Free and fixed minutes and hours, around each change."""
    zone, day = CHANGES[change]
    start, end = window(day, 20)
    for minute, hour in (("*", "*"), ("0", "*"), ("*/7", "0-3"), ("0,30", "0,1,2,3,23"), ("30", "2"), ("0-59", "0-23")):
        trigger = Crontab(minute, hour)
        assert ours(trigger, zone, start, end) == search(trigger, zone, start, end), (minute, hour)


crontabs = st.builds(
    Crontab,
    st.sampled_from(MINUTES),
    st.sampled_from(HOURS),
    st.sampled_from(WEEKDAYS),
    st.sampled_from(MONTH_DAYS),
)


@given(crontabs, st.sampled_from(sorted(CHANGES)))
@settings(max_examples=60, deadline=None)
def test_any_expression_agrees_with_the_search(trigger: Crontab, change: str) -> None:
    """Whatever the fields and the change, the dues are those that trying every minute finds."""
    zone, day = CHANGES[change]
    start, end = window(day)
    assert ours(trigger, zone, start, end) == search(trigger, zone, start, end)


zones = st.sampled_from(sorted({zone for zone, _ in CHANGES.values()} | {"UTC"}))
instants = st.integers(
    to_us(datetime(1975, 1, 1, tzinfo=timezone.utc)), to_us(datetime(2060, 1, 1, tzinfo=timezone.utc))
)
walls = st.datetimes(datetime(1980, 1, 1), datetime(2050, 1, 1)).map(lambda moment: moment.replace(microsecond=0))
rules = st.sampled_from(
    [
        "FREQ=YEARLY",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=MONTHLY;BYDAY=-1FR",
        "FREQ=MONTHLY;BYMONTHDAY=31;BYHOUR=0,12",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,SU;WKST=SU",
        "FREQ=DAILY;INTERVAL=3",
        "FREQ=DAILY;COUNT=40",
        "FREQ=HOURLY;INTERVAL=5",
        "FREQ=HOURLY;BYHOUR=1,2,3",
        "FREQ=MINUTELY;INTERVAL=50;BYDAY=SU",
    ]
)
recurrences = st.builds(lambda rule, start: Recurrence(f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{rule}"), rules, walls)
cron_texts = st.sampled_from(
    ["*/5 * * * *", "30 2 * * *", "0 0 1-7 * sun", "15 1,2 L * *", "*/20 30 2 * * *", "@hourly"]
)
intervals = st.integers(1_000, 10**14).map(Interval)
triggers = st.one_of(
    crontabs,
    recurrences,
    cron_texts.map(CronText),
    intervals,
    st.integers(1, 10**7).map(lambda seconds: Interval(seconds * SECOND_US, relative=True)),
    walls.map(At),
)


@given(triggers, zones, instants, instants)
@settings(max_examples=300, deadline=None)
def test_the_next_due_is_later_and_does_not_depend_on_who_asks(
    trigger: Trigger, zone: str, instant_us: int, anchor_us: int
) -> None:
    """Asking from just before a due, or from between two, gives the same due; it is always later."""
    dues = preview(trigger, 3, instant_us, anchor_us=anchor_us, zone=zone)
    previous = instant_us
    for due in dues:
        assert due > previous
        for asked in (previous, (previous + due) // 2, due - 1):
            assert next_after(trigger, asked, anchor_us=anchor_us, zone=zone) == due
        previous = due


@given(triggers, zones, instants, st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_trigger_survives_storage_with_its_next_fifty_dues(
    trigger: Trigger, zone: str, instant_us: int, own_zone: bool
) -> None:
    """What is read back is equal, and due at the same instants."""
    if own_zone:
        trigger = trigger.in_zone(zone)
    loaded = from_json(to_json(trigger))
    assert loaded == trigger
    assert preview(loaded, 50, instant_us, anchor_us=7, zone=zone) == preview(
        trigger, 50, instant_us, anchor_us=7, zone=zone
    )


@given(st.integers(1_000, 10**13), instants, instants)
def test_an_interval_is_due_on_its_grid(every_us: int, anchor_us: int, instant_us: int) -> None:
    """Each due is a whole number of intervals from the anchor, and at most one interval away."""
    due = next_after(Interval(every_us), instant_us, anchor_us=anchor_us)
    assert due is not None
    assert (due - anchor_us) % every_us == 0
    assert 0 < due - instant_us <= every_us
