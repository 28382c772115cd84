"""Due times at clock changes and at the edges of the calendar: reported cases with their right values."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, solar

from celery_zsched.entry import EntrySpec, build, decode, encode
from celery_zsched.errors import EntryError, ScheduleError
from celery_zsched.planner import nominals
from celery_zsched.triggers import At, Crontab, CronText, Recurrence, Solar, from_celery, next_after, preview
from celery_zsched.types import from_us, to_us

WEST = ("America/Los_Angeles", "Asia/Kolkata", "Pacific/Auckland")


def us(text: str) -> int:
    """Return an ISO moment, in UTC unless it says otherwise, as microseconds."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return to_us(moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo("UTC")))


def dues(schedule: Any, zone: str, last: str, n: int, anchor: str | None = None) -> list[str]:
    """Return the next dues in UTC, as short text."""
    anchor_us = None if anchor is None else us(anchor)
    return [text(due) for due in preview(from_celery(schedule), n, us(last), anchor_us=anchor_us, zone=zone)]


def text(instant_us: int) -> str:
    """Return an instant as short text."""
    return from_us(instant_us).strftime("%Y-%m-%dT%H:%M:%S").removesuffix(":00")


def entry(schedule: Any, **rules: Any) -> EntrySpec:
    """Return an entry with this schedule, as it is after it was stored and loaded."""
    return decode(encode(build("entry", "task", schedule, **rules)))


@pytest.mark.parametrize(
    ("start", "end"), [("2020-10-24T23:59:30", "2020-10-25T02:59:30"), ("2026-10-24T23:59:30", "2026-10-25T02:59:30")]
)
def test_every_minute_fires_each_real_minute_of_the_repeated_hour(start: str, end: str) -> None:
    """C-01: 180 sends in three hours around the autumn change, 120 of them in its two passes."""
    fired = preview(from_celery(crontab()), 200, us(start), zone="Europe/Paris")
    fired = [due for due in fired if due <= us(end)]
    assert len(fired) == 180
    day = start[:8] + "25"
    assert len([due for due in fired if us(f"{day}T00:00") <= due < us(f"{day}T02:00")]) == 120
    assert dues(crontab(), "Europe/Paris", f"{day}T00:59", 1) == [f"{day}T01:00"]


def test_an_hourly_crontab_fires_in_both_passes() -> None:
    """C-02: the hour is free, so the repeated hour has two sends."""
    expected = ["2026-11-01T07:00", "2026-11-01T08:00", "2026-11-01T09:00", "2026-11-01T10:00", "2026-11-01T11:00"]
    assert dues(crontab(minute=0), "US/Pacific", "2026-11-01T06:59:59", 5) == expected
    assert dues(crontab(minute=0), "US/Pacific", "2026-11-01T08:00", 1) == ["2026-11-01T09:00"]
    assert dues(crontab(minute="*/15"), "Europe/London", "2022-10-30T00:45", 1) == ["2022-10-30T01:00"]


@pytest.mark.parametrize(
    ("zone", "hour", "minute", "now", "expected"),
    [
        ("Europe/Paris", 2, 30, "2026-10-25T01:10:05", "2026-10-26T01:30"),
        ("America/New_York", 1, 30, "2026-11-01T06:10:05", "2026-11-02T06:30"),
    ],
)
def test_a_fixed_time_does_not_fire_in_the_second_pass(
    zone: str, hour: int, minute: int, now: str, expected: str
) -> None:
    """C-03: an entry first seen in the second pass is due the next day, and is never due in the past."""
    assert dues(crontab(hour=hour, minute=minute), zone, now, 1) == [expected]


@pytest.mark.parametrize(
    ("zone", "day", "hour"), [("Europe/Paris", "2026-10-25", 1), ("America/New_York", "2026-11-01", 6)]
)
def test_steps_go_on_through_the_second_pass(zone: str, day: str, hour: int) -> None:
    """C-03: every five minutes means 12 sends in any real hour."""
    fired = dues(crontab(minute="*/5"), zone, f"{day}T0{hour}:10:05", 13)
    assert fired[0] == f"{day}T0{hour}:15"
    assert [due for due in fired if us(due) <= us(f"{day}T0{hour + 1}:10:05")] == fired[:12]


