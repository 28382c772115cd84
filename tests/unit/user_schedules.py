"""Schedule classes as users write them, in a module that other processes could import too."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar


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
    """An interval of a class of its own, counted from the last run."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Count in real time."""
        return last_run_at + self.run_every - self.now()


class SubCron(crontab):
    """A crontab by another name."""


class Nightly(crontab):
    """A crontab with arguments of its own, which it writes into its fields."""

    def __init__(self, hour: int = 2) -> None:
        super().__init__(minute=0)
        self.hour = {hour}


class InParis(crontab):
    """A crontab whose class has a zone."""

    tz = ZoneInfo("Europe/Paris")


class SubSchedule(schedule):
    """An interval by another name."""


class SubSolar(solar):
    """An event of the sun by another name."""


class Watched(crontab):
    """A crontab that answers as Celery's does, by a method of its own."""

    def is_due(self, last_run_at: datetime) -> Any:
        """Answer as Celery would."""
        return super().is_due(last_run_at)


class NoSundays(crontab):
    """A crontab that lets its Sundays pass."""

    def is_due(self, last_run_at: datetime) -> Any:
        """Say no on a Sunday."""
        due, again = super().is_due(last_run_at)
        return schedstate(due and self.now().isoweekday() != 7, again)


class Wrapped(BaseSchedule):
    """Celery's crontab arithmetic in a class that is no crontab, in its own zone or that of the entry."""

    def __init__(self, minute: str, hour: str, zone: str | None = None) -> None:
        super().__init__()
        self.minute, self.hour, self.zone = minute, hour, zone

    def is_due(self, last_run_at: datetime) -> Any:
        """Answer as Celery's crontab would."""
        inner = crontab(minute=self.minute, hour=self.hour, nowfun=self.now)
        inner.tz = ZoneInfo(self.zone) if self.zone else self.tz
        return inner.is_due(last_run_at)


class WrappedReal(Wrapped):
    """One that follows real time, and says so."""

    follows_real_time = True


class WrappedFixed(Wrapped):
    """One whose hours count once, whatever its fields say."""

    follows_real_time = False


class Always(BaseSchedule):
    """Due whenever it is asked, and wants to be asked again at once."""

    def is_due(self, last_run_at: datetime) -> Any:
        """Say yes."""
        return True, 0


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
