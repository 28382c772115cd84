"""redbeat's names on this package's schedule: ``from celery_zsched.redbeat import RedBeatSchedulerEntry``.

For programs that create, fetch, change and delete entries with celery-redbeat, so that they run with the import changed
and nothing else. What differs is told in ``docs/from-redbeat.md``; new code is better off with
:class:`celery_zsched.Entry`.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from celery.app import app_or_default
from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedstate, schedule
from dateutil import rrule as dateutil_rules

from celery_zsched import operations, planner
from celery_zsched.api import Entry
from celery_zsched.apps import schedules_of
from celery_zsched.beat import Scheduler
from celery_zsched.entry import EntrySpec, encode, is_declared_by
from celery_zsched.errors import ConflictError, NotFoundError
from celery_zsched.placing import digest
from celery_zsched.schedules import Schedules
from celery_zsched.stored import State, Stored
from celery_zsched.triggers import Crontab, Interval, Recurrence, Trigger
from celery_zsched.types import SECOND_US, Item, Outcome, Put, from_us, to_us

__all__ = ["RedBeatScheduler", "RedBeatSchedulerEntry", "rrule"]

logger = logging.getLogger("celery.beat.zsched")

#: What keys begin with when ``redbeat_key_prefix`` says nothing else.
KEY_PREFIX = "redbeat:"

#: How often a write is tried anew when somebody else wrote the same entry at the same moment.
ATTEMPTS = 5

#: What an entry may have that redbeat has no words for.
_RULES = (
    "misfire", "grace_us", "misfire_limit", "overlap", "start_us", "end_us", "count", "jitter_us", "blackouts", "owner",
)  # fmt: skip

_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")


class RedBeatScheduler(Scheduler):
    """This package's scheduler under redbeat's name. It reads the ``zsched_`` settings and needs no lock."""

    def __init__(self, app: Any, *args: Any, lock_key: Any = None, lock_timeout: Any = None, **kwargs: Any) -> None:
        _told_about_settings(app)
        super().__init__(app, *args, **kwargs)


class RedBeatSchedulerEntry:
    """An entry of the schedule with redbeat's constructor, attributes and methods.

    ``enabled`` that nobody gives or sets leaves a pause as it is, so that declaring an entry anew at each start undoes
    nothing that an operator has done. An entry that was fetched keeps the rules that redbeat has no words for.
    """

    def __init__(
        self,
        name: str | None = None,
        task: str | None = None,
        schedule: Any = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        enabled: bool | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        last_run_at: datetime | None = None,
        total_run_count: int | None = None,
        relative: bool = False,
        app: Any = None,
    ) -> None:
        self.app = app_or_default(app)
        _told_about_settings(self.app)
        self.name = str(name)
        self.task = task
        self.args = args
        self.kwargs = kwargs or {}
        self.options = options or {}
        celery_form = isinstance(schedule, (int, float, timedelta, BaseSchedule))
        self.schedule = maybe_schedule(schedule, relative, app=self.app) if celery_form else schedule
        self.last_run_at = last_run_at
        self.total_run_count = total_run_count or 0
        self._enabled = enabled
        self._fetched: EntrySpec | None = None

    # -- Finding

    @staticmethod
    def generate_key(app: Any, name: str) -> str:
        """Return the key of an entry, as programs that keep keys know it."""
        return f"{_prefix(app_or_default(app))}{name}"

    @property
    def key(self) -> str:
        """The key of this entry."""
        return self.generate_key(self.app, self.name)

    @classmethod
    def from_key(cls, key: str, app: Any = None) -> RedBeatSchedulerEntry:
        """Return a stored entry; ``KeyError`` if there is none of that key."""
        app = app_or_default(app)
        stored = _stored(app, key)
        entry = cls(app=app, **{name: value for name, value in _definition(stored).items() if name != "enabled"})
        entry.last_run_at = _moment(stored.last.fired_us)
        entry.total_run_count = stored.last.fired
        entry._fetched = stored.spec
        return entry

    @staticmethod
    def load_definition(key: str, app: Any = None, definition: Any = None) -> dict[str, Any]:
        """Return what an entry was declared with; ``KeyError`` if there is none of that key."""
        return dict(definition) if definition is not None else _definition(_stored(app_or_default(app), key))

    @staticmethod
    def load_meta(key: str, app: Any = None) -> dict[str, Any]:
        """Return when an entry was last sent, and how often; nothing of an entry that does not exist."""
        try:
            last = _stored(app_or_default(app), key).last
        except KeyError:
            return {"last_run_at": None}
        return {"last_run_at": _moment(last.fired_us), "total_run_count": last.fired}

    # -- Changing

    @property
    def enabled(self) -> bool:
        """Whether the entry is sent when due: as set here, else as it stands on the server."""
        if self._enabled is not None:
            return self._enabled
        found = self._schedules.get_many([self.name])
        return not found or found[0].state is not State.PAUSED

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._enabled = value

    def save(self) -> RedBeatSchedulerEntry:
        """Store the entry, in force at once; pause or resume it if ``enabled`` was given or set."""
        entry = self._entry()
        self._warn_if_static(entry)
        entry.save(force=True)
        site, target = operations.Site.of(self.app), f"entry:{self.name}"
        if self._enabled is False:
            operations.pause_task(site, target, reason="enabled = False")
        elif self._enabled:
            operations.resume_task(site, target, reason="enabled = True")
        return self

    def delete(self) -> None:
        """Delete the entry; nothing happens if there is none."""
        self._warn_if_static(None)
        try:
            Entry.delete(self.name, app=self.app, force=True)
        except NotFoundError:
            pass

    def reschedule(self, last_run_at: datetime | None = None) -> None:
        """Count an interval anew from ``last_run_at``, or from now; ``KeyError`` if the entry is not stored.

        Other schedules do not depend on when they ran last, and stay as they are.
        """
        self.last_run_at = last_run_at or datetime.now(timezone.utc)
        schedules = self._schedules
        for _ in range(ATTEMPTS):
            stored = _stored(self.app, self.key)
            if stored.spec is None or not isinstance(stored.spec.trigger, Interval):
                return
            spec = dataclasses.replace(stored.spec, anchor_us=to_us(self.last_run_at))
            coming = planner.first(spec, schedules.now_us(), zone=schedules.zone)
            if coming.next_due_us is None:
                return
            expect = digest(stored.located.body)
            item = Item(self.name, encode(spec), coming.next_due_us, mode=Put.REPLACE, expect=expect)
            if schedules.timeline.put([item])[0].outcome is not Outcome.CHANGED:
                return
        raise ConflictError(f"the entry {self.name!r} is being written by others; retry")

    # -- Looking

    @property
    def due_at(self) -> datetime | None:
        """When the entry is due next: as it stands on the server, else as if it were saved now; None for never."""
        found = self._schedules.get_many([self.name])
        if found:
            return _moment(found[0].due_us)
        return next(iter(self._entry().preview(1)), None)

    @property
    def score(self) -> float:
        """``due_at`` in seconds since the epoch; -1 for never."""
        due_at = self.due_at
        return -1 if due_at is None else due_at.timestamp()

    def is_due(self) -> schedstate:
        """Return whether the entry is due, and in how many seconds it is due next."""
        if not self.enabled:
            return schedstate(False, 5.0)
        due_at = self.due_at
        if due_at is None:
            return schedstate(False, None)
        left_s = due_at.timestamp() - time.time()
        return schedstate(left_s <= 0, max(left_s, 0.0))

    def _warn_if_static(self, change: Entry | None) -> None:
        """Say of an entry of beat_schedule that a change of it, or with None its deletion, will not last."""
        for stored in self._schedules.get_many([self.name]):
            static = stored.spec is not None and stored.spec.owner == "static"
            if static and (change is None or not is_declared_by(stored.located.body, change.spec)):
                logger.warning(
                    "beat_schedule declares %r, so the next start of a beat undoes what is done to it here: change the "
                    "code, or pause the entry",
                    self.name,
                )  # fmt: skip

    def _entry(self) -> Entry:
        entry = Entry(self.name, self.task, self.schedule, self.args or (), self.kwargs, self.options, app=self.app)
        if self._fetched is not None:
            rules = {name: getattr(self._fetched, name) for name in _RULES}
            entry.spec = dataclasses.replace(entry.spec, zone=entry.spec.zone or self._fetched.zone, **rules)
        return entry

    @property
    def _schedules(self) -> Schedules:
        return schedules_of(self.app)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name} {self.task}(*{self.args!r}, **{self.kwargs!r}) {self.schedule}>"


def rrule(
    freq: str | int,
    dtstart: datetime | None = None,
    interval: int = 1,
    wkst: Any = None,
    count: int | None = None,
    until: datetime | None = None,
    **parts: Any,
) -> Recurrence:
    """Return redbeat's ``rrule`` schedule as an RFC 5545 recurrence; ``parts`` are ``bymonth``, ``byhour`` and so on.

    Moments without a ``tzinfo`` are in the app's zone; without ``dtstart`` the rule starts where the entry does. Raises
    :class:`~celery_zsched.errors.ScheduleError` for a rule that cannot be stored.
    """
    number = _FREQUENCIES.index(freq.upper()) if isinstance(freq, str) else freq
    given = {name: value for name, value in parts.items() if name not in ("app", "nowfun")}
    rule = dateutil_rules.rrule(number, dtstart, interval, wkst, count, until, **given)
    if dtstart is not None:
        return Recurrence.of(rule)
    line = next(line for line in str(rule).splitlines() if line.startswith("RRULE:"))
    return Recurrence(line)


def _definition(stored: Stored) -> dict[str, Any]:
    spec = stored.spec
    if spec is None:
        raise KeyError(f"{stored.name}: {stored.fault}")
    args, kwargs = ((), {}) if spec.arguments is None else spec.arguments.arguments()
    return {
        "name": spec.name,
        "task": spec.task,
        "schedule": _celery_form(spec.trigger),
        "args": list(args),
        "kwargs": dict(kwargs),
        "options": dict(spec.options) | ({} if spec.expires is None else {"expires": _expires(spec.expires)}),
        "enabled": stored.state is not State.PAUSED,
    }


def _expires(expires: Any) -> Any:
    if isinstance(expires, str):
        return expires if expires == "next" else datetime.fromisoformat(expires.replace("Z", "+00:00"))
    return expires / SECOND_US


def _celery_form(trigger: Trigger) -> Any:
    """Return a trigger as the Celery schedule that says the same, where there is one."""
    if isinstance(trigger, Interval):
        return schedule(trigger.every_us / SECOND_US, relative=trigger.relative)
    if isinstance(trigger, Crontab) and trigger.zone is None:
        fields = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        return crontab(**{name: getattr(trigger, name) for name in fields})
    return trigger


def _stored(app: Any, key: str) -> Stored:
    name = key.removeprefix(_prefix(app))
    for stored in schedules_of(app).get_many([name]):
        return stored
    raise KeyError(key)


def _prefix(app: Any) -> str:
    return str(app.conf.get("redbeat_key_prefix") or app.conf.get("REDBEAT_KEY_PREFIX") or KEY_PREFIX)


def _moment(instant_us: int | None) -> datetime | None:
    return None if instant_us is None else from_us(instant_us)


_told: weakref.WeakSet[Any] = weakref.WeakSet()


def _told_about_settings(app: Any) -> None:
    """Say once that redbeat's own settings are not read, with the name of ours."""
    if app in _told:
        return
    _told.add(app)
    if app.conf.get("redbeat_redis_url") and not app.conf.get("zsched_url"):
        logger.warning(
            "redbeat_redis_url is not read: the schedule is kept on the broker's server, or on that of zsched_url, "
            "which beat, workers and programs must agree on; rename the setting"
        )
