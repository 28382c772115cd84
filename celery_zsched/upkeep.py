"""What keeps the schedule tidy and true: what is long finished or gone, and an app whose zone has changed."""

from __future__ import annotations

import hashlib
from typing import Any

from celery_zsched import planner
from celery_zsched.keys import ScheduleKeys
from celery_zsched.message import mark_field
from celery_zsched.queues import Queues
from celery_zsched.schedules import Schedules
from celery_zsched.stored import State, Stored
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.types import SECOND_US, Item, Outcome, Put


def forget_finished(schedules: Schedules, before_us: int) -> list[str]:
    """Delete entries that were added at run time and finished before a moment, some of them; return their names.

    A static one stays for as long as it is declared, or the next start would begin it anew.
    """
    with schedules.server.translated("looking for finished entries"):
        client: Any = schedules.server.client
        old = client.zrangebyscore(schedules.timeline.keys.dead, "-inf", before_us, start=0, num=MAX_BATCH)
    gone = [
        stored.name
        for stored in schedules.get_many([name.decode() for name in old])
        if stored.state is State.FINISHED and (stored.spec is None or stored.spec.owner != "static")
    ]
    for name in gone:
        schedules.delete(name)
    return gone


def adopt_zone(schedules: Schedules) -> int:
    """Compute due times anew if they were computed in another app zone; return how many entries were moved.

    Only entries that name no zone are concerned. It walks the schedule once, when the app's zone has changed.
    """
    key = ScheduleKeys(schedules.prefix).zone
    with schedules.server.translated("comparing the app's zone"):
        client: Any = schedules.server.client
        found = client.get(key)
    known = None if found is None else found.decode()
    if known == schedules.zone:
        return 0
    moved = sum(_rescore(schedules, stored) for stored in schedules.all()) if known is not None else 0
    with schedules.server.translated("noting the app's zone"):
        client.set(key, schedules.zone)
    return moved


def _rescore(schedules: Schedules, stored: Stored) -> bool:
    spec = stored.spec
    if spec is None or not spec.follows_app_zone or stored.state not in (State.SCHEDULED, State.PAUSED):
        return False
    coming = planner.first(spec, schedules.now_us(), zone=schedules.zone, last=stored.last)
    if coming.next_due_us is None or coming.next_due_us == stored.due_us:
        return False
    body = stored.located.body
    expect = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    item = Item(stored.name, body, coming.next_due_us, mode=Put.REPLACE, expect=expect)
    return schedules.timeline.put([item])[0].outcome is Outcome.REPLACED


class Marks:
    """Sweeps the high-water marks of queues for entries that are gone, a bounded part of them at each call."""

    #: So many marks are looked at in each queue at a call.
    PART = 5_000

    #: A mark is kept so long after its occurrence, in microseconds, though its entry is gone: a scheduler that was
    #: frozen amid sending it may still go on.
    KEPT_US = 3600 * SECOND_US

    def __init__(self, schedules: Schedules, queues: Queues) -> None:
        self._schedules = schedules
        self._queues = queues
        self._cursors: dict[str, int] = {}

    def sweep(self, now_us: int) -> int:
        """Go on where the last call ended; return how many marks were deleted."""
        deleted = 0
        for queue in self._queues.names():
            key = self._queues.timeline(queue).keys.marks
            client: Any = self._queues.server.client
            with self._queues.server.translated("sweeping marks"):
                cursor, marks = client.hscan(key, self._cursors.get(queue, 0), count=self.PART)
            self._cursors[queue] = cursor
            own = mark_field(self._schedules.prefix, "").encode()
            old = [
                field.removeprefix(own)
                for field, mark in marks.items()
                if field.startswith(own) and int(mark.split()[1]) < now_us - self.KEPT_US
            ]
            gone = [own + name for name in self._unknown(old)]
            if gone:
                with self._queues.server.translated("sweeping marks"):
                    deleted += client.hdel(key, *gone)
        return deleted

    def _unknown(self, names: list[bytes]) -> list[bytes]:
        if not names:
            return []
        with self._schedules.server.translated("sweeping marks"):
            client: Any = self._schedules.server.client
            known = client.hmget(self._schedules.timeline.keys.bodies, names)
        return [name for name, body in zip(names, known, strict=True) if body is None]
