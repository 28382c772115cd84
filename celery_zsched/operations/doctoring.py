"""A check-up: the servers, the rights on them, what is left over, and settings that can lose tasks."""

from __future__ import annotations

import functools
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched.connection import Server
from celery_zsched.errors import ZschedError
from celery_zsched.keys import SCHEDULE_TIMELINE, ScheduleKeys, TimelineKeys, pauses_key
from celery_zsched.operations.guarding import undefined_blackouts
from celery_zsched.operations.liveness import beats, failures, health
from celery_zsched.operations.planning import plan
from celery_zsched.operations.reanchoring import REMEDY, lead, named
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment
from celery_zsched.runs import Runs
from celery_zsched.types import SECOND_US

#: The oldest server that is supported.
OLDEST = (6, 2, 0)

#: A clock further off than this, in seconds, is worth a look: it changes nothing here, but what tasks and logs say.
CLOCK_OFF_S = 1.0

#: A run that may not overlap and that no worker has begun for so long, in seconds, is worth a look.
UNBEGUN_S = 600.0

#: How many of the parked of each queue are looked at, the oldest first.
MOST_PARKED = 1000

#: How many keys are looked at in search of left-overs.
MOST_KEYS = 200_000

#: What the parts of keys behind the hash tag may be that have a name in them.
_NAMED = re.compile(r"timeline:\d+|own:.+|release:.+|request:.+", re.DOTALL)

GOOD, LOOK, BAD = "good", "look", "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: ``verdict`` is ``good``, ``look`` (worth a look) or ``bad``; ``remedy`` is for it."""

    check: str
    verdict: str
    said: str
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return asdict(self)


def doctor(site: Site) -> list[Finding]:
    """Check everything that can be checked from here; what cannot be is a finding too."""
    findings = list(_server(site.schedules.server, "schedule"))
    queues = site.own_queues
    if queues is not None and _plain(queues.server) != _plain(site.schedules.server):
        findings += _server(queues.server, "broker")
    if queues is None:
        findings.append(
            Finding(
                "broker", LOOK, "the broker is not ours: occurrences are sent at least once, not exactly once, and "
                "what waits there cannot be paused or cancelled",
                "set broker_url = 'zsched+redis://…' for both",
            )
        )  # fmt: skip
    for name, check in _CHECKS:
        findings += _guarded(name, functools.partial(check, site))
    return findings


def _blackouts(site: Site) -> Iterator[Finding]:
    specs = (stored.spec for stored in site.schedules.all() if stored.spec is not None)
    undefined = undefined_blackouts(site.schedules, specs)
    for name, entries in sorted(undefined.items()):
        yield Finding(
            "blackouts",
            LOOK,
            f"there is no blackout {name!r}, which is named by {', '.join(map(repr, sorted(entries)[:5]))}"
            f"{f' and {len(entries) - 5:,} more' if len(entries) > 5 else ''}: it closes nothing, so they are sent as "
            "if it were not named",
            "define it with `celery zsched blackout set`, or mend the name with `celery zsched edit`",
        )
    if not undefined:
        yield Finding("blackouts", GOOD, "every blackout that an entry names is defined")


def _runs(site: Site) -> Iterator[Finding]:
    """Yield entries that may be held back by a run that no worker has begun for long."""
    runs, now_us = Runs(site.schedules), site.schedules.now_us()
    unbegun = [
        f"{name!r} (run {run.id}, since {moment(run.since_us)})"
        for name, each in runs.of(sorted(runs.entries())).items()
        for run in each
        if run.state == "sent" and now_us - run.since_us > UNBEGUN_S * SECOND_US
    ]
    if unbegun:
        yield Finding(
            "runs", LOOK,
            f"entries whose runs may not overlap wait for ones that no worker has begun for {UNBEGUN_S / 60:.0f} min: "
            f"{', '.join(unbegun[:5])}{f' and {len(unbegun) - 5:,} more' if len(unbegun) > 5 else ''}",
            "see `celery zsched explain NAME`: is there a worker for them, and does it import celery_zsched? `celery "
            "zsched cancel entry:NAME` ends what waits",
        )  # fmt: skip


