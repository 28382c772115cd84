"""Pause and resume of what is not an entry: messages of a task, of a queue, or one of them."""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from celery_zsched.entry import OperatorState
from celery_zsched.errors import ConflictError, NotFoundError
from celery_zsched.message import task_name
from celery_zsched.operations.records import note
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment, paused_by
from celery_zsched.operations.targets import Target, unknown_notice
from celery_zsched.operations.whereabouts import CANCELLED
from celery_zsched.schedules import Schedules
from celery_zsched.types import SECOND_US, Place, names_of

Progress = Callable[[int], None]

#: How long the pause of a task name goes on parking before it answers, in seconds.
SWEEP_S = 0.02

#: After how long whichever beat runs then goes on with a resume that is not at its end, in microseconds.
GO_ON_US = 60 * SECOND_US


@dataclass(frozen=True, slots=True)
class Holding:
    """How a task's, a queue's or one message's delivery stands after an operation.

    ``state`` is ``paused``, ``resuming`` (some may be parked yet) or ``active``, ``messages`` how many this call parked
    or put back. ``until`` (when the pause ends by itself) is ISO 8601; ``by`` is who paused it. ``notice`` is what is
    to be minded, such as that nobody knows a task of that name. With ``dry_run`` nothing was done: it would stand so.
    """

    target: str
    state: str
    changed: bool
    messages: int
    reason: str | None
    by: str | None
    until: str | None = None
    notice: str | None = None
    dry_run: bool = False

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
    dry_run: bool = False,
) -> Holding:
    """Hold back what is for a task, stands in a queue, or is one message.

    In force for every claim from the moment this has told the queues. Messages of a task are then parked one portion
    after the other for ``sweep_s`` seconds (None: all of them); whatever is left is parked by the claims that come
    across it. What runs is not touched. A pause with a time limit is ended by whichever beat runs then; that of a queue
    needs none.
    """
    queues = site.queues
    known, now_us = queues.pauses().get(str(target)), site.schedules.now_us()
    if known is not None and (known.resuming or (known.until_us is not None and known.until_us <= now_us)):
        known = None  # that pause is over, and this is another
    state = OperatorState(
        paused=True,
        by=site.by if known is None else known.by,
        reason=reason if reason is not None or known is None else known.reason,
        since_us=now_us if known is None else known.since_us,
        until_us=until_us if until_us is not None or known is None else known.until_us,
    )
    parked = 0
    if target.kind == "id":
        parked = _park_one(site, target.name, dry_run)
    changed = known is None
    if dry_run:
        if target.kind == "task":
            parked = _waiting_for(site, target.name)
        return _held(site, target, "paused", changed, parked, state, dry_run=True)
    if state != known:
        queues.note(str(target), state)
        site.schedules.remind(str(target), state.until_us)
    if target.kind != "id":
        queues.enforce()
    if target.kind == "task":
        if tell:
            _tell_workers(site, target.name)
        until = None if sweep_s is None else time.monotonic() + sweep_s
        for queue in queues.names():
            parked += queues.park_task(queue, target.name, progress, until=until)
        if queues.pauses().get(str(target), OperatorState(resuming=True)).resuming:
            _put_back(site, target, None)  # resumed while this was parking
    if state != known:
        note(site, "pause", str(target), reason, messages=parked)
    return _held(site, target, "paused", changed, parked, state)


def resume_messages(
    site: Site, target: Target, *, progress: Progress | None = None, reason: str | None = None, dry_run: bool = False
) -> Holding:
    """Let what was held back go on, in its old order and at its due moments.

    One message that the pause of its task name or its queue holds back as well stands as ``paused`` still, by that one.
    """
    queues = site.queues
    if dry_run:
        is_known = str(target) in queues.pauses()
        count = _parked_for(site, target) if is_known else 0
        return _resumed(site, target, is_known, count, dry_run=True)
    known = queues.pauses().get(str(target))
    freed = 0
    if target.kind == "queue":
        changed = queues.note(str(target), None) and known is not None  # or its time was over
        site.schedules.remind(str(target), None)
        queues.enforce()
        if changed:
            queues.ring(target.name)
    else:
        resuming = None if known is None else replace(known, resuming=True)
        freed = _put_back(site, target, resuming, progress)
        changed = known is not None if target.kind == "task" else freed > 0
    if changed or freed:
        note(site, "resume", str(target), reason, messages=freed)
    return _resumed(site, target, changed, freed)


def _resumed(site: Site, target: Target, changed: bool, messages: int, *, dry_run: bool = False) -> Holding:
    """Return how a target stands that was resumed: one message may be held back by other pauses."""
    others = _other_pauses(site, target) if target.kind == "id" else {}
    if not others:
        return _held(site, target, "active", changed, messages, OperatorState(), dry_run=dry_run)
    said = "; ".join(
        f"it is held back still: {other} is {paused_by(state)} (celery zsched resume {shlex.quote(other)})"
        for other, state in others.items()
    )
    held = _held(site, target, "paused", changed, messages, next(iter(others.values())), dry_run=dry_run)
    return replace(held, notice=said)


def _other_pauses(site: Site, target: Target) -> dict[str, OperatorState]:
    """Return the pauses by which one message is held back that are not of its own id."""
    pauses, found = site.queues.pauses(), {}
    for queue, located in site.queues.locate(target.name):
        if located.place in (Place.WAITING, Place.PARKED):
            for other in (f"task:{task_name(located.body)}", f"queue:{queue}"):
                if other in pauses and not pauses[other].resuming:
                    found[other] = pauses[other]
    return found


