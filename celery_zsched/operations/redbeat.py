"""Moving in from redbeat: its keys are read as they are, without redbeat being installed.

A redbeat entry is a hash with the fields ``definition`` and ``meta``, and a member of a sorted set. What is taken over
is disabled there, so that a redbeat that still runs sends none of it; a field of ours beside redbeat's remembers that
it was we who did.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from celery import schedules as celery_schedules
from dateutil import rrule as dateutil_rrule

from celery_zsched.connection import Server
from celery_zsched.entry import OperatorState, build
from celery_zsched.errors import ConfigurationError, EntryError, ZschedError
from celery_zsched.operations.carrying import Coming, Report, take_in
from celery_zsched.operations.site import Site
from celery_zsched.types import to_us

#: What redbeat's keys begin with when its configuration names nothing else.
PREFIX = "redbeat:"

#: Our field in a hash of redbeat's: its entry was enabled when we took it over.
TAKEN = "zsched"

#: The entry that Celery's schedulers add by themselves where the result backend needs it: each its own.
CLEANUP = "celery.backend_cleanup"

_AT_ONCE = 500


def import_redbeat(
    site: Site,
    *,
    url: str | None = None,
    prefix: str | None = None,
    dry_run: bool = False,
    copy: bool = False,
    overwrite: bool = False,
    progress: Any = None,
) -> Report:
    """Take over the entries of a redbeat, paused where they were disabled; done twice, nothing changes.

    What was changed or resumed here since it was taken over stays so, unless ``overwrite``.

    ``url`` and ``prefix`` are ``redbeat_redis_url`` (else the broker's) and ``redbeat_key_prefix`` of the app if not
    given. What is taken over is disabled in redbeat, unless ``copy``: then both send it as long as both run.
    """
    conf = site.app.conf
    address = url or conf.get("redbeat_redis_url") or conf.get("REDBEAT_REDIS_URL") or conf.broker_url
    start = prefix or conf.get("redbeat_key_prefix") or conf.get("REDBEAT_KEY_PREFIX") or PREFIX
    if not isinstance(address, str):
        raise ConfigurationError("redbeat's server is not known; name it with --url, like redis://localhost:6379/0")
    server = Server.from_url(address)
    report = Report(dry_run=dry_run)
    try:
        coming = _read(site, server, start, report, take=not (dry_run or copy))
        source = f"redbeat {server.masked}"
        return take_in(site, coming, report, source=source, progress=progress, taking_over=True, overwrite=overwrite)
    finally:
        server.close()


def count_redbeat(site: Site, *, url: str | None = None, prefix: str | None = None) -> int:
    """Return how many entries a redbeat has."""
    conf = site.app.conf
    server = Server.from_url(url or conf.get("redbeat_redis_url") or conf.broker_url)
    start = prefix or conf.get("redbeat_key_prefix") or PREFIX
    try:
        with server.translated("reading redbeat's keys"):
            client: Any = server.client
            return int(client.zcard(f"{start}:schedule"))
    finally:
        server.close()


def _read(site: Site, server: Server, prefix: str, report: Report, *, take: bool) -> Iterator[Coming]:
    client: Any = server.client
    with server.translated("reading redbeat's keys"):
        own = f"{prefix}{CLEANUP}".encode()
        keys = iter([key for key in client.zrange(f"{prefix}:schedule", 0, -1) if key != own])
        static = {name.decode() for name in client.smembers(f"{prefix}:statics")}
    while chunk := list(islice(keys, _AT_ONCE)):
        if take:
            _disable(server, client, chunk)
        with server.translated("reading redbeat's keys"):
            pipeline = client.pipeline(transaction=False)
            for key in chunk:
                pipeline.hmget(key, "definition", "meta", TAKEN)
            rows = pipeline.execute()
        for key, (definition, meta, taken) in zip(chunk, rows, strict=True):
            name = key.decode().removeprefix(prefix)
            if definition is None:
                report.faults[name] = f"redbeat's sorted set has it, but the key {key.decode()!r} has no definition"
                continue
            try:
                yield _coming(site, json.loads(definition), json.loads(meta or "{}"), taken is not None, static)
            except (ValueError, TypeError, KeyError, AttributeError, ZschedError) as exc:
                report.faults[name] = str(exc) if isinstance(exc, ZschedError) else f"{type(exc).__name__}: {exc}"


def _disable(server: Server, client: Any, keys: list[bytes]) -> None:
    """Disable entries in redbeat and note that they were enabled; what is disabled already stays as it is."""
    with server.translated("disabling entries in redbeat"):
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.hget(key, "definition")
        for key, definition in zip(keys, pipeline.execute(), strict=True):
            try:
                document = json.loads(definition or "")
            except ValueError:
                continue
            if isinstance(document, dict) and document.get("enabled", True):
                document["enabled"] = False
                pipeline.hset(key, mapping={"definition": json.dumps(document), TAKEN: "enabled"})
        pipeline.execute()


def _coming(site: Site, definition: Any, meta: Any, taken: bool, static: set[str]) -> Coming:
    name = definition["name"]
    zone = site.schedules.zone
    notices: list[str] = []
    options = {key: value for key, value in (definition.get("options") or {}).items() if value is not None}
    schedule, interval_s = _schedule(definition["schedule"], zone)
    spec = build(
        name,
        definition["task"],
        schedule,
        definition.get("args") or (),
        definition.get("kwargs") or None,
        _options(options, notices),
        serializer=site.app.conf.task_serializer,
        owner="static" if name in static else "dynamic",
        app_zone=zone,
    )
    last_us = _last_run_us(meta, zone)
    if interval_s is not None and last_us is not None:
        spec = dataclasses.replace(spec, anchor_us=last_us)
    enabled = bool(definition.get("enabled", True)) or taken
    operator = OperatorState()
    if not enabled:
        operator = OperatorState(
            paused=True, by=site.by, reason="disabled in redbeat", since_us=site.schedules.now_us()
        )
    return Coming(spec, operator, tuple(notices))


def _schedule(document: Any, zone: str) -> tuple[Any, float | None]:
    """Return a schedule for :func:`~celery_zsched.entry.build`, and the seconds of an interval."""
    if not isinstance(document, Mapping):
        raise EntryError(f"its schedule is {document!r:.100}, not one of redbeat's")
    fields = dict(document)
    kind = fields.pop("__type__", None)
    if kind == "interval":
        every_s = float(fields["every"])
        return celery_schedules.schedule(timedelta(seconds=every_s), relative=bool(fields.get("relative"))), every_s
    if kind == "crontab":
        return celery_schedules.crontab(**fields), None
    if kind == "rrule":
        return _rule(fields, zone), None
    raise EntryError(f"its schedule is of the kind {kind!r}, which redbeat 2.4 does not write")


def _rule(fields: dict[str, Any], zone: str) -> Any:
    """Return redbeat's rule as dateutil's. Its start was stored with an offset only; it is put into the app's zone."""
    for name in ("dtstart", "until"):
        minutes = fields.pop(f"{name}_tz", 0) or 0
        stamp = fields.get(name)
        if stamp is not None:
            offset = timezone(timedelta(minutes=minutes))
            moment = datetime.fromtimestamp(stamp, tz=offset)
            here = moment.astimezone(ZoneInfo(zone))
            # Where the app's zone had that offset then, it is what was meant; the offset alone is wrong half the year.
            same = here.utcoffset() == moment.utcoffset()
            fields[name] = here if same else moment.astimezone(timezone.utc)
    days = fields.get("byweekday")
    if days is not None:
        days = days if isinstance(days, list) else [days]
        fields["byweekday"] = [day["wkday"] if isinstance(day, Mapping) else day for day in days]
    start = fields.get("dtstart")
    until = fields.get("until")
    if start is not None and until is not None and until.tzinfo is not start.tzinfo:
        fields["until"] = until.astimezone(timezone.utc)
    return dateutil_rrule.rrule(**{key: value for key, value in fields.items() if value is not None})


def _options(options: dict[str, Any], notices: list[str]) -> dict[str, Any]:
    kept = {}
    for key, value in options.items():
        if key in ("task_id", "eta"):
            notices.append(f"its option {key} is left out, since every occurrence has its own")
        elif isinstance(value, Mapping) and "__type__" in value:
            notices.append(f"its option {key} is left out: {value!r:.100}")
        else:
            kept[key] = value
    return kept


def _last_run_us(meta: Any, zone: str) -> int | None:
    found = meta.get("last_run_at") if isinstance(meta, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    parts = {key: value for key, value in found.items() if key not in ("__type__", "timezone")}
    where = found.get("timezone", "UTC")
    info = ZoneInfo(where) if isinstance(where, str) else timezone(timedelta(seconds=where))
    return to_us(datetime(**parts, tzinfo=info))
