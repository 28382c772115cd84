"""One task at a time to an idle worker: from the call of ``apply_async`` to the first line of the task."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.app import noop
from benchmarks.meter import percentile
from benchmarks.workers import QUIET, reports, worker


def measure(size: int, pool: str = "threads", concurrency: int = 2) -> dict[str, Any]:
    """Send ``size`` tasks, each once the one before has run and the worker is idle again."""
    waits = []
    with reports() as done, worker(pool, concurrency, *QUIET):
        noop.apply_async((-1, 0))
        done.count(1)
        for number in range(size):
            time.sleep(0.02)
            sent = time.time()
            noop.apply_async((number, 0))
            done.count(number + 2)
            waits.append((done.all[-1][1] - sent) * 1e3)
    return {"p50_ms": percentile(waits, 0.5), "p99_ms": percentile(waits, 0.99)}
