"""A worker works off a queue of tasks that do nothing."""

from __future__ import annotations

from typing import Any

from benchmarks.app import SPEC, noop
from benchmarks.meter import Meter, per_item
from benchmarks.workers import QUIET, reports, worker


def measure(size: int, pool: str, concurrency: int) -> dict[str, Any]:
    """Count from the first tenth on, so that the start is not in it."""
    for number in range(size):
        noop.apply_async((number, 0))
    skipped = size // 10
    with reports() as done, worker(pool, concurrency, *QUIET) as process:
        meter = Meter(SPEC["server"], [process.pid])
        done.count(skipped)
        before, seen = meter.read(), len(done.all)
        done.count(size)
        after = meter.read()
        times = sorted(at for _, at in done.all)
    # A trial of a few tasks may be over by the time the meter is read.
    figures = per_item(before, after, max(1, size - seen))
    figures["rate"] = (size - skipped) / (times[-1] - times[skipped - 1])
    return figures
