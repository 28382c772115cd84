"""Many at once: kills amid a steady load, floods of ETAs, a moment that thousands wait for, idle workers, askers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

import psutil
import pytest
import redis

from celery_zsched import message as wire_format
from celery_zsched.types import SECOND_US, Item, to_us
from tests.programs import Program
from tests.servers import RunningServer, wait_until
from tests.stamps import Stamp, Stamped, passes

#: How much later than it must something may come on a machine that is busy with other tests, in seconds.
SLACK_S = 10.0


def family(worker: Program) -> set[int]:
    """Return the numbers of a worker's processes."""
    whole = psutil.Process(worker.pid)
    return {whole.pid, *(child.pid for child in whole.children(recursive=True))}


def runs_of(project: Stamped) -> dict[str, list[Stamp]]:
    """Return every run of every task, by its name."""
    runs: dict[str, list[Stamp]] = defaultdict(list)
    for stamp in project.stamps("ran"):
        runs[stamp.name].append(stamp)
    return runs


@pytest.mark.slow
def test_kills_amid_a_steady_load_lose_nothing(stamped: Callable[..., Stamped]) -> None:
    """Workers that are killed, or frozen and killed, right after a burst: all is run, and only the kills' twice."""
    lease_s = 2
    project = stamped({"lease_timeout": lease_s}, task_acks_late=True, worker_prefetch_multiplier=4)
    alive = [project.worker(concurrency=2) for _ in range(3)]
    deaths: list[tuple[float, set[int]]] = []
    sent = 0
    for kill in range(6):
        began = time.monotonic()
        while time.monotonic() < began + 2:
            project.send("stamp", sent)
            sent += 1
            passes(0.01)
        for _ in range(50):
            project.send("stamp", sent)
            sent += 1
        victim = alive.pop(random.randrange(len(alive)))
        died = time.time(), family(victim)
        if kill % 2:
            victim.freeze()
            passes(0.5)
        victim.kill()
        deaths.append(died)
        alive.append(project.worker(concurrency=2, ready=False))
    wait_until(lambda: len(runs_of(project)) == sent, timeout_s=60, what="all to run")
    project.until_empty()
    for runs in runs_of(project).values():
        for before, again in pairwise(runs):
            moments = [moment for moment, pids in deaths if before.pid in pids]
            assert moments, f"run twice without a kill: {runs}"
            assert again.at - moments[0] < lease_s + SLACK_S


@pytest.mark.slow
def test_a_flood_of_etas_stays_in_the_broker(stamped: Callable[..., Stamped]) -> None:
    """A hundred thousand tasks for later cost a worker no memory and no credit, and keep nothing else waiting."""
    project = stamped(None, worker_prefetch_multiplier=4)
    worker = project.worker(concurrency=1)

    def stats() -> Any:
        return project.app.control.inspect(destination=["w1@here"], timeout=5).stats()["w1@here"]

    def memory() -> int:
        return sum(psutil.Process(pid).memory_info().rss for pid in family(worker))

    for n in range(10):
        project.send("stamp", f"warm{n}")
    project.until(10, "ran")
    prefetch, before = stats()["prefetch_count"], memory()
    in_an_hour = time.time() + 3600
    eta = datetime.fromtimestamp(in_an_hour, timezone.utc)

    headers, properties, content, _ = project.app.amqp.as_task_v2("late", "stamp", ("late",), eta=eta)
    body = wire_format.encode(
        {
            "headers": headers,
            "properties": {**properties, "delivery_info": {"exchange": "", "routing_key": "celery"}},
            "body": json.dumps(content),
            "content-type": "application/json",
            "content-encoding": "utf-8",
        }
    )
    with project.app.connection_for_write() as connection:
        line = connection.default_channel.broker.timeline("celery")
        line.put(Item(f"late{n}", body, due_us=to_us(eta) + n) for n in range(100_000))
        for n in range(10):
            project.send("stamp", n)
        project.until(20, "ran")
        assert connection.default_channel.queue_declare("celery", passive=True).message_count == 0
    wait_until(lambda: project.counts().leased == 0, what="the last acks")
    counts = project.counts()
    assert (counts.ready, counts.leased, counts.delayed) == (0, 0, 100_000)
    assert stats()["prefetch_count"] == prefetch
    assert memory() - before < 5_000_000
    rows = project.app.control.inspect(destination=["w1@here"], timeout=5).scheduled()["w1@here"]
    assert rows[0]["request"]["name"] == "stamp"
    assert in_an_hour * SECOND_US - SECOND_US < to_us(datetime.fromisoformat(rows[0]["eta"])) < to_us(eta) + SECOND_US


@pytest.mark.slow
def test_thousands_due_at_one_instant_start_as_fast_as_they_can_run(stamped: Callable[..., Stamped]) -> None:
    """Three thousand tasks with one ETA are worked off without a pause, as if they had just been sent."""
    size = 3000
    project = stamped({"lease_timeout": 2})
    for n in range(size):
        project.send("stamp", f"now{n}")
    project.worker(concurrency=2)
    begun = project.until(size, "ran", timeout_s=60)
    takes_s = begun[-1].at - begun[0].at
    due = time.time() + 12
    for n in range(size):
        project.send("stamp", n, due, eta=datetime.fromtimestamp(due, timezone.utc))
    assert time.time() < due, "the machine was too slow to publish them in time"
    ran = project.until(2 * size, "ran", timeout_s=60)[size:]
    late = [stamp.at - stamp.number for stamp in ran]
    assert min(late) >= 0
    assert max(late) < 3 * takes_s + 2
    project.until_empty()
    assert len(project.stamps("ran")) == 2 * size


