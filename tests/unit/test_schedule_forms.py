"""What users write as a schedule, and what is stored for it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil import tz as dateutil_tz
from dateutil.rrule import DAILY, rrule

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers import (
    At,
    Crontab,
    CronText,
    Custom,
    Interval,
    Recurrence,
    Solar,
    Trigger,
    from_celery,
    from_json,
    next_after,
    preview,
    register_trigger,
    to_json,
    zone_name,
)
from celery_zsched.types import from_us, to_us
from tests.unit.user_schedules import Backwards, Broken, EveryNthHour, Slow, Stuck, Tides, Workdays

NOON = to_us(datetime(2026, 1, 9, 12, tzinfo=timezone.utc))


def stored(trigger: Trigger) -> Trigger:
    """Return a trigger as another process reads it."""
    return from_json(json.loads(json.dumps(to_json(trigger))))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (30, Interval(30_000_000)),
        (0.1, Interval(100_000)),
        (timedelta(minutes=1, microseconds=1), Interval(60_000_001)),
        (schedule(30), Interval(30_000_000)),
        (schedule(30, relative=True), Interval(30_000_000, relative=True)),
        (crontab(minute=0, hour={1, 2}), Crontab("0", "1,2")),
        (crontab(minute="*/15", day_of_week="mon-fri"), Crontab("*/15", day_of_week="mon-fri")),
        (crontab(hour=range(9, 12), month_of_year=[1, 7]), Crontab(hour="9,10,11", month_of_year="1,7")),
        (Crontab(0, [1, 2], month_of_year="jan-march"), Crontab("0", "1,2", month_of_year="1-3")),  # type: ignore[arg-type]
        ("30  9 * * 1-5", CronText("30 9 * * 1-5")),
        ("@daily", CronText("@daily")),
        ("freq=daily;byhour=9", Recurrence("RRULE:FREQ=DAILY;BYHOUR=9")),
        (datetime(2026, 1, 1, 9), At(datetime(2026, 1, 1, 9))),
        (datetime(2026, 1, 1, 9, tzinfo=ZoneInfo("Asia/Tokyo")), At(datetime(2026, 1, 1, tzinfo=timezone.utc))),
        (solar("sunset", 48, 11), Solar("sunset", 48.0, 11.0)),
    ],
)
def test_every_form_becomes_a_trigger(written: Any, expected: Trigger) -> None:
    """Numbers, timedeltas, Celery's schedules, text and datetimes are all taken, and come back from storage."""
    trigger = from_celery(written)
    assert trigger == expected
    assert hash(trigger) == hash(expected)
    assert stored(trigger) == expected
    assert str(trigger)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (0, "at least"),
        (-5, "at least"),
        (float("inf"), "finite"),
        (float("nan"), "finite"),
        (True, "number of seconds"),
        (None, "no schedule"),
        ([1, 2], "no schedule"),
        ("every five minutes", "cannot be read"),
        ("61 * * * *", "minute"),
        (schedule(), "run_every"),
        (Crontab, "no schedule"),
    ],
)
def test_what_is_no_schedule_is_refused_with_the_reason(written: Any, reason: str) -> None:
    """The message names the value and what would do."""
    with pytest.raises(ScheduleError, match=reason):
        from_celery(written)


@pytest.mark.parametrize(
    ("field", "value"),
    [("minute", "60"), ("hour", "24"), ("day_of_week", "funday"), ("minute", []), ("hour", 1.5), ("minute", "*/0")],
)
def test_a_crontab_field_that_cannot_be_read_is_named(field: str, value: Any) -> None:
    """The message names the field and the value."""
    with pytest.raises(ScheduleError, match=field):
        Crontab(**{field: value})


