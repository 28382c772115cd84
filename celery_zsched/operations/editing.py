"""Adding, changing and deleting entries, with what a person writes on a command line or in a form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from celery_zsched.entry import EntrySpec, build
from celery_zsched.errors import ConflictError, EntryError
from celery_zsched.guesses import unknown_faults
from celery_zsched.operations.guarding import closings_of, next_closed, require_blackouts
from celery_zsched.operations.listing import blackout_notices
from celery_zsched.operations.moments import duration_us, moment_us
from celery_zsched.operations.records import note
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import Standing, moment, standing
from celery_zsched.operations.targets import find_entries, find_entry
from celery_zsched.stored import Change, Stored
from celery_zsched.types import SECOND_US, from_us

#: What can be said of an entry in words, beside its name: see :func:`celery_zsched.entry.build`.
FIELDS = (
    "task", "every", "cron", "rrule", "at", "args", "kwargs", "options", "zone", "misfire", "grace", "misfire_limit",
    "overlap", "start", "end", "count", "jitter", "expires", "blackouts",
)  # fmt: skip

_SCHEDULES = ("every", "cron", "rrule", "at")
_DURATIONS = ("grace", "jitter")

#: The fields of an entry that a word of :data:`FIELDS` sets, where it is not of the same name.
_SETS = {
    "every": "trigger", "cron": "trigger", "rrule": "trigger", "at": "trigger", "args": "arguments",
    "kwargs": "arguments", "grace": "grace_us", "start": "start_us", "end": "end_us", "jitter": "jitter_us",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of an entry that was to be deleted; ``notice`` says why it stays.

    With ``dry_run`` nothing was deleted, and without a notice it would be.
    """

    entry: str
    deleted: bool
    notice: str | None = None
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def add(site: Site, name: str, fields: Mapping[str, Any], *, reason: str | None = None) -> Standing:
    """Store a new entry; what it needs is ``task`` and one of ``every``, ``cron``, ``rrule`` and ``at``.

    What can be said of it is :data:`FIELDS`. Raises :class:`~celery_zsched.errors.ConflictError` if there is one of
    that name, :class:`~celery_zsched.errors.EntryError` with every fault of the fields.
    """
    _refuse_unknown(name, fields)
    if site.schedules.get_many([name]):
        raise ConflictError(f"there is an entry {name!r} already; change it with `celery zsched edit`")
    missing = [] if fields.get("task") else ["a task"]
    if not any(fields.get(each) is not None for each in _SCHEDULES):
        missing.append(f"a schedule ({', '.join(_SCHEDULES)})")
    if missing:
        raise EntryError(f"the entry {name!r} needs {' and '.join(missing)}")
    spec = _build(site, name, fields)
    require_blackouts(site.schedules, spec)
    site.schedules.save(spec)
    note(site, "add", f"entry:{name}", reason, task=spec.task, schedule=str(spec.trigger))
    return _after(site, name, True)


def edit(
    site: Site, name: str, fields: Mapping[str, Any], *, reason: str | None = None, force: bool = False
) -> Standing:
    """Change the given fields of an entry; all else of it stays, a pause too.

    ``blackouts`` take the place of those it named; an empty name among them is none. An entry of ``beat_schedule`` is
    changed only by ``force``, since the next start of a beat undoes it.
    """
    _refuse_unknown(name, fields)
    stored = find_entry(site, name)
    old = stored.spec
    if old is None:
        raise EntryError(f"the entry {stored.name!r} cannot be changed: {stored.fault}; delete it and add it anew")
    refuse_static([stored], "changed", force)
    given = {field: value for field, value in fields.items() if value is not None}
    if ("args" in given) != ("kwargs" in given) and old.arguments is not None:
        args, kwargs = old.arguments.arguments()
        given = {"args": args, "kwargs": kwargs} | given
    new = _build(site, stored.name, {"task": old.task, "zone": old.zone} | given, trigger=old.trigger)
    changes = {_SETS.get(field, field): getattr(new, _SETS.get(field, field)) for field in given}
    if "zone" in given or "trigger" in changes:
        changes |= {"zone": new.zone, "trigger": new.trigger}
    spec = dataclasses.replace(old, **changes, anchor_us=None)
    require_blackouts(site.schedules, spec, old)
    change = site.schedules.save(spec)
    if change is not Change.UNCHANGED:
        note(site, "edit", f"entry:{stored.name}", reason, fields=sorted(given))
    return _after(site, stored.name, change is not Change.UNCHANGED)


