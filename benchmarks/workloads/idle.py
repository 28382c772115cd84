"""What idle workers ask of the server: one without gossip, mingle and heartbeat; one, then four, with the defaults."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from benchmarks.app import SPEC, noop
from benchmarks.meter import Meter, per_minute
from benchmarks.workers import QUIET, reports, worker


def measure(seconds: float) -> dict[str, Any]:
    """Return commands and requests a minute, each counted over ``seconds`` after the workers have settled."""
    figures = {}
    for name, workers, flags in (("bare", 1, QUIET), ("defaults", 1, ()), ("four_defaults", 4, ())):
        figures[name], figures[f"{name}_requests"] = _idle(seconds, workers, *flags)
    return figures


def _idle(seconds: float, workers: int, *flags: str) -> tuple[float, float]:
    with contextlib.ExitStack() as stack:
        done = stack.enter_context(reports())
        for number in range(workers):
            stack.enter_context(worker("threads", 2, "-n", f"idle{number}@%h", *flags))
        for number in range(4 * workers):
            noop.apply_async((number, 0))
        done.count(4 * workers)
        # Past the default lease: until then a worker looks once more after what it was last given.
        time.sleep(min(35.0, seconds))
        meter = Meter(SPEC["server"])
        before = meter.read()
        time.sleep(seconds)
        return per_minute(before, meter.read())
