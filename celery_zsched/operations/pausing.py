"""Pause and resume: of entries here, of messages in :mod:`celery_zsched.operations.holding`."""

from __future__ import annotations

import dataclasses

from celery_zsched import planner
from celery_zsched.entry import OperatorState
from celery_zsched.errors import ConflictError, EntryError
from celery_zsched.operations.guarding import Pauses, messages_held
from celery_zsched.operations.holding import SWEEP_S, Holding, Progress, pause_messages, resume_messages
from celery_zsched.operations.moments import duration_us, moment_in_years, moment_us
from celery_zsched.operations.records import note
from celery_zsched.operations.requests import agree
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import Standing, standing
from celery_zsched.operations.targets import find_entries, find_entry, resolve
from celery_zsched.stored import State, Stored

#: How an entry may stand that can be paused.
_PAUSABLE = (State.SCHEDULED, State.FIRING, State.PAUSED)


def pause_task(
    site: Site,
    target: str,
    *,
    reason: str | None = None,
    until: str | None = None,
    lasting: str | float | None = None,
    request: str | None = None,
    progress: Progress | None = None,
    tell: bool = True,
    sweep_s: float | None = SWEEP_S,
    dry_run: bool = False,
) -> Standing | Holding:
    """Hold something back until it is resumed: an entry, the messages of a task, a queue, or one message.

    The pause ends by itself at ``until`` (a moment; without an offset in the entry's zone, or the app's) or after
    ``lasting`` (a duration), if one is given; see :mod:`celery_zsched.operations.moments`. Of those who do the same
    ``request``, all let it end at the same moment.
    ``tell`` lets workers know, that give back what they have received of a task and not started; ``sweep_s`` is for how
    long its messages are parked before this answers (None: all of them), the rest is when they are come across. A
    target that says by its prefix that it is a task or a queue need not be known; a notice says so. With ``dry_run``
    nothing is done, and the answer says how it would stand.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely targets, and
    :class:`~celery_zsched.errors.ConflictError` for a target that is several things, an entry that is finished or in
    quarantine, or a message that is with a worker already.
    """
    found = resolve(site, target)
    stored = find_entry(site, found.name) if found.kind == "entry" else None
    zone = stored.spec.zone if stored is not None and stored.spec is not None else None
    end_us = _end_us(site, until, lasting, request, zone)
    if stored is None:
        return pause_messages(
            site, found, reason=reason, until_us=end_us, progress=progress, tell=tell, sweep_s=sweep_s, dry_run=dry_run
        )
    return _pause(site, stored, reason, end_us, dry_run)


def pause_tasks(
    site: Site,
    target: str,
    *,
    reason: str | None = None,
    until: str | None = None,
    lasting: str | float | None = None,
    request: str | None = None,
    dry_run: bool = False,
) -> list[Standing]:
    """Pause every entry that a pattern selects, as :func:`pause_task` does; what has nothing to pause is left out."""
    end_us = _end_us(site, until, lasting, request)
    return [
        _pause(site, stored, reason, end_us, dry_run)
        for stored in find_entries(site, target)
        if stored.state in _PAUSABLE
    ]


def resume_task(
    site: Site,
    target: str,
    *,
    catch_up: bool = False,
    reason: str | None = None,
    progress: Progress | None = None,
    dry_run: bool = False,
) -> Standing | Holding:
    """Let what is paused go on; an entry is due at its next future occurrence, messages keep their order.

    With ``catch_up`` an entry also runs at once for the newest occurrence that the pause has swallowed. One that is in
    quarantine is tried anew at once. What was neither is answered with ``changed`` false. With ``dry_run`` nothing is
    done. Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely targets, and
    :class:`~celery_zsched.errors.ConflictError` for one that is several things.
    """
    found = resolve(site, target)
    if found.kind != "entry":
        return resume_messages(site, found, progress=progress, reason=reason, dry_run=dry_run)
    return _resume(site, find_entry(site, found.name), catch_up, reason, dry_run, Pauses(site))


def resume_tasks(
    site: Site, target: str, *, catch_up: bool = False, reason: str | None = None, dry_run: bool = False
) -> list[Standing]:
    """Resume every entry that a pattern selects, as :func:`resume_task` does.

    Raises :class:`~celery_zsched.errors.EntryError`, with nothing done, where some cannot be resumed.
    """
    found = find_entries(site, target)
    faults = [_cannot_resume(stored) for stored in found if stored.state is State.PAUSED and stored.spec is None]
    if faults:
        raise EntryError(f"none was resumed, since {'; '.join(faults)}")
    pauses = Pauses(site)
    return [_resume(site, stored, catch_up, reason, dry_run, pauses) for stored in found]


