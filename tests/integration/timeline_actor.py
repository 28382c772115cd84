"""A process that works on a timeline, for tests to kill, or to run by a wrong clock.

Run as ``python -m tests.integration.timeline_actor URL PART OFF``; ``OFF`` is by how many seconds its clock is wrong.
"""

from __future__ import annotations

import random
import sys
import time
from itertools import count

from celery_zsched.connection import Server
from celery_zsched.timeline import Timeline
from celery_zsched.types import Hold, Item, Mark, Put

NAMES = [f"id {number}" for number in range(20)]
MINUTE = 60_000_000


def set_clock_wrong(off_s: int) -> None:
    """Make this process's clock wrong."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + off_s
    time.time_ns = lambda: real_ns() + off_s * 1_000_000_000


def churn(line: Timeline) -> None:
    """Do everything that can be done, as fast as it can be done, until killed."""
    chance = random.Random(0)
    for turn in count():
        names = chance.sample(NAMES, 5)
        line.put(
            [
                Item(name, b"x" * 50, level=turn % 3, mode=chance.choice([Put.NEW, Put.REPLACE, Put.REBODY]))
                for name in names
            ]
        )
        holds = [
            Hold(item.id, item.token) for item in line.claim(5, chance.choice([1, MINUTE]), delivery_limit=9).items
        ]
        line.settle(holds[:1])
        line.release(holds[1:2], counted=True)
        line.reschedule([(hold, 1, b"n") for hold in holds[2:3]])
        line.bury([(hold.id, hold.token, "bad", b"n") for hold in holds[3:4]])
        line.park(names[:3], "why", force=True)
        line.unpark(names[:2])
        line.revive(names[2:])
        line.remove(names[4:])
        if turn == 0:
            print("busy", flush=True)


def keep_time(line: Timeline) -> None:
    """Put what is due now, soon and later; claim what is free; and say which."""
    line.put([Item("now", b""), Item("later", b"", delay_us=30 * MINUTE), Item("mark", b"", mark=Mark("e", 1, 5))])
    taken = line.claim(10, 30 * MINUTE)
    print(" ".join(sorted(item.id for item in taken.items)), flush=True)
    again = line.claim(10, 30 * MINUTE)
    print(" ".join(sorted(item.id for item in again.items)), flush=True)
    stale = line.extend([Hold(item.id, item.token) for item in taken.items], MINUTE)
    print(len(stale), line.counts().ready, line.counts().delayed, line.counts().leased, flush=True)


def main() -> None:
    """Play the part."""
    url, part, off_s = sys.argv[1:]
    set_clock_wrong(int(off_s))
    line = Timeline(Server.from_url(url), "q", levels=3, holder="actor", claimer="actor")
    {"churn": churn, "keep_time": keep_time}[part](line)


if __name__ == "__main__":
    main()
