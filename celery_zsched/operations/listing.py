"""Looking at entries: a page of them, one in full, what is to come, what was."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from celery_zsched.entry import EntrySpec, Past
from celery_zsched.operations.guarding import Pauses, closings_of, coming, held_by
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment
from celery_zsched.operations.targets import find_entry, selected
from celery_zsched.schedules import Schedules
from celery_zsched.stored import State, Stored
from celery_zsched.triggers import to_json


@dataclass(frozen=True, slots=True)
class Row:
    """An entry in a listing; moments are ISO 8601 in UTC, ``zone`` is the one its wall times are in.

    ``held`` is what holds its next occurrence or its messages back though it is not paused itself: ``task:…`` or
    ``queue:…``, which is paused, or ``blackout:…``, in which its next occurrence lies.
    """

    entry: str
    state: str
    task: str | None
    schedule: str | None
    zone: str | None
    next: str | None
    last: str | None
    fired: int
    missed: int
    reason: str | None
    by: str | None
    until: str | None
    fault: str | None
    held: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Coming:
    """An occurrence to come: when it is due (ISO 8601), and the ``blackout`` for which it is not sent.

    What lies in a blackout is not made up for afterwards.
    """

    due: str
    blackout: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the occurrence as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing, in the order of names; ``after`` is what to give for the next page, None at the end."""

    rows: list[Row]
    after: str | None


def list_entries(
    site: Site, *, pattern: str | None = None, state: str | None = None, limit: int = 100, after: str | None = None
) -> Page:
    """Return one page of entries in the order of their names; ``after`` is the last name of the page before."""
    found, following = page_of(site.schedules, pattern=pattern, state=state, limit=limit, after=after)
    return Page(_rows(site, found), following)


