"""A worker is killed under load: how long until what it held is started by another, and what ran more than once.

The other worker has room for all of it, so that the time is the broker's: nothing waits for a free process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from benchmarks.app import app, nap
from benchmarks.workers import QUIET, Reports, kill, reports, worker

#: What the surviving worker adds to the numbers of its reports.
MARK = 1 << 32

#: How long a task of the steady load takes, in seconds.
SHORT_S = 0.01


def measure(size: int, nap_s: float, rate: float, patience_s: float, options: dict[str, Any]) -> dict[str, Any]:
    """Kill a worker that runs two of ``size`` naps and holds the others, amid ``rate`` short tasks a second for both.

    ``options`` are the transport's. What is not back after ``patience_s`` is counted as lost.
    """
    spec = {"acks_late": True, "prefetch": size // 2, "options": options}
    survivor = "survivor@bench"
    with (
        reports() as done,
        worker("prefork", 2, *QUIET, "-n", "killed@bench", "-Q", "celery,held", **spec) as killed,
        worker("threads", 4 * size, *QUIET, "-n", survivor, "-Q", "celery", mark=MARK, **spec),
    ):
        with load(rate, first=size) as sent:
            done.until(lambda: {number >= MARK for number, _ in done.all} == {False, True}, "both workers to run tasks")
            for number in range(size):
                nap.apply_async((number, nap_s), queue="held")
            done.until(lambda: {0, 1} <= {number for number, _ in done.all}, "the naps to start")
            if not app.control.add_consumer("held", destination=[survivor], reply=True, timeout=10):
                raise RuntimeError(f"{survivor} does not answer")
            kill(killed)
            killed_at = time.time()
            before = {*range(size), *sent}
            await_ends(done, before, patience_s)
        everything = {*range(size), *sent}
        await_ends(done, everything, 10)
        return figures(done, before, everything, killed_at)


def await_ends(done: Reports, numbers: set[int], patience_s: float) -> None:
    """Wait until tasks have ended, or patience has: what is missing then is counted."""
    with contextlib.suppress(TimeoutError):
        done.until(lambda: numbers <= ended(done), "waiting for the ends of tasks", patience_s)


@contextlib.contextmanager
def load(rate: float, *, first: int) -> Iterator[list[int]]:
    """Send short tasks steadily, in the background; yield their numbers, which begin with ``first``."""
    sent: list[int] = []
    over = threading.Event()

    def send() -> None:
        while not over.wait(1 / rate):
            nap.apply_async((first + len(sent), SHORT_S))
            sent.append(first + len(sent))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield sent
    finally:
        over.set()
        sender.join()


def ended(done: Reports) -> set[int]:
    """Return the numbers of the tasks that have ended, on whichever worker."""
    return {~number % MARK for number, _ in done.all if number < 0}


def figures(done: Reports, before: set[int], everything: set[int], killed_at: float) -> dict[str, Any]:
    """Return when the last of the tasks from ``before`` the kill was begun by the survivor, and what became of all.

    ``again`` counts what both workers have begun, which the kill explains; ``doubled`` every other run too many.
    """
    starts: dict[int, list[tuple[bool, float]]] = defaultdict(list)
    for number, at in done.all:
        if number >= 0:
            starts[number % MARK].append((number >= MARK, at))
    late, again, doubled = 0.0, 0, 0
    for number, runs in starts.items():
        here = [at for survived, at in runs if survived]
        explained = len(here) == len(runs) - len(here) == 1 and here[0] > killed_at
        again += explained
        doubled += 0 if explained else len(runs) - 1
        if number in before and here and here[0] > killed_at:
            late = max(late, here[0] - killed_at)
    return {"back_s": late, "lost": len(everything - ended(done)), "again": again, "doubled": doubled}
