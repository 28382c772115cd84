"""What users write as a schedule, in Celery's forms and ours, as a trigger."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery import schedules

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.at import At
from celery_zsched.triggers.base import Trigger
from celery_zsched.triggers.crontab import FIELDS, Crontab
from celery_zsched.triggers.crontext import CronText
from celery_zsched.triggers.custom import Custom
from celery_zsched.triggers.hints import is_rule, meant
from celery_zsched.triggers.interval import Interval
from celery_zsched.triggers.recurrence import Recurrence
from celery_zsched.triggers.solar import Solar
from celery_zsched.triggers.wallclock import check_zone, zone_name

#: Crontab classes of others that carry a zone of their own, as ``module prefix, class name``.
_ZONED_CRONTABS = ("django_celery_beat.", "TzAwareCrontab")

#: redbeat's wrapper around a dateutil rule.
_REDBEAT_RULE = ("redbeat.schedules", "rrule")

#: Celery's classes, with the attributes in which each keeps what it was made of.
_CELERY_KINDS: dict[type, tuple[str, ...]] = {
    schedules.schedule: ("run_every", "relative"),
    schedules.crontab: tuple(f"{start}{name}" for name in FIELDS for start in ("_orig_", "")),
    schedules.solar: ("event", "lat", "lon"),
}

#: Names that decide when a schedule is due though Celery's classes do not have them.
_DECIDING = frozenset({"next_after", "follows_real_time", "nowfun"})

#: Names that Celery's classes have and that do not decide it; the zone is asked for besides.
_INDIFFERENT = frozenset({"tz", "human_seconds", "from_string"})


def from_celery(
    schedule: Any, *, relative: bool = False, zone: str | None = None, app_zone: str | None = None
) -> Trigger:
    """Make a trigger of anything that can stand for a schedule.

    Taken are: seconds or a timedelta, Celery's ``schedule``, ``crontab`` and ``solar``, cron text (``"30 9 * * 1-5"``),
    RRULE text and dateutil's rules, an aware or naive datetime (once), a registered or ``BaseSchedule`` object, and a
    trigger as it is.

    ``zone`` is the entry's own zone, used where the schedule has none. A Celery schedule has one if it was given a
    ``tz``, a ``nowfun`` that answers in a zone (the usual way to put a crontab into another zone), or an ``app`` whose
    zone is not ``app_zone``. Whatever has none after that follows the app's zone.
    """
    trigger = _convert(schedule, relative, app_zone)
    return trigger if zone is None else trigger.in_zone(check_zone(zone) or zone)


def _convert(schedule: Any, relative: bool, app_zone: str | None) -> Trigger:
    if isinstance(schedule, Trigger):
        return schedule
    if isinstance(schedule, (int, float, timedelta)):
        return Interval.of(schedule, relative=relative)
    if isinstance(schedule, str):
        return _of_text(schedule)
    if isinstance(schedule, datetime):
        return At(schedule)
    kind = type(schedule)
    base = celery_kind(schedule)
    if base is schedules.schedule:
        if schedule.run_every is None:
            raise ScheduleError("celery.schedules.schedule() without run_every says nothing; give it an interval")
        own = _own_zone(schedule, app_zone) if schedule.relative or relative else None
        return Interval.of(schedule.run_every, relative=schedule.relative or relative, zone=own)
    prefix, name = _ZONED_CRONTABS
    if base is schedules.crontab or (kind.__module__.startswith(prefix) and kind.__name__ == name):
        return Crontab.of(schedule, _own_zone(schedule, app_zone))
    if base is schedules.solar:
        return Solar(schedule.event, schedule.lat, schedule.lon)
    if kind.__module__ == "dateutil.rrule":
        return Recurrence.of(schedule)
    if (kind.__module__, kind.__name__) == _REDBEAT_RULE:
        return Recurrence.of(schedule.rrule)
    return Custom.of(schedule, _own_zone(schedule, app_zone))


def _of_text(text: str) -> Trigger:
    if is_rule(text):
        return Recurrence(text)
    try:
        return CronText(text)
    except ScheduleError as exc:
        hint = meant(text)
        raise exc if hint is None else ScheduleError(f"{text!r} cannot be read as cron text; {hint}") from None


def celery_kind(schedule: Any) -> type | None:
    """Return which of Celery's three classes a schedule is of, by itself or by a subclass that decides nothing anew.

    A subclass decides anew if it, or a class mixed into it, defines what Celery's class has, or a ``next_after``; what
    is about making, storing, comparing and showing the object decides nothing, nor does a plain value where Celery's
    class has one.
    """
    kind = type(schedule)
    base = next((each for each in kind.__mro__ if each in _CELERY_KINDS), None)
    if base is None or not all(hasattr(schedule, name) for name in _CELERY_KINDS[base]):
        return None
    for cls in kind.__mro__:
        for name, value in vars(cls).items() if cls not in base.__mro__ else ():
            if name in _CELERY_KINDS[base]:
                decides = hasattr(value, "__get__")
            elif name.startswith("__"):
                decides = name == "__getattribute__"
            else:
                decides = name in _DECIDING or (hasattr(base, name) and name not in _INDIFFERENT)
            if decides:
                return None
    return base


def _own_zone(schedule: Any, app_zone: str | None) -> str | None:
    """Return the zone that a Celery schedule was given, ``None`` when it follows its app."""
    if not isinstance(schedule, schedules.BaseSchedule):
        return None
    own = None
    if schedule.nowfun is not None:
        try:
            own = zone_name(schedule.nowfun().tzinfo)
        except ScheduleError:
            raise
        except Exception as exc:
            raise ScheduleError(f"the nowfun of {schedule!r} failed: {type(exc).__name__}: {exc}") from exc
    elif "tz" in vars(schedule) or type(schedule).tz is not schedules.BaseSchedule.tz:
        own = zone_name(schedule.tz)
    elif schedule._app is not None and app_zone is not None:
        own = zone_name(schedule._app.timezone)
    return None if own == app_zone else own
