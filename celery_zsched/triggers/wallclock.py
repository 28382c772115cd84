"""Zones and the one rule for clock changes; every trigger that speaks of wall time comes through here.

A trigger knows wall times ("09:00 on weekdays"); a timeline knows instants. Between the two stands a zone, whose offset
changes at *transitions*. The rule, once and for all kinds:

- a trigger that *follows real time* (its minute or hour begins with ``*``) is due at every instant whose wall clock
  matches, so in a repeated hour it is due in both passes, and in a skipped hour not at all;
- any other trigger is a *fixed time*: in a repeated hour only the first pass counts, and a wall time that does not
  exist is due at the instant given by the offset before the gap (RFC 5545, 3.3.5). Two wall times that fall on one
  instant are one occurrence.

Seconds are enough here: the offsets of the IANA data are whole seconds, and so are wall times.
"""

from __future__ import annotations

import functools
import zoneinfo
from bisect import bisect_right
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TypeAlias

from celery_zsched.errors import ScheduleError
from celery_zsched.guesses import likely

#: Seconds of a day without a clock change.
DAY_S = 86_400

#: No instant beyond this is ever due: a sorted set's score is a double, exact up to 2**53 microseconds (year 2255).
LAST_US = 2**53 - 1
LAST_S = LAST_US // 1_000_000

#: No two offsets of the IANA data differ by more than 26 hours (UTC-12 to UTC+14).
_WIDEST_SHIFT_S = 2 * DAY_S

#: How closely a zone is looked at: in the IANA data no two changes since 1970 are nearer than six days.
_LOOK_S = 3 * DAY_S

#: How far a zone's table is extended at a time.
_CHUNK_S = 730 * DAY_S

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_S = -59_000_000_000  # the year 100; datetime's own range ends soon before

#: Answers the first matching wall time after the one given, both in seconds since 1970-01-01 00:00 on the wall.
NextWall: TypeAlias = "Callable[[int], int | None]"


