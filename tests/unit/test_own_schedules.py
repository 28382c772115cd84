"""Schedule classes that users derive from Celery's: what holds for a plain crontab at clock changes holds for them."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_zsched.entry import build, decode, encode
from celery_zsched.planner import nominals
from celery_zsched.triggers import (
    Crontab,
    Custom,
    Interval,
    Solar,
    from_celery,
    from_json,
    next_after,
    preview,
    to_json,
)
from celery_zsched.types import SECOND_US
from tests.unit.test_due_search import CHANGES, HOURS, MINUTES, WEEKDAYS, ours, window
from tests.unit.test_due_times import dues, text, us
from tests.unit.user_schedules import (
    Always,
    InParis,
    Nightly,
    NoSundays,
    SubCron,
    SubSchedule,
    SubSolar,
    Watched,
    Workdays,
    Wrapped,
    WrappedFixed,
    WrappedReal,
)

HOUR_US = 3_600 * SECOND_US


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (SubCron(minute="*/5", hour=9), Crontab("*/5", "9")),
        (SubCron(hour=9, app=Celery(set_as_current=False, config_source={"timezone": "Asia/Tokyo"})),
         Crontab("*", "9", zone="Asia/Tokyo")),
        (Nightly(3), Crontab("0", "3")),
        (InParis(0, 9), Crontab("0", "9", zone="Europe/Paris")),
        (SubSchedule(30), Interval(30 * SECOND_US)),
        (SubSchedule(timedelta(hours=1), relative=True), Interval(HOUR_US, relative=True)),
        (SubSolar("sunset", 48, 11), Solar("sunset", 48.0, 11.0)),
    ],
)  # fmt: skip
def test_a_subclass_that_decides_nothing_is_its_base(written: Any, plain: Any) -> None:
    """It is stored as Celery's own class, so that processes without it can read it."""
    assert from_celery(written, app_zone="UTC") == plain


@pytest.mark.parametrize(
    ("base", "args", "name", "value"),
    [
        (crontab, (), "is_due", crontab.is_due),
        (crontab, (), "remaining_estimate", crontab.remaining_estimate),
        (crontab, (), "remaining_delta", crontab.remaining_delta),
        (crontab, (), "_delta_to_next", crontab._delta_to_next),
        (crontab, (), "now", crontab.now),
        (crontab, (), "next_after", lambda self, instant: instant + timedelta(hours=1)),
        (crontab, (), "hour", property(lambda self: {1}, lambda self, value: None)),
        (schedule, (30,), "seconds", property(lambda self: 5)),
        (schedule, (30,), "run_every", property(lambda self: timedelta(seconds=5), lambda self, value: None)),
        (solar, ("sunset", 48, 11), "remaining_estimate", solar.remaining_estimate),
        (solar, ("sunset", 48, 11), "_horizons", {"sunset": "-3"}),
    ],
)
def test_a_subclass_that_decides_something_is_asked(base: type, args: Any, name: str, value: Any) -> None:
    """Whichever of Celery's methods and values it has anew, also by a class mixed in."""
    for kind in (type("Local", (base,), {name: value}), type("Local", (type("Mixed", (), {name: value}), base), {})):
        kind.__module__, kind.__qualname__ = __name__, f"{base.__name__}_{name}"
        globals()[kind.__qualname__] = kind
        assert isinstance(from_celery(kind(*args)), Custom)


@pytest.mark.parametrize("kind", [SubCron, Watched])
def test_the_reported_cases_come_out_right_for_subclasses(kind: type[crontab]) -> None:
    """C-01, C-02, C-03, C-07: both passes of the repeated hour, no flood in it, and a time that does not exist."""
    fired = dues(kind(), "Europe/Paris", "2026-10-24T23:59:30", 200)
    assert len([due for due in fired if due <= "2026-10-25T02:59:30"]) == 180
    assert dues(kind(), "Europe/Paris", "2026-10-25T00:59", 1) == ["2026-10-25T01:00"]
    assert dues(kind(minute=0), "US/Pacific", "2026-11-01T06:59:59", 5) == [
        f"2026-11-01T{hour:02}:00" for hour in (7, 8, 9, 10, 11)
    ]
    assert dues(kind(minute="*/15"), "Europe/London", "2022-10-30T00:45", 1) == ["2022-10-30T01:00"]
    half = kind(hour=2, minute=30)
    assert dues(half, "Europe/Paris", "2026-10-25T01:10:05", 1) == ["2026-10-26T01:30"]
    assert dues(half, "Europe/Paris", "2026-10-25T00:00", 2) == ["2026-10-25T00:30", "2026-10-26T01:30"]
    fired = dues(kind(minute="*/5"), "America/New_York", "2026-11-01T06:10:05", 13)
    assert (fired[0], fired[11]) == ("2026-11-01T06:15", "2026-11-01T07:10")
    assert dues(half, "US/Eastern", "2024-03-09T07:30", 2) == ["2024-03-10T07:30", "2024-03-11T06:30"]


