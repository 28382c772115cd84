"""Tasks with an ETA: how late they start, and what a worker pays while many of them wait."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from benchmarks.app import SPEC, noop
from benchmarks.meter import Meter, percentile
from benchmarks.workers import QUIET, memory, reports, worker


def measure(size: int, spread_s: float, pending: int, settle_s: float) -> dict[str, Any]:
    """Spread ``size`` tasks over ``spread_s`` seconds; then let ``pending`` ones wait for an hour."""
    return _lateness(size, spread_s) | _pending(pending, settle_s)


def _lateness(size: int, spread_s: float) -> dict[str, float]:
    with reports() as done, worker("threads", 8, *QUIET):
        noop.apply_async((-1, 0))
        done.count(1)
        # Publishing them takes a while too, and none shall be due before all are there.
        first = time.time() + size / 1000 + 1
        etas = [first + spread_s * number / size for number in range(size)]
        for number, eta in enumerate(etas):
            noop.apply_async((number, 0), eta=datetime.fromtimestamp(eta, timezone.utc))
        done.count(size + 1)
        late = [(at - etas[number]) * 1e3 for number, at in done.all if number >= 0]
    return {
        "late_p50_ms": percentile(late, 0.5),
        "late_p99_ms": percentile(late, 0.99),
        "earliest_ms": min(late),
    }


def _pending(pending: int, settle_s: float) -> dict[str, float]:
    with reports() as done, worker("threads", 8, *QUIET) as process:
        noop.apply_async((-1, 0))
        done.count(1)
        meter = Meter(SPEC["server"], [process.pid])
        before, at_first = meter.read(), memory(process)
        for number in range(pending):
            noop.apply_async((number, 0), countdown=3600)
        # A worker that takes them in is busy with that for a while.
        after = meter.read()
        while True:
            time.sleep(settle_s)
            earlier, after = after, meter.read()
            if after.client_s - earlier.client_s < settle_s / 20:
                break
        return {
            "pending_mb": (memory(process) - at_first) / 1e6,
            "pending_cpu_s": after.client_s - before.client_s,
        }
