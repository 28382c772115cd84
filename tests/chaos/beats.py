"""Beats under fire: real ``celery beat`` processes are killed, frozen and cut off, and what arrived is counted.

    python -m tests.chaos.beats [--beats 3] [--entries 200] [--seconds 300] [--lease 5] [--every 1] [--json -] …

A private server is started, with beats in process groups of their own and entries that are all due every second. For
the given time faults happen at random; then everything runs undisturbed for the lease and some seconds more, the beats
are stopped, and the queue is read to its end by kombu's own means.

An occurrence is (entry, nominal due), told from the message's ``zsched`` header. Occurrences that should be are the
entry's grid from where it was installed up to, and without, the one for which the schedule has it waiting at the end.

sent          different occurrences that arrived
folded        did not arrive, and are accounted for by the missed count of the entry's next one that did, as the misfire
              policy wants (the last of them: by the record in the schedule)
lost          neither: nobody sent it and nobody says that it was missed
doubled       messages beyond the first for one occurrence
overcounted   accounted for as missed more often than it did not arrive
out_of_order  arrived behind a later occurrence of the entry
early         arrived before their nominal due by the server's clock
late_max_s    the longest time from a nominal due to the arrival
gap_max_s     the longest time between two arrivals of an entry
gap_beyond_s  the same, without the time in which no beat was alive and awake, or the server was down
outage_s      for how long that was

The exit code is 1 when anything was lost or doubled.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import redis

from celery_zsched.errors import ServerError
from celery_zsched.keys import queue_timeline
from celery_zsched.stored import State
from celery_zsched.timeline import Timeline
from celery_zsched.types import SECOND_US
from tests.chaos.count import Arrival, Ledger, Span, count, overlap
from tests.programs import Program, Project, Sent, messages, sent_of
from tests.servers import DEFAULT_KIND, KINDS, RunningServer, wait_until

FAULTS = ("kill", "freeze", "term", "restart", "cut", "flush")
QUEUE = "celery"
#: What a beat says once it works.
READY = "static entries"


class Watch:
    """Notes when messages arrive, without touching them: kombu's list is read many times a second, at its new end."""

    #: How exact the moments of arrival are, in seconds.
    STEP_S = 0.02

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self.seen: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client = self._server.client()
        known = 0
        while not self._over.wait(self.STEP_S):
            try:
                fresh = client.lrange(QUEUE, 0, -known - 1)
            except redis.RedisError:
                continue
            now = time.time()
            for text in fresh:
                self.seen.setdefault(json.loads(text)["properties"]["correlation_id"], now)
            known += len(fresh)
        client.close()

    def close(self) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()


