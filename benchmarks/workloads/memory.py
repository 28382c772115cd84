"""The server's memory for a waiting task of two integers."""

from __future__ import annotations

from typing import Any

from benchmarks.app import SPEC, noop
from benchmarks.meter import Meter


def measure(size: int) -> dict[str, Any]:
    """Return bytes per waiting message."""
    meter = Meter(SPEC["server"])
    noop.apply_async((1, 2))
    before = meter.memory()
    for number in range(size):
        noop.apply_async((number, 2))
    return {"bytes": (meter.memory() - before) / size}
