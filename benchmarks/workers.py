"""Workers as processes of their own, and the reports of their tasks, for the workloads that need them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

#: How long a worker or a task may take before a measurement is given up, in seconds.
PATIENCE_S = 120.0

QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


class Reports:
    """Receives what tasks report, through a named pipe that any process may write to."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="zsched-bench-")
        self.path = str(Path(self._directory.name) / "reports")
        os.mkfifo(self.path)
        # Opened for writing too, so that it does not end when a worker does.
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._fd, selectors.EVENT_READ)
        self._rest = b""
        #: (number, time in seconds) of every report so far.
        self.all: list[tuple[int, float]] = []

    def until(self, enough: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Receive reports until ``enough()``; raises ``TimeoutError`` saying ``what`` was waited for."""
        from benchmarks.app import REPORT

        deadline = time.monotonic() + patience_s
        while not enough():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: {len(self.all)} reports came within {patience_s:g} s")
            if self._selector.select(0.5):
                data = self._rest + os.read(self._fd, 1 << 16)
                whole = len(data) - len(data) % REPORT.size
                self._rest = data[whole:]
                self.all += [(number, at / 1e9) for number, at in REPORT.iter_unpack(data[:whole])]

    def count(self, count: int) -> None:
        """Receive reports until there are ``count`` of them."""
        self.until(lambda: len(self.all) >= count, f"waiting for {count} tasks to run")

    def close(self) -> None:
        """Remove the pipe."""
        self._selector.close()
        os.close(self._fd)
        self._directory.cleanup()


@contextlib.contextmanager
def reports() -> Iterator[Reports]:
    """Yield a place for reports, known to this process's app and to every worker started afterwards."""
    from benchmarks.app import SPEC

    receiver = Reports()
    SPEC["reports"] = receiver.path
    try:
        yield receiver
    finally:
        receiver.close()


@contextlib.contextmanager
def celery(*arguments: str, **spec: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``celery -A benchmarks.app …`` with changes to the spec; it and its children are killed at the end."""
    from benchmarks.app import SPEC

    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "benchmarks.app", *arguments],
        env={**os.environ, "ZSCHED_BENCH": json.dumps({**SPEC, **spec})},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)


def worker(pool: str, concurrency: int, *arguments: str, **spec: Any) -> contextlib.AbstractContextManager[Any]:
    """Run a worker."""
    return celery("worker", "-l", "ERROR", "-P", pool, "-c", str(concurrency), *arguments, **spec)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its children at once, as a power cut would."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def memory(process: subprocess.Popen[bytes]) -> int:
    """Return the resident memory of a process and its children, in bytes."""
    whole = psutil.Process(process.pid)
    return sum(member.memory_info().rss for member in (whole, *whole.children(recursive=True)))
