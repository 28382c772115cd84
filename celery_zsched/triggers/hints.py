"""What a text was probably meant to be that is given as a schedule and is neither cron text nor a rule."""

from __future__ import annotations

import re

from celery_zsched.guesses import asked, likely
from celery_zsched.triggers.crontext import NICKNAMES

#: How the first line of an RFC 5545 recurrence begins, where it is not a bare rule.
_PROPERTY = re.compile(r"\s*[A-Za-z][A-Za-z-]*[:;]")

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?\s*(?:Z|[+-]\d\d:?\d\d)?)?")
_TIME_OF_DAY = re.compile(
    r"(?:(?:every day|daily)\s+)?(?:at\s+)?([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.IGNORECASE
)
_UNITS_S = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(
    r"(?:(\d+(?:\.\d+)?)\s*|(?<![a-z]))(ms|millisecond|s|sec|second|m|min|minute|h|hr|hour|d|day|w|week)s?(?![a-z])",
    re.IGNORECASE,
)

#: The cron texts that are due as often as an interval, on the clock.
_ON_THE_CLOCK = {60: "* * * * *", 3_600: "0 * * * *", 86_400: "0 0 * * *", 604_800: "0 0 * * 0"} | {
    60 * minutes: f"*/{minutes} * * * *" for minutes in range(2, 31) if 60 % minutes == 0
}

#: What text can be, for one that looks like nothing else either.
_FORMS = (
    "that has 5 fields, such as '30 9 * * 1-5', or 6 with seconds first; text can be an RRULE too, an interval is "
    "given as a number of seconds or a timedelta, and a moment as a datetime"
)


def is_rule(text: str) -> bool:
    """Return whether a text is meant to be an RFC 5545 recurrence."""
    return "FREQ=" in text.upper() or _PROPERTY.match(text) is not None


def meant(text: str) -> str | None:
    """Return what a text looks like that is no cron text, and how to say that; None where it has a cron text's form."""
    plain = " ".join(text.split())
    if _MOMENT.fullmatch(plain):
        written = plain.replace("Z", "+00:00")
        return (
            f"it looks like a moment: for one run then, give datetime.fromisoformat({written!r}) (in the shell, --at)"
        )
    if match := _TIME_OF_DAY.fullmatch(plain):
        hour, minute, second = (int(each or 0) for each in match.groups())
        first = f"{second} " if second else ""
        choice = "" if second else f"crontab(hour={hour}, minute={minute}), or "
        return (
            f"it looks like a time of day: for each day at that time give {choice}the cron text "
            f"'{first}{minute} {hour} * * *'; for one run, a datetime (in the shell, --at)"
        )
    seconds = _interval_s(plain)
    if seconds is not None:
        shown = f"{seconds:.10g}"
        cron = _ON_THE_CLOCK.get(int(seconds)) if seconds == int(seconds) else None
        on_clock = f"; for that on the clock, the cron text {cron!r}" if cron else ""
        return (
            f"it looks like an interval: give the number {shown} or timedelta(seconds={shown}) (in the shell, --every "
            f"{shown}s){on_clock}"
        )
    if plain.startswith("@"):
        return f"that knows {', '.join(NICKNAMES)}{asked(likely(plain, NICKNAMES, 1))}"
    return None if len(plain.split()) in (5, 6) else _FORMS


def _interval_s(text: str) -> float | None:
    """Return how long an interval is that is written in words, such as ``30``, ``1h30m`` or ``every 5 minutes``."""
    plain = re.sub(r"^(every|each)\s+", "", text, flags=re.IGNORECASE)
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        return float(plain)
    parts = _PART.findall(plain)
    if not parts or re.sub(r"[\s,]|and", "", _PART.sub("", plain)):
        return None
    total = 0.0
    for number, unit in parts:
        short = unit.lower() if unit.lower() in _UNITS_S else unit.lower()[0]
        total += float(number or 1) * (_UNITS_S["ms"] if unit.lower().startswith("mil") else _UNITS_S[short])
    return total
