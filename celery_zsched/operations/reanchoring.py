"""Entries that are ahead of the server's clock, since it was set far ahead and back again: which, and what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from celery_zsched import planner
from celery_zsched.entry import encode
from celery_zsched.errors import ConflictError, EntryError, NotFoundError, ZschedError
from celery_zsched.operations.records import note
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import Standing, moment, standing
from celery_zsched.operations.targets import find_entries, find_entry, is_pattern
from celery_zsched.placing import digest
from celery_zsched.planner.ahead import LEAST_US
from celery_zsched.schedules import ATTEMPTS, Schedules
from celery_zsched.stored import State, Stored
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.types import Place

#: What to do about entries that are ahead of the clock.
REMEDY = "celery zsched reanchor --ahead"

#: How many entries are named where there are many.
NAMED = 5


@dataclass(slots=True)
class Lead:
    """The entries that are ahead of the clock by their names: those that wait, and those that have run out."""

    waiting: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        count = f"{len(self.waiting):,} {'entry is' if len(self.waiting) == 1 else 'entries are'}"
        return f"{count} ahead of the server's clock ({named(self.waiting)})"


def named(names: list[str]) -> str:
    """Return names as text, the first few where they are many."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, sorted(names)[:NAMED])) + more


def ahead_of_clock(stored: Stored, now_us: int, zone: str) -> planner.Ahead | None:
    """Return by how much an entry is ahead of the server's clock, ``now_us``; None if it is not. ``zone`` is the app's.

    One whose schedule cannot answer is not; that is told when it is due.
    """
    if stored.spec is None:
        return None
    due_us = None if stored.located.place is Place.DEAD or stored.state is State.FINISHED else stored.located.due_us
    try:
        return planner.ahead(
            stored.spec, stored.last, due_us, now_us, zone=zone, stuck_us=_stuck_until_us(stored, now_us)
        )
    except Exception:  # a custom schedule's own error included
        return None


def lead(schedules: Schedules) -> Lead:
    """Return which entries are ahead of the server's clock; walks the schedule."""
    found = Lead()
    now_us = schedules.now_us()
    for stored in schedules.all():
        if ahead_of_clock(stored, now_us, schedules.zone) is not None:
            (found.finished if stored.state is State.FINISHED else found.waiting).append(stored.name)
    return found


def reanchor_task(site: Site, target: str, *, reason: str | None = None, dry_run: bool = False) -> Standing:
    """Let an entry that is ahead of the server's clock begin a new life, due next at its first occurrence from now.

    Its grid stays, unless it was made when the clock was ahead; so do a pause, its history, and how often it was sent.
    One that has run out has its occurrences to come again, but for those beyond its ``count``. One that is not ahead is
    left as it is. With ``dry_run`` nothing is done, and the answer says how it would stand.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely entries,
    :class:`~celery_zsched.errors.EntryError` for one that cannot be read, and
    :class:`~celery_zsched.errors.ConflictError` when others keep writing it.
    """
    stored = find_entry(site, target)
    if stored.spec is None:
        raise EntryError(f"the entry {stored.name!r} cannot be reanchored: {stored.fault}")
    return _reanchor(site, stored, _highest_epochs(site, [stored]), reason, dry_run)


def reanchor_tasks(
    site: Site, target: str | None = None, *, reason: str | None = None, dry_run: bool = False
) -> list[Standing]:
    """Let every entry that is ahead of the clock begin anew, as :func:`reanchor_task` does, and no other.

    With ``target`` of those that the pattern selects. What has run out is left as it is.
    """
    found: Iterable[Stored] = site.schedules.all()
    if target is not None:
        found = find_entries(site, target) if is_pattern(target) else [find_entry(site, target)]
    now_us = site.schedules.now_us()
    concerned = [
        stored
        for stored in found
        if stored.state is not State.FINISHED and ahead_of_clock(stored, now_us, site.schedules.zone) is not None
    ]
    concerned.sort(key=lambda each: each.name)
    epochs = _highest_epochs(site, concerned)
    return [_reanchor(site, stored, epochs, reason, dry_run) for stored in concerned]