def test_where_the_zone_of_a_celery_schedule_comes_from() -> None:
    """A tz of its own, a nowfun, an app with another zone; the app's own zone is not written down."""
    assert from_celery(crontab(hour=9)).zone is None
    assert from_celery(crontab(hour=9), zone="Asia/Tokyo").zone == "Asia/Tokyo"
    clock = crontab(hour=9, nowfun=lambda: datetime.now(ZoneInfo("America/New_York")))
    assert from_celery(clock, app_zone="UTC").zone == "America/New_York"
    assert from_celery(clock, zone="Asia/Tokyo").zone == "America/New_York"
    assert from_celery(clock, app_zone="America/New_York").zone is None
    other = crontab(hour=9, app=Celery(set_as_current=False, config_source={"timezone": "Europe/Paris"}))
    assert from_celery(other, app_zone="UTC").zone == "Europe/Paris"
    assert from_celery(other, app_zone="Europe/Paris").zone is None
    assert from_celery(other).zone is None
    tokyo = crontab(hour=9)
    tokyo.tz = ZoneInfo("Asia/Tokyo")
    assert from_celery(tokyo, app_zone="UTC").zone == "Asia/Tokyo"


def test_schedules_of_other_schedulers_are_understood() -> None:
    """django-celery-beat's crontab with a zone, and redbeat's rule with its zone."""

    class TzAwareCrontab(crontab):
        """As django-celery-beat has it."""

    TzAwareCrontab.__module__ = "django_celery_beat.tzcrontab"
    zoned = TzAwareCrontab(0, 9)
    zoned.tz = ZoneInfo("Asia/Tokyo")
    assert from_celery(zoned, app_zone="UTC") == Crontab("0", "9", zone="Asia/Tokyo")

    class RedBeatRule(BaseSchedule):
        """As redbeat has it."""

        rrule = rrule(DAILY, dtstart=datetime(2026, 1, 5, 9, tzinfo=ZoneInfo("America/New_York")))

    RedBeatRule.__module__, RedBeatRule.__name__ = "redbeat.schedules", "rrule"
    rule = from_celery(RedBeatRule())
    assert rule.zone == "America/New_York"
    assert next_after(rule, NOON) == to_us(datetime(2026, 1, 9, 14, tzinfo=timezone.utc))


def test_a_nowfun_that_fails_is_reported() -> None:
    """The user's function is asked once, as the schedule is read."""
    with pytest.raises(ScheduleError, match=r"nowfun.*ZeroDivisionError"):
        from_celery(crontab(hour=9, nowfun=lambda: 1 / 0))


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        (None, None),
        ("Europe/Paris", "Europe/Paris"),
        (timezone.utc, "UTC"),
        (ZoneInfo("Europe/Paris"), "Europe/Paris"),
        (dateutil_tz.gettz("America/New_York"), "America/New_York"),
        (dateutil_tz.UTC, "UTC"),
        (timezone(timedelta(hours=2)), "Etc/GMT-2"),
        (timezone(timedelta(hours=-5)), "Etc/GMT+5"),
        (timezone(timedelta(0)), "UTC"),
        (SimpleNamespace(zone="Asia/Tokyo"), "Asia/Tokyo"),
    ],
)
def test_zones_are_known_by_their_iana_names(zone: Any, name: str | None) -> None:
    """Whatever library the zone object comes from."""
    assert zone_name(zone) == name


