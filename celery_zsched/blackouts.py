"""What an operator can do with blackouts: define, list, show, preview and remove them, one function each.

A blackout is a set of windows under a name; an entry that names it in ``blackouts`` is not sent while one of them is
open, and what it misses then is not made up for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from celery_zsched.blackout_store import Blackouts
from celery_zsched.errors import ConflictError, EntryError, NotFoundError
from celery_zsched.guesses import asked_of
from celery_zsched.operations.records import note as put_on_record
from celery_zsched.operations.site import Site, whoami
from celery_zsched.schedules import Schedules
from celery_zsched.types import from_us
from celery_zsched.windows import Blackout, Openings, read_calendar

#: How many entries an error names.
NAMED = 5


@dataclass(frozen=True, slots=True)
class Opening:
    """One window as it will come, in ISO 8601 and UTC; ``open`` says that it is open now."""

    start: str
    end: str
    open: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """A blackout as a list shows it. ``fault`` says why it cannot be read; the other fields are then empty."""

    name: str
    windows: int = 0
    zone: str | None = None
    note: str | None = None
    open: bool = False
    next: Opening | None = None
    fault: str | None = None


def define(
    schedules: Schedules,
    name: str,
    windows: Iterable[Any] = (),
    *,
    calendar: bytes | str | None = None,
    zone: str | None = None,
    note: str | None = None,
    reason: str | None = None,
    by: str | None = None,
) -> Blackout:
    """Store a blackout, in place of one of the same name; schedulers know of it within a second.

    ``windows`` are dates, pairs, ISO 8601 text or recurring ones (see :func:`~celery_zsched.windows.window_of`),
    ``calendar`` is the content of an ``.ics`` file; either or both. ``zone`` is that of days and moments without an
    offset; the app's if not given. Who did it (``by``, this user if not given) and why (``reason``) are on record.
    Raises :class:`~celery_zsched.errors.ScheduleError` with every fault.
    """
    every = [*windows, *(read_calendar(calendar) if calendar is not None else ())]
    blackout = Blackout.of(name, every, zone=zone, note=note)
    Blackouts(schedules).put(blackout)
    _record(schedules, by, "blackout set", name, reason, windows=len(blackout.windows))
    return blackout


def get(schedules: Schedules, name: str) -> Blackout:
    """Return a blackout; :class:`~celery_zsched.errors.NotFoundError` names likely ones."""
    store = Blackouts(schedules)
    found = store.get(name)
    if found is None:
        raise _unknown(store, name)
    return found


def listed(schedules: Schedules) -> list[Listed]:
    """Return all blackouts in the order of their names, each with the window that is open or comes next."""
    store, now_us = Blackouts(schedules), schedules.now_us()
    answer = []
    for name in store.names():
        try:
            blackout = store.get(name)
        except EntryError as exc:
            answer.append(Listed(name, fault=str(exc)))
            continue
        if blackout is not None:
            coming = next(iter(_coming(schedules, blackout, now_us, 1)), None)
            is_open = coming is not None and coming.open
            answer.append(Listed(name, len(blackout.windows), blackout.zone, blackout.note, is_open, coming))
    return answer


def preview(schedules: Schedules, name: str, n: int = 5) -> list[Opening]:
    """Return the next ``n`` windows of a blackout, the open one first if one is."""
    return _coming(schedules, get(schedules, name), schedules.now_us(), n)


def users(schedules: Schedules, name: str) -> list[str]:
    """Return the names of the entries that name a blackout; reads every entry."""
    return sorted(each.name for each in schedules.all() if each.spec is not None and name in each.spec.blackouts)


def remove(
    schedules: Schedules, name: str, *, force: bool = False, reason: str | None = None, by: str | None = None
) -> None:
    """Remove a blackout; who did it (``by``, this user if not given) and why (``reason``) are on record.

    Raises :class:`~celery_zsched.errors.ConflictError` while entries name it, unless forced (it then closes nothing for
    them), and :class:`~celery_zsched.errors.NotFoundError`.
    """
    store = Blackouts(schedules)
    using = [] if force else users(schedules, name)
    if using:
        more = f" and {len(using) - NAMED} more" if len(using) > NAMED else ""
        raise ConflictError(
            f"the blackout {name!r} is named by {', '.join(map(repr, using[:NAMED]))}{more}; change these entries, or "
            "remove it by force, after which it closes nothing for them"
        )
    if not store.remove(name):
        raise _unknown(store, name)
    _record(schedules, by, "blackout rm", name, reason)


def _coming(schedules: Schedules, blackout: Blackout, now_us: int, n: int) -> list[Opening]:
    windows = islice(Openings(blackout, schedules.zone).coming(now_us), n)
    return [Opening(from_us(start).isoformat(), from_us(end).isoformat(), start <= now_us) for start, end in windows]


def _unknown(store: Blackouts, name: str) -> NotFoundError:
    return NotFoundError(f"there is no blackout {name!r}{asked_of(name, store.names(), 'blackouts')}")


def _record(schedules: Schedules, by: str | None, verb: str, name: str, reason: str | None, **detail: Any) -> None:
    put_on_record(Site(None, schedules, by or whoami()), verb, f"blackout:{name}", reason, **detail)
