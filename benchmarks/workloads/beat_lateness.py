"""Entries of one second: how far each is sent from its due moment, and how many are missing."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from benchmarks.beats import Beat, entries
from benchmarks.meter import percentile


def measure(size: int, seconds: float) -> dict[str, Any]:
    """Run ``size`` one-second entries for ``seconds``.

    Lateness is counted from the nominal due where a message tells it. Elsewhere an entry's grid is taken to begin with
    its first message, so that a scheduler that starts it late is not blamed for that.
    """
    beat = Beat(entries(range(size), 1.0))
    try:
        ends = time.monotonic() + seconds
        beat.run(lambda: time.monotonic() >= ends, seconds + 30)
    finally:
        beat.close()
    sent: dict[int, list[tuple[float | None, float]]] = defaultdict(list)
    for number, nominal, at in beat.sent:
        sent[number].append((nominal, at))
    late = [
        (at - nominal if nominal else abs(at - mine[0][1] - step)) * 1e3
        for mine in sent.values()
        for step, (nominal, at) in enumerate(mine)
    ]
    # By entry, up to its last message: what became due as the run ended is not missing.
    spans = [(mine[-1][0] or mine[-1][1]) - (mine[0][0] or mine[0][1]) for mine in sent.values()]
    wanted = sum(round(span) + 1 for span in spans)
    return {
        "fired": len(beat.sent),
        "missing": max(0, wanted - len(beat.sent)) + size - len(sent),
        "p50_ms": percentile(late, 0.5),
        "p99_ms": percentile(late, 0.99),
    }