def remove(
    site: Site, target: str, *, reason: str | None = None, force: bool = False, dry_run: bool = False
) -> list[Removed]:
    """Delete an entry, or all that a pattern selects, with all that is known of them.

    An entry of ``beat_schedule`` is deleted only by ``force``, since the next start of a beat brings it back: one that
    is named is refused, and those that a pattern selects beside others are left, which the answer says.
    """
    found = find_entries(site, target)
    static = set() if force else {stored.name for stored in found if _is_static(stored)}
    if len(static) == len(found) and not dry_run:
        refuse_static(found, "deleted", force)
    for stored in [] if dry_run else found:
        if stored.name not in static:
            site.schedules.delete(stored.name)
            note(site, "rm", f"entry:{stored.name}", reason)
    left = "beat_schedule declares it, so it stays unless forced: the next start of a beat would bring it back"
    return [
        Removed(
            stored.name, not dry_run and stored.name not in static, left if stored.name in static else None, dry_run
        )
        for stored in found
    ]


def refuse_static(found: list[Stored], done: str, force: bool) -> None:
    """Raise :class:`~celery_zsched.errors.ConflictError` for entries of ``beat_schedule``, unless they are forced."""
    static = [stored.name for stored in found if _is_static(stored)]
    if static and not force:
        raise ConflictError(
            f"beat_schedule declares {', '.join(map(repr, static[:5]))}, so the next start of a beat undoes it: change "
            f"the code, pause it, or have it {done} all the same with --force (in Python, force=True)"
        )


def _is_static(stored: Stored) -> bool:
    return stored.spec is not None and stored.spec.owner == "static"


def _refuse_unknown(name: str, fields: Mapping[str, Any]) -> None:
    faults = unknown_faults(fields, FIELDS, "field")
    if faults:
        raise EntryError(f"the entry {name!r} cannot be used: {'; '.join(faults)}")


def _after(site: Site, name: str, changed: bool) -> Standing:
    """Return how an entry stands that was stored, with what is to be minded of its blackouts."""
    stored = site.schedules.get(name)
    notices = [] if stored.spec is None else blackout_notices(site, stored.spec)
    closed = next_closed(stored, closings_of(site.schedules, [stored.spec]), site.schedules.zone)
    if closed is not None:
        notices.append(
            f"its next occurrence lies in the blackout {closed.name!r}, so it is not sent, nor made up for; that ends "
            f"at {moment(closed.until_us)}"
        )
    return dataclasses.replace(standing(stored, changed), notice="; ".join(notices) or None)


def _build(site: Site, name: str, fields: Mapping[str, Any], *, trigger: Any = None) -> EntrySpec:
    given = [each for each in _SCHEDULES if fields.get(each) is not None]
    if len(given) > 1:
        raise EntryError(f"the entry {name!r} has one schedule; give one of {', '.join(given)}")
    zone = fields.get("zone")
    now_us = site.schedules.now_us()
    where = zone or site.schedules.zone
    if given:
        trigger = _schedule(given[0], fields[given[0]], now_us, where)
    elif trigger is not None and zone is not None and trigger.zone not in (None, zone):
        trigger = dataclasses.replace(trigger, zone=zone)
    values: dict[str, Any] = {}
    for field in ("misfire", "misfire_limit", "overlap", "count"):
        if fields.get(field) is not None:
            values[field] = fields[field]
    blackouts = fields.get("blackouts") or ()
    values["blackouts"] = tuple(each for each in ([blackouts] if isinstance(blackouts, str) else blackouts) if each)
    for field in _DURATIONS:
        if fields.get(field) is not None:
            values[field] = duration_us(fields[field]) / SECOND_US
    for field in ("start", "end"):
        if fields.get(field) is not None:
            values[field] = _moment(fields[field], now_us, where)
    if fields.get("expires") is not None:
        text = fields["expires"]
        values["expires"] = text if text == "next" else duration_us(text) / SECOND_US
    return build(
        name,
        fields.get("task"),
        trigger,
        fields.get("args") or (),
        fields.get("kwargs"),
        fields.get("options"),
        zone=zone,
        serializer=site.app.conf.task_serializer,
        app_zone=site.schedules.zone,
        **values,
    )


def _schedule(kind: str, text: Any, now_us: int, zone: str) -> Any:
    if kind == "every":
        return duration_us(text) / SECOND_US
    if kind == "at":
        return _moment(text, now_us, zone)
    return text


def _moment(text: str, now_us: int, zone: str) -> datetime:
    return from_us(moment_us(text, now_us, zone))
