"""A project whose tasks leave stamps in a file, for tests that count what ran."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Program, Project
from tests.servers import PATIENCE_S, wait_until

#: eventlet installs on few pairs of Python and Celery, and its own authors advise against it.
EVENTLET = pytest.param(
    "eventlet", marks=pytest.mark.skipif(find_spec("eventlet") is None, reason="eventlet is not installed")
)

POOLS = ["prefork", "threads", "solo", "gevent", EVENTLET]

SOURCE = """
import os
import time

from celery.exceptions import Reject

STAMPS = {stamps!r}


def stamp_down(*words):
    with open(STAMPS, "a") as file:
        file.write(" ".join(str(word) for word in (*words, os.getpid(), time.time())) + "\\n")


@app.task(name="stamp")
def stamp(n, due=0):
    stamp_down("ran", n, due)


@app.task(name="sl", bind=True, acks_late=True)
def sl(self, n, seconds):
    stamp_down("start", n, int(bool(self.request.delivery_info.get("redelivered"))))
    time.sleep(seconds)
    stamp_down("end", n, 0)


@app.task(name="early")
def early(n, seconds):
    stamp_down("start", n, 0)
    time.sleep(seconds)
    stamp_down("end", n, 0)


@app.task(name="poison", acks_late=True, reject_on_worker_lost=True)
def poison():
    stamp_down("start", "poison", 0)
    os.kill(os.getpid(), 9)


@app.task(name="again", bind=True, acks_late=True)
def again(self):
    stamp_down("start", "again", 0)
    raise Reject("no", requeue=True)
"""


@dataclass(frozen=True)
class Stamp:
    """One line: what happened to which task, a number it was given, the process, and when."""

    what: str
    name: str
    number: float
    pid: int
    at: float


class Stamped:
    """A project on a broker, with its stamps. ``options`` are its ``broker_transport_options``."""

    def __init__(self, directory: Path, url: str, *, options: dict[str, Any] | None = None, **conf: Any) -> None:
        self.stamps_file = directory / "stamps"
        self.stamps_file.touch()
        self.project = Project(
            directory, f"zsched+{url}", SOURCE.format(stamps=str(self.stamps_file)),
            **{
                "broker_transport_options": options or {}, "worker_prefetch_multiplier": 1, "task_ignore_result": True,
                **conf,
            },
        )  # fmt: skip
        self.workers = 0

    @property
    def app(self) -> Any:
        """The app in this process."""
        return self.project.app

    def worker(self, *args: str, pool: str = "prefork", concurrency: int = 1, ready: bool = True) -> Program:
        """Start a worker and wait until it takes tasks."""
        self.workers += 1
        quiet = ("--without-gossip", "--without-mingle", "--loglevel=INFO")
        program = self.project.start(
            "worker", *quiet, f"--pool={pool}", f"--concurrency={concurrency}", f"--hostname=w{self.workers}@here",
            *args, name="worker",
        )  # fmt: skip
        if ready:
            program.says("ready.")
        return program

    def send(self, name: str, *args: Any, **options: Any) -> str:
        """Send a task; return its id."""
        return str(self.app.send_task(name, args, **options).id)

    def stamps(self, what: str | None = None, name: Any = None) -> list[Stamp]:
        """Return the stamps there are, oldest first."""
        found: list[Stamp] = []
        for line in self.stamps_file.read_text().splitlines():
            word, who, number, pid, at = line.split()
            if (what is None or word == what) and (name is None or who == str(name)):
                found.append(Stamp(word, who, float(number), int(pid), float(at)))
        return found

    def until(
        self, count: int, what: str | None = None, name: Any = None, *, timeout_s: float = PATIENCE_S
    ) -> list[Stamp]:
        """Wait until there are ``count`` stamps of a kind; return them."""
        wait_until(lambda: len(self.stamps(what, name)) >= count, timeout_s=timeout_s, what=f"{count} {what} {name}")
        return self.stamps(what, name)

    def counts(self, queue: str = "celery") -> Any:
        """Return how many messages stand where."""
        with self.app.connection_for_read() as connection:
            return connection.default_channel.broker.timeline(queue).counts()

    def until_empty(self, queue: str = "celery", *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until nothing waits and nothing is leased."""

        def empty() -> bool:
            counts = self.counts(queue)
            return bool(counts.ready == counts.delayed == counts.leased == 0)

        wait_until(empty, timeout_s=timeout_s, what=f"queue {queue} to be empty")

    def close(self) -> None:
        """End everything."""
        for process in (self.app.pool, getattr(self.app.amqp, "_producer_pool", None)):
            if process is not None:
                process.force_close_all()
        self.project.close()


def passes(seconds: float) -> None:
    """Let time pass, for what must not happen in it."""
    over = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= over, timeout_s=seconds + PATIENCE_S)
