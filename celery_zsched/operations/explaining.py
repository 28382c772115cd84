"""Why did it not run? What is known of an entry, and of one of its occurrences, in sentences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from celery_zsched import planner
from celery_zsched.entry import EntrySpec, Past
from celery_zsched.operations.liveness import beats
from celery_zsched.operations.moments import moment_us
from celery_zsched.operations.records import Record, audit
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment
from celery_zsched.operations.targets import find_entry
from celery_zsched.stored import State, Stored
from celery_zsched.types import SECOND_US, from_us, to_us

#: A moment that a person names is meant to the minute.
NEAR_US = 60 * SECOND_US

_HELD = {
    "misfire": "its time was missed (no scheduler sent it in time) and the misfire rule left it out",
    "overlap": "the run before it was still going on (overlap rule)",
    "blackout": "a blackout window was on",
    "buffered": "the run before it was still going on; it was kept back until that ended",
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
    now = _standing_now(site, stored, now_us)
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
                return "sent", [_sent(one)]
            return "not sent", [f"it was not sent: {_HELD.get(one.outcome, one.outcome)} (decided by {one.by})"]
    if planner.due_of(spec, nominal_us, zone=site.schedules.zone) > now_us:
        return "to come", [f"it is still to come, in {_ago(nominal_us - now_us)}"]
    because = _paused_then(site, stored, nominal_us)
    if because:
        return "not sent", because
    if nominal_us < spec.epoch:
        return "not sent", [f"the entry was added only later, at {moment(spec.epoch)}"]
    later = [one for one in past if one.outcome == "sent" and one.nominal_us > nominal_us and one.missed]
    if later:
        one = later[-1]
        return "not sent", [
            f"it was missed; the run for {moment(one.nominal_us)} stood also for {one.missed} missed before it"
        ]
    if stored.last.held_us == nominal_us and stored.last.held is not None:
        return "not sent", [f"it was not sent: {_HELD.get(stored.last.held, stored.last.held)}"]
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
    operator = stored.operator
    if stored.state is State.PAUSED:
        since = f" since {moment(operator.since_us)}" if operator.since_us else ""
        why = f": {operator.reason}" if operator.reason else ", no reason given"
        end = f"; it ends by itself at {moment(operator.until_us)}" if operator.until_us else ""
        return [f"the entry is paused by {operator.by or 'somebody'}{since}{why}{end}"]
    if stored.state is State.QUARANTINED:
        return [f"the entry is in quarantine: {stored.fault}. Mend it and save it anew, and it returns"]
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
        if not any(beat.alive for beat in beats(site)):
            said.append("no beat has called lately; start one with `celery -A … beat -S zsched`")
    if due_us is not None and due_us > now_us:
        said.append(f"the entry is due next at {moment(due_us)}, in {_ago(due_us - now_us)}")
    if stored.last.error:
        said.append(f"it failed {stored.last.failures} times in a row: {stored.last.error}")
    return said


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