def reanchor_named(
    site: Site, targets: Iterable[str], *, reason: str | None = None, dry_run: bool = False
) -> list[Standing]:
    """Let several entries begin anew, named or selected by patterns, as :func:`reanchor_task` and its like do.

    All are looked for before anything is done. Raises :class:`~celery_zsched.errors.NotFoundError` with all that are
    not there, and :class:`~celery_zsched.errors.EntryError` with all that cannot be read.
    """

    def each(only_look: bool) -> Iterator[list[Standing]]:
        for target in targets:
            try:
                if is_pattern(target):
                    yield reanchor_tasks(site, target, reason=reason, dry_run=only_look)
                else:
                    yield [reanchor_task(site, target, reason=reason, dry_run=only_look)]
            except (NotFoundError, EntryError) as exc:
                faults.append(exc)

    faults: list[ZschedError] = []
    targets = list(targets)
    looked = list(each(True))
    if not faults:
        looked = looked if dry_run else list(each(False))
    if faults:
        raise type(faults[0])("; ".join(map(str, faults)))
    return [standing for found in looked for standing in found]


def notices(stored: Stored, now_us: int, zone: str) -> Iterator[str]:
    """Yield what is to be said of an entry that is ahead of the clock."""
    found = ahead_of_clock(stored, now_us, zone)
    if found is None:
        return
    remedy = f"celery zsched reanchor {stored.name}"
    if found.waits_us is None:
        yield (
            f"it was sent for {moment(stored.last.nominal_us)}, which is still to come, so the server's clock was set "
            f"back since: to have it sent then, {remedy}"
        )
    else:
        yield (
            f"it is ahead of the server's clock, which was set back: it waits until {moment(found.waits_us)}, though "
            f"by the clock as it is it should be due at {moment(found.owed_us)}; to let it go on, {remedy}"
        )


def _reanchor(site: Site, stored: Stored, epochs: Mapping[str, int], reason: str | None, dry_run: bool) -> Standing:
    schedules, name = site.schedules, stored.name
    for _ in range(ATTEMPTS):
        now_us = schedules.now_us()
        if stored.spec is None or ahead_of_clock(stored, now_us, schedules.zone) is None:
            said = "it is not ahead of the server's clock, so it is left as it is"
            return dataclasses.replace(standing(stored), notice=said, dry_run=dry_run)
        spec, plan = planner.begin_anew(stored.spec, stored.last, now_us, epochs.get(name, 0), zone=schedules.zone)
        if dry_run:
            state = State.SCHEDULED if stored.state in (State.FINISHED, State.FIRING) else stored.state
            due_us = None if state is State.QUARANTINED else plan.next_due_us
            after = dataclasses.replace(stored, state=state, due_us=due_us)
            return dataclasses.replace(standing(after, True), dry_run=True)
        # One in quarantine stays there; saved anew when it is mended, it is due by its new record.
        due = "" if stored.state is State.QUARANTINED else str(plan.next_due_us)
        known = [digest(stored.located.body), digest(stored.located.note)]
        if schedules.timeline.run("renew", [name, *known, encode(spec), due, plan.last.to_json()]):
            note(site, "reanchor", f"entry:{name}", reason, was_due=moment(stored.located.due_us))
            return standing(schedules.get(name), True)
        stored = schedules.get(name)
    raise ConflictError(f"the entry {name!r} is being written by others; retry")


def _highest_epochs(site: Site, entries: Sequence[Stored]) -> dict[str, int]:
    """Return the highest epoch of each entry that a queue of ours has had an occurrence of."""
    if site.own_queues is None:
        return {}
    epochs: dict[str, int] = {}
    for start in range(0, len(entries), MAX_BATCH):
        names = [stored.name for stored in entries[start : start + MAX_BATCH]]
        for name, marks in site.own_queues.marks(site.schedules.prefix, names).items():
            epochs[name] = max(epoch for epoch, _ in marks)
    return epochs


def _stuck_until_us(stored: Stored, now_us: int) -> int | None:
    """Return until when an entry is held by a claim, or by a failed one, that was made when the clock was ahead."""
    located = stored.located
    far_us = now_us + LEAST_US
    if located.place is Place.LEASED and (located.claimed_us or 0) > far_us and located.moment_us > far_us:
        return located.moment_us
    if located.place is Place.WAITING and located.due_us <= now_us and located.moment_us > far_us:
        return located.moment_us
    return None
