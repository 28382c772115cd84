"""An entry as it was declared: what to send, when, and under which rules. Nothing that happens to it is kept here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from celery_zsched.entry.payload import Payload
from celery_zsched.errors import EntryError, ScheduleError
from celery_zsched.triggers import At, Trigger, check_zone, to_json
from celery_zsched.types import to_us

#: What becomes of missed occurrences: one run for all of them, none, or a run for each.
MISFIRES = ("once", "skip", "all")

#: What to do when an entry is due while its last run goes on.
OVERLAPS = ("allow", "skip", "buffer_one")

#: Who declared an entry: a ``beat_schedule``, or a program at run time.
OWNERS = ("static", "dynamic")

#: What ``apply_async`` takes that is no option of a message, and what to do instead.
_NO_OPTIONS = {
    "task_id": "every occurrence has its own",
    "eta": "every occurrence has its own",
    "args": "give the entry its args",
    "kwargs": "give the entry its kwargs",
    "name": "name the task by the entry's 'task'",
    "task_type": "name the task by the entry's 'task'",
    **dict.fromkeys(
        ("producer", "publisher", "connection", "router", "result_cls", "self", "app"),
        "whoever sends has its own; choose where the message goes by 'queue' or 'exchange' and 'routing_key'",
    ),
}

#: A longer name is a mistake, and would make every listing unreadable.
LONGEST_NAME = 1024


#: Why an entry that is due more than once does not expire at a moment.
STALE = (
    "after which every message would be stale; give seconds after the sending, or 'next', and use 'end' for the "
    "entry's last moment (a moment is for what is sent once, at a datetime)"
)

#: The fields that are whole numbers, and the least that each may be.
_NUMBERS = (
    ("grace_us", 0), ("misfire_limit", 1), ("count", 1), ("jitter_us", 0), ("start_us", None), ("end_us", None),
    ("anchor_us", None), ("epoch", 0),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class EntrySpec:
    """One entry. Instants and durations are microseconds; ``None`` means the app's default, or no limit.

    Raises :class:`EntryError` with every fault when a value cannot be used.
    """

    name: str
    task: str
    trigger: Trigger

    #: ``[args, kwargs]`` as serialized; ``None`` when the task takes none.
    arguments: Payload | None = None
    #: Arguments hold ``BeatLazyFunc``: each beat computes them from its own ``beat_schedule`` as it sends.
    lazy: bool = False
    #: Options for ``apply_async``, JSON values only; they go over the task's own and over ``task_routes``.
    options: Mapping[str, Any] = field(default_factory=dict)

    #: IANA name; a trigger that speaks of wall time has the same one. ``None`` follows the app.
    zone: str | None = None
    misfire: str | None = None
    #: How late an occurrence may still run.
    grace_us: int | None = None
    #: The most missed occurrences that ``all`` makes up for.
    misfire_limit: int | None = None
    overlap: str | None = None
    #: No occurrence before; an interval's grid stands here.
    start_us: int | None = None
    #: No occurrence after; one at this very moment counts.
    end_us: int | None = None
    #: How many occurrences are sent in all.
    count: int | None = None
    #: Each occurrence is due up to so much after its nominal time, by a hash.
    jitter_us: int = 0
    #: How long after it is sent a message is of use; ``"next"``: until the next occurrence is due.
    #: A one-off may name the moment itself, in ISO 8601.
    expires: int | str | None = None
    #: Names of windows in which nothing is sent.
    blackouts: tuple[str, ...] = ()
    owner: str = "dynamic"

    #: Where an interval's grid stands; set when the entry is installed.
    anchor_us: int | None = None
    #: Rises when the entry starts a new life, so that old marks do not bind it; set when the entry is installed.
    epoch: int = 0

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise EntryError(f"the entry {self.name!r} cannot be used: {'; '.join(faults)}")
        # One zone for an entry, wherever it was said.
        if self.zone is not None:
            object.__setattr__(self, "trigger", self.trigger.in_zone(self.zone))
        elif self.trigger.zone is not None:
            object.__setattr__(self, "zone", self.trigger.zone)
        object.__setattr__(self, "options", dict(self.options))
        object.__setattr__(self, "blackouts", tuple(self.blackouts))

    def _faults(self) -> Iterator[str]:
        yield from name_faults(self.name)
        task, trigger, lazy = cast("tuple[object, object, object]", (self.task, self.trigger, self.lazy))
        if not isinstance(task, str) or not task:
            yield f"its task is named by text, not by {task!r}"
        if not isinstance(trigger, Trigger):
            yield f"its trigger is {trigger!r}, not a Trigger"
        try:
            check_zone(self.zone)
        except ScheduleError as exc:
            yield str(exc)
        else:
            own = getattr(trigger, "zone", None)
            if self.zone is not None and own is not None and own != self.zone:
                yield f"its schedule is in the zone {own} and the entry in {self.zone}; give one of them"
        for name, allowed in (("misfire", MISFIRES), ("overlap", OVERLAPS)):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                yield f"its {name} is {value!r}, not {' or '.join(map(repr, allowed))}"
        if not isinstance(lazy, bool):
            yield f"its lazy is {lazy!r}, not true or false"
        if self.owner not in OWNERS:
            yield f"its owner is {self.owner!r}, not {' or '.join(map(repr, OWNERS))}"
        for name, least in _NUMBERS:
            value = getattr(self, name)
            if value is None and name not in ("jitter_us", "epoch"):
                continue
            if type(value) is not int:
                yield f"its {name} is {value!r}, not a whole number"
            elif least is not None and value < least:
                yield f"its {name} is {value}, but cannot be below {least}"
        if isinstance(self.start_us, int) and isinstance(self.end_us, int) and self.end_us < self.start_us:
            yield "it ends before it starts"
        expires: object = self.expires
        if isinstance(expires, str) and expires != "next":
            if _instant_of(expires) is None:
                yield f"its expires is {expires!r}, neither a positive time, nor 'next', nor a moment with its offset"
            elif getattr(trigger, "kind", None) != At.kind:
                yield f"its expires is the moment {expires}, {STALE}"
        elif expires is not None and expires != "next" and (type(expires) is not int or expires <= 0):
            yield f"its expires is {expires!r}, neither a positive time nor 'next'"
        yield from option_faults(self.options)

    @property
    def expires_at_us(self) -> int | None:
        """The moment from which on its message is of no more use, where ``expires`` names one."""
        return _instant_of(self.expires) if isinstance(self.expires, str) and self.expires != "next" else None

    @property
    def follows_app_zone(self) -> bool:
        """Whether the entry's due times move when the app's zone changes."""
        return self.zone is None and self.trigger.zoned

    @property
    def fingerprint(self) -> str:
        """A digest of what the due times come from; as long as it stays the same, a due time that stands stays.

        The end, the count and the rules are not in it: they decide whether an occurrence is sent, not when it is due.
        """
        parts = {"schedule": to_json(self.trigger), "zone": self.zone, "start_us": self.start_us}
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def installed(self, now_us: int) -> EntrySpec:
        """Return the entry at the beginning of a life: its grid stands at its start, or else here and now.

        One that brings an anchor (it comes from elsewhere) keeps its grid.
        """
        anchor_us = self.anchor_us if self.anchor_us is not None else self.start_us
        return dataclasses.replace(self, anchor_us=now_us if anchor_us is None else anchor_us, epoch=now_us)

    def succeeding(self, stored: EntrySpec, now_us: int) -> EntrySpec:
        """Return the entry as it takes the place of the one that is stored under its name.

        It stays in the same life; it keeps the grid when the schedule is unchanged, and gets a new one otherwise.
        """
        anchor_us = stored.anchor_us
        if anchor_us is None or self.fingerprint != stored.fingerprint:
            anchor_us = self.anchor_us if self.anchor_us is not None else self.start_us
            anchor_us = now_us if anchor_us is None else anchor_us
        return dataclasses.replace(self, anchor_us=anchor_us, epoch=stored.epoch)


def _instant_of(text: str) -> int | None:
    """Return an ISO 8601 moment with its offset as an instant; None for what is none."""
    try:
        # Python 3.10 does not read the Z of RFC 3339.
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return None if moment.tzinfo is None else to_us(moment)


def name_faults(name: object) -> list[str]:
    """Return what is wrong with an entry's name; any text will do that can be stored and read back."""
    if not isinstance(name, str) or not name:
        return [f"an entry is named by text, not by {name!r}"]
    if name.startswith("\0"):
        return [f"its name {name!r} begins with a NUL character, which is kept for the scheduler's own notes"]
    if len(name) > LONGEST_NAME:
        return [f"its name has {len(name)} characters; at most {LONGEST_NAME} are taken"]
    try:
        name.encode()
    except UnicodeEncodeError:
        return [f"its name {name!r} has lone surrogates, which no server stores"]
    return []


def option_faults(options: object) -> list[str]:
    """Return what is wrong with an entry's options for ``apply_async``."""
    if not isinstance(options, Mapping):
        return [f"its options are {options!r:.200}, not a mapping"]
    faults = []
    for key, value in options.items():
        if key in _NO_OPTIONS:
            faults.append(f"its option {key!r} cannot be given: {_NO_OPTIONS[key]}")
            continue
        if key == "headers" and value is not None and not isinstance(value, Mapping):
            faults.append(f"its option 'headers' is {value!r:.100}, not a mapping from names; give {{'name': value}}")
            continue
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as exc:
            faults.append(f"its option {key!r} is {value!r:.100}, which is no JSON value ({exc})")
    return faults