@pytest.mark.parametrize(
    ("zone", "reason"),
    [
        ("Europe/Pariss", "did you mean Europe/Paris"),
        ("europe/paris", "did you mean Europe/Paris"),
        ("../etc/passwd", "no time zone"),
        ("", "no time zone"),
        ("localtime", "another zone on every machine"),
        (timezone(timedelta(hours=5, minutes=30)), "no IANA name"),
    ],
)
def test_a_zone_without_a_name_is_refused(zone: Any, reason: str) -> None:
    """The nearest names are offered."""
    with pytest.raises(ScheduleError, match=reason):
        zone_name(zone)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"kind": "lunar"}, "no schedule kind 'lunar'.*upgrade"),
        ({"kind": "crontabs"}, "did you mean 'crontab'"),
        ({}, "no schedule kind None"),
        (5, "JSON object"),
        ({"kind": "interval"}, "lacks 'every_us'"),
        ({"kind": "interval", "every_us": "5"}, "'every_us' is '5', not int"),
        ({"kind": "interval", "every_us": True}, "'every_us' is True"),
        ({"kind": "interval", "every_us": 5_000_000, "minute": "1"}, "unknown field 'minute'"),
        ({"kind": "crontab", "minute": 5}, "'minute' is 5, not str"),
        ({"kind": "crontab", "zone": "Mars"}, "Mars"),
        ({"kind": "at", "moment": "soon"}, "ISO 8601"),
        ({"kind": "solar", "event": "moonrise", "latitude": 1, "longitude": 1}, "moonrise"),
        ({"kind": "custom", "name": "tides-unknown", "args": []}, "register_trigger"),
        ({"kind": "custom", "name": "no.such.module:Class", "args": []}, "cannot be imported"),
        ({"kind": "custom", "name": "os:system", "args": ["true"]}, "no celery.schedules.BaseSchedule"),
        ({"kind": "custom", "name": "subprocess:Popen", "args": [["true"]]}, "no celery.schedules.BaseSchedule"),
        ({"kind": "custom", "name": "celery.schedules:schedule"}, "either 'args' or 'attributes'"),
        ({"kind": "custom", "name": "celery.schedules:solar", "args": []}, "cannot be made"),
    ],
)
def test_a_stored_schedule_that_cannot_be_used_says_why(document: Any, reason: str) -> None:
    """C-34: an unknown kind, field or class is a ScheduleError, and nothing else is run or raised."""
    with pytest.raises(ScheduleError, match=reason):
        from_json(document)


def test_documents_written_by_other_programs_are_read() -> None:
    """Python 3.10 reads the Z of RFC 3339 too; whole numbers do for degrees."""
    assert from_json({"kind": "at", "moment": "2026-01-01T09:00:00Z"}) == At(
        datetime(2026, 1, 1, 9, tzinfo=timezone.utc)
    )
    assert from_json({"kind": "solar", "event": "sunset", "latitude": 48, "longitude": 11}) == Solar("sunset", 48, 11)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (EveryNthHour(6), ["09 18:00", "10 00:00", "10 06:00"]),
        (Slow(timedelta(hours=5)), ["09 17:00", "09 22:00", "10 03:00"]),
        (Workdays(0, 9), ["12 09:00", "13 09:00", "14 09:00"]),
    ],
)
def test_a_schedule_class_of_the_users_own_is_stored_by_its_import_path(written: Any, expected: list[str]) -> None:
    """Any BaseSchedule that asks only self.now() is due as it would be in Celery's beat, before and after storing."""
    trigger = from_celery(written)
    assert isinstance(trigger, Custom)
    for one in (trigger, stored(trigger)):
        assert [from_us(due).strftime("%d %H:%M") for due in preview(one, 3, NOON)] == expected


def test_a_schedule_class_follows_the_zone() -> None:
    """It is asked with moments in the entry's zone."""
    (due,) = preview(from_celery(EveryNthHour(24), zone="Asia/Tokyo"), 1, NOON)
    assert from_us(due).strftime("%d %H:%M") == "09 15:00"


def test_a_registered_class_needs_no_celery() -> None:
    """A class with next_after is stored under its registered name, with the arguments that made it."""
    register_trigger("tides", Tides)
    register_trigger("tides", Tides)
    tides = Tides(datetime(2026, 1, 9, 10, tzinfo=timezone.utc), 3, ("Hamburg", "Cuxhaven"))
    trigger = from_celery(tides)
    assert to_json(trigger)["name"] == "tides"
    assert [from_us(due).strftime("%d %H:%M") for due in preview(stored(trigger), 9, NOON)] == ["09 22:25", "10 10:50"]
    with pytest.raises(ScheduleError, match="taken"):
        register_trigger("tides", Backwards)
    with pytest.raises(ScheduleError, match="neither next_after"):
        register_trigger("nothing", int)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (Stuck(), "never due: asked 1000 times"),
        (Broken(), "RuntimeError: the calendar service is away"),
        (Backwards(timedelta(hours=1)), "not later"),
        (Backwards(timedelta(0)), "not later"),
    ],
)
def test_a_schedule_class_that_misbehaves_is_an_error_of_its_entry(written: Any, reason: str) -> None:
    """C-34: a class that raises, is never due or answers with the past is a ScheduleError, not a loop or a crash."""
    register_trigger("backwards", Backwards)
    trigger = from_celery(written)
    with pytest.raises(ScheduleError, match=reason):
        next_after(trigger, NOON)