class Crew:
    """The beats, and when none of them was at work."""

    def __init__(self, project: Project, size: int) -> None:
        self.project = project
        self.members: list[Program] = []
        self.ended: list[Program] = []
        self.exit_codes: list[int] = []
        #: Who is alive and awake but has not said so yet, or sleeps until when.
        self.asleep: dict[int, float] = {}
        self.outages: list[Span] = []
        self._since: float | None = None
        for _ in range(size):
            self.members.append(project.beat())

    def step(self) -> None:
        """Wake who has slept long enough; note whether anybody is at work."""
        for place, until in list(self.asleep.items()):
            if time.time() >= until:
                self.members[place].thaw()
                del self.asleep[place]
        at_work = bool(self.at_work())
        if at_work and self._since is not None:
            self.outages.append((self._since, time.time()))
            self._since = None
        elif not at_work and self._since is None:
            self._since = time.time()

    def at_work(self) -> list[int]:
        """Return the places of those who are awake and have begun."""
        awake = [place for place in range(len(self.members)) if place not in self.asleep]
        return [place for place in awake if READY in self.members[place].output() and self.members[place].is_running]

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Note the time within as one in which nobody could have worked."""
        began = time.time()
        yield
        self.outages.append((began, time.time()))

    def wake_all(self) -> None:
        """Thaw everybody."""
        for place in list(self.asleep):
            self.asleep[place] = 0
        self.step()

    def replace(self, place: int) -> None:
        """Start a beat in the place of one that has ended."""
        self.asleep.pop(place, None)
        self.ended.append(self.members[place])
        self.members[place] = self.project.beat(ready=False)


def faults(crew: Crew, server: RunningServer, rng: random.Random, freeze_s: float) -> dict[str, Callable[[], None]]:
    """Return what each fault does."""

    def someone() -> int:
        return rng.randrange(len(crew.members))

    def kill() -> None:
        place = someone()
        crew.members[place].kill()
        crew.replace(place)

    def term() -> None:
        # Before it has begun, and while it sleeps, a process cannot end in an orderly way.
        for place in rng.sample(crew.at_work(), k=min(1, len(crew.at_work()))):
            crew.exit_codes.append(crew.members[place].terminate())
            crew.replace(place)

    def freeze() -> None:
        place = someone()
        crew.members[place].freeze()
        crew.asleep[place] = time.time() + rng.uniform(0.1, freeze_s)

    def restart() -> None:
        with crew.outage():
            server.restart(kill=rng.random() < 0.5)

    def ask(command: Callable[[redis.Redis], Any]) -> None:
        client = server.client()
        command(client)
        client.close()

    return {
        "kill": kill,
        "term": term,
        "freeze": freeze,
        "restart": restart,
        "cut": lambda: ask(lambda client: client.execute_command("CLIENT", "KILL", "TYPE", "normal")),
        "flush": lambda: ask(lambda client: client.script_flush()),
    }


def project_of(directory: Path, server: RunningServer, options: argparse.Namespace) -> Project:
    """Make the project whose beats are put under fire."""
    scheme = "zsched+" if options.broker == "zsched" else ""
    broker = options.broker if "://" in options.broker else scheme + server.url
    source = f"""
        each = {{"task": "note", "schedule": {options.every!r}}}
        app.conf.beat_schedule = {{f"entry-{{number}}": each for number in range({options.entries})}}
    """
    return Project(
        directory, broker, source, zsched_url=server.url, zsched_lease_timeout=options.lease,
        zsched_misfire=options.misfire,
    )  # fmt: skip


def run(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Do what the options say; return the counts."""
    rng = random.Random(options.seed)
    directory = Path(tempfile.mkdtemp(prefix="zs-chaos-"))
    server = RunningServer(options.server, aof=True, tcp=True)
    project = project_of(directory, server, options)
    tally = dict.fromkeys(FAULTS, 0)
    watch = Watch(server)
    try:
        crew = Crew(project, options.beats)
        deeds = faults(crew, server, rng, options.freeze)
        over = time.monotonic() + options.seconds
        say(f"{options.beats} beats, {options.entries} entries; {options.seconds:g} s of {', '.join(options.faults)}")
        while time.monotonic() < over:
            again = time.monotonic() + rng.expovariate(1 / options.pause)
            while time.monotonic() < min(again, over):
                crew.step()
                time.sleep(0.02)
            if time.monotonic() < over:
                fault = rng.choice(options.faults)
                deeds[fault]()
                tally[fault] += 1
        settle(crew, options.lease + max(3.0, 2 * options.every))
        watch.close()
        arrivals = [Arrival(s.entry, s.nominal_us, s.missed, at) for s, at in arrived(project, server, options, watch)]
        ledgers = ledgers_of(project, options.entries)
        result = count(arrivals, ledgers, crew.outages)
        outputs = [program.output() for program in (*crew.members, *crew.ended)]
        return {
            **result, "outage_s": round(overlap(crew.outages, 0.0, time.time()), 3),
            "kills": tally["kill"], "freezes": tally["freeze"],
            **{f"{fault}s": tally[fault] for fault in ("term", "restart", "cut")}, "flushes": tally["flush"],
            "bad_exits": sum(code != 0 for code in crew.exit_codes),
            "tracebacks": sum(text.count("Traceback") for text in outputs), "seed": options.seed,
        }  # fmt: skip
    finally:
        watch.close()
        project.close()
        server.close()
        if options.keep:
            say(f"what the beats said is in {directory}")
        else:
            shutil.rmtree(directory)


