"""How an idle consumer finds what nobody would wake it for: of all who are idle two watch, and both may die at once."""

from __future__ import annotations

from collections.abc import Sequence

from celery_zsched.lookout import WATCHERS
from celery_zsched.transport.source import Source
from celery_zsched.types import SECOND_US
from celery_zsched.wires import Wires

#: An idle consumer looks so often whether others still watch for what comes next, in seconds: where somebody did at its
#: last look, and where there was nothing to watch for. So much later than due, at most, a message is taken whose
#: watchers have died, all at once, or that a lost ring was for.
GUARD_S, EMPTY_GUARD_S = 5.0, 15.0


def look(wires: Wires, sources: Sequence[Source]) -> float:
    """Make those of several queues on one node hungry that are worth a claim; return when to look again, in seconds.

    Empty queues cost one small question, others two round trips.
    """
    keys = [key for source in sources for key in (*source.timeline.keys.timelines, source.timeline.keys.leases)]
    if not keys or not wires.command("EXISTS", *keys, route=keys[0]):
        return EMPTY_GUARD_S
    asked = [("ZRANGE", source.timeline.keys.watch, -WATCHERS, -1, "WITHSCORES") for source in sources]
    (seconds, micros), *answers = wires.commands([("TIME",), *asked], route=keys[0])
    now_us = int(seconds) * SECOND_US + int(micros)
    soon_s = EMPTY_GUARD_S
    for source, last in zip(sources, answers, strict=True):
        watchers = sum(float(moment) >= now_us for moment in last[1::2])
        if watchers < WATCHERS:
            source.dry = False
        if watchers:
            soon_s = GUARD_S
    return soon_s
