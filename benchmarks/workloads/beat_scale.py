"""A beat with few and with very many entries: what a firing costs, and what an entry takes of the server's memory."""

from __future__ import annotations

from typing import Any

from benchmarks.app import SPEC, app, noop
from benchmarks.meter import Meter
from benchmarks.workloads.beat_firing import due_together, fire


def measure(due: int, shallow: int, deep: int, every_s: float | None = None) -> dict[str, Any]:
    """Fire ``due`` entries with ``shallow`` and then ``deep`` others that are not due for years."""
    meter = Meter(SPEC["server"])
    figures: dict[str, Any] = {}
    there = 0
    for name, others in (("shallow", shallow), ("deep", deep)):
        before = meter.memory()
        _fill(there, others)
        figures[f"{name}_bytes"] = (meter.memory() - before) / (others - there)
        there = others
        beat = due_together(due, every_s)
        figures |= {f"{name}_{figure}": value for figure, value in fire(beat, meter, due).items()}
    for figure in ("client_us", "server_us"):
        figures[f"{figure}_ratio"] = figures[f"deep_{figure}"] / figures[f"shallow_{figure}"]
    figures["start_with_many_s"] = beat.start_s
    return figures


def _fill(first: int, end: int) -> None:
    from celery_zsched import Entry
    from celery_zsched.apps import schedules_of

    years = 10 * 365 * 86_400
    specs = (Entry(f"other-{number}", noop.name, years, (number, 0), app=app).spec for number in range(first, end))
    _, faults = schedules_of(app).save_many(specs)
    assert not faults, faults
