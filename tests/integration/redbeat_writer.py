"""Writes entries by real redbeat, in its own environment: ``python redbeat_writer.py URL COUNT``."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery
from celery.schedules import crontab, schedule
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

#: When the intervals last ran, before a count of seconds.
LAST = datetime(2026, 11, 1, tzinfo=timezone.utc)


def schedule_of(number: int) -> Any:
    """Return the schedule of the entry of that number."""
    kind = number % 4
    if kind == 0:
        return schedule(timedelta(seconds=60 + number % 977))
    if kind == 1:
        return crontab(minute=str(number % 60), hour=str(number % 24), day_of_week=str(number % 7))
    if kind == 2:
        return crontab(minute=f"*/{1 + number % 30}")
    return rrule("DAILY", dtstart=datetime(2026, 1, 1 + number % 28, number % 24, 30, tzinfo=timezone.utc))


def main(url: str, count: int) -> None:
    """Store that many entries; every seventh is disabled."""
    app = Celery("writer", broker=url)
    app.conf.redbeat_redis_url = url
    for number in range(count):
        entry = RedBeatSchedulerEntry(
            f"entry {number}", "note", schedule_of(number), args=[number], kwargs={"n": number},
            enabled=number % 7 != 0, options={"queue": "elsewhere"}, app=app,
        )  # fmt: skip
        entry.last_run_at = LAST + timedelta(seconds=number)
        entry.save()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
