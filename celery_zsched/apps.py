"""What a Celery app says about its schedule: the settings, the zone, and from them the schedule itself."""

from __future__ import annotations

import os
import socket
import threading
import uuid
import weakref
from typing import Any

from celery.schedules import crontab

from celery_zsched.connection import Server
from celery_zsched.errors import ConfigurationError, ScheduleError
from celery_zsched.schedules import Schedules
from celery_zsched.settings import Settings
from celery_zsched.triggers import zone_name

_lock = threading.Lock()
_schedules: weakref.WeakKeyDictionary[Any, Schedules] = weakref.WeakKeyDictionary()


def _new_lock_after_fork() -> None:
    # Another thread may have held it.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_after_fork)


def schedules_of(app: Any) -> Schedules:
    """Return the schedule of a Celery app, one for each app and process.

    Raises :class:`~celery_zsched.errors.ConfigurationError` with every fault of the settings.
    """
    with _lock:
        schedules = _schedules.get(app)
        if schedules is None:
            schedules = _schedules[app] = open_schedules(app, Settings.from_conf(app.conf))
        return schedules


def open_schedules(app: Any, settings: Settings) -> Schedules:
    """Return the schedule of a Celery app with a server object of its own; nothing is connected yet."""
    # An idle scheduler asks something every half minute, which finds a dead connection as well as a ping would.
    options = {"health_check_interval": 0} | settings.redis_options
    return Schedules(
        Server.from_url(settings.url, options),
        prefix=settings.prefix,
        zone=zone_of(app),
        holder=f"{socket.gethostname()}:{os.getpid()}",
        claimer=uuid.uuid4().hex,
        history_limit=settings.history_limit,
    )


def static_entries(app: Any) -> dict[str, Any]:
    """Return the entries that an app declares: its ``beat_schedule``, and Celery's own clean-up of old results."""
    entries = dict(app.conf.beat_schedule or {})
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        clean_up = {
            "task": "celery.backend_cleanup",
            "schedule": crontab(minute="0", hour="4"),
            "options": {"expires": 12 * 3600},
        }
        entries.setdefault("celery.backend_cleanup", clean_up)
    return entries


def zone_of(app: Any) -> str:
    """Return the IANA name of an app's time zone (the ``timezone`` setting, UTC or the host's zone by default)."""
    try:
        name = zone_name(app.timezone)
    except (ScheduleError, KeyError, ValueError, OSError) as exc:
        # What is no zone is a KeyError of zoneinfo's, or another of these where its name is no file name.
        fault = exc.args[0] if isinstance(exc, KeyError) and exc.args else exc
        raise ConfigurationError(
            f"the app's time zone cannot be used: {fault}; set timezone = 'Area/City' in its configuration"
        ) from exc
    return name or "UTC"
