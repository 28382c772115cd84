"""No two runs at once while workers and beats are killed under them, again and again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_zsched import Entry
from tests.programs import Program, Project
from tests.servers import RunningServer, wait_until

SOURCE = """
    import json
    import time
    import redis

    server = redis.Redis.from_url({url!r})

    def say(what, **more):
        seconds, microseconds = server.time()
        server.rpush("said", json.dumps(dict(more, what=what, at=seconds + microseconds / 1e6)))

    @app.task(name="work", bind=True)
    def work(self, entry, lasts):
        say("begin", entry=entry, id=self.request.id)
        time.sleep(lasts)
        say("end", entry=entry, id=self.request.id)
"""

#: How often something is killed.
KILLS = 8

POOLS = ("--pool=prefork", "--pool=threads")


def spans(words: list[dict[str, Any]], entry: str) -> list[tuple[float, float]]:
    """Return begin and end of an entry's runs; a run that was killed counts as a moment, for its end is not known."""
    ends = {word["id"]: word["at"] for word in words if word["what"] == "end" and word["entry"] == entry}
    return [
        (word["at"], ends.get(word["id"], word["at"]))
        for word in words
        if word["what"] == "begin" and word["entry"] == entry
    ]


@pytest.fixture(params=["", "zsched+"], ids=["kombu's broker", "our broker"])
def project(
    request: pytest.FixtureRequest, start_server: Callable[..., RunningServer], tmp_path: Path
) -> Iterator[tuple[Project, Any]]:
    """A project on either broker, and a client of its server."""
    server = start_server(tcp=True)
    broker = SimpleNamespace(url=request.param + server.url)
    made = Project(tmp_path, broker.url, SOURCE.format(url=server.url), zsched_run_lease=2.0, zsched_lease_timeout=1.0)
    with server.client() as client:
        yield made, client
    made.close()


@pytest.mark.slow
def test_no_two_runs_at_once_whatever_is_killed(project: tuple[Project, Any]) -> None:
    """With two beats and two workers, one of which is killed and replaced every now and then, runs never overlap."""
    made, client = project
    chance = random.Random(7)

    def worker() -> Program:
        pool = chance.choice(POOLS)
        return made.start("worker", pool, "--concurrency=3", "--without-gossip", "--without-mingle", name="worker")

    workers = [worker(), worker()]
    beats = [made.beat(ready=False), made.beat(ready=False)]
    for name, rule in (("skips", "skip"), ("keeps", "buffer_one")):
        Entry(name, "work", 0.3, (name, 0.7), overlap=rule, app=made.app).save()

    def begun() -> int:
        return sum(b'"begin"' in word for word in client.lrange("said", 0, -1))

    for _ in range(KILLS):
        target = begun() + 4
        wait_until(lambda target=target: begun() >= target, timeout_s=60, what="runs to go on")
        group, start = chance.choice([(workers, worker), (beats, lambda: made.beat(ready=False))])
        chance.choice(group).kill()
        group[:] = [program for program in group if program.is_running] + [start()]
    target = begun() + 4
    wait_until(lambda: begun() >= target, timeout_s=60, what="runs to go on to the end")

    words = [json.loads(word) for word in client.lrange("said", 0, -1)]
    for name in ("skips", "keeps"):
        found = sorted(spans(words, name))
        assert len(found) > 5
        assert [(earlier, later) for earlier, later in pairwise(found) if later[0] < earlier[1]] == []
