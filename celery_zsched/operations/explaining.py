"""Why did it not run? What is known of an entry, and of one of its occurrences, in sentences."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from celery_zsched import planner
from celery_zsched.entry import EntrySpec, Past
from celery_zsched.errors import NotFoundError, ServerError
from celery_zsched.operations.guarding import Closings, Pauses, closings_of, first_open, messages_held, next_closed
from celery_zsched.operations.listing import blackout_notices
from celery_zsched.operations.liveness import beats, failures
from celery_zsched.operations.moments import moment_us
from celery_zsched.operations.reanchoring import notices as clock_notices
from celery_zsched.operations.records import Record, audit
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment, paused_by
from celery_zsched.operations.targets import find_entry
from celery_zsched.operations.whereabouts import where_is
from celery_zsched.runs import Runs
from celery_zsched.stored import State, Stored
from celery_zsched.types import SECOND_US, from_us, to_us

#: A moment that a person names is meant to the minute.
NEAR_US = 60 * SECOND_US

_HELD = {
    "misfire": "its time was missed (no scheduler sent it in time) and the misfire rule left it out",
    "overlap": "the run before it was not over: it went on, or waited for a worker (overlap rule)",
    "blackout": "a blackout window was on",
    "buffered": "the run before it was not over: it went on, or waited for a worker; it was kept back until that ended",
    "paused": "the entry was paused",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known: of the occurrence asked for (``nominal``, ISO 8601, if one was found) and of the entry now."""

    entry: str
    state: str
    asked: str | None
    nominal: str | None
    outcome: str
    because: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return asdict(self)


def explain(site: Site, target: str, at: str | None = None) -> Explanation:
    """Explain how an entry stands, and, with ``at``, what became of its occurrence at that moment.

    A time of day means the last one that was. ``outcome`` is ``sent``, ``not sent``, ``to come``, ``none`` (there is no
    occurrence at that moment), ``unknown``, or, without ``at``, the entry's state.
    """
    stored = find_entry(site, target)
    now_us = site.schedules.now_us()
    now = [*_standing_now(site, stored, now_us), *clock_notices(stored, now_us, site.schedules.zone)]
    if at is None or stored.spec is None:
        return Explanation(stored.name, stored.state.value, None, None, stored.state.value, now)
    spec = stored.spec
    asked_us = _past_moment(at, now_us, spec.zone or site.schedules.zone)
    nominal_us = _occurrence_at(site, spec, asked_us)
    if nominal_us is None:
        because = [_no_occurrence(site, spec, asked_us), *now]
        return Explanation(stored.name, stored.state.value, moment(asked_us), None, "none", because)
    outcome, because = _what_became(site, stored, spec, nominal_us, now_us)
    return Explanation(stored.name, stored.state.value, moment(asked_us), moment(nominal_us), outcome, [*because, *now])


def _what_became(site: Site, stored: Stored, spec: EntrySpec, nominal_us: int, now_us: int) -> tuple[str, list[str]]:
    past = site.schedules.history(stored.name)
    for one in past:
        if one.nominal_us == nominal_us and one.cause != "backfill":
            if one.outcome == "sent":
                return "sent", [_sent(one), *_message_now(site, one)]
            why = _why_held(site, spec, one.outcome, nominal_us, one.at_us)
            return "not sent", [f"it was not sent: {why} (decided by {one.by})"]
    if planner.due_of(spec, nominal_us, zone=site.schedules.zone) > now_us:
        said = [f"it is still to come, in {_ago(nominal_us - now_us)}"]
        closed = closings_of(site.schedules, [spec]).of(spec, nominal_us, site.schedules.zone)
        if closed is not None:
            said.append(
                f"it will not be sent, nor made up for: it lies in the blackout {closed.name!r}, which ends at "
                f"{moment(closed.until_us)}"
            )
        return "to come", said
    because = _paused_then(site, stored, nominal_us)
    if because:
        return "not sent", because
    if nominal_us < spec.epoch <= now_us:
        return "not sent", [f"the entry was added only later, at {moment(spec.epoch)}"]
    later = [one for one in past if one.outcome == "sent" and one.nominal_us > nominal_us and one.missed]
    if later:
        one = later[-1]
        return "not sent", [
            f"it was missed; the run for {moment(one.nominal_us)} stood also for {one.missed} missed before it"
        ]
    if stored.last.held_us == nominal_us and stored.last.held is not None:
        return "not sent", [f"it was not sent: {_why_held(site, spec, stored.last.held, nominal_us, nominal_us)}"]
    oldest = past[-1].nominal_us if past else None
    if oldest is not None and nominal_us < oldest:
        return "unknown", [
            f"the history of the entry begins at {moment(oldest)}; raise zsched_history_limit to keep more"
        ]
    if stored.due_us is not None and stored.due_us <= nominal_us:
        return "not sent", [f"it is due and nobody has sent it yet, {_ago(now_us - nominal_us)} late"]
    return "unknown", ["nothing is recorded of it"]


