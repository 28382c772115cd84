"""The data model: every key this package ever writes is named here, and nowhere else.

A timeline ``T`` lives in one hash slot, because all its keys carry the hash tag ``{T}``:

=======================  ======  =====================================================================================
key                      type    holds
=======================  ======  =====================================================================================
``P:{T}:timeline``       ZSET    waiting: id -> the moment, in microseconds, at which it may be claimed
``P:{T}:timeline:N``     ZSET    the same for priority level N >= 1
``P:{T}:leases``         ZSET    leased: id -> the moment at which its lease ends
``P:{T}:parked``         ZSET    parked: id -> the moment at which it was due
``P:{T}:dead``           ZSET    dead: id -> the moment at which it was buried
``P:{T}:claims``         HASH    id -> ``token count level due holder`` (see ``lua/include/record.lua``)
``P:{T}:bodies``         HASH    id -> body, opaque bytes; an id exists exactly while it has a body
``P:{T}:notes``          HASH    id -> what happened last, opaque bytes (schedules)
``P:{T}:reasons``        HASH    id -> why it is parked or dead
``P:{T}:marks``          HASH    mark field -> ``epoch nominal``: the highest occurrence ever put
``P:{T}:bell``           ZSET    one marker that wakes one blocked claimer
``P:{T}:watch``          ZSET    claimer -> the moment at which it will wake by itself
``P:{T}:own:C``          ZSET    one marker that ends claimer C's own blocking pop
=======================  ======  =====================================================================================

``P`` is the prefix (default ``zsched``).
"""

from __future__ import annotations

from celery_zsched.types import DEFAULT_PREFIX as DEFAULT_PREFIX


class TimelineKeys:
    """The key names of one timeline, computed once."""

    __slots__ = (
        "base", "bell", "bodies", "claims", "dead", "leases", "marks", "notes", "parked", "reasons",
        "timelines", "watch",
    )  # fmt: skip

    def __init__(self, name: str, *, prefix: str = DEFAULT_PREFIX, levels: int = 1) -> None:
        base = self.base = f"{prefix}:{{{name}}}"
        if base.partition("{")[2].startswith("}"):
            # Redis Cluster takes an empty tag for none, and the keys would lie in different slots.
            raise ValueError(f"{base!r} has an empty hash tag; the timeline's name may not be empty or begin with '}}'")
        self.leases = f"{base}:leases"
        self.parked = f"{base}:parked"
        self.dead = f"{base}:dead"
        self.claims = f"{base}:claims"
        self.bodies = f"{base}:bodies"
        self.notes = f"{base}:notes"
        self.reasons = f"{base}:reasons"
        self.marks = f"{base}:marks"
        self.bell = f"{base}:bell"
        self.watch = f"{base}:watch"
        self.timelines = [f"{base}:timeline"] + [f"{base}:timeline:{level}" for level in range(1, levels)]

    def own(self, claimer: str) -> str:
        """Return the key of one claimer's own bell."""
        return f"{self.base}:own:{claimer}"

    def all(self) -> list[str]:
        """Return every key this timeline can have."""
        return [
            *self.timelines, self.leases, self.parked, self.dead, self.claims, self.bodies, self.notes,
            self.reasons, self.marks, self.bell, self.watch,
        ]  # fmt: skip


def queue_timeline(queue: str) -> str:
    """Return the timeline name of a message queue."""
    return f"queue:{queue}"


#: The timeline name of the schedule.
SCHEDULE_TIMELINE = "schedule"
