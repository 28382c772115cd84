"""Many entries due at one instant: how fast one beat sends them."""

from __future__ import annotations

import time
from typing import Any

from celery.schedules import crontab

from benchmarks.app import SPEC
from benchmarks.beats import Beat, entries
from benchmarks.meter import Meter, Reading, per_item


def measure(size: int) -> dict[str, Any]:
    """Fire ``size`` entries that are due at the full minute (or at once, where a new entry is).

    What counts begins with the tick that sends the first of them; of the time, only what comes after they were due.
    """
    meter = Meter(SPEC["server"])
    before: list[tuple[float, Reading]] = []
    beat = Beat(entries(range(size), crontab()))
    beat.before_tick = lambda: before.append((time.time(), meter.read()))
    try:
        beat.run(lambda: len(beat.sent) >= size, 120)
        ended, after = time.time(), meter.read()
    finally:
        beat.close()
    tick_began, reading = before[-1]
    began = max(tick_began, beat.sent[0][2] // 60 * 60)
    return per_item(reading, after, len(beat.sent), ended - began)
