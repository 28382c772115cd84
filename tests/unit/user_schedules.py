"""Schedule classes as users write them, in a module that other processes could import too."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedstate, schedule


class EveryNthHour(BaseSchedule):
    """Whole hours of the wall clock that a number divides; knows only ``is_due``."""

    def __init__(self, n: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = n

    def is_due(self, last_run_at: datetime) -> Any:
        """Answer from the last run and the schedule's own now."""
        due = last_run_at.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        while due.hour % self.n:
            due += timedelta(hours=1)
        remaining = (due - self.now()).total_seconds()
        return schedstate(remaining <= 0, max(remaining, 1))


class Workdays(crontab):
    """A crontab with another answer at the weekend."""

    def __reduce__(self) -> Any:
        return type(self), (self._orig_minute, self._orig_hour)

    def remaining_estimate(self, last_run_at: datetime, **kwargs: Any) -> timedelta:
        """Move what falls on a Saturday or Sunday to the Monday."""
        remaining = super().remaining_estimate(last_run_at, **kwargs)
        days = {5: 2, 6: 1}.get((self.now() + remaining).weekday(), 0)
        return remaining + timedelta(days=days)


class Slow(schedule):
    """An interval of a class of its own."""


class Stuck(BaseSchedule):
    """Never due."""

    def is_due(self, last_run_at: datetime) -> Any:
        """Ask to be asked again."""
        return False, 5


class Broken(BaseSchedule):
    """Fails whenever it is asked."""

    def is_due(self, last_run_at: datetime) -> Any:
        """Fail."""
        raise RuntimeError("the calendar service is away")


class Backwards:
    """Answers with the past."""

    def __init__(self, step: timedelta) -> None:
        self.step = step

    def next_after(self, instant: datetime) -> datetime | None:
        """Return a moment that is not later."""
        return instant - self.step


class Tides:
    """A class without Celery: due every 12 h 25 min from an origin, a number of times."""

    def __init__(self, origin: datetime, times: int, ports: tuple[str, ...] = ()) -> None:
        self.origin, self.times, self.ports = origin, times, ports

    def __reduce__(self) -> Any:
        return type(self), (self.origin, self.times, self.ports)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the next high tide."""
        period = timedelta(hours=12, minutes=25)
        n = max((instant - self.origin) // period + 1, 0)
        return self.origin + n * period if n < self.times else None