def test_a_schedule_that_cannot_be_stored_is_refused_when_declared() -> None:
    """Local classes, and state that is no JSON, are named with the remedy."""

    class Local(EveryNthHour):
        """Not importable."""

    with pytest.raises(ScheduleError, match="move it to a module"):
        from_celery(Local())
    holding = EveryNthHour()
    holding.client = object()  # type: ignore[attr-defined]
    with pytest.raises(ScheduleError, match="cannot be stored as JSON"):
        from_celery(holding)


def test_a_relative_interval_stands_on_the_wall_clock() -> None:
    """Celery's relative: whole days from midnight in the zone, across clock changes; whole hours from the hour."""
    daily = from_celery(timedelta(days=1), relative=True, zone="Europe/Paris")
    start = to_us(datetime(2026, 10, 24, 13, 37, tzinfo=timezone.utc))
    assert [from_us(due).strftime("%d %H:%M") for due in preview(daily, 3, start, anchor_us=start)] == [
        "24 22:00",
        "25 23:00",
        "26 23:00",
    ]
    two_hours = from_celery(timedelta(hours=2), relative=True)
    assert [from_us(due).strftime("%H:%M") for due in preview(two_hours, 2, start, anchor_us=start)] == [
        "15:00",
        "17:00",
    ]
    assert "fires every 1:00:00" in Interval.of(timedelta(minutes=90), relative=True).notices()[0]


def test_month_names_are_read_by_every_celery() -> None:
    """Celery before 5.7 knows only numbers; they are written as numbers."""
    assert to_json(Crontab("0", "0", month_of_year="Jan,mar-JUNE"))["month_of_year"] == "1,3-6"


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("2026-12-24T10:00", r"moment: .*datetime\.fromisoformat\('2026-12-24T10:00'\).*--at"),
        ("2026-12-24 10:00:30Z", r"fromisoformat\('2026-12-24 10:00:30\+00:00'\)"),
        ("2026-12-24", "looks like a moment"),
        ("09:00", r"time of day: .*crontab\(hour=9, minute=0\).*'0 9 \* \* \*'"),
        ("daily at 9:05:30", r"time of day: .*'30 5 9 \* \* \*'"),
        ("30s", r"interval: .*the number 30 or timedelta\(seconds=30\).*--every 30s\)$"),
        ("3600", r"interval: .*the number 3600 .*'0 \* \* \* \*'"),
        ("every 5 minutes", r"the number 300 .*'\*/5 \* \* \* \*'"),
        ("every hour", r"the number 3600 "),
        ("1h30m", r"the number 5400 "),
        ("every 2 hours and 5 minutes", r"the number 7500 "),
        ("500 milliseconds", r"the number 0\.5 "),
        ("every five minutes", "5 fields.*RRULE.*number of seconds or a timedelta.*datetime"),
        ("* * * *", "has 5 fields"),
        ("", "has 5 fields"),
        ("@dayly", "did you mean '@daily'"),
        ("61 * * * *", "Bad minute$"),
        ("EXRULE:FREQ=DAILY", "the recurrence has the line 'EXRULE"),
    ],
)
def test_text_that_is_no_schedule_is_told_what_it_looks_like(written: str, remedy: str) -> None:
    """A moment, a time of day or an interval in words is refused with what to give in its place."""
    with pytest.raises(ScheduleError, match=remedy):
        from_celery(written)
