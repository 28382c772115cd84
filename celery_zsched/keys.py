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
``P:{T}:history``        HASH    id -> what became of its last occurrences, a line each, newest first (schedules)
``P:{T}:reasons``        HASH    id -> why it is parked or dead
``P:{T}:marks``          HASH    mark field -> ``epoch nominal``: the highest occurrence ever put
``P:{T}:bell``           ZSET    one or two markers, each of which wakes one blocked claimer
``P:{T}:watch``          ZSET    claimer -> the moment at which it will wake by itself
``P:{T}:rules``          HASH    of a queue: how it was declared, its bindings, counts of messages; lives as it does
``P:{T}:bindings``       ZSET    of an exchange: routing key, pattern and queue -> when the binding lapses
``P:{T}:backlog``        STREAM  of an exchange: its last broadcasts, for who was cut off for a moment
``P:{T}:runs``           HASH    entry -> its outstanding runs (schedules; see ``lua/include/runs.lua``)
``P:{T}:lapses``         ZSET    entry -> the moment at which the last of its outstanding runs lapses (schedules)
``P:{T}:own:C``          ZSET    one marker that ends claimer C's own blocking pop
=======================  ======  =====================================================================================

``P`` is the prefix (default ``zsched``).
"""

from __future__ import annotations

from celery_zsched.types import DEFAULT_PREFIX as DEFAULT_PREFIX


class TimelineKeys:
    """The key names of one timeline, computed once."""

    __slots__ = (
        "backlog", "base", "bell", "bindings", "bodies", "claims", "dead", "history", "lapses", "leases", "marks",
        "notes", "parked", "reasons", "rules", "runs", "timelines", "watch",
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
        self.history = f"{base}:history"
        self.reasons = f"{base}:reasons"
        self.marks = f"{base}:marks"
        self.bell = f"{base}:bell"
        self.watch = f"{base}:watch"
        self.rules = f"{base}:rules"
        self.bindings = f"{base}:bindings"
        self.backlog = f"{base}:backlog"
        self.runs = f"{base}:runs"
        self.lapses = f"{base}:lapses"
        self.timelines = [f"{base}:timeline"] + [f"{base}:timeline:{level}" for level in range(1, levels)]

    def own(self, claimer: str) -> str:
        """Return the key of one claimer's own bell."""
        return f"{self.base}:own:{claimer}"

    def all(self) -> list[str]:
        """Return every key this timeline can have."""
        return [
            *self.timelines, self.leases, self.parked, self.dead, self.claims, self.bodies, self.notes,
            self.history, self.reasons, self.marks, self.bell, self.watch, self.rules, self.bindings, self.backlog,
            self.runs, self.lapses,
        ]  # fmt: skip


def queue_timeline(queue: str) -> str:
    """Return the timeline name of a message queue."""
    return f"queue:{queue}"


def exchange_timeline(exchange: str) -> str:
    """Return the timeline name under which an exchange has its keys; the default exchange's bindings are all queues."""
    return f"exchange:{exchange}"


def broadcast_channel(prefix: str, db: int, exchange: str, word: str) -> str:
    """Return the Pub/Sub channel of an exchange's broadcasts whose routing key begins with ``word``.

    Channels know no databases, so the number is a part of the name.
    """
    return f"{prefix}:broadcast:{db}:{exchange}/{word}"


def pauses_key(prefix: str = DEFAULT_PREFIX) -> str:
    """Return the key of what is paused of a broker's messages, a HASH: ``task:…``, ``queue:…`` or ``id:…`` -> JSON."""
    return f"{prefix}:pauses"


#: The timeline name of the schedule.
SCHEDULE_TIMELINE = "schedule"


class ScheduleKeys:
    """What the schedule has beside its timeline, in the same hash slot.

    ===============================  ====  ========================================================================
    key                              type  holds
    ===============================  ====  ========================================================================
    ``P:{schedule}:beats``           HASH  beat id -> what it said when it last called (JSON)
    ``P:{schedule}:blackouts``       HASH  name -> blackout, windows in which nothing is sent (JSON)
    ``P:{schedule}:release:R``       SET   the names of the static entries that release R declares
    ``P:{schedule}:request:R``       TEXT  who does what was asked for by request R, or its answer; lapses after a day
    ``P:{schedule}:audit``           STREAM  what operators did, the last thousands
    ``P:{schedule}:imports``         HASH  name -> as what an entry was taken over from another scheduler
    ``P:{schedule}:zone``            TEXT  the app's zone, in which due times of entries without one were computed
    ===============================  ====  ========================================================================
    """

    __slots__ = ("audit", "base", "beats", "blackouts", "imports", "zone")

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.base = f"{prefix}:{{{SCHEDULE_TIMELINE}}}"
        self.beats = f"{self.base}:beats"
        self.blackouts = f"{self.base}:blackouts"
        self.audit = f"{self.base}:audit"
        self.imports = f"{self.base}:imports"
        self.zone = f"{self.base}:zone"

    def release(self, release: str) -> str:
        """Return the key of one release's names."""
        return f"{self.base}:release:{release}"

    def request(self, request: str) -> str:
        """Return the key of one request that must be done once."""
        return f"{self.base}:request:{request}"
