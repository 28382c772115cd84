"""Starting with many static entries: for the first time, and again with nothing changed."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.app import SPEC
from benchmarks.beats import Beat, entries
from benchmarks.meter import Meter


def measure(size: int, first_tick: bool = False) -> dict[str, Any]:
    """Start twice with ``size`` hourly entries; also return the server's memory for each.

    ``first_tick`` counts the first tick too, for a scheduler that stores its entries only then.
    """
    meter = Meter(SPEC["server"])
    before = meter.memory()
    schedule = entries(range(size), 3600)
    figures = {}
    for name in ("first_s", "restart_s"):
        beat = Beat(dict(schedule))
        began = time.perf_counter()
        if first_tick:
            beat.scheduler.max_interval = 0.001  # it shall not wait for what is due
            beat.scheduler.tick()
        figures[name] = beat.start_s + time.perf_counter() - began
        beat.close()
    return {**figures, "bytes": (meter.memory() - before) / size}
