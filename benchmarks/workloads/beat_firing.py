"""Many entries due at one instant: how fast one beat sends them."""

from __future__ import annotations

import time
from typing import Any

from celery.schedules import crontab

from benchmarks.app import SPEC
from benchmarks.beats import Beat, entries
from benchmarks.meter import Meter, Reading, per_item


def measure(size: int, every_s: float | None = None) -> dict[str, Any]:
    """Fire ``size`` entries that are due at the full minute (or at once, where a new entry is)."""
    return fire(due_together(size, every_s), Meter(SPEC["server"]), size)


def due_together(size: int, every_s: float | None) -> Beat:
    """Return a beat whose entries are due each full minute; or every ``every_s`` seconds: sooner, but less exact."""
    return Beat(entries(range(size), every_s or crontab()))


def fire(beat: Beat, meter: Meter, size: int) -> dict[str, float]:
    """Run a beat until it has sent ``size`` messages, and return what each of them cost.

    What counts begins with the tick that sends the first of them; of the time, only what comes after they were due.
    """
    before: list[tuple[float, Reading]] = []
    beat.before_tick = lambda: before.append((time.time(), meter.read()))
    try:
        beat.run(lambda: len(beat.sent) >= size, 180)
        ended, after = time.time(), meter.read()
    finally:
        beat.close()
    tick_began, reading = before[-1]
    began = max(tick_began, beat.sent[0][1] or 0)
    return per_item(reading, after, len(beat.sent), ended - began)
