"""Moments and durations as an operator writes them: ``15m``, ``2h30m``, ``2026-12-24T18:00``, ``18:00``, ``2h ago``."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_zsched.errors import EntryError
from celery_zsched.types import EARLIEST_US, LATEST_US, LONGEST_S, SECOND_US, from_us, to_us

_DAY_US = 86400 * SECOND_US

#: The first and the last moment that is taken: in every zone it is in the years 1 to 9999.
FIRST_US, LAST_US = EARLIEST_US + _DAY_US, LATEST_US - _DAY_US

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")


def duration_us(text: str | float) -> int:
    """Return a duration as microseconds: a number of seconds, or numbers with the units ms, s, m, h, d, w.

    Raises :class:`~celery_zsched.errors.EntryError` for anything else, and for what is longer than 9,999 years.
    """
    if isinstance(text, (int, float)) and 0 <= text < math.inf:
        return _lasting(text, text)
    plain = str(text).strip().lower()
    parts = _PART.findall(plain)
    bare = len(parts) == 1 and not parts[0][1]
    if not parts or _PART.sub("", plain).strip() or (not bare and not all(unit for _, unit in parts)):
        raise EntryError(f"{text!r} is no duration; write seconds (90), or units (15m, 2h30m, 3d)")
    return _lasting(sum(float(number) * _UNITS[unit or "s"] for number, unit in parts), text)


def moment_in_years(instant_us: int, text: object) -> int:
    """Return the moment that a text stands for; refuse one that is not in the years 1 to 9999."""
    if not FIRST_US <= instant_us <= LAST_US:
        raise EntryError(f"{_shown(text)} is no moment of the years 1 to 9999; give one that is nearer")
    return instant_us


def moment_us(text: str, now_us: int, zone: str) -> int:
    """Return a moment as microseconds: ISO 8601, a time of day to come, ``now``, ``+DURATION`` or ``DURATION ago``.

    What has no offset is read in ``zone`` (IANA name). Raises :class:`~celery_zsched.errors.EntryError` for anything
    else, and for what is not in the years 1 to 9999.
    """
    plain = str(text).strip()
    if plain.startswith("+"):
        return moment_in_years(now_us + duration_us(plain[1:]), text)
    if plain == "now":
        return now_us
    if plain.endswith(" ago"):
        return moment_in_years(now_us - duration_us(plain.removesuffix(" ago")), text)
    here = from_us(now_us).astimezone(ZoneInfo(zone))
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", plain):
            hour, minute, second = (*map(int, plain.split(":")), 0)[:3]
            found = here.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return to_us(found if found > here else found + timedelta(days=1))
        found = datetime.fromisoformat(plain.replace("Z", "+00:00"))
    except ValueError:
        raise EntryError(
            f"{text!r} is no moment; write 2026-12-24T18:00 (in {zone}), 2026-12-24T18:00Z, 18:00, +2h, or '2h ago'"
        ) from None
    return moment_in_years(to_us(found if found.tzinfo is not None else found.replace(tzinfo=ZoneInfo(zone))), text)


def _lasting(seconds: float, text: object) -> int:
    if not seconds <= LONGEST_S:
        raise EntryError(f"{_shown(text)} is a duration of more than 9,999 years; give a shorter one")
    return round(seconds * SECOND_US)


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 100 else f"{shown[:100]}…"
