"""Schedule classes of the user's own: registered by name, or any subclass of Celery's ``BaseSchedule``.

What is stored is the class (its registered name, else its import path ``package.module:Class``) and what made the
object: the constructor's arguments where ``__reduce__`` names them, else its attributes. Values are JSON, with marks
for the few Python types that schedules are made of; there is no pickle. A class named by import path is loaded only if
it is a ``BaseSchedule``, so a stored document can start nothing else.

A class answers in one of two ways:

- ``next_after(instant: datetime) -> datetime | None``: the first due moment after an aware datetime. Preferred;
- Celery's ``is_due(last_run_at)``: asked with the object's ``now()`` and ``tz`` set, at one moment after another, just
  as a beat would ask it, until it says that it is due (see :mod:`.asking`).
"""

from __future__ import annotations

import copy
import copyreg
import functools
import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from celery.schedules import BaseSchedule

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.asking import ask
from celery_zsched.triggers.base import Trigger, take
from celery_zsched.triggers.wallclock import zone_table
from celery_zsched.types import from_us, to_us

#: Attributes of a BaseSchedule that belong to the process, not to the schedule.
_PROCESS_ATTRIBUTES = frozenset({"nowfun", "_app", "app", "tz", "utc_enabled"})

_registered: dict[str, type] = {}


def register_trigger(name: str, cls: type) -> None:
    """Make a schedule class known by a name under which entries store it.

    Call it in every process that runs a beat or saves such entries. ``cls`` has ``next_after`` or ``is_due`` (see the
    module); a name can be given to the same class again, not to another.
    """
    if not (callable(getattr(cls, "next_after", None)) or callable(getattr(cls, "is_due", None))):
        raise ScheduleError(f"{cls!r} has neither next_after(instant) nor is_due(last_run_at), so it is no schedule")
    known = _registered.setdefault(name, cls)
    if known is not cls:
        raise ScheduleError(f"the schedule name {name!r} is taken by {known!r}; register {cls!r} under another")
    _load.cache_clear()