def _pause(site: Site, stored: Stored, reason: str | None, end_us: int | None, dry_run: bool) -> Standing:
    # Asked again with another reason or end, a pause gets them; asked again as it is, nothing changes.
    was, now_us = stored.operator if stored.state is State.PAUSED else None, site.schedules.now_us()
    is_over = was is not None and was.until_us is not None and was.until_us <= now_us
    told = was is not None and (is_over or end_us not in (None, was.until_us) or reason not in (None, was.reason))
    changed = False
    if was is None or told:
        operator = OperatorState(
            paused=True,
            by=site.by,
            reason=reason if reason is not None or was is None else was.reason,
            since_us=now_us if was is None else was.since_us,
            until_us=end_us if end_us is not None or was is None or is_over else was.until_us,
        )
        if stored.state not in _PAUSABLE:
            raise ConflictError(f"the entry {stored.name!r} is {stored.state.value}, so there is nothing to pause")
        if dry_run:
            paused = dataclasses.replace(stored, state=State.PAUSED, operator=operator)
            return dataclasses.replace(standing(paused, was is None), dry_run=True)
        # Of many who hear of it at once, one finds it not paused.
        changed = site.schedules.pause(stored.name, operator) and was is None
    if dry_run:
        return dataclasses.replace(standing(stored), dry_run=True)
    after = standing(site.schedules.get(stored.name), changed)
    if changed or told:
        note(site, "pause", f"entry:{stored.name}", reason, **({"until": after.until} if after.until else {}))
    return after


def _resume(site: Site, stored: Stored, catch_up: bool, reason: str | None, dry_run: bool, pauses: Pauses) -> Standing:
    done = _would_be_resumed(site, stored) if dry_run else _resume_now(site, stored, catch_up, reason)
    said = [*filter(None, [done.notice]), *messages_held(pauses, stored.spec)]
    return dataclasses.replace(done, notice="; ".join(said) or None)


def _resume_now(site: Site, stored: Stored, catch_up: bool, reason: str | None) -> Standing:
    changed = site.schedules.resume(stored.name, catch_up=catch_up)
    after = standing(site.schedules.get(stored.name), changed)
    if changed and stored.state is State.QUARANTINED:
        after = dataclasses.replace(after, notice=_out_of_quarantine(stored))
    if changed:
        note(site, "resume", f"entry:{stored.name}", reason, **({"catch_up": True} if catch_up else {}))
    return after


def _out_of_quarantine(stored: Stored) -> str:
    return f"it was in quarantine, and is tried anew now: {stored.fault}"


def _cannot_resume(stored: Stored) -> str:
    return f"the entry {stored.name!r} cannot be resumed: {stored.fault}"


def _would_be_resumed(site: Site, stored: Stored) -> Standing:
    if stored.state is State.QUARANTINED:
        back = dataclasses.replace(stored, state=State.SCHEDULED, due_us=stored.located.due_us)
        return dataclasses.replace(standing(back, True), notice=_out_of_quarantine(stored), dry_run=True)
    if stored.state is not State.PAUSED:
        return dataclasses.replace(standing(stored), dry_run=True)
    if stored.spec is None:
        raise EntryError(_cannot_resume(stored))
    plan = planner.resume(
        stored.spec, stored.last, stored.located.due_us, site.schedules.now_us(), zone=site.schedules.zone
    )
    state = State.SCHEDULED if plan.next_due_us is not None else State.FINISHED
    after = dataclasses.replace(stored, state=state, operator=OperatorState(), due_us=plan.next_due_us)
    return dataclasses.replace(standing(after, True), dry_run=True)


def _end_us(
    site: Site, until: str | None, lasting: str | float | None, request: str | None, zone: str | None = None
) -> int | None:
    if until is None and lasting is None:
        return None
    if until is not None and lasting is not None:
        raise EntryError("a pause has one end: give a moment (until) or a duration (for), not both")
    now_us = site.schedules.now_us()
    if lasting is not None:
        end_us = moment_in_years(now_us + duration_us(lasting), lasting)
    else:
        end_us = moment_us(until or "", now_us, zone or site.schedules.zone)
    if end_us <= now_us:
        raise EntryError(f"the pause would end at {until or lasting}, which is over; give a moment to come")
    return end_us if request is None else agree(site, request, end_us)
