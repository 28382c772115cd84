"""Looking at entries: a page of them, one in full, what is to come, what was."""

from __future__ import annotations

import fnmatch
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from celery_zsched import planner
from celery_zsched.entry import EntrySpec, Past
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment
from celery_zsched.operations.targets import find_entry
from celery_zsched.stored import State, Stored
from celery_zsched.triggers import to_json


@dataclass(frozen=True, slots=True)
class Row:
    """An entry in a listing; moments are ISO 8601 in UTC, ``zone`` is the one its wall times are in."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
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
    names: Iterable[str] = (
        name
        for name in site.schedules.names()
        if (after is None or name > after) and (pattern is None or fnmatch.fnmatchcase(name, pattern))
    )
    if state is None:
        chosen = heapq.nsmallest(limit + 1, names)
        found = site.schedules.get_many(chosen[:limit])
        return Page([row(site, stored) for stored in found], chosen[limit - 1] if len(chosen) > limit else None)
    rows: list[Row] = []
    ordered = sorted(names)
    for start in range(0, len(ordered), limit):
        for stored in site.schedules.get_many(ordered[start : start + limit]):
            if stored.state.value == state:
                rows.append(row(site, stored))
                if len(rows) == limit:
                    return Page(rows, stored.name)
    return Page(rows, None)


def all_entries(site: Site, *, pattern: str | None = None, state: str | None = None) -> Iterator[Row]:
    """Yield every entry, a page at a time."""
    page = list_entries(site, pattern=pattern, state=state, limit=500)
    yield from page.rows
    while page.after is not None:
        page = list_entries(site, pattern=pattern, state=state, limit=500, after=page.after)
        yield from page.rows


def row(site: Site, stored: Stored) -> Row:
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
    )


def show(site: Site, target: str, *, arguments: bool = False) -> dict[str, Any]:
    """Return all that is known of one entry, as JSON values; argument values only with ``arguments``.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely entries.
    """
    stored = find_entry(site, target)
    spec, last = stored.spec, stored.last
    shown: dict[str, Any] = row(site, stored).to_dict()
    if spec is not None:
        shown |= {
            "rules": _rules(spec),
            "schedule_document": to_json(spec.trigger),
            "options": dict(spec.options),
            "notices": spec.trigger.notices(),
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
    shown["preview"] = next_dues(site, target, n=5)
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


def next_dues(site: Site, target: str, *, n: int = 5) -> list[str]:
    """Return an entry's next ``n`` due times, ISO 8601 in UTC, as if it were not paused."""
    stored = find_entry(site, target)
    spec = stored.spec
    if spec is None or stored.state in (State.FINISHED, State.QUARANTINED):
        return []
    now_us, zone = site.schedules.now_us(), site.schedules.zone
    found = planner.nominals(spec, now_us, zone=zone, fired=stored.last.fired)
    return [moment(planner.due_of(spec, at_us, zone=zone)) or "" for at_us in islice(found, n)]


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