@pytest.mark.parametrize(
    ("schedule", "zone", "last", "expected"),
    [
        (crontab(hour=16, minute=4), "America/New_York", "2025-03-08T21:04", ["2025-03-09T20:04", "2025-03-10T20:04"]),
        (crontab(0, 14, "thu"), "America/Los_Angeles", "2018-03-08T22:00", ["2018-03-15T21:00", "2018-03-22T21:00"]),
        (crontab(hour=17, minute=0), "America/New_York", "2015-10-31T21:00", ["2015-11-01T22:00", "2015-11-02T22:00"]),
        (crontab(0, 12, "mon"), "Europe/Amsterdam", "2013-10-21T10:00", ["2013-10-28T11:00", "2013-11-04T11:00"]),
    ],
)
def test_the_wall_time_is_kept_across_a_change(schedule: crontab, zone: str, last: str, expected: list[str]) -> None:
    """C-05, C-06: neither an hour late in spring nor an hour early, and again, in autumn."""
    assert dues(schedule, zone, last, 2) == expected


@pytest.mark.parametrize(
    ("schedule", "last", "expected"),
    [
        (crontab(hour=2, minute=30), "2024-03-09T07:30", ["2024-03-10T07:30", "2024-03-11T06:30"]),
        (crontab(30, 2, "*", 8), "2026-03-01T00:00", ["2026-03-08T07:30", "2026-04-08T06:30"]),
        (crontab(hour="2,3", minute=30), "2026-03-08T06:00", ["2026-03-08T07:30", "2026-03-09T06:30"]),
        (crontab(hour=2, minute=15), "2026-03-08T07:09:32", ["2026-03-08T07:15", "2026-03-09T06:15"]),
        (crontab(hour="2,3", minute="0,30"), "2026-03-08T06:00", ["2026-03-08T07:00", "2026-03-08T07:30"]),
        (crontab(hour="*", minute=30), "2026-03-08T06:00", ["2026-03-08T06:30", "2026-03-08T07:30"]),
        (crontab(hour=2, minute="*/30"), "2026-03-08T06:00", ["2026-03-09T06:00", "2026-03-09T06:30"]),
    ],
)
def test_a_wall_time_that_does_not_exist_fires_once(schedule: crontab, last: str, expected: list[str]) -> None:
    """C-07: at the instant that the offset before the gap gives; two wall times on one instant are one send."""
    assert dues(schedule, "US/Eastern", last, 2) == expected


def test_the_zone_belongs_to_the_entry() -> None:
    """C-09: an entry's zone is neither the app's nor lost when it is stored."""
    new_york = entry(crontab(hour=8, minute=0), zone="America/New_York")
    assert text(next(nominals(new_york, us("2025-05-20T12:30"), zone="Europe/Vilnius"))) == "2025-05-21T12:00"
    by_clock = entry(crontab(hour=8, minute=0, nowfun=lambda: datetime.now(ZoneInfo("America/New_York"))))
    assert by_clock.zone == "America/New_York"
    tokyo = entry(crontab(hour=9, minute=0), zone="Asia/Tokyo")
    assert text(next(nominals(tokyo, us("2026-01-05T00:00:01"), zone="UTC"))) == "2026-01-06T00:00"
    new_york = entry(crontab(hour=9, minute=0), zone="America/New_York")
    assert text(next(nominals(new_york, us("2026-01-05T00:00"), zone="UTC"))) == "2026-01-05T14:00"
    assert text(next(nominals(new_york, us("2026-07-05T00:00"), zone="UTC"))) == "2026-07-05T13:00"


def test_an_entry_in_a_western_zone_fires() -> None:
    """C-10: 07:00 in Los Angeles is due the next day, though the server's day has moved on."""
    spec = entry(crontab(hour=7, minute=0), zone="America/Los_Angeles")
    assert text(next(nominals(spec, us("2025-04-18T15:00")))) == "2025-04-19T14:00"


@pytest.mark.parametrize("zone", WEST)
def test_each_hour_of_the_day_fires_every_day(zone: str) -> None:
    """C-10: 24 daily entries in one zone have 48 sends in 48 hours."""
    start, end = us("2025-04-18T15:10"), us("2025-04-20T15:10")
    for hour in range(24):
        fired = preview(Crontab("0", str(hour), zone=zone), 3, start)
        assert len([due for due in fired if due <= end]) == 2


def test_a_due_does_not_depend_on_when_it_is_computed() -> None:
    """C-11: the next due is a wall time, not a distance from the last run."""
    assert dues(crontab(hour=6, minute=0), "UTC", "2026-01-21T21:32:36", 1) == ["2026-01-22T06:00"]


