"""What an idle beat asks of the server."""

from __future__ import annotations

import threading
import time
from typing import Any

from benchmarks.app import SPEC
from benchmarks.beats import Beat, entries
from benchmarks.meter import Meter, per_minute


def measure(size: int, seconds: float) -> dict[str, Any]:
    """Return the commands and requests a minute with ``size`` hourly entries, counted over ``seconds``."""
    beat = Beat(entries(range(size), 3600))
    # Entries that are due when they are new, and the first look around, are no part of an idle beat.
    settled = time.monotonic() + min(12.0, seconds)
    over = settled + seconds
    readings = []

    def count() -> None:
        meter = Meter(SPEC["server"])
        for moment in (settled, over):
            time.sleep(max(0.0, moment - time.monotonic()))
            readings.append(meter.read())

    counter = threading.Thread(target=count)
    counter.start()
    try:
        beat.run(lambda: not counter.is_alive(), 2 * seconds + 60)
    finally:
        beat.close()
        counter.join()
    commands, requests = per_minute(*readings)
    return {"commands": commands, "requests": requests}
