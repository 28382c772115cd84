"""Moments and durations as an operator writes them: ``15m``, ``2h30m``, ``2026-12-24T18:00``, ``18:00``, ``2h ago``."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_zsched.errors import EntryError
from celery_zsched.types import SECOND_US, from_us, to_us

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")


def duration_us(text: str | float) -> int:
    """Return a duration as microseconds: a number of seconds, or numbers with the units ms, s, m, h, d, w.

    Raises :class:`~celery_zsched.errors.EntryError` for anything else.
    """
    if isinstance(text, (int, float)) and 0 <= text < math.inf:
        return round(text * SECOND_US)
    plain = str(text).strip().lower()
    parts = _PART.findall(plain)
    bare = len(parts) == 1 and not parts[0][1]
    if not parts or _PART.sub("", plain).strip() or (not bare and not all(unit for _, unit in parts)):
        raise EntryError(f"{text!r} is no duration; write seconds (90), or units (15m, 2h30m, 3d)")
    return round(sum(float(number) * _UNITS[unit or "s"] for number, unit in parts) * SECOND_US)


def moment_us(text: str, now_us: int, zone: str) -> int:
    """Return a moment as microseconds: ISO 8601, a time of day to come, ``now``, ``+DURATION`` or ``DURATION ago``.

    What has no offset is read in ``zone`` (IANA name). Raises :class:`~celery_zsched.errors.EntryError` for anything
    else.
    """
    plain = str(text).strip()
    if plain.startswith("+"):
        return now_us + duration_us(plain[1:])
    if plain == "now":
        return now_us
    if plain.endswith(" ago"):
        return now_us - duration_us(plain.removesuffix(" ago"))
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
    return to_us(found if found.tzinfo is not None else found.replace(tzinfo=ZoneInfo(zone)))
