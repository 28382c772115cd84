"""Starting with many static entries: for the first time, and again with nothing changed."""

from __future__ import annotations

from typing import Any

from benchmarks.app import SPEC
from benchmarks.beats import Beat, entries
from benchmarks.meter import Meter


def measure(size: int) -> dict[str, Any]:
    """Start twice with ``size`` hourly entries; also return the server's memory for each."""
    meter = Meter(SPEC["server"])
    before = meter.memory()
    schedule = entries(range(size), 3600)
    figures = {}
    for name in ("first_s", "restart_s"):
        beat = Beat(dict(schedule))
        beat.close()
        figures[name] = beat.start_s
    return {**figures, "bytes": (meter.memory() - before) / size}