def _standing_now(site: Site, stored: Stored, now_us: int) -> list[str]:
    """Return what keeps the entry from running now, or when it runs next."""
    held = messages_held(Pauses(site), stored.spec)
    if stored.state is State.PAUSED:
        return [f"the entry is {paused_by(stored.operator)}", *held]
    if stored.state is State.QUARANTINED:
        return [f"the entry is in quarantine: {stored.fault}. Mend it and save it anew, or resume it, and it returns"]
    if stored.state is State.FINISHED:
        return ["the entry has run out: its schedule, end or count leaves no occurrence to come"]
    if stored.spec is None:
        return [f"the entry cannot be read: {stored.fault}"]
    said = []
    if stored.state is State.FIRING:
        located = stored.located
        said.append(f"the entry is being sent by {located.holder}, who claimed it at {moment(located.claimed_us)}")
    due_us = stored.due_us
    if due_us is not None and due_us <= now_us and stored.state is State.SCHEDULED:
        said.append(f"the entry is due since {moment(due_us)} ({_ago(now_us - due_us)}) and not sent yet")
        rows = beats(site)
        if not any(beat.alive for beat in rows):
            said.append("no beat has called lately; start one with `celery -A … beat -S zsched`")
        said += failures(rows)
    if due_us is not None and due_us > now_us:
        said.append(f"the entry is due next at {moment(due_us)}, in {_ago(due_us - now_us)}")
    said += _blackouts_now(site, stored, now_us) + _runs_now(site, stored.spec) + held
    if stored.last.error:
        times = "once" if stored.last.failures == 1 else f"{stored.last.failures} times in a row"
        said.append(f"it failed {times}: {stored.last.error}")
    return said


def _blackouts_now(site: Site, stored: Stored, now_us: int) -> list[str]:
    """Return what is to be said of the blackouts that an entry names."""
    spec, zone = stored.spec, site.schedules.zone
    if spec is None or not spec.blackouts:
        return []
    closings = closings_of(site.schedules, [spec])
    said = blackout_notices(site, spec)
    closed = next_closed(stored, closings, zone) or closings.at(spec.blackouts, now_us)
    if closed is not None:
        sent_us = first_open(spec, now_us, closings, zone=zone, fired=stored.last.fired)
        then = "no later one was found" if sent_us is None else f"the first one to be sent is that of {moment(sent_us)}"
        said.append(
            f"its blackout {closed.name!r} ends at {moment(closed.until_us)}: what is due in it is not sent, nor made "
            f"up for; {then}"
        )
    return said


def _runs_now(site: Site, spec: EntrySpec) -> list[str]:
    """Return which runs keep an entry back whose runs may not overlap, since when, and for how long at most."""
    overlap = spec.overlap or site.overlap
    if overlap == "allow":
        return []
    then = "what is due is left out" if overlap == "skip" else "of what is due the newest is kept back"
    said = []
    for run in Runs(site.schedules).of([spec.name])[spec.name]:
        since, until = moment(run.since_us), moment(run.until_us)
        if run.state == "running":
            said.append(
                f"its run {run.id} goes on with {run.holder} since {since}, and until it is over {then} (overlap "
                f"{overlap}); if that worker falls silent, the run counts until {until}"
            )
        elif run.state == "sent":
            where = (
                _places(site, run.id) if site.own_queues is not None else ["no worker has reported to have begun it"]
            )
            said.append(
                f"its run {run.id} waits since {since} to be begun, and until it is over {then} (overlap {overlap}): "
                f"{'; '.join(where) or 'no queue has its message, and no worker has reported to have begun it'}. It "
                f"counts until {until} at most; `celery zsched cancel {shlex.quote(f'entry:{spec.name}')}` ends it now"
            )
        else:
            said.append(f"its run {run.id} is being sent by {run.holder} since {since}")
    if site.own_queues is None and any("has reported" in each for each in said):
        said.append(
            "workers report of their runs to the schedule's server: each must `import celery_zsched` and have the "
            "scheduler's settings, or runs count for as long as their messages may wait"
        )
    return said


