"""The primitive when things go wrong: killed clients, wrong clocks, full, forgetful, restarted and replaced servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_zsched import scripts
from celery_zsched.connection import Server
from celery_zsched.errors import ServerFullError, ServerUnavailableError
from celery_zsched.timeline import Timeline
from celery_zsched.types import Claimed, Hold, Item, Mark, Outcome, Place, Put
from tests.integration.timeline_actor import NAMES
from tests.lua.tables import AHEAD, PAST, clock, look
from tests.servers import DEFAULT_KIND, KINDS, RunningServer, wait_until

ROOT = Path(__file__).parents[2]
MINUTE = 60_000_000
each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == DEFAULT_KIND else pytest.mark.servers) for kind in KINDS]
)


@pytest.fixture
def keyspace(any_server: RunningServer) -> Iterator[redis.Redis]:
    """A client to look at the server with."""
    with any_server.client() as client:
        yield client


@pytest.fixture
def timeline(close_later: Callable[[Any], Any]) -> Callable[[RunningServer], Timeline]:
    """Make timelines on servers; their connections are closed at the end."""

    def make(running: RunningServer) -> Timeline:
        return Timeline(close_later(Server.from_url(running.url)), "q", levels=3, holder="me", claimer="c")

    return make


def start_actor(running: RunningServer, part: str, off_s: int = 0) -> subprocess.Popen[str]:
    """Start a process that works on the timeline, its clock wrong by some seconds."""
    command = [sys.executable, "-m", "tests.integration.timeline_actor", running.url, part]
    wrong = shutil.which("faketime")
    if off_s and wrong:
        command = [wrong, "-f", f"{off_s:+}s", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command.append(str(0 if wrong else off_s))
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def holds_of(items: list[Claimed]) -> list[Hold]:
    """Return the proofs that the items are ours."""
    return [Hold(item.id, item.token) for item in items]


def places(client: redis.Redis, line: Timeline) -> list[str]:
    """Return the ids of all places, once for each place."""
    keys = [*line.keys.timelines, line.keys.leases, line.keys.parked, line.keys.dead]
    with client.pipeline() as pipeline:
        for key in keys:
            pipeline.zrange(key, 0, -1)
        pipeline.hkeys(line.keys.bodies)
        *members, bodies = pipeline.execute()
    everywhere = sorted(id_.decode() for ids in members for id_ in ids)
    assert everywhere == sorted(id_.decode() for id_ in bodies)
    return everywhere


def test_a_killed_client_leaves_every_id_in_one_place(
    any_server: RunningServer, keyspace: redis.Redis, timeline: Callable[[RunningServer], Timeline]
) -> None:
    """A client killed anywhere between or in its operations leaves each id in exactly one place, and all can go on."""
    line = timeline(any_server)
    for kill in range(3):
        actor = start_actor(any_server, "churn")
        assert actor.stdout is not None
        assert actor.stdout.readline() == "busy\n"
        done = keyspace.info("stats")["total_commands_processed"]
        wait_until(lambda: keyspace.info("stats")["total_commands_processed"] > done + 20 + kill * 7)  # noqa: B023
        actor.kill()
        actor.wait()
        actor.stdout.close()
        found = places(keyspace, line)
        assert len(found) == len(set(found))
        assert set(found) <= set(NAMES)
    line.revive(NAMES)
    line.unpark(NAMES)
    line.park(NAMES, "", force=True)
    line.unpark(NAMES, PAST)
    assert {item.id for item in line.claim(100, 0).items} == set(found)
    line.claim(1, 1)
    assert look(keyspace, line) == {}


@pytest.mark.parametrize("off_s", [-3600, 3600])
def test_a_clients_clock_changes_nothing(
    valkey: RunningServer, timeline: Callable[[RunningServer], Timeline], off_s: int
) -> None:
    """A client whose clock is an hour off puts, claims and renews exactly as one whose clock is right."""
    line = timeline(valkey)
    actor = start_actor(valkey, "keep_time", off_s)
    said, _ = actor.communicate(timeout=60)
    assert said.split("\n") == ["mark now", "", "0 0 1 2", ""]
    with valkey.client() as client:
        now = clock(client)
    later = line.locate(["later"])["later"].moment_us
    assert 29 * MINUTE < later - now <= 30 * MINUTE
    held = line.locate(["now"])["now"]
    assert 0 < held.moment_us - now <= MINUTE
    assert line.claim(10, MINUTE).items == []
    assert line.put([Item("again", b"", mark=Mark("e", 1, 5))])[0].outcome is Outcome.REFUSED


def test_a_full_server_drains(
    any_server: RunningServer, keyspace: redis.Redis, timeline: Callable[[RunningServer], Timeline]
) -> None:
    """At maxmemory all but putting goes on: claims, renewals, settling, giving back, setting aside."""
    line = timeline(any_server)
    line.put([Item(f"{number}", b"x" * 100, due_us=PAST + number, level=number % 3) for number in range(30)])
    line.put([Item("ended", b"", due_us=PAST)])
    assert len(line.claim(1, 1).items) == 1
    any_server.config("maxmemory-policy", "noeviction")
    any_server.config("maxmemory", "1")
    before = look(keyspace, line)
    with pytest.raises(ServerFullError, match="maxmemory"):
        line.put([Item("new", b""), Item("0", b"y", mode=Put.REPLACE)])
    with pytest.raises(ServerFullError, match="maxmemory"):
        line.put([Item("0", b"y", mode=Put.REPLACE)])
    assert look(keyspace, line) == before
    items = wait_until(lambda: line.claim(6, MINUTE).items)
    holds = holds_of(items)
    assert len(holds) == 6
    assert line.extend(holds, MINUTE) == []
    assert line.settle(holds[:1]) == []
    assert (
        line.release(holds[1:2]) == line.release(holds[2:3], counted=True) == line.release(holds[3:4], delay_us=9) == []
    )
    assert line.reschedule([(holds[4], AHEAD, b"note")]) == []
    assert line.bury([(holds[5].id, holds[5].token, "bad", b"note")]) == []
    assert line.revive([holds[5].id]) == [Place.DEAD]
    assert line.park(["20"], "why") == [Place.WAITING]
    assert line.unpark(["20"]) == [Place.PARKED]
    assert line.remove(["20"]) == [Place.WAITING]
    assert len(line.locate(["21", "22"])) == 2
    assert len(line.upcoming()) == line.counts().ready + line.counts().delayed == 29
    drained = wait_until(lambda: line.claim(100, MINUTE).items)
    assert line.claim(100, MINUTE, settle=holds_of(drained)).stale == []
    any_server.config("maxmemory", "0")
    assert line.put([Item("new", b"")])[0].outcome is Outcome.PUT


def every_operation(line: Timeline) -> None:
    """Do each operation once on an empty timeline, and leave it empty."""
    line.put([Item(name, b"x", due_us=PAST) for name in "abcdef"])
    holds = holds_of(line.claim(5, MINUTE).items)
    assert line.extend(holds, MINUTE) == []
    assert line.settle(holds[:1]) == line.release(holds[1:2]) == line.reschedule([(holds[2], PAST, b"")]) == []
    assert line.bury([(holds[3].id, holds[3].token, "", b"")]) == []
    assert line.revive([holds[3].id]) == [Place.DEAD]
    assert line.park(["f"], "") == [Place.WAITING]
    assert line.unpark(["f"]) == [Place.PARKED]
    assert line.remove(["f"]) == [Place.WAITING]
    assert line.counts().ready == len(line.upcoming()) == 3
    assert line.purge() == 3
    assert list(line.locate("abcdef")) == [holds[4].id]
    assert line.claim(1, MINUTE, settle=holds[4:]).stale == []


def test_scripts_survive_a_flush(
    any_server: RunningServer, keyspace: redis.Redis, timeline: Callable[[RunningServer], Timeline]
) -> None:
    """A server that has forgotten all scripts gets their texts with the next calls, and then calls by SHA do."""
    line = timeline(any_server)
    for _ in range(2):
        every_operation(line)
        keyspace.script_flush()
    every_operation(line)
    before = keyspace.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"]
    every_operation(line)
    assert keyspace.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"] == before
    names = ("put", "claim", "settle", "extend", "release", "reschedule", "park", "restore", "bury", "remove", "purge")
    sources = [scripts.load(name) for name in (*names, "locate", "counts", "upcoming")]
    known = [source.flagged.sha if line.server.script_flags else source.plain.sha for source in sources]
    assert all(keyspace.script_exists(*known))


def soon(act: Callable[[], Any]) -> Any:
    """Return what an operation gives once the server is to be had again."""

    def tried() -> tuple[Any] | None:
        try:
            return (act(),)
        except ServerUnavailableError:
            return None

    return wait_until(tried, what="the server")[0]


@each_kind
def test_everything_survives_a_restart(
    kind: str, start_server: Callable[..., RunningServer], timeline: Callable[[RunningServer], Timeline]
) -> None:
    """With the AOF on, a killed server comes back with every id where it was, and with the holders' tokens."""
    running = start_server(kind, aof=True)
    line = timeline(running)
    line.put([Item(name, name.encode(), due_us=PAST, level=1) for name in "abcdef"])
    line.put([Item("later", b"", due_us=AHEAD, mark=Mark("e", 1, 1))])
    held = holds_of(line.claim(3, 60 * MINUTE).items)
    line.park(["d"], "why")
    line.bury([("e", "", "bad", b"note")])
    with running.client() as client:
        before = {key: rows for key, rows in look(client, line).items() if key not in ("bell", "watch")}
    running.restart(kill=True)
    with running.client() as client:
        after = {key: rows for key, rows in look(client, line).items() if key not in ("bell", "watch")}
    assert after == before
    assert soon(lambda: line.extend(held, MINUTE)) == []
    assert line.settle(held) == []
    assert [item.id for item in line.claim(9, MINUTE).items] == ["f"]
    assert line.put([Item("x", b"", mark=Mark("e", 1, 1))])[0].outcome is Outcome.REFUSED


