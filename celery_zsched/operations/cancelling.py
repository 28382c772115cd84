"""Taking away what waits: for good, of a task name, an entry, a queue, or one message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched import message as wire_format
from celery_zsched.entry import HEADER
from celery_zsched.errors import NotFoundError
from celery_zsched.operations.messages import AT_ONCE, headers_of
from celery_zsched.operations.records import note
from celery_zsched.operations.requests import KNOWN_S, once
from celery_zsched.operations.site import Site
from celery_zsched.operations.targets import Target, resolve
from celery_zsched.queues import Seen
from celery_zsched.types import Place

#: Requests to cancel that have no id of their own and come so soon after each other, in seconds, are one.
FOLD_S = 3

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What was cancelled: how many that waited are gone, and the ids that run and were asked to be revoked."""

    target: str
    removed: int
    running: list[str]
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def cancel_once(site: Site, target: str, *, reason: str | None = None, request: str | None = None) -> Cancelled:
    """Cancel as :func:`cancel_task` does, once for each request: who repeats it gets the same answer.

    Without a ``request``, what comes within :data:`FOLD_S` seconds is taken for the same.
    """
    answer, _ = once(
        site,
        f"cancel:{target}:{request or ''}",
        lambda: cancel_task(site, target, reason=reason).to_dict(),
        known_s=KNOWN_S if request else FOLD_S,
    )
    return Cancelled(**answer)


def cancel_task(
    site: Site, target: str, *, reason: str | None = None, dry_run: bool = False, progress: Progress | None = None
) -> Cancelled:
    """Remove, for good, what waits of a task name, an entry, a queue, or one message; the entry itself stays.

    What a worker has already is revoked by Celery's own means, which keeps it from being started if it is not yet;
    what runs goes on. Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely targets.
    """
    found = resolve(site, target)
    removed, running = 0, list[str]()
    if found.kind == "id":
        located = site.queues.locate(found.name)
        if not located:
            raise NotFoundError(f"there is no message {found.name!r} in any queue; it may have run already")
        for queue, where in located:
            timeline = site.queues.timeline(queue)
            if where.place is Place.LEASED and where.moment_us > timeline.look([])[0]:
                running.append(found.name)
            else:
                removed += 1
                if not dry_run:  # a lease that has ended is nobody's any more
                    timeline.remove([found.name], spare_leased=where.place is not Place.LEASED)
        if removed and not dry_run:
            site.queues.note(str(found), None)
    else:
        for queue in site.queues.names():
            gone, held = _cancel_in(site, queue, found, dry_run, progress)
            removed += gone
            running += held
    if not dry_run:
        if running:
            site.app.control.revoke(running)
        note(site, "cancel", str(found), reason, removed=removed, running=len(running))
    return Cancelled(str(found), removed, running, dry_run)


def _cancel_in(
    site: Site, queue: str, target: Target, dry_run: bool, progress: Progress | None
) -> tuple[int, list[str]]:
    if target.kind == "queue" and queue != target.name:
        return 0, []
    timeline = site.queues.timeline(queue)
    chosen: list[str] = []
    running: list[str] = []
    ended: list[str] = []
    now_us = timeline.look([])[0]
    for seen in site.queues.scan(queue):
        if _is_of(seen, target):
            if seen.place is not Place.LEASED:
                chosen.append(seen.id)
            else:  # a lease that has ended is nobody's any more
                (running if seen.moment_us > now_us else ended).append(seen.id)
    removed = len(ended)
    if not dry_run:
        timeline.remove(ended)
    for start in range(0, len(chosen), AT_ONCE):
        chunk = chosen[start : start + AT_ONCE]
        if dry_run:
            removed += len(chunk)
            continue
        places = timeline.remove(chunk, spare_leased=True)
        removed += sum(place not in (None, Place.LEASED) for place in places)
        running += [id_ for id_, place in zip(chunk, places, strict=True) if place is Place.LEASED]
        if progress is not None:
            progress(len(chunk))
    return removed, running


def _is_of(seen: Seen, target: Target) -> bool:
    if target.kind == "task":
        return wire_format.task_name(seen.body) == target.name
    if target.kind == "entry":
        told = headers_of(seen.body).get(HEADER)
        return isinstance(told, dict) and told.get("entry") == target.name
    return True
