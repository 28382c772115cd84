"""Celery programs for tests: real processes of a small project in a directory of its own, and what they have sent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kombu
import psutil
from celery import Celery

from celery_zsched.apps import schedules_of
from celery_zsched.entry import build
from celery_zsched.schedules import Schedules
from celery_zsched.types import from_us
from tests.entries import put_at
from tests.servers import PATIENCE_S, wait_until

# A program whose test process was killed must not stay; the kernel sees to it where it can.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.getppid() == 1 or os.execv(sys.argv[1], sys.argv[1:])"
)

#: Beats are at rest when nothing is due for so long, in microseconds.
QUIET_US = 300_000

#: The module that every program of a project loads.
MODULE = "project"

_MODULE_TEXT = """\
from datetime import datetime, timedelta, timezone

from celery import Celery
from celery.schedules import crontab, schedule, solar

app = Celery("project", broker={broker!r})
app.conf.update({conf!r})


@app.task(name="note")
def note(*args, **kwargs):
    return None


"""


class Program:
    """One process in a group of its own; what it says goes to a file. Its group ends with the test process."""

    def __init__(self, command: list[str], *, directory: Path, name: str, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *command]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=directory, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The number of the process, and of its group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives (a frozen one does)."""
        return self._process.poll() is None

    def output(self) -> str:
        """Return all that the process has said."""
        return self._log.read_text(errors="replace")

    def says(self, text: str, *, timeout_s: float = PATIENCE_S) -> str:
        """Wait until the process has said ``text``; return all of its output."""

        def said() -> str | None:
            lives = self.is_running  # asked first: what it says before its end is in the output then
            output = self.output()
            if text in output:
                return output
            assert lives, f"{self.name} ended ({self._process.returncode}) before {text!r}:\n{output[-4000:]}"
            return None

        try:
            return str(wait_until(said, timeout_s=timeout_s, what=f"{self.name} to say {text!r}"))
        except AssertionError as exc:
            raise AssertionError(f"{exc}; it said:\n{self.output()[-4000:]}") from None

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end of the process; return its exit code."""
        return self._process.wait(timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def freeze(self) -> None:
        """Stop the group from running."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen group go on."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> int:
        """End the process in the orderly way; return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kill the group without warning."""
        self.signal(signal.SIGKILL)
        self.wait()

    close = kill


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process that is no child of this one has ended, also if it does so in this very moment."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a scheduler has put on a queue."""

    entry: str
    nominal_us: int
    missed: int
    cause: str
    fired: str
    task_id: str
    body: Any
    headers: dict[str, Any]
    properties: dict[str, Any]


