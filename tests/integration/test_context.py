"""What a task is told about its occurrence, in a real worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis

import celery_zsched
from celery_zsched import Entry, Occurrence
from celery_zsched.types import to_us
from tests.entries import put_at
from tests.programs import Project
from tests.servers import RunningServer, wait_until

SOURCE = """
    import json
    from dataclasses import asdict
    import redis
    import celery_zsched

    server = redis.Redis.from_url({url!r})

    def say(name, **more):
        known = celery_zsched.current()
        told = None if known is None else {{key: str(value) for key, value in asdict(known).items()}}
        server.rpush(name, json.dumps(dict(more, told=told)))

    @app.task(name="tell", bind=True)
    def tell(self):
        say("told", tries=self.request.retries)
        if self.request.retries == 0:
            inner.apply_async()
            inner.apply()
            raise self.retry(countdown=0.1)

    @app.task(name="inner")
    def inner():
        say("inner")
"""


@pytest.mark.parametrize(
    ("pool", "protocol", "broker"),
    [
        ("solo", 2, ""),
        ("prefork", 2, ""),
        ("threads", 2, ""),
        ("prefork", 1, ""),
        ("prefork", 2, "zsched+"),
        ("threads", 1, "zsched+"),
    ],
)
def test_a_task_knows_its_occurrence(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project], pool: str, protocol: int,
    broker: str, close_later: Callable[[Any], Any],
) -> None:  # fmt: skip
    """In each pool, by both message protocols, at the first try and the second, on kombu's broker and ours.

    What the task itself sends is not the occurrence.
    """
    server = start_server(tcp=True)
    project = start_project(
        SimpleNamespace(url=broker + server.url), SOURCE.format(url=server.url), task_protocol=protocol
    )
    client: Any = close_later(redis.Redis.from_url(server.url))
    worker = project.start(
        "worker", f"--pool={pool}", "--concurrency=1", "--beat", "--scheduler=zsched", "--loglevel=INFO", name="worker"
    )
    for said in ("static entries", "ready."):
        worker.says(said)
    due = datetime.now(timezone.utc).replace(microsecond=250_000) + timedelta(seconds=1)
    put_at(project.schedules, [Entry("once", "tell", due, app=project.app).spec], to_us(due))
    wait_until(lambda: client.llen("told") >= 2 and client.llen("inner") >= 2, what="both tries and both inner tasks")
    said = [json.loads(text) for text in client.lrange("told", 0, -1)]
    assert [word["tries"] for word in said] == [0, 1]
    told = said[0]["told"]
    assert told == said[1]["told"]
    assert (told["entry"], told["nominal"], told["missed"], told["cause"]) == ("once", str(due), "0", "schedule")
    fired = datetime.fromisoformat(told["fired"])
    assert timedelta(0) <= fired - due < timedelta(seconds=5)
    assert [json.loads(text)["told"] for text in client.lrange("inner", 0, -1)] == [None, None]


def test_outside_a_task_there_is_none() -> None:
    """A program that is no task is told nothing."""
    assert celery_zsched.current() is None


@pytest.mark.parametrize("header", [None, "text", {}, {"entry": "e"}, {"entry": "e", "nominal_us": "x", "fired": "y"}])
def test_a_header_that_is_none_of_ours_is_none(header: object) -> None:
    """A message that somebody else marked in the same way does not break its task."""
    assert Occurrence.from_header(header) is None