def _parked(site: Site) -> Iterator[Finding]:
    """Yield what messages are parked for although nothing of that is paused."""
    queues = site.own_queues
    if queues is None:
        return
    before = queues.pauses()
    parked: Counter[str] = Counter()
    for name in queues.names():
        parked += queues.parked_for(name, MOST_PARKED)
    after = queues.pauses()  # what was paused or resumed meanwhile is no fault
    left: dict[str, str] = {}
    for target in sorted(parked):
        if target not in before and target not in after:
            left[target] = "is not on record as paused: nothing delivers them"
        elif target in before and target in after and before[target].resuming and after[target].resuming:
            left[target] = "is being resumed: should nobody be at that any more, a beat goes on with it within a minute"
    for target, why in left.items():
        said = f"{parked[target]:,} of the messages looked at are parked, and {target} {why}"
        yield Finding("parked", LOOK, said, f"celery zsched resume {shlex.quote(target)}")
    if not left:
        yield Finding("parked", GOOD, "what is parked is paused")


def _plain(server: Server) -> str:
    return server.masked.removeprefix("zsched+")


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except ZschedError as exc:
        return [Finding(name, BAD, f"it cannot be checked: {exc}")]


def _server(server: Server, role: str) -> list[Finding]:
    try:
        found = server.version()
    except ZschedError as exc:
        return [Finding(f"{role} server", BAD, str(exc), "start it, or mend zsched_url or broker_url")]
    return [
        _version(role, found),
        *_guarded(f"{role} clock", lambda: _clock(server, role)),
        *_guarded(f"{role} scripts", lambda: _scripts(server, role)),
        *_guarded(f"{role} memory", lambda: _memory(server, role)),
    ]


def _version(role: str, found: tuple[str, tuple[int, int, int]] | None) -> Finding:
    if found is None:
        return Finding(f"{role} server", LOOK, "it does not tell its version", "allow HELLO or INFO")
    name, numbers = found
    text = f"{name} {'.'.join(map(str, numbers))}"
    if name == "redis" and numbers < OLDEST:
        return Finding(f"{role} server", BAD, f"{text} is older than 6.2", "upgrade the server")
    return Finding(f"{role} server", GOOD, text)


def _clock(server: Server, role: str) -> Iterator[Finding]:
    client: Any = server.client
    before = time.time()
    with server.translated("asking for the time"):
        seconds, micros = client.time()
    off_s = seconds + micros / SECOND_US - (before + time.time()) / 2
    verdict = GOOD if abs(off_s) <= CLOCK_OFF_S else LOOK
    remedy = "" if verdict == GOOD else "set the clocks; due times follow the server's, whatever this machine says"
    yield Finding(f"{role} clock", verdict, f"the server's clock is {off_s:+.3f} s from this machine's", remedy)


def _scripts(server: Server, role: str) -> Iterator[Finding]:
    client: Any = server.client
    with server.translated("running a script"):
        client.execute_command("EVAL", "return 1", 0)
    flags = "with" if server.script_flags else "without"
    remedy = "" if server.script_flags else "Redis 7 or Valkey lets a full server be drained in all cases"
    yield Finding(f"{role} scripts", GOOD, f"Lua runs, {flags} script flags", remedy)


