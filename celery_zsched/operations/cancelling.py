"""Taking away what waits: for good, of a task name, an entry, a queue, or one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched import message as wire_format
from celery_zsched.entry import HEADER
from celery_zsched.errors import NotFoundError
from celery_zsched.operations.holding import forget, forget_gone
from celery_zsched.operations.messages import AT_ONCE
from celery_zsched.operations.records import note
from celery_zsched.operations.requests import KNOWN_S, once
from celery_zsched.operations.site import Site
from celery_zsched.operations.targets import Target, find_entries, is_pattern, resolve, unknown_notice
from celery_zsched.operations.whereabouts import headers_of
from celery_zsched.queues import Seen
from celery_zsched.runs import Runs
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
    what runs goes on, and does not come again should its worker die. Runs of entries whose messages are gone keep
    their entries back no longer. A broker that is not ours lets nobody remove messages: of an entry, those that no
    worker has reported to have begun are revoked, and end like that. Raises
    :class:`~celery_zsched.errors.NotFoundError`, which names likely targets.
    """
    found = resolve(site, target)
    if found.kind == "entry" and is_pattern(found.name) and (names := _selected(site, target)):
        each = [cancel_task(site, f"entry:{name}", reason=reason, dry_run=dry_run, progress=progress) for name in names]
        notices = [f"{one.target}: {one.notice}" for one in each if one.notice]
        running = [id_ for one in each for id_ in one.running]
        return Cancelled(str(found), sum(one.removed for one in each), running, dry_run, "; ".join(notices) or None)
    if found.kind == "entry" and site.own_queues is None:
        return _cancel_unseen(site, found, reason, dry_run)
    removed, running = 0, []
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
                _end_runs(site, [(found.name, where.body)] if became is Cancel.REMOVED else [])
            removed += became is Cancel.REMOVED
            running += [found.name] if became is Cancel.HELD else []
        if removed and not dry_run:
            forget(site, str(found))
            forget_gone(site, [where.id for _, where in located])
    else:
        for queue in site.queues.names():
            gone, begun = _cancel_in(site, queue, found, dry_run, progress)
            removed += gone
            running += begun
    ended = _end_lost(site, found.name, dry_run) if found.kind == "entry" else 0
    if not dry_run:
        if running:
            site.app.control.revoke(running)
        if removed or running or ended:
            note(site, "cancel", str(found), reason, removed=removed, running=len(running))
    notice = None if removed or running or ended else unknown_notice(site, found)
    if ended:
        notice = (
            f"runs of it that no worker has begun and that have no message in any queue: {ended}; cancelled, they keep "
            "the next one back no longer"
        )
    return Cancelled(str(found), removed, running, dry_run, notice)


def _selected(site: Site, target: str) -> list[str]:
    """Return the names of the entries that a pattern selects; none where it is the very name of one, there or gone."""
    try:
        return [stored.name for stored in find_entries(site, target) if stored.name != target.removeprefix("entry:")]
    except NotFoundError:
        if target.startswith("entry:"):
            return []  # messages of an entry that was deleted may wait still
        raise


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
        gone = [seen for seen, each in zip(chunk, done, strict=True) if each is Cancel.REMOVED]
        _end_runs(site, [(seen.id, seen.body) for seen in gone])
        forget_gone(site, [seen.id for seen in gone])
        running += [_task_id(seen) for seen, each in zip(chunk, done, strict=True) if each is Cancel.HELD]
        if progress is not None:
            progress(len(chunk))
    return removed, running


def _end_runs(site: Site, messages: Iterable[tuple[str, bytes]]) -> None:
    """End the runs of this schedule's entries whose messages, given with their ids, are gone."""
    ends = []
    for id_, body in messages:
        if b'"overlap"' not in body:
            continue  # which is most of them, and told without reading their headers
        headers = headers_of(body)
        told = headers.get(HEADER)
        if not isinstance(told, dict) or told.get("overlap", "allow") == "allow":
            continue
        if told.get("schedule") == site.schedules.prefix and isinstance(told.get("entry"), str):
            ends.append((told["entry"], wire_format.task_id(headers) or id_))
    Runs(site.schedules).end(ends)


def _end_lost(site: Site, entry: str, dry_run: bool) -> int:
    """End the runs of an entry that nobody has begun and that have no message in a queue of ours; return how many."""
    runs = Runs(site.schedules)
    waiting = [run.id for run in runs.of([entry])[entry] if run.state == "sent"]
    standing = site.queues.standing(waiting)
    lost = [id_ for id_ in waiting if id_ not in standing]
    if not dry_run:
        runs.end((entry, id_) for id_ in lost)
    return len(lost)


def _cancel_unseen(site: Site, target: Target, reason: str | None, dry_run: bool) -> Cancelled:
    """Revoke what an entry has sent to a broker of another make and no worker has begun, and end those runs."""
    runs = Runs(site.schedules)
    waiting = [run.id for run in runs.of([target.name])[target.name] if run.state == "sent"]
    if waiting and not dry_run:
        site.app.control.revoke(waiting)
        runs.end((target.name, id_) for id_ in waiting)
        note(site, "cancel", str(target), reason, removed=0, running=len(waiting))
    notice = (
        "the broker is not ours, so what waits there cannot be removed, and is known only of entries whose runs may "
        "not overlap: "
    )
    if waiting:
        would = "would be" if dry_run else "are"
        notice += f"those that no worker has reported to have begun {would} revoked, and keep the next back no longer"
    else:
        notice += "no run of this one waits to be begun"
    return Cancelled(str(target), 0, waiting, dry_run, notice)


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
