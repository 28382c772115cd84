"""Entries from what users write: keyword arguments in seconds and datetimes, and Celery's ``beat_schedule``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_zsched.entry.payload import Payload
from celery_zsched.entry.signatures import unfold
from celery_zsched.entry.spec import STALE, EntrySpec
from celery_zsched.errors import EntryError, ScheduleError, ZschedError
from celery_zsched.guesses import unknown_faults
from celery_zsched.triggers import DEFAULT_ZONE, LAST_US, At, Trigger, check_zone, from_celery, zone_table
from celery_zsched.triggers.wallclock import wall_seconds
from celery_zsched.types import LONGEST_S, SECOND_US, from_us, to_us

#: What Celery takes in an entry of ``beat_schedule``.
CELERY_KEYS = ("task", "schedule", "args", "kwargs", "options", "relative")

#: What we take besides; see :func:`build`.
OWN_KEYS = (
    "zone", "misfire", "grace", "misfire_limit", "overlap", "start", "end", "count", "jitter", "expires", "blackouts",
    "serializer",
)  # fmt: skip


def build(
    name: str,
    task: Any,
    schedule: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    relative: bool = False,
    zone: str | None = None,
    misfire: str | None = None,
    grace: float | timedelta | None = None,
    misfire_limit: int | None = None,
    overlap: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    count: int | None = None,
    jitter: float | timedelta = 0,
    expires: float | timedelta | datetime | str | None = None,
    blackouts: str | Sequence[str] = (),
    serializer: str = "json",
    owner: str = "dynamic",
    app_zone: str = DEFAULT_ZONE,
) -> EntrySpec:
    """Make an entry from what a user writes; :class:`EntryError` names every fault at once.

    ``task`` is a task, its name, or a signature, to whose arguments and options these are added: ``args`` before its
    own, ``kwargs`` and ``options`` over its own, as in ``Signature.apply_async``.
    ``schedule`` is anything that :func:`~celery_zsched.triggers.from_celery` takes. Times are seconds or timedeltas
    (``grace=math.inf``: however late). ``start`` and ``end`` without a ``tzinfo`` are wall times in the entry's zone,
    or the app's, read now. ``count`` is how many are sent in the entry's whole life: lowered to what was sent, it ends
    the entry at once; raised, it lets it go on with what is to come. ``expires`` is as in Celery, counted from each
    sending, or ``"next"`` (until the next is due); a moment only for what is sent once, at a datetime. Among the
    ``options`` it means the same.
    """
    faults: list[str] = []
    signature = isinstance(task, Mapping)

    def attempt(make: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            return make(*values, **named)
        except ZschedError as exc:
            faults.append(str(exc))
            return None

    task, args, kwargs, options = attempt(unfold, task, args, kwargs, options) or ("canvas", (), None, None)
    checked = attempt(check_zone, zone)
    trigger = attempt(from_celery, schedule, relative=relative, zone=checked, app_zone=app_zone)
    near = checked or (trigger.zone if isinstance(trigger, Trigger) else None) or app_zone
    chosen, own_expires = _options(options, faults)
    lazy = _is_lazy(args, kwargs)
    if lazy and signature:
        faults.append("its task is a signature with a BeatLazyFunc; give the task, and that among the entry's args")
    values = {
        "arguments": None if lazy else attempt(_arguments, args, kwargs, serializer),
        "grace_us": attempt(_duration, "grace", grace),
        "jitter_us": attempt(_duration, "jitter", jitter),
        "start_us": attempt(_moment, "start", start, near),
        "end_us": attempt(_moment, "end", end, near),
        "expires": attempt(_expires, own_expires if expires is None else expires, trigger, near),
    }
    if trigger is None:
        trigger = from_celery(timedelta(days=1))  # only so that the other fields are checked too
    try:
        spec = EntrySpec(
            name=name, task=getattr(task, "name", task), trigger=trigger, lazy=lazy, options=chosen, zone=checked,
            misfire=misfire, misfire_limit=misfire_limit, overlap=overlap, count=count, owner=owner,
            blackouts=(blackouts,) if isinstance(blackouts, str) else tuple(blackouts),
            **{**values, "jitter_us": values["jitter_us"] or 0},
        )  # fmt: skip
    except EntryError as exc:
        faults.append(str(exc).removeprefix(f"the entry {name!r} cannot be used: "))
    if faults:
        raise EntryError(f"the entry {name!r} cannot be used: {'; '.join(faults)}")
    return spec


def from_beat_schedule(name: str, entry: Any, app_zone: str = DEFAULT_ZONE, *, serializer: str = "json") -> EntrySpec:
    """Make a static entry from one of ``beat_schedule``: its mapping, or a Celery ``ScheduleEntry``.

    A mapping takes Celery's keys and ours (see :func:`build`); a key that is neither is refused with the one that was
    probably meant. ``serializer`` is the app's ``task_serializer``, used for the arguments unless the entry has its
    own.
    """
    if not isinstance(entry, Mapping):
        missing = [key for key in ("task", "schedule") if not hasattr(entry, key)]
        if missing:
            raise EntryError(
                f"the entry {name!r} of beat_schedule is {entry!r:.200}, not a mapping with task and schedule"
            )
        entry = {key: getattr(entry, key, None) for key in CELERY_KEYS if key != "relative"}
    known = (*CELERY_KEYS, *OWN_KEYS)
    faults = [f"it lacks {key!r}" for key in ("task", "schedule") if entry.get(key) is None]
    faults += unknown_faults(entry, known, "key")
    given = {key: value for key, value in entry.items() if key in known and value is not None}
    try:
        if not faults:
            return build(name, owner="static", app_zone=app_zone, **{"serializer": serializer, **given})
    except (TypeError, ValueError) as exc:
        faults.append(str(exc).removeprefix(f"the entry {name!r} cannot be used: "))
    raise EntryError(f"the entry {name!r} of beat_schedule cannot be used: {'; '.join(faults)}")


def _arguments(args: Any, kwargs: Any, serializer: str) -> Payload | None:
    if not isinstance(args or (), (list, tuple)):
        raise EntryError(f"its args are {args!r:.100}, not a list or tuple")
    if not isinstance(kwargs or {}, Mapping) or not all(isinstance(key, str) for key in kwargs or {}):
        raise EntryError(f"its kwargs are {kwargs!r:.100}, not a mapping from names")
    return Payload.of(args or (), kwargs, serializer) if args or kwargs else None


def _is_lazy(args: Any, kwargs: Any) -> bool:
    """Return whether an argument is a BeatLazyFunc; told by its name, since celery.beat is heavy to import."""
    values = list(args) if isinstance(args, (list, tuple)) else []
    values += kwargs.values() if isinstance(kwargs, Mapping) else ()
    return any(type(value).__name__ == "BeatLazyFunc" for value in values)


def _options(options: Any, faults: list[str]) -> tuple[dict[str, Any], Any]:
    """Return the options as JSON values, without ``expires``, and ``expires`` as it was given."""
    if options is not None and not isinstance(options, Mapping):
        faults.append(f"its options are {options!r:.200}, not a mapping")
        return {}, None
    chosen = dict(options or {})
    expires = chosen.pop("expires", None)
    for key, value in chosen.items():
        if isinstance(value, timedelta):
            chosen[key] = value.total_seconds()
        elif key in ("queue", "exchange") and isinstance(getattr(value, "name", None), str):
            # A kombu Queue or Exchange; whoever sends finds it again by its name.
            chosen[key] = value.name
    return chosen, expires


def _duration(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value < 0:
        raise EntryError(f"its {name} is {value!r}, not a number of seconds from 0 up, nor a timedelta")
    if LONGEST_S < value < math.inf:
        raise EntryError(f"its {name} is {value!r} seconds, more than 9,999 years; give a shorter time")
    return round(value * SECOND_US) if value < LAST_US / SECOND_US else LAST_US


def _expires(value: Any, trigger: Any, zone: str) -> Any:
    if value is None or value == "next":
        return value
    if not isinstance(value, datetime):
        return _duration("expires", value)
    if trigger is not None and not isinstance(trigger, At):
        raise EntryError(f"its expires is the moment {value.isoformat()}, {STALE}")
    expires_us = _moment("expires", value, zone) or 0
    if trigger is not None and trigger.compute(expires_us - 1, anchor_us=None, zone=zone) is not None:
        raise EntryError(
            f"its expires is the moment {value.isoformat()}, by which it would not even be sent ({trigger})"
        )
    return from_us(expires_us).isoformat()


def _moment(name: str, value: Any, zone: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise EntryError(f"its {name} is {value!r}, not a datetime")
    if value.tzinfo is not None:
        return to_us(value)
    try:
        return zone_table(zone).instant(wall_seconds(value)) * SECOND_US + value.microsecond
    except ScheduleError as exc:
        raise EntryError(f"its {name} cannot be read: {exc}") from None
