"""Sets of calendar fields, and the search for the next wall time that is in all of them.

Both cron dialects end here: Celery's (day of month *and* day of week) and crontab(5)'s (*or*); they differ only in
which days of a month they take. A month is known by its shape, the weekday of its first day and its length; there are
28 shapes, so that the days of any month are worked out once and looked up afterwards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from datetime import date
from typing import TypeAlias

from celery_zsched.triggers.wallclock import DAY_S, LAST_S

#: ``date.toordinal()`` of the day on which the epoch fell.
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()

_LAST_YEAR = 1970 + LAST_S // (365 * DAY_S)

_MONTH_DAYS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

#: Answers which days of the month that begins on this date, and has this many days, are taken.
PickDays: TypeAlias = "Callable[[date, int], tuple[int, ...]]"


def month_days(year: int, month: int) -> int:
    """Return the number of days of a month of the Gregorian calendar."""
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _MONTH_DAYS[month]


class CronFields:
    """Seconds, minutes, hours and months by their numbers; days by a function of the month's shape."""

    __slots__ = ("_first_s", "_hours", "_minutes", "_months", "_pick_days", "_seconds", "_shapes")

    def __init__(
        self,
        minutes: Iterable[int],
        hours: Iterable[int],
        months: Iterable[int],
        pick_days: PickDays,
        seconds: Iterable[int] = (0,),
    ) -> None:
        self._seconds, self._minutes = tuple(sorted(seconds)), tuple(sorted(minutes))
        self._hours, self._months = tuple(sorted(hours)), tuple(sorted(months))
        self._first_s = self._hours[0] * 3_600 + self._minutes[0] * 60 + self._seconds[0]
        self._pick_days = pick_days
        self._shapes: dict[tuple[int, int], tuple[int, ...]] = {}

    def days(self, first: date) -> tuple[int, ...]:
        """Return the days that are taken in the month that begins on ``first``, in order."""
        length = month_days(first.year, first.month)
        shape = first.weekday(), length
        days = self._shapes.get(shape)
        if days is None:
            days = self._shapes[shape] = self._pick_days(first, length)
        return days

    def possible(self) -> bool:
        """Return whether any month, in any year, has a day that is taken."""
        # The calendar repeats after 400 years; within 28 years every month has had every shape it can have.
        return any(self.days(date(year, month, 1)) for year in range(2000, 2028) for month in self._months)

    def _later_today(self, second: int) -> int | None:
        """Return the first second of the day that matches and is later than the one given."""
        hour, rest = divmod(second, 3_600)
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        index = bisect_left(hours, hour)
        if index == len(hours):
            return None
        if hours[index] == hour:
            minute, rest = divmod(rest, 60)
            at = bisect_left(minutes, minute)
            if at < len(minutes) and minutes[at] == minute:
                if (late := bisect_right(seconds, rest)) < len(seconds):
                    return hour * 3_600 + minute * 60 + seconds[late]
                at += 1
            if at < len(minutes):
                return hour * 3_600 + minutes[at] * 60 + seconds[0]
            index += 1
            if index == len(hours):
                return None
        return hours[index] * 3_600 + minutes[0] * 60 + seconds[0]

    def next_wall(self, wall: int) -> int | None:
        """Return the first wall time (seconds since 1970-01-01 on the wall) that matches and is later."""
        day, second = divmod(wall, DAY_S)
        today = date.fromordinal(day + _EPOCH_ORDINAL)
        year, month = today.year, today.month
        months = self._months
        index = bisect_left(months, month)
        if index < len(months) and months[index] == month:
            days = self.days(today.replace(day=1))
            at = bisect_left(days, today.day)
            if at < len(days) and days[at] == today.day:
                later = self._later_today(second)
                if later is not None:
                    return day * DAY_S + later
                at += 1
            if at < len(days):
                return (day + days[at] - today.day) * DAY_S + self._first_s
            index += 1
        while year <= _LAST_YEAR:
            for month in months[index:]:
                first = date(year, month, 1)
                if days := self.days(first):
                    return (first.toordinal() - _EPOCH_ORDINAL + days[0] - 1) * DAY_S + self._first_s
            year, index = year + 1, 0
        return None