def _message_now(site: Site, one: Past) -> list[str]:
    """Return where the message of an occurrence that was sent is, if it is still in a queue of ours."""
    return [] if site.own_queues is None or one.task_id is None else _places(site, one.task_id)


def _places(site: Site, task_id: str) -> list[str]:
    """Return in words where the messages of a task are in our queues; nothing if there are none."""
    try:
        found = where_is(site, task_id)
    except (NotFoundError, ServerError):
        return []
    words = {"waiting": "waits", "ended": "waits", "paused": "is parked", "dead": "is dead"}
    return [
        f"its message {words.get(where.state, f'is with {where.holder}')}, queue {where.queue!r}"
        f"{f': {where.reason}' if where.reason else ''}"
        for where in found
    ]


def _why_held(site: Site, spec: EntrySpec, why: str, *instants_us: int) -> str:
    """Return in words why an occurrence was not sent; a blackout by its name, if one of that time is still defined."""
    if why == "blackout":
        closed = Closings(site.schedules, spec.blackouts).at(spec.blackouts, *instants_us)
        if closed is not None:
            return f"the blackout {closed.name!r} was on; what is due in it is not made up for"
    return _HELD.get(why, why)


def _paused_then(site: Site, stored: Stored, nominal_us: int) -> list[str]:
    """Return by whom the entry was paused at a moment, if it was."""
    records = audit(site, target=f"entry:{stored.name}", limit=100)
    before: Record | None = None
    for record in reversed(records):
        if _record_us(record) > nominal_us:
            break
        if record.verb in ("pause", "resume"):
            before = record
    if before is None or before.verb != "pause":
        since_us = stored.operator.since_us
        if stored.state is State.PAUSED and since_us is not None and since_us <= nominal_us:
            return [f"the entry was paused by {stored.operator.by}: {stored.operator.reason or 'no reason given'}"]
        return []
    until = before.detail.get("until")
    if until is not None and until <= (moment(nominal_us) or ""):
        return []
    return [f"the entry was paused by {before.by} at {before.at}: {before.reason or 'no reason given'}"]


def _record_us(record: Record) -> int:
    return moment_us(record.at, 0, "UTC")


def _sent(one: Past) -> str:
    stood = f", standing also for {one.missed} missed before it" if one.missed else ""
    return (
        f"it was sent at {moment(one.at_us)}, {_ago(one.lateness_us)} after its time, by {one.by} "
        f"as task {one.task_id} ({one.cause}){stood}"
    )


def _occurrence_at(site: Site, spec: EntrySpec, asked_us: int) -> int | None:
    """Return the occurrence within a minute of a moment, the nearest."""
    zone = site.schedules.zone
    near = [
        at_us
        for at_us in islice(planner.nominals(spec, asked_us - NEAR_US, zone=zone), 200)
        if at_us < asked_us + NEAR_US
    ]
    return min(near, key=lambda at_us: abs(at_us - asked_us), default=None)


def _no_occurrence(site: Site, spec: EntrySpec, asked_us: int) -> str:
    zone = spec.zone or site.schedules.zone
    following = planner.next_nominal(spec, asked_us, zone=site.schedules.zone)
    here = from_us(asked_us).astimezone(ZoneInfo(zone)).isoformat()
    then = f"; the next after it is {moment(following)}" if following is not None else ""
    return f"its schedule ({spec.trigger}, zone {zone}) has no occurrence at {here}{then}"


def _past_moment(text: str, now_us: int, zone: str) -> int:
    asked_us = moment_us(text, now_us, zone)
    if ":" in text and len(text.strip()) <= len("09:00:00") and asked_us > now_us:
        here = from_us(asked_us).astimezone(ZoneInfo(zone)) - timedelta(days=1)
        return to_us(here)
    return asked_us


def _ago(us: int) -> str:
    """Return a duration for people."""
    if us < SECOND_US:
        return f"{us / 1000:.0f} ms"
    if us < 120 * SECOND_US:
        return f"{us / SECOND_US:.1f} s"
    return str(timedelta(seconds=us // SECOND_US))