def _pack(value: object, owner: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, timedelta):
        return {"$timedelta_us": value // timedelta(microseconds=1)}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, list):
        return [_pack(item, owner) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [_pack(item, owner) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"$set": sorted((_pack(item, owner) for item in value), key=repr)}
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _pack(item, owner) for key, item in value.items()}
    raise ScheduleError(
        f"the schedule {owner} holds {value!r}, which cannot be stored as JSON; "
        "give the class a __reduce__ that returns (class, simple arguments)"
    )


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1:
            ((mark, content),) = value.items()
            if mark == "$timedelta_us":
                return timedelta(microseconds=content)
            if mark == "$datetime":
                return datetime.fromisoformat(content)
            if mark == "$tuple":
                return tuple(_unpack(content))
            if mark == "$set":
                return set(_unpack(content))
        return {key: _unpack(item) for key, item in value.items()}
    return value


def _class_of(name: str) -> type:
    known = _registered.get(name)
    if known is not None:
        return known
    module, colon, path = name.partition(":")
    if not colon:
        raise ScheduleError(
            f"no schedule class is registered here as {name!r}; "
            "import the module that calls register_trigger in this process too"
        )
    try:
        cls: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except Exception as exc:
        raise ScheduleError(
            f"the schedule class {name!r} cannot be imported in this process: {type(exc).__name__}: {exc}"
        ) from exc
    if not (isinstance(cls, type) and issubclass(cls, BaseSchedule)):
        raise ScheduleError(
            f"{name!r} is no celery.schedules.BaseSchedule; a class of another kind must be registered by name"
        )
    return cls


def _bare(schedule: Any) -> Any:
    """Return a schedule without its ``nowfun``, which says in which zone it is, and is stored as that."""
    if isinstance(schedule, BaseSchedule) and schedule.nowfun is not None:
        schedule = copy.copy(schedule)
        schedule.nowfun = None
    return schedule


@functools.lru_cache(maxsize=1024)
def _load(name: str, state: str) -> Any:
    cls: Any = _class_of(name)
    made = json.loads(state)
    try:
        if "args" in made:
            return cls(*_unpack(made["args"]))
        schedule = cls.__new__(cls)
        if isinstance(schedule, BaseSchedule):
            BaseSchedule.__init__(schedule)
        schedule.__dict__.update(_unpack(made["attributes"]))
    except Exception as exc:
        raise ScheduleError(
            f"the schedule {name!r} cannot be made from {state}: {type(exc).__name__}: {exc}; give the class a "
            "__reduce__ that returns (class, the arguments that its __init__ takes)"
        ) from exc
    return schedule


@dataclass(frozen=True, slots=True)
class Custom(Trigger):
    """A schedule class of the user's: its name, and what makes the object, as canonical JSON text."""

    kind: ClassVar[str] = "custom"

    name: str
    state: str
    zone: str | None = None

    def __post_init__(self) -> None:
        _load(self.name, self.state)

    @classmethod
    def of(cls, schedule: Any, zone: str | None = None) -> Custom:
        """Make the trigger of a live schedule object."""
        kind = type(schedule)
        name = next((name for name, known in _registered.items() if known is kind), None)
        if name is None:
            if not isinstance(schedule, BaseSchedule):
                raise ScheduleError(
                    f"{schedule!r} is no schedule: give seconds, a timedelta, a Celery schedule, cron text, a datetime,"
                    " an RRULE, or an object whose class register_trigger knows"
                )
            if "<" in kind.__qualname__ or kind.__module__ == "__main__":
                raise ScheduleError(
                    f"the schedule class {kind.__module__}.{kind.__qualname__} cannot be imported by other processes; "
                    "move it to a module, or give it a name with register_trigger"
                )
            name = f"{kind.__module__}:{kind.__qualname__}"
        reduced: Any = _bare(schedule).__reduce_ex__(2)
        state: Any = reduced[2] if len(reduced) > 2 else None
        if isinstance(state, dict):
            state = {key: value for key, value in state.items() if key not in _PROCESS_ATTRIBUTES}
        if reduced[0] is kind and not state:
            made: dict[str, Any] = {"args": [_pack(value, name) for value in reduced[1]]}
        elif reduced[0] is copyreg.__newobj__ and reduced[1] == (kind,) and isinstance(state, (dict, type(None))):  # type: ignore[attr-defined]
            made = {"attributes": {key: _pack(value, name) for key, value in (state or {}).items()}}
        else:
            raise ScheduleError(
                f"the schedule {schedule!r} cannot be stored: its __reduce__ must return (class, arguments)"
            )
        return cls(name, json.dumps(made, sort_keys=True, separators=(",", ":")), zone)

    @property
    def zoned(self) -> bool:
        return True

    def in_zone(self, zone: str) -> Custom:
        return Custom(self.name, self.state, zone) if self.zone is None else self

    def compute(self, instant_us: int, *, anchor_us: int | None, zone: str) -> int | None:
        schedule = _load(self.name, self.state)
        try:
            if callable(getattr(schedule, "next_after", None)):
                due = schedule.next_after(from_us(instant_us).astimezone(zone_table(zone).zone))
                return None if due is None else to_us(due)
            return ask(schedule, instant_us, zone)
        except ScheduleError as exc:
            raise ScheduleError(f"{self} cannot be used: {exc}") from None
        except Exception as exc:
            raise ScheduleError(f"{self} failed: {type(exc).__name__}: {exc}") from exc

    def to_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name, **json.loads(self.state)}
        if self.zone is not None:
            fields["zone"] = self.zone
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Custom:
        take(fields, cls.kind, {"name": str}, {"args": list, "attributes": dict, "zone": str})
        made = {key: fields[key] for key in ("args", "attributes") if key in fields}
        if len(made) != 1:
            raise ScheduleError(f"the custom schedule {fields['name']!r} needs either 'args' or 'attributes'")
        return cls(fields["name"], json.dumps(made, sort_keys=True, separators=(",", ":")), fields.get("zone"))

    def __str__(self) -> str:
        return f"schedule {self.name} {self.state}"
