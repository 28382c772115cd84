"""Workers and publishers whose clocks are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from tests import clocks
from tests.servers import RunningServer
from tests.stamps import Stamped

HOUR_S = 3600

#: Sends by the name of a task, by a task, and an ETA of its own.
PUBLISH = """
import datetime, sys
IMPORTS

app = Celery("publisher", broker=sys.argv[1])

@app.task(name="t", ignore_result=True)
def t():
    pass

FIRST
app.send_task("named", countdown=100)
t.apply_async(countdown=200)
t.apply_async(countdown=300.5, priority=5, expires=9000)
t.apply_async(eta=datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc))
"""
CELERY = "from celery import Celery"
PACKAGE = "import celery_zsched"
FIRST = 'app.send_task("first")'


@pytest.fixture
def faketime() -> dict[str, str]:
    """What makes a process's clock wrong, but for how much."""
    return clocks.faketime()


@pytest.mark.parametrize(("offset", "said"), [("-1h", "behind"), ("+1h", "ahead of")])
def test_an_eta_is_met_by_a_worker_whose_clock_is_an_hour_off(
    start_server: Callable[..., RunningServer],
    tmp_path: Path,
    close_later: Callable[[Stamped], Stamped],
    faketime: dict[str, str],
    offset: str,
    said: str,
) -> None:
    """The server's clock alone decides: the task runs when it is due, and has not expired; the worker's log tells."""
    stamped = close_later(Stamped(tmp_path, start_server(tcp=True).url))
    wrong = {**faketime, "FAKETIME": offset}
    worker = stamped.project.start("worker", "--loglevel=INFO", "--concurrency=1", name="worker", env=wrong)
    worker.says("ready.")
    worker.says(f"{said} the server's")
    sent = time.monotonic()
    stamped.send("stamp", "due", countdown=1.5, expires=600)
    (stamp,) = stamped.until(1, "ran", "due")
    assert time.monotonic() - sent >= 1.4
    assert abs(abs(stamp.at - time.time()) - HOUR_S) < 60


@pytest.fixture
def queue(valkey: RunningServer) -> Iterator[kombu.transport.virtual.Channel]:
    """A channel to look at queues with."""
    with kombu.Connection(f"zsched+{valkey.url}") as connection:
        yield connection.default_channel


@pytest.mark.parametrize(
    ("imports", "first"),
    [(f"{CELERY}\n{PACKAGE}", ""), (f"{PACKAGE}\n{CELERY}", FIRST)],
    ids=["imported after Celery", "imported before Celery, from the second message on"],
)
@pytest.mark.parametrize("offset", ["-1h", "+1h"])
def test_a_countdown_is_counted_by_the_servers_clock(
    valkey: RunningServer,
    queue: kombu.transport.virtual.Channel,
    faketime: dict[str, str],
    imports: str,
    first: str,
    offset: str,
) -> None:
    """A publisher whose clock is an hour off changes no countdown; an ETA is the instant that it is."""
    before_us = queue.broker.timeline("celery").counts().now_us
    program = PUBLISH.replace("IMPORTS", imports).replace("FIRST", first)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, f"zsched+{valkey.url}"],
        env={**os.environ, **faketime, "FAKETIME": offset}, timeout=60, check=True,
    )  # fmt: skip
    counts = queue.broker.timeline("celery").counts()
    found = [one.due_us for one in queue.broker.timeline("celery").upcoming() if one.due_us > counts.now_us]
    *delays, far = [(due_us - before_us) / 1e6 for due_us in found]
    took_s = (counts.now_us - before_us) / 1e6
    assert len(delays) == 3
    assert all(0 <= delay - asked <= took_s for delay, asked in zip(delays, (100, 200, 300.5), strict=True))
    assert far > 10 * 365 * 24 * HOUR_S