def _memory(server: Server, role: str) -> Iterator[Finding]:
    client: Any = server.client
    try:
        with server.translated("asking for its settings"):
            facts = client.info()
    except ZschedError as exc:
        for about in ("eviction", "memory", "persistence"):
            yield Finding(f"{role} {about}", LOOK, f"it does not tell: {exc}", "allow INFO")
        return
    policy = facts.get("maxmemory_policy", "noeviction")
    limit = int(facts.get("maxmemory", 0))
    if policy != "noeviction":
        verdict = BAD if limit else LOOK
        yield Finding(
            f"{role} eviction", verdict, f"maxmemory-policy is {policy}: a full server throws away what waits",
            "set maxmemory-policy noeviction",
        )  # fmt: skip
    else:
        yield Finding(f"{role} eviction", GOOD, "nothing is evicted")
    if limit and facts["used_memory"] > 0.8 * limit:
        share = facts["used_memory"] / limit
        yield Finding(f"{role} memory", LOOK, f"{share:.0%} of maxmemory is used", "make room, or raise maxmemory")
    append_only, saves = bool(facts.get("aof_enabled")), "rdb_last_save_time" in facts
    if append_only:
        yield Finding(f"{role} persistence", GOOD, "append-only file")
    else:
        said = "no append-only file: a crash loses what came since the last snapshot" if saves else "nothing is saved"
        yield Finding(f"{role} persistence", LOOK, said, "set appendonly yes and appendfsync everysec or always")


def _leftovers(site: Site) -> Iterator[Finding]:
    """Yield what stands under the prefix and is not ours, and bells that nobody takes away."""
    prefixes = {site.schedules.prefix: site.schedules.server}
    if site.own_queues is not None:
        prefixes.setdefault(site.own_queues.prefix, site.own_queues.server)
    for prefix, server in prefixes.items():
        client: Any = server.client
        foreign: list[str] = []
        lasting: list[str] = []
        count = 0
        with server.translated("looking at keys"):
            for key in client.scan_iter(match=f"{prefix}:*", count=1000):
                count += 1
                if count > MOST_KEYS:
                    break
                name = key.decode(errors="replace").removeprefix(f"{prefix}:")
                if not _is_ours(name):
                    foreign.append(name)
                elif re.search(r"\}:(own:.+|request:.+)$", name) and client.pttl(key) == -1:
                    lasting.append(name)
        said = f"{min(count, MOST_KEYS):,} keys under {prefix}:"
        if foreign or lasting:
            shown = ", ".join(map(repr, [*foreign, *lasting][:5]))
            yield Finding(
                "keys", LOOK, f"{said}, of which {len(foreign) + len(lasting)} are not ours or left over: {shown}",
                "delete them if nobody else uses the prefix",
            )  # fmt: skip
        else:
            yield Finding("keys", GOOD, f"{said}, all of them ours")


def _is_ours(name: str) -> bool:
    """Return whether a key is one of the data model's, by its name behind the prefix."""
    if name == pauses_key("").removeprefix(":") or name.startswith("broadcast:"):
        return True
    tagged = re.fullmatch(r"\{(schedule|queue:.*|exchange:.*)\}:(.+)", name, re.DOTALL)
    if tagged is None:
        return False
    timeline, part = tagged.groups()
    known = {key.rpartition(":")[2] for key in TimelineKeys(timeline).all()}
    if timeline == SCHEDULE_TIMELINE:
        keys = ScheduleKeys()
        known |= {keys.audit, keys.beats, keys.blackouts, keys.imports, keys.zone}
        known = {key.rpartition(":")[2] for key in known}
    return part in known or _NAMED.fullmatch(part) is not None


def _beats(site: Site) -> Iterator[Finding]:
    told = health(site)
    unserved = [problem for problem in told.problems if " in quarantine" not in problem]
    for problem in unserved:
        yield Finding("beats", BAD, problem)
    if told.quarantined:
        yield Finding(
            "entries", LOOK, f"{told.quarantined} entries are in quarantine", "celery zsched list --state quarantined"
        )
    if not unserved:
        yield Finding("beats", GOOD, f"{told.beats} alive, nothing is overdue")
    rows = beats(site)
    for failure in failures(rows) if not unserved else ():
        yield Finding("beats", LOOK, failure, "mend what it tells; what is due is sent by the others, if they can")
    for beat in rows:
        if beat.alive and abs(beat.clock_offset_s) > CLOCK_OFF_S:
            yield Finding(
                "clocks", LOOK, f"the clock of the beat on {beat.host} is {beat.clock_offset_s:+.3f} s off",
                "set its clock; due times follow the server's all the same",
            )  # fmt: skip