def test_an_entry_without_a_zone_moves_with_the_app() -> None:
    """C-12: stored under one app zone, computed under the next."""
    spec = entry(crontab(hour=9, minute=0), app_zone="Europe/Berlin")
    assert spec.follows_app_zone
    assert text(next(nominals(spec, us("2026-07-01T10:00"), zone="Europe/Berlin"))) == "2026-07-02T07:00"
    assert text(next(nominals(spec, us("2026-07-01T10:00"), zone="America/New_York"))) == "2026-07-01T13:00"


def test_a_long_interval_stands_on_its_grid() -> None:
    """C-15: asking again and again does not move it."""
    expected = ["2026-01-08T00:00", "2026-01-15T00:00"]
    for hours in range(0, 160, 5):
        asked = text(us("2026-01-01T00:00") + hours * 3_600_000_000)
        assert dues(timedelta(days=7), "UTC", asked, 2, anchor="2026-01-01T00:00") == expected


def test_day_of_month_and_weekday_must_both_match_in_celery() -> None:
    """C-29: Celery's meaning is kept, with a notice; cron text has crontab(5)'s."""
    both = crontab(minute=0, hour=22, day_of_month="1-7", day_of_week="sat")
    assert dues(both, "UTC", "2017-10-07T22:00", 2) == ["2017-11-04T22:00", "2017-12-02T22:00"]
    assert "must both match" in from_celery(both).notices()[0]
    assert dues("0 22 1-7 * sat", "UTC", "2017-10-07T22:00", 1) == ["2017-10-14T22:00"]
    assert "either is enough" in CronText("0 22 1-7 * sat").notices()[0]
    assert any("both must match" in notice for notice in CronText("0 22 */2 * sat").notices())


def test_steps_that_do_not_divide_have_a_notice() -> None:
    """C-30: a step counts within its field; what was meant can be said in another way."""
    assert dues(crontab(minute="*/120"), "UTC", "2019-01-31T10:30", 2) == ["2019-01-31T11:00", "2019-01-31T12:00"]
    assert "beyond the field" in Crontab("*/120").notices()[0]
    assert dues(crontab(minute="*/45"), "UTC", "2019-01-31T10:30", 2) == ["2019-01-31T10:45", "2019-01-31T11:00"]
    assert "uneven" in Crontab("*/45").notices()[0]
    third = crontab(minute=0, hour=11, day_of_month="*/3")
    assert dues(third, "UTC", "2019-01-31T11:00", 3) == ["2019-02-01T11:00", "2019-02-04T11:00", "2019-02-07T11:00"]
    assert Crontab("*/15", "*/6").notices() == []
    every_third = entry("RRULE:FREQ=DAILY;INTERVAL=3", start=datetime(2019, 1, 28, 11), zone="UTC")
    fired = nominals(every_third, us("2019-01-28T11:00"))
    assert [text(next(fired)) for _ in range(3)] == ["2019-01-31T11:00", "2019-02-03T11:00", "2019-02-06T11:00"]
    assert dues(timedelta(days=3), "UTC", "2019-01-28T11:00", 2, anchor="2019-01-28T11:00") == [
        "2019-01-31T11:00",
        "2019-02-03T11:00",
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Crontab("0", "0", "*", "31", "4"),
        lambda: Crontab("0", "0", "1", "31", "2"),
        lambda: Crontab("0", "0", "*", "30,31", "2"),
        lambda: Crontab("0", "0", "*", "31", "2,4,6,9,11"),
        lambda: CronText("0 0 31 4 *"),
        lambda: CronText("0 0 30 2 */2"),
        lambda: Recurrence("FREQ=YEARLY;BYMONTH=4;BYMONTHDAY=31"),
        lambda: Recurrence("DTSTART:20230101T000000 RRULE:FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29"),
        lambda: Recurrence("DTSTART:20240102T000000 RRULE:FREQ=DAILY;INTERVAL=7;BYDAY=MO"),
        lambda: Recurrence("DTSTART:20240102T020000 RRULE:FREQ=HOURLY;INTERVAL=24;BYHOUR=3"),
        lambda: Recurrence("DTSTART:20240102T020000 RRULE:FREQ=DAILY;UNTIL=20230101"),
        lambda: Recurrence("DTSTART:20240102T020000 RRULE:FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6"),
    ],
)
def test_what_can_never_match_is_refused_at_once(make: Any) -> None:
    """C-31: a date that never comes is refused when it is declared, within 100 ms (a second on a busy machine)."""
    begun = datetime.now()
    with pytest.raises(ScheduleError, match="never match"):
        make()
    assert datetime.now() - begun < timedelta(seconds=1)