@pytest.mark.parametrize("kind", [SubCron, Watched])
def test_a_subclass_stands_in_the_zone_of_its_entry(kind: type[crontab]) -> None:
    """C-09: not in that of the process's current app, before and after it was stored."""
    for zone, expected in (("America/New_York", "2026-07-01T13:00"), ("Asia/Tokyo", "2026-07-02T00:00")):
        spec = decode(encode(build("entry", "task", kind(minute=0, hour=9), zone=zone)))
        assert text(next(nominals(spec, us("2026-07-01T00:30"), zone="UTC"))) == expected
        assert spec.zone == zone
    assert dues(kind(minute=0, hour=9), "Asia/Tokyo", "2026-07-01T00:30", 1) == ["2026-07-02T00:00"]


def test_what_a_subclass_decides_is_kept() -> None:
    """Its answers count, on the wall of its zone."""
    paris = "Europe/Paris"
    assert dues(Workdays(30, 2), paris, "2026-10-23T12:00", 2) == ["2026-10-26T01:30", "2026-10-27T01:30"]
    expected = ["2026-10-24T00:30", "2026-10-26T01:30", "2026-10-27T01:30"]
    assert dues(NoSundays(30, 2), paris, "2026-10-23T12:00", 3) == expected
    assert dues(NoSundays(0, 9), "Asia/Tokyo", "2026-10-24T12:00", 1) == ["2026-10-26T00:00"]


@given(st.sampled_from(MINUTES), st.sampled_from(HOURS), st.sampled_from(WEEKDAYS), st.sampled_from(sorted(CHANGES)))
@settings(max_examples=25, deadline=None)
def test_a_crontab_by_another_class_is_due_as_a_crontab(minute: str, hour: str, weekday: str, change: str) -> None:
    """Whatever the fields and the change: the same dues, also where the class must be asked."""
    zone, day = CHANGES[change]
    start, end = window(day, 20)
    plain, asked = Crontab(minute, hour, weekday), from_celery(Watched(minute, hour, weekday))
    assert isinstance(asked, Custom)
    assert ours(from_json(to_json(asked)), zone, start, end) == ours(plain, zone, start, end)


@pytest.mark.parametrize("own", [None, "Europe/Paris"])
@pytest.mark.parametrize(("minute", "hour"), [("30", "2"), ("*", "*"), ("*/5", "2"), ("0,30", "1,2")])
def test_a_class_with_celerys_arithmetic_is_never_due_without_end(minute: str, hour: str, own: str | None) -> None:
    """C-03: asked from anywhere in a repeated hour, in the entry's zone or one of its own, dues are minutes apart."""
    trigger = from_celery(Wrapped(minute, hour, own))
    zone = "UTC" if own else "Europe/Paris"
    for begin in ("00:10:05", "00:59:59", "01:00", "01:10:05", "01:29:59", "01:31", "01:59:30"):
        after_us = us(f"2026-10-25T{begin}")
        fired = preview(trigger, 6, after_us, zone=zone)
        assert all(later - earlier >= 60 * SECOND_US for earlier, later in pairwise(fired))
        assert all(due % (60 * SECOND_US) == 0 for due in fired)
        if minute == "30" and own is None:
            assert text(next_after(trigger, us("2026-10-25T00:31"), zone=zone) or 0) == "2026-10-26T01:30"


def test_a_class_of_any_kind_can_follow_real_time() -> None:
    """With ``follows_real_time`` it is asked on a clock without changes: true for both passes, false for the first."""
    fired = dues(WrappedReal("*/15", "*"), "Europe/Paris", "2026-10-25T00:20", 7)
    assert fired == [
        f"2026-10-25T{moment}" for moment in ("00:30", "00:45", "01:00", "01:15", "01:30", "01:45", "02:00")
    ]
    first_only = dues(WrappedFixed("*/15", "*"), "Europe/Paris", "2026-10-25T00:20", 3)
    assert first_only == ["2026-10-25T00:30", "2026-10-25T00:45", "2026-10-25T02:00"]


def test_a_class_that_is_always_due_is_due_once_a_second_at_most() -> None:
    """It is not sent as fast as a beat can."""
    noon = us("2026-01-09T12:00")
    assert preview(from_celery(Always()), 3, noon) == [noon + n * SECOND_US for n in (1, 2, 3)]


def test_a_nowfun_says_in_which_zone_a_subclass_is() -> None:
    """Of one that must be asked too; the function itself is not stored."""
    clock = Celery(set_as_current=False, config_source={"timezone": "Asia/Tokyo"}).now
    trigger = from_celery(Watched(0, 9, nowfun=clock), app_zone="UTC")
    assert trigger.zone == "Asia/Tokyo"
    assert text(next_after(from_json(to_json(trigger)), us("2026-07-01T00:30")) or 0) == "2026-07-02T00:00"