def _ahead(site: Site) -> Iterator[Finding]:
    """Yield whether entries are ahead of the server's clock."""
    found = lead(site.schedules)
    if found.waiting:
        yield Finding(
            "ahead", BAD, f"{found}, which was set back: not sent before the clock has caught up", REMEDY,
        )  # fmt: skip
    if found.finished:
        yield Finding(
            "ahead", LOOK,
            "entries that have run out were sent for moments still to come, since the server's clock was ahead: "
            + named(found.finished),
            "celery zsched reanchor NAME, for those that are to be sent again then",
        )  # fmt: skip
    if not found.waiting and not found.finished:
        yield Finding("ahead", GOOD, "no entry is ahead of the server's clock")


def _declared(site: Site) -> Iterator[Finding]:
    for difference in plan(site):
        if difference.action == "fault":
            yield Finding("beat_schedule", BAD, f"{difference.entry}: {difference.detail}", "mend it in the code")


def _acks_late(site: Site) -> Iterator[Finding]:
    if not site.app.conf.task_acks_late:
        yield Finding(
            "task_acks_late", LOOK, "a task is done for the broker as it starts: killed with its worker, it is lost",
            "set task_acks_late = True for tasks that may run twice",
        )  # fmt: skip


def _worker_lost(site: Site) -> Iterator[Finding]:
    if site.app.conf.task_acks_late and not site.app.conf.task_reject_on_worker_lost:
        yield Finding(
            "task_reject_on_worker_lost", LOOK,
            "a task whose process is killed counts as failed, and is not delivered again",
            "set task_reject_on_worker_lost = True for tasks that may run twice",
        )  # fmt: skip


def _acks_on_failure(site: Site) -> Iterator[Finding]:
    if site.app.conf.task_acks_late and not site.app.conf.task_acks_on_failure_or_timeout:
        yield Finding(
            "task_acks_on_failure_or_timeout", LOOK, "a task that fails is not acked and is delivered again",
            "leave it True unless every failure is to be tried anew",
        )  # fmt: skip


def _delivery_mode(site: Site) -> Iterator[Finding]:
    if str(site.app.conf.task_default_delivery_mode) in ("1", "transient"):
        yield Finding("task_default_delivery_mode", GOOD, "transient: no difference with a broker on Redis")


def _scheduler(site: Site) -> Iterator[Finding]:
    conf = site.app.conf
    scheduler = str(conf.beat_scheduler)
    if scheduler not in ("zsched", "celery_zsched:Scheduler") and (conf.beat_schedule or {}):
        yield Finding(
            "beat_scheduler", LOOK, f"it is {scheduler}; a beat that is started without -S does not use this schedule",
            "set beat_scheduler = 'celery_zsched:Scheduler'",
        )  # fmt: skip


#: What is checked of the whole, each by the name of its findings, which it also has where it cannot be checked.
_CHECKS: tuple[tuple[str, Callable[[Site], Iterator[Finding]]], ...] = (
    ("keys", _leftovers),
    ("beats", _beats),
    ("ahead", _ahead),
    ("beat_schedule", _declared),
    ("blackouts", _blackouts),
    ("runs", _runs),
    ("parked", _parked),
    ("task_acks_late", _acks_late),
    ("task_reject_on_worker_lost", _worker_lost),
    ("task_acks_on_failure_or_timeout", _acks_on_failure),
    ("task_default_delivery_mode", _delivery_mode),
    ("beat_scheduler", _scheduler),
)