def test_what_matches_rarely_is_taken() -> None:
    """C-31: 29 February and the 31st are fine; the longest wait of the calendar is 40 years."""
    assert dues(crontab(0, 0, "*", 29, 2), "UTC", "2024-02-29T00:00", 1) == ["2028-02-29T00:00"]
    assert dues(crontab(0, 0, "*", 31), "UTC", "2026-01-31T00:00", 1) == ["2026-03-31T00:00"]
    assert dues(crontab(0, 0, "sun", 29, 2), "UTC", "2088-02-29T00:00", 1) == ["2128-02-29T00:00"]
    assert dues("0 0 29 2 */7", "UTC", "2088-02-29T00:00", 1) == ["2128-02-29T00:00"]
    assert dues("0 0 L 2 *", "UTC", "2027-02-28T00:00", 1) == ["2028-02-29T00:00"]
    assert dues("0 0 * 2 mon#5", "UTC", "2026-01-01T00:00", 1) == ["2044-02-29T00:00"]


def test_one_entry_that_never_matches_says_so_when_built() -> None:
    """C-31: the message names the entry and the fields."""
    with pytest.raises(EntryError, match=r"'entry'.*day_of_month='31'.*month_of_year='4'"):
        build("entry", "task", _late_crontab())


def _late_crontab() -> crontab:
    """Return a crontab for 31 April, which newer Celery refuses to make itself."""
    schedule = crontab(0, 0, "*", 30, 4)
    schedule._orig_day_of_month = 31
    return schedule


def test_the_sun_that_does_not_rise() -> None:
    """C-33: the first sunrise after the polar night, the same after storing."""
    spec = entry(solar("sunrise", 69.65, 18.96))
    due = next(nominals(spec, us("2026-12-10T12:00")))
    assert abs(due - us("2027-01-15T10:34:38")) < 60_000_000
    assert next_after(Solar("sunrise", 69.65, 18.96), us("2026-12-10T12:00")) == due
    following = next_after(spec.trigger, due)
    assert following is not None and following - due > 20 * 3_600_000_000
    with pytest.raises(ScheduleError, match="never happens"):
        Solar("sunrise", 90, 0)


def test_solar_events_are_each_due_once() -> None:
    """An event is computed alike from any instant before it, so it cannot be due twice."""
    for event in ("dawn_astronomical", "solar_noon", "dusk_civil"):
        trigger = Solar(event, 51.5, -0.1)
        fired = preview(trigger, 5, us("2026-09-01T00:00"))
        assert all(23.5 < (b - a) / 3_600_000_000 < 24.5 for a, b in itertools.pairwise(fired))
        assert [next_after(trigger, due - 1) for due in fired] == fired


def test_a_rule_keeps_its_zone() -> None:
    """C-47: stored in winter, due by the wall clock in summer."""
    spec = entry("DTSTART;TZID=America/New_York:20260105T090000\nRRULE:FREQ=DAILY")
    assert text(next(nominals(spec, us("2026-07-01T04:00")))) == "2026-07-01T13:00"


def test_one_offs() -> None:
    """An instant, or a wall time in a zone by the rule for fixed times."""
    assert dues(datetime(2026, 3, 8, 7, tzinfo=ZoneInfo("UTC")), "UTC", "2026-01-01T00:00", 2) == ["2026-03-08T07:00"]
    gap, twice = At(datetime(2026, 3, 8, 2, 30)), At(datetime(2026, 11, 1, 1, 30), "America/New_York")
    assert next_after(gap, 0, zone="America/New_York") == us("2026-03-08T07:30")
    assert next_after(twice, 0) == us("2026-11-01T05:30")
    assert next_after(twice, us("2026-11-01T05:30")) is None


def test_a_day_that_a_zone_skipped() -> None:
    """Samoa had no 30 December 2011: what was due then is due when the offset before gives it, once."""
    assert dues(crontab(0, 9), "Pacific/Apia", "2011-12-29T00:00", 3) == [
        "2011-12-29T19:00",
        "2011-12-30T19:00",
        "2011-12-31T19:00",
    ]
    assert dues(crontab(0, 9, "*", 30), "Pacific/Apia", "2011-12-01T00:00", 1) == ["2011-12-30T19:00"]
