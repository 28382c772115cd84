"""Entries of one second: how far each is sent from its due moment, and how many are missing."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from benchmarks.beats import Beat, entries
from benchmarks.meter import percentile


def measure(size: int, seconds: float) -> dict[str, Any]:
    """Run ``size`` one-second entries for ``seconds``.

    An entry's grid begins with its first message, so that a scheduler that starts it late is not blamed for that.
    """
    beat = Beat(entries(range(size), 1.0))
    try:
        ends = time.monotonic() + seconds
        beat.run(lambda: time.monotonic() >= ends, seconds + 30)
    finally:
        beat.close()
    times: dict[int, list[float]] = defaultdict(list)
    for number, _, at in beat.sent:
        times[number].append(at)
    drifts = [abs(at - mine[0] - step) * 1e3 for mine in times.values() for step, at in enumerate(mine)]
    wanted = sum(int(beat.sent[-1][2] - mine[0]) + 1 for mine in times.values())
    return {
        "fired": len(beat.sent),
        "missing": max(0, wanted - len(beat.sent)) + size - len(times),
        "p50_ms": percentile(drifts, 0.5),
        "p99_ms": percentile(drifts, 0.99),
    }
