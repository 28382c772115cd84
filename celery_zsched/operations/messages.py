"""What waits in the broker: queues, the one timeline of everything, the dead."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched import message as wire_format
from celery_zsched.errors import NotFoundError
from celery_zsched.operations.holding import forget_gone
from celery_zsched.operations.records import note
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment
from celery_zsched.operations.targets import require_queue
from celery_zsched.operations.whereabouts import Whereabouts, headers_of, whereabouts_of
from celery_zsched.queues import Queues
from celery_zsched.schedules import NOTE, PROBE, REMIND, RESUME
from celery_zsched.stored import State
from celery_zsched.types import SECOND_US, Place, Upcoming, names_of

#: How many are handled at once.
AT_ONCE = 500

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue: how many messages stand where, and how long the oldest that is due has waited, in seconds.

    ``leased`` are with workers; the leases of the ``ended`` have ended without an ack, and the next claim delivers them
    again. ``rate`` is how many are handed to consumers in a second, where that was measured.
    """

    queue: str
    ready: int
    delayed: int
    leased: int
    parked: int
    dead: int
    oldest_s: float
    paused: bool
    rate: float | None = None
    ended: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing to come: when (ISO 8601), what kind (``periodic``, ``ready``, ``eta``, ``retry``), task, id, queue."""

    at: str
    kind: str
    task: str
    id: str
    queue: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


def queues(site: Site, *, measure_s: float = 0.0) -> list[QueueRow]:
    """Return every queue of the broker with its counts; with ``measure_s`` also its rate over so many seconds."""
    found = site.queues
    pauses = found.pauses()
    rows = []
    names = found.names()
    rates: dict[str, float] = {}
    if measure_s > 0:
        before, began = found.claimed(names), time.monotonic()
        time.sleep(measure_s)
        after, took_s = found.claimed(names), time.monotonic() - began
        rates = {name: round((new - old) / took_s, 3) for name, old, new in zip(names, before, after, strict=True)}
    for name in names:
        counts = found.timeline(name).counts()
        oldest_s = 0.0
        if counts.ready and counts.oldest_us is not None:
            oldest_s = round((counts.now_us - counts.oldest_us) / SECOND_US, 3)
        rows.append(
            QueueRow(
                name, counts.ready, counts.delayed, counts.leased - counts.ended, counts.parked, counts.dead, oldest_s,
                f"queue:{name}" in pauses, rates.get(name), counts.ended,
            )
        )  # fmt: skip
    return rows


def timeline(site: Site, *, limit: int = 50, queue: str | None = None) -> list[Moment]:
    """Return what comes next, in the order of time: periodic entries, and, with our broker, what waits in queues.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely ones, for a ``queue`` that there is not.
    """
    sources: list[Iterator[tuple[int, Moment]]] = []
    if queue is not None:
        require_queue(site, queue)
    else:
        sources.append(_periodic(site, limit))
    if site.own_queues is not None or queue is not None:
        now_us = site.schedules.now_us()
        names = site.queues.names() if queue is None else [queue]
        sources += [_waiting(site.queues, name, limit, now_us) for name in names]
    merged = heapq.merge(*sources, key=lambda row: row[0])
    return [row for _, (_, row) in zip(range(limit), merged, strict=False)]


def dead(site: Site, *, queue: str | None = None, limit: int = 100) -> list[Whereabouts]:
    """Return the messages that were set aside as dead, the oldest first in each queue.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely ones, for a ``queue`` that there is not.
    """
    rows: list[Whereabouts] = []
    for name in _asked_for(site, queue):
        ids = [seen.id for seen in site.queues.members(name, Place.DEAD, limit=limit - len(rows))]
        located = site.queues.timeline(name).locate(ids)
        rows += [whereabouts_of(name, located[id_]) for id_ in ids if id_ in located]
        if len(rows) >= limit:
            break
    return rows


def dead_requeue(
    site: Site, ids: list[str] | None, *, queue: str | None = None, reason: str | None = None, dry_run: bool = False
) -> list[str]:
    """Put dead messages back, due now, their deliveries forgotten; all of them if no ids are given. Return their ids.

    Raises :class:`~celery_zsched.errors.NotFoundError`, with nothing done, for ids that are not dead and for a
    ``queue`` that there is not.
    """

    def requeue(name: str, chosen: list[str]) -> None:
        site.queues.timeline(name).revive(chosen, site.schedules.now_us())

    return _with_dead(site, ids, queue, "dead requeue", reason, None if dry_run else requeue)


def dead_purge(
    site: Site, ids: list[str] | None, *, queue: str | None = None, reason: str | None = None, dry_run: bool = False
) -> list[str]:
    """Delete dead messages for good; all of them if no ids are given. Return their ids.

    Raises :class:`~celery_zsched.errors.NotFoundError`, with nothing done, for ids that are not dead and for a
    ``queue`` that there is not.
    """

    def purge(name: str, chosen: list[str]) -> None:
        site.queues.timeline(name).remove(chosen)
        forget_gone(site, chosen)

    return _with_dead(site, ids, queue, "dead purge", reason, None if dry_run else purge)


def _with_dead(
    site: Site,
    ids: list[str] | None,
    queue: str | None,
    verb: str,
    reason: str | None,
    act: Callable[[str, list[str]], None] | None,
) -> list[str]:
    # A message may stand under another id than its task's, since that was taken.
    wanted = None if ids is None else {name for id_ in ids for name in names_of(id_)}
    found = {
        name: [seen.id for seen in site.queues.members(name, Place.DEAD) if wanted is None or seen.id in wanted]
        for name in _asked_for(site, queue)
    }
    chosen = [id_ for each in found.values() for id_ in each]
    missing = sorted(id_ for id_ in set(ids or ()) if set(names_of(id_)).isdisjoint(chosen))
    if missing:
        is_ = "is" if len(missing) == 1 else "are"
        where = f" of the queue {queue!r}" if queue is not None else ""
        raise NotFoundError(
            f"{', '.join(map(repr, missing))} {is_} not among the dead{where}, so nothing was done; see `celery zsched "
            "dead list`"
        )
    if act is None:
        return chosen
    for name, each in found.items():
        for start in range(0, len(each), AT_ONCE):
            act(name, each[start : start + AT_ONCE])
        if each:
            note(site, verb, f"queue:{name}", reason, messages=len(each))
    return chosen


def _asked_for(site: Site, queue: str | None) -> list[str]:
    """Return the names of the queues that are meant: one that there must be, or all."""
    if queue is None:
        return site.queues.names()
    require_queue(site, queue)
    return [queue]


def _periodic(site: Site, limit: int) -> Iterator[tuple[int, Moment]]:
    last: Upcoming | None = None
    left = limit
    while left > 0:
        page = site.schedules.timeline.upcoming(min(left, AT_ONCE), last)
        found = {stored.name: stored for stored in site.schedules.get_many([one.id for one in page])}
        for one in page:
            stored = found.get(one.id)
            if one.id.startswith(NOTE):
                kind = "retry" if one.id.startswith(PROBE) else "resume"
                entry = one.id.removeprefix(PROBE if kind == "retry" else RESUME)
                named = one.id.removeprefix(REMIND) if one.id.startswith(REMIND) else f"entry:{entry}"
                yield one.due_us, Moment(moment(one.due_us) or "", kind, "", named, None)
            elif stored is not None and stored.state is not State.FINISHED:
                task = stored.spec.task if stored.spec is not None else ""
                yield one.due_us, Moment(moment(one.due_us) or "", "periodic", task, one.id, None)
        left -= len(page)
        if len(page) < AT_ONCE:
            return
        last = page[-1]


def _waiting(queues_: Queues, queue: str, limit: int, now_us: int) -> Iterator[tuple[int, Moment]]:
    last: Upcoming | None = None
    left = limit
    while left > 0:
        page = queues_.timeline(queue).upcoming(min(left, AT_ONCE), last)
        for one in page:
            kind = "ready" if one.due_us <= now_us else "eta"
            if kind == "eta" and (headers_of(one.body).get("retries") or 0) > 0:
                kind = "retry"
            yield one.due_us, Moment(moment(one.due_us) or "", kind, wire_format.task_name(one.body), one.id, queue)
        left -= len(page)
        if not page:
            return
        last = page[-1]
