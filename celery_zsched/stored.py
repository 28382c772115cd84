"""Entries as they stand on the server, and what claims and saves of them answer: values of the schedule."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from celery_zsched.entry import EntrySpec, LastRun, OperatorState, Past, decode
from celery_zsched.errors import EntryError, ScheduleError
from celery_zsched.planner import has_run_out
from celery_zsched.types import Hold, Located, Place, from_us

#: Why an entry is dead that has no occurrence to come; any other reason is a fault, and the entry is in quarantine.
FINISHED = "finished"


class Change(enum.Enum):
    """What a save did."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class State(enum.Enum):
    """How an entry stands."""

    SCHEDULED = "scheduled"
    FIRING = "firing"
    PAUSED = "paused"
    FINISHED = "finished"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry as it stands on the server.

    ``spec`` is None for a document that this process cannot read; ``fault`` then says why. ``due_us`` is when it is due
    next, or would be if it were not paused; None when nothing is to come.
    """

    name: str
    state: State
    spec: EntrySpec | None
    last: LastRun
    operator: OperatorState
    due_us: int | None
    fault: str | None
    located: Located

    @property
    def due(self) -> datetime | None:
        """When it is due next, in UTC; see ``due_us``."""
        return None if self.due_us is None else from_us(self.due_us)


@dataclass(frozen=True, slots=True)
class Due:
    """An entry under a lease of ours, whose moment has come; ``tries`` counts this claim and failed ones before it."""

    name: str
    document: bytes
    hold: Hold
    due_us: int
    tries: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The answer to a claim: what is due, the server's clock, and when to claim again without a ring (or None)."""

    now_us: int
    wake_us: int | None
    due: list[Due]
    lost: list[str]
    #: Notes to ourselves whose moment has come; see :meth:`~celery_zsched.schedules.Schedules.attend`.
    notes: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Where an entry goes once its occurrence is sent: to its next due moment, or, with None, among the finished."""

    hold: Hold
    due_us: int | None
    last: LastRun
    past: tuple[Past, ...] = ()


def stored_of(located: Located) -> Stored:
    """Return an entry from where it stands and what is known of it."""
    spec, fault = None, None
    try:
        spec = decode(located.body)
    except (EntryError, ScheduleError) as exc:
        fault = str(exc)
    operator, last = OperatorState(), last_run_of(located.note)
    due_us: int | None = located.due_us
    if located.place is Place.DEAD:
        state = State.FINISHED if located.reason == FINISHED else State.QUARANTINED
        due_us = None
        if state is State.QUARANTINED:
            by = f" by {last.aside_by}" if last.aside_by else ""
            again = f", tried again {_moment(last.again_us)}" if last.again_us else ""
            fault = f"{located.reason} (set aside {_moment(located.moment_us)}{by}{again})"
    elif located.place is Place.PARKED:
        state = State.PAUSED
        try:
            operator = OperatorState.from_json(located.reason)
        except EntryError:
            operator = OperatorState(paused=True, reason=located.reason)
    elif located.place is Place.LEASED:
        state = State.FIRING
    elif spec is not None and has_run_out(spec, last, located.due_us):
        state, due_us = State.FINISHED, None  # a scheduler sets it aside when its moment comes
    else:
        state = State.SCHEDULED
    return Stored(located.id, state, spec, last, operator, due_us, fault, located)


def _moment(at_us: int) -> str:
    return f"{from_us(at_us):%Y-%m-%d %H:%M:%S}Z"


def last_run_of(note: bytes | str | None) -> LastRun:
    """Return what happened last from its record; one that cannot be read counts as none."""
    try:
        return LastRun.from_json(note)
    except EntryError:
        return LastRun()
