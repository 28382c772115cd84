"""Taking away what waits: for good, of a task name, an entry, a queue, or one message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched import message as wire_format
from celery_zsched.entry import HEADER
from celery_zsched.errors import NotFoundError
from celery_zsched.operations.messages import AT_ONCE
from celery_zsched.operations.records import note
from celery_zsched.operations.requests import KNOWN_S, once
from celery_zsched.operations.site import Site
from celery_zsched.operations.targets import Target, resolve, unknown_notice
from celery_zsched.operations.whereabouts import headers_of
from celery_zsched.queues import Seen
from celery_zsched.types import Cancel, Place

#: Requests to cancel that have no id of their own and come so soon after each other, in seconds, are one.
FOLD_S = 3

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What was cancelled: how many that waited are gone, and the ids that run and were asked to be revoked.

    ``notice`` is what is to be minded, such as that nobody knows a task of that name.
    """

    target: str
    removed: int
    running: list[str]
    dry_run: bool
    notice: str | None = None

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
    what runs goes on, and does not come again should its worker die. Raises
    :class:`~celery_zsched.errors.NotFoundError`, which names likely targets.
    """
    found = resolve(site, target)
    removed, running = 0, list[str]()
    if found.kind == "id":
        located = site.queues.locate(found.name)
        if not located:
            raise NotFoundError(f"there is no message {found.name!r} in any queue; it may have run already")
        for queue, where in located:
            timeline = site.queues.timeline(queue)
            if dry_run:
                held = where.place is Place.LEASED and where.moment_us > timeline.look([])[0]
                became = Cancel.HELD if held else Cancel.REMOVED
            else:
                (became,) = timeline.cancel([where.id])
            removed += became is Cancel.REMOVED
            running += [found.name] if became is Cancel.HELD else []
        if removed and not dry_run:
            site.queues.note(str(found), None)
    else:
        for queue in site.queues.names():
            gone, begun = _cancel_in(site, queue, found, dry_run, progress)
            removed += gone
            running += begun
    if not dry_run:
        if running:
            site.app.control.revoke(running)
        if removed or running:
            note(site, "cancel", str(found), reason, removed=removed, running=len(running))
    notice = None if removed or running else unknown_notice(site, found)
    return Cancelled(str(found), removed, running, dry_run, notice)


def _cancel_in(
    site: Site, queue: str, target: Target, dry_run: bool, progress: Progress | None
) -> tuple[int, list[str]]:
    if target.kind == "queue" and queue != target.name:
        return 0, []
    timeline = site.queues.timeline(queue)
    now_us = timeline.look([])[0]
    chosen = [seen for seen in site.queues.scan(queue) if _is_of(seen, target)]
    if dry_run:
        running = [_task_id(seen) for seen in chosen if seen.place is Place.LEASED and seen.moment_us > now_us]
        return len(chosen) - len(running), running
    removed, running = 0, []
    for start in range(0, len(chosen), AT_ONCE):
        chunk = chosen[start : start + AT_ONCE]
        done = timeline.cancel([seen.id for seen in chunk])
        removed += done.count(Cancel.REMOVED)
        running += [_task_id(seen) for seen, each in zip(chunk, done, strict=True) if each is Cancel.HELD]
        if progress is not None:
            progress(len(chunk))
    return removed, running


def _task_id(seen: Seen) -> str:
    # A message may stand under another id, since its task's own was taken.
    return wire_format.task_id(headers_of(seen.body)) or seen.id


def _is_of(seen: Seen, target: Target) -> bool:
    if target.kind == "task":
        return wire_format.task_name(seen.body) == target.name
    if target.kind == "entry":
        told = headers_of(seen.body).get(HEADER)
        return isinstance(told, dict) and told.get("entry") == target.name
    return True
