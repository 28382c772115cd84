"""Many entries due at one instant: how fast one beat sends them, and how fast two do."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from operator import itemgetter
from typing import Any

from celery.schedules import crontab

from benchmarks.app import SPEC
from benchmarks.beats import Beat, entries
from benchmarks.meter import Meter, Reading, per_item

#: How long before the full minute several beats are started at the latest, in seconds: all must wait when it comes.
START_UP_S = 20

#: How many messages several beats have sent together: a key on the server.
TOLD = "bench:sent"


def measure(size: int, every_s: float | None = None, two: bool = False) -> dict[str, Any]:
    """Fire ``size`` entries that are due at the full minute (or at once, where a new entry is).

    With ``two`` again, by two beats that share a server which is empty at first; their figures begin with ``two_``.
    """
    meter = Meter(SPEC["server"])
    one = fire(due_together(size, every_s), meter, size)
    if not two:
        return one
    meter.client.flushall()
    return one | {f"two_{name}": figure for name, figure in fire_by_several(2, size, every_s).items()}


def fire_by_several(beats: int, size: int, every_s: float | None) -> dict[str, float]:
    """Run beats, each in a process of its own, until they have sent ``size`` messages; return what each cost.

    ``share`` is the part of the beat that sent least.
    """
    into_minute_s = time.time() % 60
    if every_s is None and into_minute_s > 60 - START_UP_S:
        time.sleep(60 - into_minute_s)
    command = [sys.executable, "-m", "benchmarks.workloads.beat_firing", json.dumps([size, every_s])]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(beats)]
    told = [json.loads(one.communicate()[0].splitlines()[-1]) for one in running]
    busy = [one for one in told if one["sent"]]
    first = Reading(**min((one["before"] for one in busy), key=itemgetter("at")))
    last = Reading(**max((one["after"] for one in busy), key=itemgetter("at")))
    client_s = sum(one["after"]["client_s"] - one["before"]["client_s"] for one in busy)
    sent = sum(one["sent"] for one in busy)
    took_s = max(one["ended"] for one in busy) - min(one["began"] for one in busy)
    figures = per_item(first, dataclasses.replace(last, client_s=first.client_s + client_s), sent, took_s)
    return figures | {"share": min(one["sent"] for one in told) / sent}


def fire_some(size: int, every_s: float | None) -> dict[str, Any]:
    """Run one of several beats until all have sent ``size`` messages; return what it sent, when, and the readings."""
    meter = Meter(SPEC["server"])
    beat = due_together(size, every_s)
    beat.scheduler.max_interval = 0.2  # it must see in time that the others have sent the rest
    before = after = (time.time(), meter.read())
    seen = 0

    def tick_begins() -> None:
        nonlocal before
        before = time.time(), meter.read()

    def enough() -> bool:
        nonlocal after, seen
        new = len(beat.sent) - seen
        if new:
            after, seen = (time.time(), meter.read()), seen + new
        return int(meter.client.incrby(TOLD, new)) >= size

    beat.before_tick = tick_begins
    try:
        beat.run(enough, 180)
    finally:
        beat.close()
    began = max(before[0], beat.sent[0][1] or 0) if beat.sent else before[0]
    readings = {"before": dataclasses.asdict(before[1]), "after": dataclasses.asdict(after[1])}
    return {"sent": seen, "began": began, "ended": after[0], **readings}


def due_together(size: int, every_s: float | None) -> Beat:
    """Return a beat whose entries are due each full minute; or every ``every_s`` seconds: sooner, but less exact."""
    return Beat(entries(range(size), every_s or crontab()))


def fire(beat: Beat, meter: Meter, size: int) -> dict[str, float]:
    """Run a beat until it has sent ``size`` messages, and return what each of them cost.

    What counts begins with the tick that sends the first of them; of the time, only what comes after they were due.
    """
    before: list[tuple[float, Reading]] = []
    beat.before_tick = lambda: before.append((time.time(), meter.read()))
    try:
        beat.run(lambda: len(beat.sent) >= size, 180)
        ended, after = time.time(), meter.read()
    finally:
        beat.close()
    tick_began, reading = before[-1]
    began = max(tick_began, beat.sent[0][1] or 0)
    return per_item(reading, after, len(beat.sent), ended - began)


if __name__ == "__main__":
    print(json.dumps(fire_some(*json.loads(sys.argv[1]))))
