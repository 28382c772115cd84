"""The schedulers that are alive, and whether all is well."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched import roll
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment
from celery_zsched.roll import SILENT_S
from celery_zsched.schedules import LONGEST_PUT_OFF_US, NOTE, PROBE
from celery_zsched.stored import FINISHED, State
from celery_zsched.types import SECOND_US, Overdue

#: How long a beat may need to connect anew, in seconds, before health takes it for dead.
RECONNECT_S = 3.0

#: How many entries in quarantine are named.
NAMED = 10

#: How often it is looked meanwhile, in seconds.
_STEP_S = 0.2


@dataclass(frozen=True, slots=True)
class BeatRow:
    """One beat as it last called; moments are ISO 8601, ``lag_s`` is how late it sent last.

    ``alive``: it has not ended, has called within :data:`~celery_zsched.roll.SILENT_S`, and is connected where the
    server tells that. ``fault`` is why it cannot send, ``failing`` since when; None if it can.
    """

    beat: str
    host: str
    pid: int
    release: str
    alive: bool
    ended: str | None
    started: str
    called: str
    called_ago_s: float
    lag_s: float
    clock_offset_s: float
    fault: str | None
    failing: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the schedule is served: ``ok``, what is wrong, and the figures.

    ``overdue`` is the entry that is overdue by most, ``claimed`` how many are under a lease, live or ended.
    An entry in quarantine is not run, so each is a problem.
    """

    ok: bool
    problems: list[str]
    beats: int
    overdue_s: float
    waiting: int
    quarantined: int
    claimed: int
    overdue: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(self)


def beats(site: Site) -> list[BeatRow]:
    """Return every beat on the roll, the one that called last first."""
    now_us = site.schedules.now_us()
    found = roll.beats_of(site.schedules)
    connected = roll.connections(site.schedules) if any(beat.client for beat in found) else None
    rows = [_row(beat, now_us, connected) for beat in found]
    return sorted(rows, key=lambda each: each.called_ago_s)


def failures(rows: list[BeatRow]) -> list[str]:
    """Return which of the beats live and cannot send, each as a sentence with since when and why."""
    return [
        f"the beat {row.host}:{row.pid} has failed since {row.failing}: {row.fault}"
        for row in rows
        if row.alive and row.fault
    ]


def health(site: Site, *, max_lag_s: float = 60.0) -> Health:
    """Say whether what is due is sent: no entry is overdue by more than ``max_lag_s`` seconds, and a beat lives.

    Overdue is what has not moved on since its moment, whether it waits, is tried again, or is with a beat.
    No entry is in quarantine either.
    """
    counts = site.schedules.timeline.counts()
    overdue = site.schedules.timeline.overdue(LONGEST_PUT_OFF_US)
    rows = beats(site)
    patience = time.monotonic() + RECONNECT_S
    while not any(row.alive for row in rows) and any(_may_come_back(row) for row in rows):
        if time.monotonic() > patience:
            break
        time.sleep(_STEP_S)
        rows = beats(site)
    living = [row for row in rows if row.alive]
    overdue_s = 0.0 if overdue is None else (overdue.now_us - overdue.due_us) / SECOND_US
    problems = []
    if overdue is not None and overdue_s > max_lag_s:
        problems.append(f"{_named(overdue)} is overdue by {overdue_s:.1f} s (allowed: {max_lag_s:g} s){_with(overdue)}")
        problems += failures(rows)
    if not living:
        problems.append(_no_beat(rows))
    aside = _quarantined(site) if counts.dead else []
    problems += quarantine_problems(site, aside)
    return Health(
        ok=not problems,
        problems=problems,
        beats=len(living),
        overdue_s=round(overdue_s, 3),
        waiting=max(0, counts.ready + counts.delayed - _notes_for(site, aside)),
        quarantined=len(aside),
        claimed=counts.leased,
        overdue=overdue.id if overdue is not None and not overdue.id.startswith(NOTE) else None,
    )


def _named(overdue: Overdue) -> str:
    if overdue.id.startswith(NOTE):
        what = "a try of an entry in quarantine" if overdue.id.startswith(PROBE) else "the end of a pause"
        return f"{what} ({overdue.id.replace(NOTE, ' ').strip()})"
    return f"the entry {overdue.id!r}"


def _with(overdue: Overdue) -> str:
    """Return who has what is overdue, or had it last, as the end of a sentence."""
    if overdue.leased:
        return f": the beat {overdue.holder} has claimed it, and has neither sent it nor given it back"
    return f"; the beat {overdue.holder} has tried to send it, and it is tried again" if overdue.holder else ""


def _no_beat(rows: list[BeatRow]) -> str:
    """Return that no beat lives, with the one that was heard of last and did not say that it ends."""
    silent = [row for row in rows if row.ended is None and row.called_ago_s > SILENT_S]
    if not silent:
        return "no beat is running; start one with `celery -A … beat -S zsched`"
    last = silent[0]
    return (
        f"no beat is running, as far as one can tell: {last.host}:{last.pid} called {last.called_ago_s:.0f} s ago and "
        "has not said that it ends; if its process lives, it is frozen, hangs in what it sends, or is cut off: restart "
        "it. Else start one with `celery -A … beat -S zsched`"
    )


def quarantine_problems(site: Site, names: list[str]) -> list[str]:
    """Say of entries in quarantine which, since when and why, and when they are tried again; of many, the first."""
    told = [
        f"the entry {stored.name!r} is in quarantine: {stored.fault}"
        for stored in site.schedules.get_many(names[:NAMED])
        if stored.state is State.QUARANTINED
    ]
    if len(names) > NAMED:
        told.append(f"{len(names) - NAMED} more entries are in quarantine; see `list --state quarantined`")
    return told


def _quarantined(site: Site) -> list[str]:
    """Return the names of those of the entries set aside that are faulty; the others have run out."""
    timeline = site.schedules.timeline
    with timeline.server.translated("counting what is set aside"):
        client: Any = timeline.server.client
        names = client.zrange(timeline.keys.dead, 0, 999)
        reasons = client.hmget(timeline.keys.reasons, names) if names else []
    return [name.decode() for name, why in zip(names, reasons, strict=True) if why != FINISHED.encode()]


def _notes_for(site: Site, names: list[str]) -> int:
    """Return how many of what waits are no entries, but notes to try these again."""
    timeline = site.schedules.timeline
    with timeline.server.translated("counting what waits"):
        client: Any = timeline.server.client
        waits = client.zmscore(timeline.keys.timelines[0], [PROBE + name for name in names]) if names else []
    return sum(moment_us is not None for moment_us in waits)


def _may_come_back(row: BeatRow) -> bool:
    return row.ended is None and row.called_ago_s <= SILENT_S


def _row(beat: roll.Beat, now_us: int, connected: frozenset[str] | None) -> BeatRow:
    ago_s = (now_us - beat.at_us) / SECOND_US
    here = not beat.client or connected is None or beat.client in connected
    return BeatRow(
        beat=beat.id,
        host=beat.host,
        pid=beat.pid,
        release=beat.release,
        alive=ago_s <= SILENT_S and not beat.ended_us and here,
        ended=moment(beat.ended_us) if beat.ended_us else None,
        started=moment(beat.started_us) or "",
        called=moment(beat.at_us) or "",
        called_ago_s=round(ago_s, 3),
        lag_s=round(beat.lag_us / SECOND_US, 6),
        clock_offset_s=round(beat.offset_us / SECOND_US, 6),
        fault=beat.fault or None,
        failing=moment(beat.failing_us) if beat.failing_us else None,
    )
