"""Entries for tests, and how to bring them where they are needed on a real server."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from celery_zsched import planner
from celery_zsched.entry import EntrySpec, OperatorState, build, encode
from celery_zsched.schedules import Schedules
from celery_zsched.stored import Due, Move
from celery_zsched.types import SECOND_US, Item, Put

HOUR_US = 3600 * SECOND_US
LEASE_US = 10 * SECOND_US


def entry(name: str = "report", schedule: Any = 3600, *args: Any, **rules: Any) -> EntrySpec:
    """Return an entry, hourly if nothing else is said."""
    return build(name, "note", schedule, args, **rules)


def put_at(schedules: Schedules, specs: Iterable[EntrySpec], due_us: int) -> None:
    """Store entries that wait for a moment, as if they had been installed long before it.

    A one-off whose moment has passed meanwhile is late then; to save it would be refused.
    """
    schedules.timeline.put([Item(spec.name, encode(spec.installed(due_us - HOUR_US)), due_us) for spec in specs])


def put_back(schedules: Schedules, spec: EntrySpec, by_us: int) -> int:
    """Store an entry as if it had been installed long ago and been due ``by_us`` before now; return that moment."""
    due_us = schedules.now_us() - by_us
    put_at(schedules, [spec], due_us)
    return due_us


def claimed(schedules: Schedules) -> Due:
    """Claim the one entry that is due."""
    (due,) = schedules.claim(10, LEASE_US).due
    return due


def paused(reason: str = "maintenance") -> OperatorState:
    """Return what an operator has decided."""
    return OperatorState(paused=True, by="me@here", reason=reason, since_us=1)


def sent_ahead(schedules: Schedules, name: str, by_us: int) -> None:
    """Let an entry stand as if it had been sent last when the server's clock was ``by_us`` ahead."""
    stored = schedules.get(name)
    assert stored.spec is not None
    nominal_us, following_us = islice(planner.nominals(stored.spec, schedules.now_us() + by_us), 2)
    schedules.timeline.put([Item(name, stored.located.body, following_us, mode=Put.REPLACE)])
    note = stored.last.but(nominal_us=nominal_us, next_nominal_us=following_us).to_json()
    client: Any = schedules.server.client
    client.hset(schedules.timeline.keys.notes, name, note)


def move(schedules: Schedules, moves: list[Move]) -> list[str]:
    """Move entries on and wait for it; return the names that were no longer the mover's."""
    return schedules.finish_move(schedules.start_move(moves))