def calls(client: redis.Redis) -> Counter[str]:
    """Return how often a server has carried out each command, those of scripts included and our own questions not."""
    ours = ("info", "client", "hello")
    stats = {name.removeprefix("cmdstat_"): one["calls"] for name, one in client.info("commandstats").items()}
    return Counter({name: count for name, count in stats.items() if not name.startswith(ours)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "most_a_minute"),
    [(("--without-gossip", "--without-mingle", "--without-heartbeat"), 8), ((), 45)],
    ids=["bare", "defaults"],
)
def test_idle_workers_cost_little_and_start_at_once(
    stamped: Callable[..., Stamped], flags: tuple[str, ...], most_a_minute: int
) -> None:
    """Four idle workers ask the server four times as much as one may, and still start a task without a delay."""
    project = stamped({"lease_timeout": 2})
    server: RunningServer = project.server  # type: ignore[attr-defined]
    workers = [
        project.project.start(
            "worker", "--pool=threads", "--concurrency=1", "--loglevel=INFO", f"--hostname=i{n}@here", *flags,
            name="worker",
        )
        for n in range(4)
    ]  # fmt: skip
    for worker in workers:
        worker.says("ready.")
    for n in range(8):
        project.send("early", n, 0.2)
    project.until(8, "end")
    passes(6)  # greetings are over, and so are the leases, for whose ends somebody wakes
    with server.client() as client:
        before, began = calls(client), time.monotonic()
        passes(15)
        spent, minutes = calls(client) - before, (time.monotonic() - began) / 60
        # One round of all four may fall into the time or beside it.
        assert spent.total() <= 4 * most_a_minute * minutes + 8, spent
    waits = []
    for n in range(9):
        passes(0.3)
        sent = time.time()
        project.send("stamp", f"after{n}")
        waits.append(project.until(1, "ran", f"after{n}")[0].at - sent)
    assert sorted(waits)[4] < 0.2


#: Asks workers in many short-lived processes, each second one killed at some moment of what a call takes.
ASKERS = """
import os, random, signal, sys, time
import celery_zsched
import kombu
from project import app

# What every child needs is loaded once.
with kombu.Connection(app.conf.broker_url) as connection:
    connection.default_channel.queue_declare("celery", passive=True)
app.control.inspect(timeout=0.1, connection=connection)

QUESTIONS = ("ping", "stats", "active", "scheduled", "active_queues", "conf", "registered")

def ask(number):
    inspect = app.control.inspect(timeout=5, limit=1)
    answer = getattr(inspect, QUESTIONS[number % len(QUESTIONS)])()
    os._exit(0 if answer and list(answer) == ["w1@here"] else 1)

answered = killed = 0
took = 0.05
for number in range(int(sys.argv[1])):
    began = time.monotonic()
    child = os.fork()
    if not child:
        ask(number)
    if number % 2:
        time.sleep(random.uniform(0, took))
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        answered += 1
        took = 0.9 * took + 0.1 * (time.monotonic() - began)
    elif status == -signal.SIGKILL:
        killed += 1
print(answered, killed)
"""

#: One in three minutes, for a day.
ASKED = 480


def keyspace(client: redis.Redis) -> dict[str, int]:
    """Return every key that does not end by itself, with how much is in it."""
    size: dict[bytes, Callable[[bytes], Any]] = {
        b"zset": client.zcard, b"hash": client.hlen, b"set": client.scard, b"list": client.llen, b"stream": client.xlen,
        b"string": lambda key: 1,
    }  # fmt: skip
    lasting = [key for key in client.scan_iter() if client.ttl(key) == -1]
    return {key.decode(): size[kind](key) for key in lasting if (kind := client.type(key)) in size}


@pytest.mark.slow
def test_a_day_of_remote_control_leaves_nothing_behind(stamped: Callable[..., Stamped]) -> None:
    """After as many calls as a monitor makes in a day, half of them killed, the server holds what it held before."""
    project = stamped()
    worker = project.worker(concurrency=1)
    assert project.app.control.inspect(timeout=5, limit=1).ping()
    script = project.project.directory / "askers.py"
    script.write_text(textwrap.dedent(ASKERS))
    with project.server.client() as client:  # type: ignore[attr-defined]

        def passing() -> set[str]:
            """Return the keys that end by themselves, but for what was asked in the last minute."""
            return {key.decode() for key in client.scan_iter() if b"backlog" not in key} - set(keyspace(client))

        before = keyspace(client)
        done = subprocess.run(
            [sys.executable, str(script), str(ASKED)], cwd=project.project.directory, capture_output=True, text=True,
            timeout=300, check=True,
        )  # fmt: skip
        answered, killed = map(int, done.stdout.split())
        assert answered + killed == ASKED, done.stderr
        assert answered >= ASKED / 2
        assert killed >= ASKED / 4
        wait_until(lambda: not passing(), timeout_s=60, what="the boxes of killed askers to go")
        assert keyspace(client) == before
    assert worker.is_running