def _put_back(site: Site, target: Target, resuming: OperatorState | None, progress: Progress | None = None) -> int:
    """Put back all that is parked for a task name or an id; return how many messages.

    A pause stays on record as one that is being resumed until all are back, with a reminder for a beat to go on with it
    should this process end before: so nothing is left behind without anybody's knowing.
    """
    queues, name = site.queues, str(target)
    token = uuid.uuid4().hex
    still = set(queues.stand_still(token)) if target.kind == "task" else set()
    freed = 0
    try:
        if resuming is not None:
            site.schedules.remind(name, site.schedules.now_us() + GO_ON_US)
            queues.note(name, resuming)
        if target.kind == "task":
            queues.enforce()
            still |= set(queues.stand_still(token))  # of what was parked before all claims knew
            for queue in sorted(still):
                freed += queues.free_task(queue, target.name, token, progress)
                queues.go_on(token, queue)
                still.remove(queue)
        else:
            held = _other_pauses(site, target)
            for queue, located in queues.locate(target.name):
                if located.reason in held:
                    continue  # it is parked for that, and not for its id
                freed += queues.timeline(queue).unpark([located.id]) == [Place.PARKED]
    finally:
        for queue in still:
            queues.go_on(token, queue)
    if resuming is not None and queues.note_if(name, resuming, None):
        site.schedules.remind(name, None)
        anew = queues.pauses().get(name)
        if anew is not None and anew.until_us is not None:
            site.schedules.remind(name, anew.until_us)  # it was paused again in between
    return freed


def forget_gone(site: Site, ids: Iterable[str]) -> None:
    """Take pauses of single messages off the record whose messages, of these ``ids``, are gone from all queues."""
    gone = set(ids)
    for target in site.queues.pauses():
        kind, _, name = target.partition(":")
        if kind == "id" and not gone.isdisjoint(names_of(name)) and not site.queues.locate(name):
            forget(site, target)


def forget(site: Site, target: str) -> None:
    """Take a pause off the record, with the reminder of its end."""
    if site.queues.note(target, None):
        site.schedules.remind(target, None)


def end_pause(app: Any, schedules: Schedules, target: str) -> None:
    """End a pause whose time is over, or whose resume was not ended, unless it was ended or begun anew meanwhile."""
    site = Site(app, schedules, "the end of its time")
    if site.own_queues is None:
        return
    state = site.own_queues.pauses_on_record().get(target)
    if state is None:
        return
    if state.resuming or (state.until_us is not None and state.until_us <= schedules.now_us()):
        kind, _, name = target.partition(":")
        resume_messages(site, Target(kind, name))


def paused(site: Site) -> list[Holding]:
    """Return what is paused of tasks, queues and messages; nothing where the broker is not ours."""
    if site.own_queues is None:
        return []
    return [
        Holding(
            target, "resuming" if state.resuming else "paused", False, 0, state.reason, state.by, moment(state.until_us)
        )
        for target, state in sorted(site.own_queues.pauses().items())
    ]


def _held(
    site: Site, target: Target, state: str, changed: bool, messages: int, operator: OperatorState,
    *, dry_run: bool = False,
) -> Holding:  # fmt: skip
    known = messages > 0 or (state == "paused" and not changed)
    notice = None if known else unknown_notice(site, target)
    return Holding(
        str(target), state, changed, messages, operator.reason, operator.by, moment(operator.until_us), notice, dry_run
    )


def _waiting_for(site: Site, task: str) -> int:
    """Return how many messages wait for a task."""
    seen = (one for queue in site.queues.names() for one in site.queues.scan(queue))
    return sum(one.place is Place.WAITING and task_name(one.body) == task for one in seen)


def _parked_for(site: Site, target: Target) -> int:
    """Return how many messages a pause has parked; none of a queue, where they stay in their places."""
    count = 0
    for queue in site.queues.names() if target.kind != "queue" else []:
        ids = [one.id for one in site.queues.members(queue, Place.PARKED)]
        count += sum(one.reason == str(target) for one in site.queues.timeline(queue).locate(ids).values())
    return count


def _park_one(site: Site, id_: str, dry_run: bool) -> int:
    queues = site.queues
    found = queues.locate(id_)
    if not found:
        raise NotFoundError(f"there is no message {id_!r} in any queue; it may have run already, or it is not sent yet")
    alive = [(queue, located) for queue, located in found if located.place is not Place.DEAD]
    if not alive:
        raise ConflictError(
            f"the message {id_!r} is among the dead, and does not run unless `celery zsched dead requeue {id_}` puts "
            "it back; pause it then, or its task now"
        )
    parked = 0
    for queue, located in alive:
        timeline = queues.timeline(queue)
        ended = located.place is Place.LEASED and located.moment_us <= timeline.look([])[0]
        if located.place is Place.LEASED and not ended:
            raise ConflictError(
                f"the message {id_!r} is with {located.holder or 'a worker'} already; what runs is not touched"
            )
        if ended and located.reason == CANCELLED:
            raise ConflictError(f"the message {id_!r} was cancelled while a worker had it; the next claim removes it")
        if dry_run:
            parked += ended or located.place is Place.WAITING
        else:  # a lease that has ended is nobody's any more
            parked += timeline.park([located.id], f"id:{id_}", force=ended) in ([Place.WAITING], [Place.LEASED])
    return parked


def _tell_workers(site: Site, task: str) -> None:
    """Ask the workers to give back what they have received of a task and not started; nobody is waited for."""
    site.app.control.broadcast("zsched_give_back", arguments={"task": task})