class ZoneTable:
    """The transitions of one zone, found when they are first needed, and the search for the next occurrence in it."""

    __slots__ = ("_known", "_zone", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self._zone = zoneinfo.ZoneInfo(key)
        # Covered from, covered to, transitions, offsets (one more than transitions). Replaced whole, never changed in
        # place: several threads may read it.
        self._known: tuple[int, int, list[int], list[int]] = (0, 0, [], [self._offset(0)])

    @property
    def zone(self) -> zoneinfo.ZoneInfo:
        """The zone itself, for datetimes."""
        return self._zone

    def _offset(self, instant: int) -> int:
        offset = (_EPOCH + timedelta(seconds=instant)).astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset.days * DAY_S + offset.seconds

    def _transitions(self, low: int, high: int) -> tuple[list[int], list[int]]:
        """Return the transitions in (low, high] and the offsets after each. Looks now and then, and closes in."""
        at: list[int] = []
        after: list[int] = []
        current = self._offset(low)
        while low < high:
            step = min(low + _LOOK_S, high)
            while current != (ahead := self._offset(step)):
                before, changed = low, step
                while changed - before > 1:
                    middle = (before + changed) // 2
                    if self._offset(middle) == current:
                        before = middle
                    else:
                        changed = middle
                current = ahead if changed == step else self._offset(changed)
                at.append(changed)
                after.append(current)
                low = changed
            low = step
        return at, after

    def _cover(self, instant: int) -> tuple[int, int, list[int], list[int]]:
        low, high, at, offsets = self._known
        if instant >= high:
            upper = instant + _CHUNK_S
            more, after = self._transitions(high, upper)
            low, high, at, offsets = low, upper, at + more, offsets + after
        if instant < low:
            lower = max(instant - _CHUNK_S, _FIRST_S)
            more, after = self._transitions(lower, low)
            low, at, offsets = lower, more + at, [self._offset(lower), *after[:-1], *offsets] if more else offsets
        self._known = low, high, at, offsets
        return self._known

    def segment(self, instant: int) -> tuple[int, int, int, int]:
        """Return (start, end, offset, offset before start) of the stretch of constant offset around an instant.

        The end may come before the true end (where the table ends so far), never after it.
        """
        known = self._known
        if not known[0] <= instant < known[1]:
            known = self._cover(instant)
        low, high, at, offsets = known
        index = bisect_right(at, instant)
        offset = offsets[index]
        start, before = (at[index - 1], offsets[index - 1]) if index else (low, offset)
        return start, at[index] if index < len(at) else high, offset, before

    def offset(self, instant: int) -> int:
        """Return the offset from UTC, in seconds, at an instant in seconds."""
        return self.segment(instant)[2]

    def instant(self, wall: int) -> int:
        """Return the instant of a wall time taken as a fixed time (see the module's rule)."""
        # The offset in force a day and more before cannot be hidden by a change in between that undoes itself: the
        # wall time belongs to the earliest stretch that has not ended before it.
        start, end, offset, before = self.segment(wall - _WIDEST_SHIFT_S)
        while wall - offset >= end:
            start, end, offset, before = self.segment(end)
        return wall - (offset if wall - offset >= start else before)

    def next_instant(self, next_wall: NextWall, instant: int, *, real: bool) -> int | None:
        """Return the first instant after the one given (seconds) at which a trigger is due, or ``None``.

        ``next_wall`` answers the trigger's first wall time after a wall time; ``real`` says that it follows real time.
        """
        start, end, offset, before = self.segment(instant)
        after = instant
        while True:
            floor = after
            if not real and offset < before:
                # The second pass of a repeated stretch: its wall times have had their instant.
                floor = max(after, start + before - offset - 1)
            wall = next_wall(floor + offset)
            found = None if wall is None else wall - offset
            if not real and offset > before:
                # Wall times that the gap before this stretch has swallowed are due in it, by the offset before.
                wall = next_wall(after + before)
                if wall is not None and wall < start + offset and (found is None or wall - before < found):
                    found = wall - before
            if found is not None and found < end:
                return found if found <= LAST_S else None
            if end > LAST_S:
                return None
            if end - instant <= _WIDEST_SHIFT_S:
                resume = end
            elif found is None:
                return None
            else:
                # No wall time between has matched, so nothing is due until the offsets can make a difference again.
                resume = max(end, found - _WIDEST_SHIFT_S)
            after = resume - 1
            start, end, offset, before = self.segment(resume)


@functools.lru_cache(maxsize=1024)
def zone_table(key: str) -> ZoneTable:
    """Return the table of a zone by its IANA name; :class:`ScheduleError` with the nearest names if there is none."""
    if key in ("localtime", "posixrules", "Factory"):
        raise ScheduleError(f"{key!r} means another zone on every machine; give an IANA name such as 'Europe/Paris'")
    try:
        return ZoneTable(key)
    except (KeyError, ValueError, OSError, TypeError):
        near = likely(str(key), zoneinfo.available_timezones(), 3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ScheduleError(
            f"there is no time zone {key!r} in the IANA data of this machine{hint} "
            "(install the tzdata package if the name is right)"
        ) from None


def check_zone(zone: str | None) -> str | None:
    """Return the zone name when it is known (or ``None``); raise :class:`ScheduleError` otherwise."""
    if zone is not None:
        if not isinstance(zone, str):
            raise ScheduleError(f"a zone is given by its IANA name, not by {zone!r}")
        zone_table(zone)
    return zone


def zone_name(zone: tzinfo | str | None) -> str | None:
    """Return the IANA name of a ``tzinfo`` (zoneinfo, pytz, dateutil, a fixed whole hour), ``None`` for ``None``.

    A zone is kept by name, since an offset forgets the clock changes. One that has no name is refused.
    """
    if zone is None or isinstance(zone, str):
        return check_zone(zone)
    if zone is timezone.utc:
        return "UTC"
    for attribute in ("key", "zone"):  # zoneinfo, pytz
        name = getattr(zone, attribute, None)
        if isinstance(name, str):
            return check_zone(name)
    path = getattr(zone, "_filename", None)  # dateutil.tz.gettz
    if isinstance(path, str) and path:
        return check_zone(path.rsplit("zoneinfo/", 1)[-1])
    if type(zone).__module__.startswith("dateutil.") and type(zone).__name__ == "tzutc":
        return "UTC"
    if isinstance(zone, timezone):
        hours, rest = divmod(zone.utcoffset(None), timedelta(hours=1))
        if not rest and -14 <= hours <= 12:
            # POSIX turned the sign around: Etc/GMT-2 is two hours east of Greenwich.
            return "UTC" if not hours else f"Etc/GMT{-hours:+d}"
    raise ScheduleError(
        f"the zone {zone!r} has no IANA name, so it cannot be stored with its clock changes; "
        "use zoneinfo.ZoneInfo('Area/City')"
    )


def wall_seconds(moment: datetime) -> int:
    """Return a naive datetime as seconds on the wall since 1970-01-01 00:00; microseconds are cut off."""
    delta = moment.replace(tzinfo=timezone.utc) - _EPOCH
    return delta.days * DAY_S + delta.seconds