class Project:
    """A Celery project in a directory, its programs, and an app like theirs in this process.

    ``source`` is Python that the module runs after ``app`` is made; ``conf`` goes into ``app.conf``. Everything is
    closed with the project.
    """

    def __init__(self, directory: Path, broker: str, source: str = "", **conf: Any) -> None:
        self.directory = directory
        self.broker = broker
        # Without it, Celery adds an entry of its own (celery.backend_cleanup).
        self.conf = {"result_expires": None, "broker_connection_retry_on_startup": True, **conf}
        self._programs: list[Program] = []
        self._counter = 0
        self.write(source)
        self.app = Celery("project", broker=broker, set_as_current=False)
        self.app.conf.update(self.conf)

    def write(self, source: str) -> None:
        """Write the module anew; programs that run keep what they have loaded."""
        head = _MODULE_TEXT.format(broker=self.broker, conf=self.conf)
        (self.directory / f"{MODULE}.py").write_text(head + textwrap.dedent(source))

    @property
    def schedules(self) -> Schedules:
        """The project's schedule, seen from this process."""
        return schedules_of(self.app)

    def start(self, *args: str, name: str, env: Mapping[str, str] | None = None) -> Program:
        """Start ``celery -A project ARGS``, with ``env`` in its environment."""
        self._counter += 1
        command = [sys.executable, "-m", "celery", "-A", MODULE, *args]
        # Nothing is written beside the module: within one second a rewritten one would look the same.
        environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
        program = Program(command, directory=self.directory, name=f"{name}{self._counter}", env=environment)
        self._programs.append(program)
        return program

    def beat(self, *args: str, ready: bool = True, **how: Any) -> Program:
        """Start ``celery beat`` on our scheduler; ``ready``: and wait until its static entries are stored."""
        scheduler = ("-S", "celery_zsched:Scheduler")
        program = self.start("beat", *scheduler, "--pidfile=", "--loglevel=INFO", *args, name="beat", **how)
        if ready:
            program.says("static entries")
        return program

    def worker(self, *args: str, **how: Any) -> Program:
        """Start a worker with the solo pool and wait until it takes tasks."""
        quiet = ("--pool=solo", "--without-gossip", "--without-mingle", "--loglevel=INFO")
        name = f"worker{self._counter}@here"
        program = self.start("worker", *quiet, f"--hostname={name}", *args, name="worker", **how)
        program.says("ready.")
        return program

    def workers(self, count: int) -> None:
        """Start workers and wait until all of them hear commands: on kombu's broker they do so after they are ready."""
        for _ in range(count):
            self.worker()
        wait_until(lambda: len(self.app.control.ping(timeout=2, limit=count)) == count, what="the workers to answer")

    def celery(self, *args: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run ``celery -A project ARGS`` to its end; what no worker answers within Celery's second is asked again."""
        over = time.monotonic() + timeout_s
        while True:
            done = subprocess.run(
                [sys.executable, "-m", "celery", "-A", MODULE, *args],
                cwd=self.directory, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
            if done.returncode != os.EX_UNAVAILABLE or time.monotonic() > over:
                return done

    def drain(self, queue: str = "celery") -> list[Sent]:
        """Take every message from a queue by kombu's own means, oldest first; foreign ones are left out."""
        with self.app.connection_for_read() as connection:
            return [sent for message in messages(connection, queue) if (sent := sent_of(message)) is not None]

    def collect(self, enough: int, *, timeout_s: float = PATIENCE_S, queue: str = "celery") -> list[Sent]:
        """Take messages until there are ``enough``."""
        found: list[Sent] = []

        def there() -> bool:
            found.extend(self.drain(queue))
            return len(found) >= enough

        wait_until(there, timeout_s=timeout_s, what=f"{enough} messages (there are {len(found)})")
        return found

    def collect_for(self, seconds: float, queue: str = "celery") -> list[Sent]:
        """Take what arrives within ``seconds``: for what must not come, or how often it comes."""
        over = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= over, timeout_s=seconds + PATIENCE_S)
        return self.drain(queue)

    def rest(self) -> None:
        """Wait until the beats have moved on all that they have sent, and nothing is due for a moment.

        A beat that is struck down between sending and moving on leaves that to be sent again, or to be told as missed,
        where the broker has no marks.
        """

        def so() -> bool:
            soon_us = min((stored.due_us or 0 for stored in self.schedules.all()), default=0)
            return soon_us > self.schedules.now_us() + QUIET_US and self.schedules.timeline.counts().leased == 0

        wait_until(so, what="the beats to be at rest")

    def settled(self, queue: str = "celery") -> None:
        """Take away what the project's one beat sends of what it has claimed so far: it is done with that then.

        A beat has sent what it claimed before it claims what is due next, which is an entry of our own here.
        """
        now_us = self.schedules.now_us()
        name = f"settled-{now_us}"
        put_at(self.schedules, [build(name, "note", from_us(now_us), options={"queue": name})], now_us)
        self.collect(1, queue=name)
        self.drain(queue)

    def close(self) -> None:
        """Kill the programs and close what is open here."""
        for program in self._programs:
            program.close()
        self.schedules.server.close()
        self.app.close()


def messages(connection: kombu.Connection, queue: str) -> Iterator[kombu.Message]:
    """Yield the messages of a queue and remove them, as a consumer without acks would."""
    bound = kombu.Queue(queue, kombu.Exchange(queue), routing_key=queue)(connection.default_channel)
    bound.declare()
    while (message := bound.get(no_ack=True)) is not None:
        yield message


def sent_of(message: kombu.Message) -> Sent | None:
    """Return what a scheduler has sent, from the message; None when it is somebody else's."""
    header = message.headers.get("zsched")
    if header is None:
        return None
    return Sent(
        header["entry"], header["nominal_us"], header["missed"], header["cause"], header["fired"],
        message.headers["id"], message.payload, dict(message.headers), dict(message.properties),
    )  # fmt: skip
