"""A worker is killed under load: how long until all that it held has been run by another."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.app import nap
from benchmarks.workers import QUIET, kill, reports, worker


def measure(size: int, nap_s: float, patience_s: float, options: dict[str, Any]) -> dict[str, Any]:
    """Kill a worker that runs two naps and holds others; ``options`` are the transport's."""
    spec = {"acks_late": True, "prefetch": 4, "options": options}
    with reports() as done:
        with worker("prefork", 2, *QUIET, **spec) as first:
            for number in range(size):
                nap.apply_async((number, nap_s))
            done.count(2)
            kill(first)
        killed_at = time.time()
        with worker("prefork", 2, *QUIET, **spec):
            numbers = set(range(size))

            def ended() -> bool:
                return {~number for number, _ in done.all if number < 0} >= numbers

            try:
                done.until(ended, "waiting for what the killed worker held", patience_s)
            except TimeoutError:
                return {"lost": len(numbers - {~number for number, _ in done.all if number < 0}), "back_s": patience_s}
    starts = [(number, at) for number, at in done.all if number >= 0]
    again = [at - killed_at for _, at in starts if at > killed_at]
    started = [number for number, at in starts if at > killed_at]
    return {"lost": 0, "doubled": len(started) - len(set(started)), "back_s": max(again)}
