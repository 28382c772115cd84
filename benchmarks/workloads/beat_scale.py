"""A beat with few and with very many entries: a firing's cost, a start's time, an entry's share of the memory."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.app import SPEC, app, noop
from benchmarks.beats import Beat, entries
from benchmarks.meter import Meter
from benchmarks.workloads.beat_firing import due_together, fire

#: How often each is measured.
TIMES = 3

#: How many entries are made and stored at once.
AT_ONCE = 10_000


def measure(due: int, shallow: int, deep: int, every_s: float | None = None) -> dict[str, Any]:
    """Fire ``due`` entries with ``shallow`` and then ``deep`` others that are not due for years.

    A start is counted up to the end of the first tick, which is what stores the static entries. Of several times the
    least counts: what else the machine does, and the server over time, is no part of it.
    """
    meter = Meter(SPEC["server"])
    figures: dict[str, Any] = {}
    there = 0
    for name, others in (("shallow", shallow), ("deep", deep)):
        before = meter.memory()
        _fill(there, others)
        figures[f"{name}_bytes"] = (meter.memory() - before) / (others - there)
        there = others
        figures[f"{name}_start_s"] = min(_start(due) for _ in range(TIMES))
        fired = [_fire_anew(due, every_s, meter) for _ in range(TIMES)]
        least = {figure: min(one[figure] for one in fired) for figure in fired[0]}
        least["rate"] = max(one["rate"] for one in fired)
        least["cost_us"] = min(one["client_us"] + one["server_us"] for one in fired)
        figures |= {f"{name}_{figure}": value for figure, value in least.items()}
    for figure in ("cost_us", "client_us", "server_us", "start_s"):
        figures[f"{figure}_ratio"] = figures[f"deep_{figure}"] / figures[f"shallow_{figure}"]
    return figures


def _fire_anew(size: int, every_s: float | None, meter: Meter) -> dict[str, float]:
    """Fire entries and delete them, so that they are not due in what is measured next."""
    from celery_zsched.apps import schedules_of

    figures = fire(due_together(size, every_s), meter, size)
    schedules_of(app).timeline.remove(entries(range(size), 1))
    return figures


def _start(size: int) -> float:
    """Return how long a beat takes to start with ``size`` static entries that are stored already, in seconds."""
    took = 0.0
    for _ in range(2):
        began = time.perf_counter()
        beat = Beat({f"static-{name}": entry for name, entry in entries(range(size), 30 * 86_400).items()})
        beat.scheduler.max_interval = 0.001  # it shall not wait for what is due
        beat.scheduler.tick()
        took = time.perf_counter() - began
        beat.close()
    return took


def _fill(first: int, end: int) -> None:
    from celery_zsched import Entry
    from celery_zsched.apps import schedules_of

    years = 10 * 365 * 86_400
    for start in range(first, end, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, end))
        specs = (Entry(f"other-{number}", noop.name, years, (number, 0), app=app).spec for number in numbers)
        _, faults = schedules_of(app).save_many(specs)
        assert not faults, faults