def settle(crew: Crew, quiet_s: float) -> None:
    """Let everything run undisturbed for a while, then stop the beats in the orderly way."""
    crew.wake_all()
    for beat in crew.members:
        beat.says(READY, timeout_s=60)
    crew.step()
    over = time.monotonic() + quiet_s
    wait_until(lambda: time.monotonic() >= over, timeout_s=quiet_s + 10)
    crew.exit_codes += [beat.terminate() for beat in crew.members]


def arrived(
    project: Project, server: RunningServer, options: argparse.Namespace, watch: Watch
) -> list[tuple[Sent, float]]:
    """Return every message with the moment it arrived (the beat's own word where the queue cannot be watched)."""
    seen = dict(watch.seen)
    if options.broker == "zsched":
        timeline = Timeline(project.schedules.server, queue_timeline(QUEUE))
        page = timeline.upcoming(500)
        while page:
            seen.update({item.id: item.due_us / SECOND_US for item in page})
            page = timeline.upcoming(500, after=page[-1])
    with project.app.connection_for_read() as connection:
        return [
            (sent, seen.get(sent.task_id) or datetime.fromisoformat(sent.fired).timestamp())
            for message in messages(connection, QUEUE)
            if (sent := sent_of(message)) is not None
        ]


def ledgers_of(project: Project, entries: int) -> dict[str, Ledger]:
    """Return what the schedule says of each entry; an entry that does not wait is an error of the run."""
    ledgers: dict[str, Ledger] = {}
    for stored in project.schedules.get_many([f"entry-{number}" for number in range(entries)]):
        assert stored.spec is not None and stored.state is State.SCHEDULED, f"{stored.name} is {stored.state}"
        spec: Any = stored.spec
        assert stored.due_us is not None
        ledgers[stored.name] = Ledger(spec.anchor_us, spec.trigger.every_us, stored.due_us, stored.last.missed)
    assert len(ledgers) == entries, f"{entries - len(ledgers)} entries are gone"
    return ledgers


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.beats", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beats", type=int, default=3, help="how many beats run at once (3)")
    parser.add_argument("--entries", type=int, default=200, help="how many entries (200)")
    parser.add_argument("--every", type=float, default=1.0, help="their interval in seconds (1)")
    parser.add_argument("--seconds", type=float, default=300.0, help="for how long faults happen (300)")
    parser.add_argument("--lease", type=float, default=5.0, help="the beats' lease in seconds (5)")
    parser.add_argument("--misfire", choices=("once", "skip", "all"), default="once", help="the entries' policy (once)")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"of {','.join(FAULTS)} (all)")
    parser.add_argument("--pause", type=float, default=2.0, help="the mean time between faults in seconds (2)")
    parser.add_argument("--freeze", type=float, default=8.0, help="the longest freeze in seconds (8)")
    parser.add_argument("--broker", default="zsched", help="zsched (ours, the default), redis (kombu's), or a URL")
    parser.add_argument("--server", choices=KINDS, default=DEFAULT_KIND, help=f"kind of server ({DEFAULT_KIND})")
    parser.add_argument("--seed", type=int, default=None, help="for the same faults again")
    parser.add_argument("--json", metavar="FILE", help="write the counts there; - for stdout, with nothing else")
    parser.add_argument("--keep", action="store_true", help="keep what the beats said")
    options = parser.parse_args(arguments)
    options.faults = [fault for fault in options.faults.split(",") if fault]
    unknown = [fault for fault in options.faults if fault not in FAULTS]
    if unknown or not options.faults:
        parser.error(f"--faults takes some of {','.join(FAULTS)}, not {','.join(unknown) or 'nothing'}")
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    options = parse(arguments)
    quiet = options.json == "-"

    def say(text: str) -> None:
        print(text, file=sys.stderr if quiet else sys.stdout, flush=True)

    try:
        result = run(options, say)
    except ServerError as exc:
        say(f"the run cannot be counted: {exc}")
        return 2
    if options.json:
        text = json.dumps(result)
        if quiet:
            print(text)
        else:
            Path(options.json).write_text(text + "\n")
    if not quiet:
        for name, value in result.items():
            print(f"{name:14}{value:>10}")
    return 1 if result["lost"] or result["doubled"] else 0


if __name__ == "__main__":
    sys.exit(main())
