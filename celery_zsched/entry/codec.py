"""Entries as versioned JSON documents, so that any language can write one.

``{"v": 1, "name": "report", "task": "app.report", "schedule": {"kind": "crontab", "minute": "0", "hour": "9"}}`` is a
complete entry. A field that is absent has its default; a field, kind or version that is not known is refused with what
to do, and only that one entry is set aside.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from celery_zsched.entry.payload import Payload
from celery_zsched.entry.records import VERSION, load_object
from celery_zsched.entry.spec import EntrySpec
from celery_zsched.errors import EntryError, ScheduleError
from celery_zsched.guesses import likely
from celery_zsched.triggers import from_json as trigger_from_json
from celery_zsched.triggers import to_json as trigger_to_json

#: The fields that are stored as they are, with their defaults.
_PLAIN = {
    f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
    for f in dataclasses.fields(EntrySpec)
    if f.name not in ("name", "task", "trigger", "arguments", "blackouts")
}

#: How a stored document ends: what installing has added comes last.
_INSTALLED = re.compile(rb'(,"anchor_us":-?\d+)?(,"epoch":\d+)?\}')

_KNOWN = ("name", "task", "schedule", "arguments", "blackouts", *_PLAIN)
_NAMES = frozenset(_KNOWN)


def encode(spec: EntrySpec) -> bytes:
    """Return the stored form of an entry."""
    document: dict[str, Any] = {
        "v": VERSION,
        "name": spec.name,
        "task": spec.task,
        "schedule": trigger_to_json(spec.trigger),
    }
    if spec.arguments is not None:
        document["arguments"] = spec.arguments.to_json()
    if spec.blackouts:
        document["blackouts"] = list(spec.blackouts)
    document.update({name: value for name, default in _PLAIN.items() if (value := getattr(spec, name)) != default})
    if spec.trigger.zone is not None:
        del document["zone"]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def is_declared_by(document: bytes, spec: EntrySpec) -> bool:
    """Return whether a stored document is this entry to the letter, whatever grid and epoch it was given.

    ``spec`` is one that was not installed. Many times cheaper than reading the document, for schedules of thousands.
    """
    declared = encode(spec)[:-1]
    return document.startswith(declared) and _INSTALLED.fullmatch(document, len(declared)) is not None


def decode(text: bytes | str) -> EntrySpec:
    """Make an entry from its stored form; :class:`EntryError` names every fault."""
    document = load_object(text, "entry")
    name: Any = document.get("name")
    faults = []
    for field in document:
        if field not in _NAMES:
            near = likely(field, _KNOWN, 1)
            faults.append(f"it has the unknown field {field!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    faults += [f"it lacks {field!r}" for field in ("name", "task", "schedule") if field not in document]
    values: dict[str, Any] = {field: value for field, value in document.items() if field in _PLAIN}
    if "schedule" in document:
        try:
            values["trigger"] = trigger_from_json(document["schedule"])
        except ScheduleError as exc:
            faults.append(str(exc))
    if "arguments" in document:
        try:
            values["arguments"] = Payload.from_json(document["arguments"])
        except EntryError as exc:
            faults.append(str(exc))
    blackouts = document.get("blackouts", [])
    if not isinstance(blackouts, list) or not all(isinstance(window, str) for window in blackouts):
        faults.append(f"its blackouts are {blackouts!r:.100}, not a list of names")
    if faults:
        raise EntryError(
            f"the stored entry {name!r} cannot be used: {'; '.join(faults)}. Mend it, or upgrade this process"
        )
    return EntrySpec(name=name, task=document["task"], blackouts=tuple(blackouts), **values)
