"""From starting a worker with Celery's defaults to the first line of the first task."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.app import noop
from benchmarks.workers import reports, worker


def measure() -> dict[str, Any]:
    """Return the seconds that a start takes, imports and mingle included."""
    noop.apply_async((0, 0))
    with reports() as done:
        began = time.time()
        with worker("prefork", 2):
            done.count(1)
    return {"seconds": done.all[0][1] - began}
