"""Moving in from django-celery-beat's tables and from the file of Celery's own scheduler."""

from __future__ import annotations

import dataclasses
import json
import shelve
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import schedules as celery_schedules

from celery_zsched.entry import EntrySpec, OperatorState, build
from celery_zsched.errors import ConfigurationError, EntryError, ZschedError
from celery_zsched.operations.carrying import Coming, Report, take_in
from celery_zsched.operations.site import Site
from celery_zsched.triggers import Interval
from celery_zsched.types import to_us

#: What a row of django-celery-beat is given as its description when it is taken over.
TAKEN = "taken over by celery-zsched"


def import_django(site: Site, *, dry_run: bool = False, copy: bool = False, overwrite: bool = False) -> Report:
    """Take over the rows of django-celery-beat, paused where they were disabled; done twice, nothing changes.

    What was changed or resumed here since it was taken over stays so, unless ``overwrite``.

    Django must be set up or ``DJANGO_SETTINGS_MODULE`` be set, as for the beat that it ran with. What is taken over is
    disabled there, unless ``copy``: then both send it as long as both run.
    """
    try:
        import django
        from django.apps import apps

        if not apps.ready:
            django.setup()
        from django_celery_beat.models import PeriodicTask, PeriodicTasks

        rows = list(PeriodicTask.objects.select_related("interval", "crontab", "solar", "clocked").order_by("name"))
    except Exception as exc:
        raise ConfigurationError(
            f"django-celery-beat cannot be read: {type(exc).__name__}: {exc}; run this where its beat ran, with "
            "DJANGO_SETTINGS_MODULE set"
        ) from exc
    report = Report(dry_run=dry_run)
    if not (dry_run or copy):
        for row in rows:
            if row.enabled:
                row.description = f"{row.description or ''} [{TAKEN}]".strip()
                PeriodicTask.objects.filter(pk=row.pk).update(enabled=False, description=row.description)
        PeriodicTasks.update_changed()
    coming = read_rows(site, rows, report)
    return take_in(site, coming, report, source="django-celery-beat", taking_over=True, overwrite=overwrite)


def read_rows(site: Site, rows: Iterable[Any], report: Report) -> Iterator[Coming]:
    """Yield the entries of rows of django-celery-beat; what cannot be carried is a fault in the report."""
    for row in rows:
        if row.name == "celery.backend_cleanup":
            report.notices[row.name] = ["left out: Celery's scheduler adds it by itself where the backend needs it"]
            continue
        try:
            yield _of_row(site, row)
        except (ValueError, TypeError, ZschedError) as exc:
            report.faults[row.name] = str(exc)


def _of_row(site: Site, row: Any) -> Coming:
    notices = []
    zone = None
    if row.interval is not None:
        schedule: Any = timedelta(**{row.interval.period: row.interval.every})
    elif row.crontab is not None:
        cron = row.crontab
        zone = str(cron.timezone)
        schedule = celery_schedules.crontab(
            cron.minute, cron.hour, cron.day_of_week, cron.day_of_month, cron.month_of_year
        )
    elif row.solar is not None:
        schedule = celery_schedules.solar(row.solar.event, row.solar.latitude, row.solar.longitude)
    elif row.clocked is not None:
        schedule = row.clocked.clocked_time
    else:
        raise EntryError(f"the row {row.name!r} has no schedule")
    options = {
        key: value for key in ("queue", "exchange", "routing_key", "priority") if (value := getattr(row, key, None))
    }
    headers = json.loads(row.headers or "{}")
    if headers:
        options["headers"] = headers
    end = None
    if row.expires is not None:
        end = row.expires  # there, messages sent after it are stale at once: it ends the entry
        notices.append(f"its expiry at {row.expires.isoformat()} has become the entry's end")
    spec = build(
        row.name,
        row.task,
        schedule,
        json.loads(row.args or "[]"),
        json.loads(row.kwargs or "{}"),
        options,
        zone=zone,
        start=row.start_time,
        end=end,
        count=1 if row.one_off and row.clocked is None else None,
        expires=row.expire_seconds,
        serializer=site.app.conf.task_serializer,
        app_zone=site.schedules.zone,
    )
    if row.last_run_at is not None and isinstance(spec.trigger, Interval):
        spec = dataclasses.replace(spec, anchor_us=to_us(row.last_run_at))
    operator = OperatorState()
    if not row.enabled and TAKEN not in (row.description or ""):
        operator = OperatorState(
            paused=True, by=site.by, reason="disabled in django-celery-beat", since_us=site.schedules.now_us()
        )
    return Coming(spec, operator, tuple(notices))


def import_shelve(site: Site, path: str, *, dry_run: bool = False, overwrite: bool = False) -> Report:
    """Take over the entries of the file of Celery's own scheduler (``celerybeat-schedule``).

    The file is Celery's pickle: read only files of your own. Entries that stand in ``beat_schedule`` are left to the
    beats, but their intervals keep their grid. What was changed here since it was taken over stays so, unless
    ``overwrite``.
    """
    report = Report(dry_run=dry_run)
    entries = _open(path)
    coming = _of_shelve(site, entries, report)
    return take_in(site, coming, report, source=f"file {Path(path).name}", taking_over=True, overwrite=overwrite)


def _open(path: str) -> dict[str, Any]:
    base = Path(path)
    if not any(base.parent.glob(f"{base.name}*")):
        raise ConfigurationError(f"there is no file {path!r}")
    try:
        with shelve.open(str(base), flag="r") as store:
            return dict(store["entries"])
    except KeyError:
        raise ConfigurationError(f"{path!r} has no entries; is it the file of Celery's scheduler?") from None
    except Exception as exc:
        raise ConfigurationError(f"{path!r} cannot be read: {type(exc).__name__}: {exc}") from exc


def _of_shelve(site: Site, entries: Mapping[str, Any], report: Report) -> Iterator[Coming]:
    declared = site.app.conf.beat_schedule or {}
    for name, entry in sorted(entries.items()):
        if name == "celery.backend_cleanup":
            report.notices[name] = ["left out: Celery's scheduler adds it by itself where the backend needs it"]
            continue
        try:
            spec: EntrySpec = build(
                name,
                entry.task,
                entry.schedule,
                entry.args or (),
                entry.kwargs,
                entry.options,
                serializer=site.app.conf.task_serializer,
                owner="static" if name in declared else "dynamic",
                app_zone=site.schedules.zone,
            )
            if entry.last_run_at is not None and isinstance(spec.trigger, Interval):
                spec = dataclasses.replace(spec, anchor_us=to_us(entry.last_run_at))
            yield Coming(spec)
        except (ValueError, TypeError, AttributeError, ZschedError) as exc:
            report.faults[name] = str(exc)