def page_of(
    schedules: Schedules,
    *,
    pattern: str | None = None,
    state: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> tuple[list[Stored], str | None]:
    """Return the entries of one page, and what to give as ``after`` for the next, None at the end.

    A pattern that is the very name of an entry selects that one alone.
    """
    every = schedules.names() if pattern is None else selected(schedules, pattern)
    names: Iterable[str] = (name for name in every if after is None or name > after)
    if state is None:
        chosen = heapq.nsmallest(limit + 1, names)
        return schedules.get_many(chosen[:limit]), chosen[limit - 1] if len(chosen) > limit else None
    found: list[Stored] = []
    ordered = sorted(names)
    for start in range(0, len(ordered), limit):
        chosen = ordered[start : start + limit]
        found += [stored for stored in schedules.get_many(chosen) if stored.state.value == state]
        if len(found) >= limit:
            return found[:limit], found[limit - 1].name
    return found, None


def all_entries(site: Site, *, pattern: str | None = None, state: str | None = None) -> Iterator[Row]:
    """Yield every entry, a page at a time."""
    page = list_entries(site, pattern=pattern, state=state, limit=500)
    yield from page.rows
    while page.after is not None:
        page = list_entries(site, pattern=pattern, state=state, limit=500, after=page.after)
        yield from page.rows


def _rows(site: Site, found: list[Stored]) -> list[Row]:
    pauses, closings = Pauses(site), closings_of(site.schedules, (stored.spec for stored in found))
    return [row(site, stored, held_by(stored, pauses, closings, site.schedules.zone)) for stored in found]


def row(site: Site, stored: Stored, held: list[str]) -> Row:
    """Return an entry as a row of a listing."""
    spec = stored.spec
    return Row(
        entry=stored.name,
        state=stored.state.value,
        task=spec.task if spec else None,
        schedule=str(spec.trigger) if spec else None,
        zone=(spec.zone or site.schedules.zone) if spec else None,
        next=moment(stored.due_us) if stored.state is not State.PAUSED else None,
        last=moment(stored.last.fired_us),
        fired=stored.last.fired,
        missed=stored.last.missed_total,
        reason=stored.operator.reason,
        by=stored.operator.by,
        until=moment(stored.operator.until_us),
        fault=stored.fault or stored.last.error,
        held=held,
    )


def show(site: Site, target: str, *, arguments: bool = False) -> dict[str, Any]:
    """Return all that is known of one entry, as JSON values; argument values only with ``arguments``.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely entries.
    """
    stored = find_entry(site, target)
    spec, last = stored.spec, stored.last
    shown: dict[str, Any] = _rows(site, [stored])[0].to_dict()
    if spec is not None:
        shown |= {
            "rules": _rules(spec),
            "schedule_document": to_json(spec.trigger),
            "options": dict(spec.options),
            "notices": [*spec.trigger.notices(), *blackout_notices(site, spec)],
            "owner": spec.owner,
        }
        if spec.lazy:
            shown["arguments"] = "computed by the beat that sends it"
        elif spec.arguments is not None:
            args, kwargs = spec.arguments.arguments()
            shown["arguments"] = {"args": args, "kwargs": kwargs} if arguments else hidden(args, kwargs)
    shown["last_run"] = {
        "nominal": moment(last.nominal_us), "fired": moment(last.fired_us), "cause": last.cause,
        "task_id": last.task_id, "held": last.held, "held_nominal": moment(last.held_us), "error": last.error,
        "failures": last.failures,
    }  # fmt: skip
    shown["paused_since"] = moment(stored.operator.since_us)
    shown["preview"] = [each.to_dict() for each in next_dues(site, target, n=5)]
    return shown


def hidden(args: Any, kwargs: Any) -> dict[str, Any]:
    """Return arguments without their values: how many there are, and the names."""
    return {"args": len(args), "kwargs": sorted(kwargs)}


def _rules(spec: EntrySpec) -> dict[str, Any]:
    rules: dict[str, Any] = {
        "misfire": spec.misfire, "misfire_limit": spec.misfire_limit, "overlap": spec.overlap, "count": spec.count,
        "blackouts": list(spec.blackouts) or None, "start": moment(spec.start_us), "end": moment(spec.end_us),
        "grace_s": None if spec.grace_us is None else spec.grace_us / 1e6, "jitter_s": spec.jitter_us / 1e6 or None,
        "expires": spec.expires if isinstance(spec.expires, str) else spec.expires and spec.expires / 1e6,
    }  # fmt: skip
    return {name: value for name, value in rules.items() if value is not None}


def next_dues(site: Site, target: str, *, n: int = 5) -> list[Coming]:
    """Return an entry's next ``n`` occurrences as if it were not paused, those too that lie in a blackout."""
    stored = find_entry(site, target)
    spec = stored.spec
    if spec is None or stored.state in (State.FINISHED, State.QUARANTINED):
        return []
    now_us, zone = site.schedules.now_us(), site.schedules.zone
    found = coming(spec, now_us, closings_of(site.schedules, [spec]), zone=zone, fired=stored.last.fired)
    return [Coming(moment(due_us) or "", closed.name if closed else None) for due_us, closed in islice(found, n)]


def blackout_notices(site: Site, spec: EntrySpec) -> list[str]:
    """Return what is to be minded of the blackouts that an entry names: those not defined, and those unreadable."""
    closings = closings_of(site.schedules, [spec])
    return [
        f"its blackout {name!r} is not defined, so it closes nothing until it is (celery zsched blackout set)"
        for name in sorted(closings.undefined)
    ] + [
        f"its blackout {name!r} cannot be read, so nothing of it is sent: {fault}"
        for name, fault in closings.unreadable.items()
    ]


def history(site: Site, target: str) -> list[dict[str, Any]]:
    """Return what became of an entry's last occurrences, the newest first, as JSON values."""
    stored = find_entry(site, target)
    return [past_row(past) for past in site.schedules.history(stored.name)]


def past_row(past: Past) -> dict[str, Any]:
    """Return one occurrence that is over as JSON values."""
    return {
        "nominal": moment(past.nominal_us),
        "at": moment(past.at_us),
        "outcome": past.outcome,
        "cause": past.cause,
        "lateness_s": None if past.cause in ("manual", "backfill") else round(past.lateness_us / 1e6, 6),
        "missed": past.missed,
        "task_id": past.task_id,
        "by": past.by,
    }
