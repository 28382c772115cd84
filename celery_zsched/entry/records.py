"""What happened to an entry, and what its operator wants: kept apart from the entry and from each other.

Declaring an entry anew touches neither. Both are small JSON objects; a field that is absent has its default, and one
that is not known here is kept and written back, so that releases of two ages can share a schedule while one is rolled
out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_zsched.errors import EntryError

#: The version that documents are written in.
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """What happened last, and which occurrence the entry stands for on the timeline."""

    #: The occurrence that the entry's moment on the timeline belongs to.
    next_nominal_us: int | None = None
    #: The last occurrence that was sent, when, why, and the id of its task.
    nominal_us: int | None = None
    fired_us: int | None = None
    cause: str | None = None
    task_id: str | None = None
    #: How many were sent; a new life after the clock was set back keeps it.
    fired: int = 0
    #: How many were due but not sent, since the last one that was, and in all.
    missed: int = 0
    missed_total: int = 0
    #: Why the last one that was not sent was not (``misfire``, ``overlap``, ``blackout``), and its nominal time.
    held: str | None = None
    held_us: int | None = None
    #: The occurrence that waits until the last run ends (overlap ``buffer_one``).
    buffered_us: int | None = None
    #: The occurrence that an operator asked to be made up for, whatever the misfire rule says.
    asked_us: int | None = None
    #: How often in a row the entry could not be computed or sent, and the last reason.
    failures: int = 0
    error: str | None = None
    #: How often in a row it was set aside, by which scheduler the last time, and when it is tried again.
    asides: int = 0
    aside_by: str | None = None
    again_us: int | None = None
    #: What a newer release has written.
    rest: Mapping[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> LastRun:
        """Return the record with some fields changed, as ``dataclasses.replace`` does at five times the cost."""
        record = object.__new__(LastRun)
        record.__dict__.update(self.__dict__, **changes)
        return record

    def to_json(self) -> bytes:
        """Return the stored form."""
        return _write(self)

    @classmethod
    def from_json(cls, text: bytes | str | None) -> LastRun:
        """Read the stored form; nothing stored means that nothing has happened yet."""
        if not text:
            return _NOTHING_YET
        document, rest = _read(cls, text)
        return _NOTHING_YET.but(**document, rest=rest)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorState:
    """What an operator has decided about an entry: paused, by whom, why, since when and until when.

    ``resuming`` is for messages: they are being put back, so nothing more is held back, and some may be parked yet.
    """

    paused: bool = False
    by: str | None = None
    reason: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    resuming: bool = False
    #: What a newer release has written.
    rest: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the stored form."""
        return _write(self)

    @classmethod
    def from_json(cls, text: bytes | str | None) -> OperatorState:
        """Read the stored form; nothing stored means that nobody has decided anything."""
        if not text:
            return cls()
        document, rest = _read(cls, text)
        return cls(**document, rest=rest)


_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

#: The stored fields of each kind of record, with their defaults.
_FIELDS: dict[type, dict[str, Any]] = {
    cls: {one.name: one.default for one in dataclasses.fields(cls) if one.name != "rest"}
    for cls in (LastRun, OperatorState)
}


#: What the values of those fields are, unless they are None.
_TYPES: dict[type, dict[str, type]] = {
    cls: {
        name: type(default) if default is not None else int if name.endswith("_us") else str
        for name, default in fields.items()
    }
    for cls, fields in _FIELDS.items()
}

_NOTHING_YET = LastRun()


def _write(record: LastRun | OperatorState) -> bytes:
    document: dict[str, Any] = {"v": VERSION}
    for name, default in _FIELDS[type(record)].items():
        value = getattr(record, name)
        if value != default:
            document[name] = value
    document.update(record.rest)
    # A lone surrogate (in an error's text) becomes its JSON escape.
    return _dumps(document).encode("utf-8", "backslashreplace")


def _read(cls: type, text: bytes | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a stored record that are known, and the others."""
    document = load_object(text, cls.__name__)
    known, types = _FIELDS[cls], _TYPES[cls]
    faults, rest = [], {}
    for name, value in document.items():
        wanted = types.get(name)
        if wanted is None:
            rest[name] = value
        elif type(value) is not wanted and (value is not None or known[name] is not None):
            faults.append(f"{name!r} is {value!r:.100}, not {wanted.__name__}")
    if faults:
        raise EntryError(f"a stored {cls.__name__} cannot be read: {'; '.join(faults)}")
    for name in rest:
        del document[name]
    return document, rest


def load_object(text: bytes | str, what: str) -> dict[str, Any]:
    """Return a versioned JSON object without its version; :class:`EntryError` if it is none, or from the future."""
    try:
        document = json.loads(text)
    except ValueError as exc:
        raise EntryError(f"a stored {what} is no JSON: {exc}; it begins {text[:80]!r}") from None
    if not isinstance(document, dict):
        raise EntryError(f"a stored {what} is a JSON object, not {document!r:.100}")
    version = document.pop("v", None)
    if version != VERSION:
        raise EntryError(
            f"a stored {what} has the version {version!r}; this release reads version {VERSION}. "
            + ("Upgrade this process" if isinstance(version, int) and version > VERSION else "Write it anew")
        )
    return document
