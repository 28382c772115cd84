"""A scheduler inside this process, driven tick by tick and watched as it publishes, for the beat workloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from celery import signals
from celery.beat import Service
from celery.schedules import schedule

from benchmarks.app import SPEC, app, noop


def entries(numbers: Iterable[int], when: Any) -> dict[str, Any]:
    """Return static entries, one a number, all of one schedule (or an interval in seconds)."""
    if isinstance(when, (int, float)):
        when = schedule(timedelta(seconds=when))
    return {f"entry-{number}": {"task": noop.name, "schedule": when, "args": (number, 0)} for number in numbers}


class Beat:
    """The system's scheduler on this app. ``sent`` grows by (number, nominal, time) as messages are sent.

    Times are seconds since the epoch; a scheduler that does not say which occurrence a message is for has no nominal.
    """

    def __init__(self, beat_schedule: dict[str, Any]) -> None:
        app.conf.beat_schedule = beat_schedule
        self.sent: list[tuple[int, float | None, float]] = []
        #: Called before each tick for as long as nothing has been sent.
        self.before_tick: Callable[[], None] = lambda: None
        signals.after_task_publish.connect(self._published)
        self.service = Service(app, scheduler_cls=SPEC["scheduler"])
        began = time.perf_counter()
        self.scheduler = self.service.scheduler
        #: How long it took to take the schedule in, in seconds.
        self.start_s = time.perf_counter() - began
        signals.beat_init.send(sender=self.service)

    def _published(self, body: Any = None, headers: Any = None, **_: Any) -> None:
        nominal_us = (headers.get("zsched") or {}).get("nominal_us")
        self.sent.append((body[0][0], nominal_us and nominal_us / 1e6, time.time()))

    def run(self, enough: Callable[[], bool], patience_s: float) -> None:
        """Tick, and sleep as Celery's own beat does, until ``enough()``."""
        deadline = time.monotonic() + patience_s
        while not enough():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.sent)} messages were sent within {patience_s:g} s")
            if not self.sent:
                self.before_tick()
            pause = self.scheduler.tick()
            if pause and not enough():
                time.sleep(max(0.0, min(pause, deadline - time.monotonic())))

    def close(self) -> None:
        """Stop, as at the end of the process."""
        signals.after_task_publish.disconnect(self._published)
        self.scheduler.close()
