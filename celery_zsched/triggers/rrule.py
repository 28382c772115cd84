"""One RFC 5545 rule on the wall clock: the first wall time after another that it names.

The walk is our own, because it has to begin anywhere (a rule that has run for years must not be counted up from its
start each time) and to end (a rule that can never match has to be refused, not searched until the year 9999). What the
parts of a rule mean is as in RFC 5545, 3.3.10, and where that leaves a choice, as in python-dateutil: the start is an
occurrence only if it matches, and BYWEEKNO without BYDAY takes all days of the week.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.cronfields import month_days
from celery_zsched.triggers.wallclock import DAY_S, LAST_S

#: Frequencies, coarsest first. From HOURLY on a rule counts units of the clock; before, days of the calendar.
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
UNITS_S = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}

#: So many periods without a match, and the rule counts as one that never matches: at least 41 years, where the longest
#: that the calendar makes anything wait is 40 (a 29 February on a given weekday, across a year such as 2100).
MOST_PERIODS = {"YEARLY": 230, "MONTHLY": 2_760, "WEEKLY": 4_000, "DAILY": 15_000}
MOST_STEPS = 20_000

#: A rule with a higher COUNT is refused: finding its end means walking to it.
MOST_COUNT = 50_000

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_LAST_WALL = LAST_S + DAY_S


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule's parts; an empty tuple means that the part is not given. Weekdays count from Monday, 0."""

    freq: str
    interval: int = 1
    count: int | None = None
    #: The last wall time that counts.
    until: int | None = None
    by_month: tuple[int, ...] = ()
    by_week_no: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_month_day: tuple[int, ...] = ()
    #: Which of its month or year (0: each), and the weekday.
    by_day: tuple[tuple[int, int], ...] = ()
    by_hour: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_second: tuple[int, ...] = ()
    by_set_pos: tuple[int, ...] = ()
    week_start: int = 0

    @property
    def follows_real_time(self) -> bool:
        """Whether the rule's hour or minute is free, as with a ``*`` in cron (see :mod:`.wallclock`)."""
        return self.freq in ("MINUTELY", "SECONDLY") or (self.freq == "HOURLY" and not self.by_hour)

    def next_wall(self, start: int, after: int) -> int | None:
        """Return the first wall time after ``after`` that the rule, begun at ``start``, names (seconds on the wall)."""
        last = self.until if self.until is not None else _LAST_WALL
        if self.count is not None:
            last = min(last, _wall_of_count(self, start))
        wall = self._next(start, max(after, start - 1))
        return wall if wall is not None and wall <= last else None

    def _next(self, start: int, after: int) -> int | None:
        if self.freq in UNITS_S:
            return self._next_unit(start, after)
        first, at = self._period(start), self._period(after)
        period = first + -(-(at - first) // self.interval) * self.interval
        for _ in range(MOST_PERIODS[self.freq]):
            walls = _walls_of_period(self, start, period)
            index = bisect_right(walls, after)
            if index < len(walls):
                return walls[index]
            period += self.interval
            if self._first_day(period) * DAY_S > _LAST_WALL:
                break
        return None

    def _period(self, wall: int) -> int:
        """Return the number of the year, month, week or day that a wall time lies in."""
        day = wall // DAY_S
        if self.freq == "DAILY":
            return day
        if self.freq == "WEEKLY":
            # The epoch was a Thursday, 3 days after a Monday.
            return (day + 3 - self.week_start) // 7
        on = date.fromordinal(day + _EPOCH_ORDINAL)
        return on.year if self.freq == "YEARLY" else on.year * 12 + on.month - 1

    def _first_day(self, period: int) -> int:
        """Return the first day of a period, in days since the epoch."""
        if self.freq == "DAILY":
            return period
        if self.freq == "WEEKLY":
            return period * 7 - 3 + self.week_start
        year, month = (period, 0) if self.freq == "YEARLY" else divmod(period, 12)
        return date(min(year, 9999), month + 1, 1).toordinal() - _EPOCH_ORDINAL

    def _days(self, start: int, period: int) -> Iterator[int]:
        """Yield the days of a period that the rule takes, in order."""
        day, end = self._first_day(period), self._first_day(period + 1)
        if self.freq == "WEEKLY":
            day = max(day, start // DAY_S)  # BYSETPOS counts from the start in its own week, as dateutil does
        dated = self.by_week_no or self.by_year_day or self.by_month_day or self.by_day
        on = date.fromordinal(start // DAY_S + _EPOCH_ORDINAL)
        months, month_day, weekday = self.by_month, 0, -1
        if not dated:
            # What the rule leaves out comes from its start.
            if self.freq == "YEARLY":
                months, month_day = months or (on.month,), on.day
            elif self.freq == "MONTHLY":
                month_day = on.day
            elif self.freq == "WEEKLY":
                weekday = on.weekday()
        while day < end:
            today = date.fromordinal(day + _EPOCH_ORDINAL)
            if months and today.month not in months:
                day += month_days(today.year, today.month) - today.day + 1
                continue
            if (not month_day or today.day == month_day) and weekday in (-1, today.weekday()) and self._takes(today):
                yield day
            day += 1

    def _takes(self, day: date) -> bool:
        """Return whether the parts that speak of days take this one; BYMONTH is left to the caller."""
        if self.by_month_day:
            length = month_days(day.year, day.month)
            if day.day not in self.by_month_day and day.day - length - 1 not in self.by_month_day:
                return False
        if self.by_day and not self._takes_weekday(day):
            return False
        if self.by_year_day:
            at, length = _day_of_year(day)
            if at not in self.by_year_day and at - length - 1 not in self.by_year_day:
                return False
        return not self.by_week_no or self._takes_week(day)

    def _takes_weekday(self, day: date) -> bool:
        weekday = day.weekday()
        for which, wanted in self.by_day:
            if wanted != weekday:
                continue
            if not which:
                return True
            if self.freq == "YEARLY" and not self.by_month:
                at, length = _day_of_year(day)
            else:
                at, length = day.day, month_days(day.year, day.month)
            if which in ((at - 1) // 7 + 1, -((length - at) // 7 + 1)):
                return True
        return False

    def _takes_week(self, day: date) -> bool:
        """Return whether the day's week of the year is taken: week 1 is the first with four days in the year."""
        middle = day.toordinal() - (day.weekday() - self.week_start) % 7 + 3
        year = date.fromordinal(middle).year
        number = (middle - date(year, 1, 1).toordinal()) // 7 + 1
        return number in self.by_week_no or number - _weeks(year, self.week_start) - 1 in self.by_week_no

    def _next_unit(self, start: int, after: int) -> int | None:
        unit_s = UNITS_S[self.freq]
        first, unit = start // unit_s, max(after, start - 1) // unit_s
        inside = _inside(self, start)
        for _ in range(MOST_STEPS):
            unit += -(unit - first) % self.interval
            wall = unit * unit_s
            if wall > _LAST_WALL:
                return None
            skip = self._skip(wall)
            if skip:
                unit = -(-(wall + skip) // unit_s)
                continue
            index = bisect_right(inside, after - wall)
            if index < len(inside):
                return wall + inside[index]
            unit += 1
        return None

    def _skip(self, wall: int) -> int:
        """Return 0 if the unit that begins at ``wall`` is taken, else how many seconds on the next can be."""
        day, second = divmod(wall, DAY_S)
        on = date.fromordinal(day + _EPOCH_ORDINAL)
        if self.by_month and on.month not in self.by_month:
            return (month_days(on.year, on.month) - on.day + 1) * DAY_S - second
        if not self._takes(on):
            return DAY_S - second
        if self.by_hour and second // 3_600 not in self.by_hour:
            return 3_600 - second % 3_600
        if self.freq != "HOURLY" and self.by_minute and second // 60 % 60 not in self.by_minute:
            return 60 - second % 60
        return 1 if self.freq == "SECONDLY" and self.by_second and second % 60 not in self.by_second else 0


def _day_of_year(day: date) -> tuple[int, int]:
    first = date(day.year, 1, 1).toordinal()
    return day.toordinal() - first + 1, 365 + (month_days(day.year, 2) == 29)


def _weeks(year: int, week_start: int) -> int:
    """Return how many weeks a year has, counted from a weekday."""
    # A week belongs to the year in which its middle, the fourth day, lies.
    last = date(year, 12, 31)
    middle = last.toordinal() - (last.weekday() - week_start) % 7 + 3
    if date.fromordinal(middle).year != year:
        middle -= 7
    return (middle - date(year, 1, 1).toordinal()) // 7 + 1


@functools.lru_cache(maxsize=1024)
def _inside(rule: Rule, start: int) -> tuple[int, ...]:
    """Return the seconds within a unit of the clock (or a day) that a rule takes."""
    hours = rule.by_hour or (start // 3_600 % 24,)
    minutes = rule.by_minute or (start // 60 % 60,)
    seconds = rule.by_second or (start % 60,)
    if rule.freq == "SECONDLY":
        return (0,)
    if rule.freq == "MINUTELY":
        return tuple(sorted(set(seconds)))
    if rule.freq == "HOURLY":
        return tuple(sorted({minute * 60 + second for minute in minutes for second in seconds}))
    return tuple(sorted({h * 3_600 + m * 60 + s for h in hours for m in minutes for s in seconds}))


@functools.lru_cache(maxsize=4096)
def _walls_of_period(rule: Rule, start: int, period: int) -> tuple[int, ...]:
    times = _inside(rule, start)
    walls = tuple(day * DAY_S + time for day in rule._days(start, period) for time in times)
    if rule.by_set_pos:
        chosen = {position - 1 if position > 0 else position + len(walls) for position in rule.by_set_pos}
        walls = tuple(wall for index, wall in enumerate(walls) if index in chosen)
    return tuple(wall for wall in walls if wall >= start)


@functools.lru_cache(maxsize=1024)
def _wall_of_count(rule: Rule, start: int) -> int:
    """Return the wall time of the last occurrence that COUNT allows."""
    assert rule.count is not None
    if rule.count > MOST_COUNT:
        raise ScheduleError(
            f"COUNT={rule.count} is too high, at most {MOST_COUNT} are counted; use UNTIL, or the entry's count"
        )
    wall = start - 1
    for _ in range(rule.count):
        following = rule._next(start, wall)
        if following is None:
            break
        wall = following
    return wall
