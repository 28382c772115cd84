"""Pause and resume of what is not an entry: messages of a task, of a queue, or one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched.entry import OperatorState
from celery_zsched.errors import ConflictError, NotFoundError
from celery_zsched.operations.records import note
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment
from celery_zsched.operations.targets import Target
from celery_zsched.schedules import Schedules
from celery_zsched.types import Place

Progress = Callable[[int], None]

#: How long the pause of a task name goes on parking before it answers, in seconds.
SWEEP_S = 0.02


@dataclass(frozen=True, slots=True)
class Holding:
    """How a task's, a queue's or one message's delivery stands after an operation.

    ``state`` is ``paused`` or ``active``, ``messages`` how many this call parked or put back.
    ``until`` (when the pause of a queue ends by itself) is ISO 8601; ``by`` is who paused it.
    """

    target: str
    state: str
    changed: bool
    messages: int
    reason: str | None
    by: str | None
    until: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the standing as JSON values."""
        return asdict(self)


def pause_messages(
    site: Site,
    target: Target,
    *,
    reason: str | None,
    until_us: int | None,
    progress: Progress | None = None,
    tell: bool = True,
    sweep_s: float | None = SWEEP_S,
) -> Holding:
    """Hold back what is for a task, stands in a queue, or is one message.

    In force for every claim from the moment this has told the queues. Messages of a task are then parked one portion
    after the other for ``sweep_s`` seconds (None: all of them); whatever is left is parked by the claims that come
    across it. What runs is not touched. A pause with a time limit is ended by whichever beat runs then; that of a queue
    needs none.
    """
    queues = site.queues
    known = queues.pauses().get(str(target))
    state = OperatorState(
        paused=True,
        by=site.by if known is None else known.by,
        reason=reason if reason is not None or known is None else known.reason,
        since_us=site.schedules.now_us() if known is None else known.since_us,
        until_us=until_us if until_us is not None or known is None else known.until_us,
    )
    parked = 0
    if target.kind == "id":
        parked = _park_one(site, target.name)
    changed = known is None
    if state != known:
        changed = queues.note(str(target), state) and changed
        site.schedules.remind(str(target), state.until_us)
    if target.kind != "id":
        queues.enforce()
    if target.kind == "task":
        if tell:
            _tell_workers(site, target.name)
        until = None if sweep_s is None else time.monotonic() + sweep_s
        for queue in queues.names():
            parked += queues.park_task(queue, target.name, progress, until=until)
    if state != known:
        note(site, "pause", str(target), reason, messages=parked)
    return Holding(str(target), "paused", changed, parked, state.reason, state.by, moment(state.until_us))


def resume_messages(site: Site, target: Target, *, progress: Progress | None = None) -> Holding:
    """Let what was held back go on, in its old order and at its due moments."""
    queues = site.queues
    changed = queues.note(str(target), None)
    site.schedules.remind(str(target), None)
    freed = 0
    if target.kind == "id":
        for queue, _ in queues.locate(target.name):
            freed += queues.timeline(queue).unpark([target.name]) == [Place.PARKED]
        changed = freed > 0
    else:
        queues.enforce()
    if target.kind == "task":
        for queue in queues.names():
            freed += queues.free_task(queue, target.name, progress)
    if target.kind == "queue" and changed:
        queues.let_go_on(target.name)
    if changed or freed:
        note(site, "resume", str(target), None, messages=freed)
    return Holding(str(target), "active", changed, freed, None, None)


def end_pause(app: Any, schedules: Schedules, target: str) -> None:
    """End a pause whose time is over, unless it was ended or begun anew meanwhile."""
    site = Site(app, schedules, "the end of its time")
    if site.own_queues is None:
        return
    state = site.own_queues.pauses().get(target)
    if state is not None and state.until_us is not None and state.until_us <= schedules.now_us():
        kind, _, name = target.partition(":")
        resume_messages(site, Target(kind, name))


def paused(site: Site) -> list[Holding]:
    """Return what is paused of tasks, queues and messages; nothing where the broker is not ours."""
    if site.own_queues is None:
        return []
    now_us = site.schedules.now_us()
    return [
        Holding(target, "paused", False, 0, state.reason, state.by, moment(state.until_us))
        for target, state in sorted(site.own_queues.pauses().items())
        if state.until_us is None or state.until_us > now_us or not target.startswith("queue:")
    ]


def _park_one(site: Site, id_: str) -> int:
    queues = site.queues
    found = queues.locate(id_)
    if not found:
        raise NotFoundError(f"there is no message {id_!r} in any queue; it may have run already, or it is not sent yet")
    parked = 0
    for queue, located in found:
        if located.place is Place.LEASED:
            raise ConflictError(
                f"the message {id_!r} is with {located.holder or 'a worker'} already; what runs is not touched"
            )
        parked += queues.timeline(queue).park([id_], f"id:{id_}") == [Place.WAITING]
    return parked


def _tell_workers(site: Site, task: str) -> None:
    """Ask the workers to give back what they have received of a task and not started; nobody is waited for."""
    site.app.control.broadcast("zsched_give_back", arguments={"task": task})