@each_kind
def test_a_promoted_replica_goes_on(
    kind: str, start_server: Callable[..., RunningServer], timeline: Callable[[RunningServer], Timeline]
) -> None:
    """After a failover the replica has all ids, holders settle there, and who still asks the old one is told."""
    old = start_server(kind, tcp=True, config={"repl-diskless-sync-delay": "0"})
    new = start_server(kind, replica_of=old)
    with old.client() as first, new.client() as second:
        wait_until(lambda: second.info("replication")["master_link_status"] == "up")
        line = timeline(old)
        line.put([Item(name, name.encode(), due_us=PAST) for name in "abc"])
        held = holds_of(line.claim(2, MINUTE).items)
        # WAIT would tell of the writes of its own connection only, and the timeline wrote by another.
        wait_until(lambda: look(second, line) == look(first, line))
        second.replicaof("NO", "ONE")
        wait_until(lambda: second.info("replication")["role"] == "master")
        first.replicaof("127.0.0.1", new.port)
        wait_until(lambda: first.info("replication")["role"] == "slave")
        with pytest.raises(ServerUnavailableError, match="replica"):
            line.put([Item("d", b"")])
    promoted = timeline(new)
    assert promoted.settle(held) == []
    batch = promoted.claim(9, MINUTE)
    assert [item.id for item in batch.items] == ["c"]
    promoted.settle(holds_of(batch.items))
    every_operation(promoted)
