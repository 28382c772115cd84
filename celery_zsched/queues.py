"""The queues of one broker, seen from outside: which there are, what waits in them, and what of it is paused.

A pause is on record once for the whole broker, and stands besides in the rules of each queue, where every claim sees
it; a queue that is consumed from for the first time gets what is on record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery_zsched.connection import Server
from celery_zsched.entry import OperatorState
from celery_zsched.errors import EntryError
from celery_zsched.keys import DEFAULT_PREFIX, TimelineKeys, exchange_timeline, pauses_key, queue_timeline
from celery_zsched.message import mark_field
from celery_zsched.timeline import MAX_BATCH, Timeline
from celery_zsched.types import SECOND_US, Located, Place, Upcoming, names_of

#: The fields of a queue's rules that claims look at (``lua/claim.lua``).
PAUSED, PAUSED_TASKS = "paused", "paused_tasks"

#: How long a queue stands still while what was parked is put back in order, if whoever does that dies, in microseconds.
STILL_US = 60 * SECOND_US

#: How many messages are parked or put back at once, so that the server is never kept from others for long.
PORTION = 250

_SEPARATOR = b"\0"

#: Changes or deletes a field of a hash if it holds what is expected.
_NOTE_IF = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
return 1
"""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as a scan of a queue finds it; ``moment_us`` is when it is due, or when its lease ends or it died."""

    id: str
    queue: str
    place: Place
    moment_us: int
    body: bytes


class Queues:
    """The queues under one prefix on one broker's server; ``levels`` is the number of its priority levels."""

    def __init__(self, server: Server, *, prefix: str = DEFAULT_PREFIX, levels: int = 1) -> None:
        self.server = server
        self.prefix = prefix
        self.levels = levels
        self._pauses = pauses_key(prefix)

    @property
    def _client(self) -> Any:
        return self.server.client

    def names(self) -> list[str]:
        """Return the names of the queues that were declared, in order; those of replies are left out."""
        bindings = TimelineKeys(exchange_timeline(""), prefix=self.prefix).bindings
        with self.server.translated("listing queues"):
            rows = self._client.zrange(bindings, 0, -1)
        names = {row.split(_SEPARATOR)[-1].decode() for row in rows}
        return sorted(name for name in names if name and not name.endswith(".pidbox"))

    def knows(self, queue: str) -> bool:
        """Return whether a queue was declared, or anything stands in it."""
        if queue in self.names():
            return True
        with self.server.translated("looking for a queue"):
            return bool(self._client.exists(*self.timeline(queue).keys.all()))

    def timeline(self, queue: str) -> Timeline:
        """Return the timeline of a queue."""
        return Timeline(self.server, queue_timeline(queue), prefix=self.prefix, levels=self.levels)

    def locate(self, id_: str) -> list[tuple[str, Located]]:
        """Return where a task's messages stand: (queue, place) of each.

        The id of one may have a suffix (see :func:`~celery_zsched.types.names_of`).
        """
        found = []
        for queue in self.names():
            for located in self.timeline(queue).locate(names_of(id_)).values():
                found.append((queue, located))
        return found

    def standing(self, ids: Iterable[str]) -> set[str]:
        """Return which tasks have a message in some queue that is to be delivered, or is with a worker; no dead one."""
        found: set[str] = set()
        left = {id_: [id_] for id_ in ids}
        for names in (left, {id_: names_of(id_)[1:] for id_ in left}):
            found |= self._standing({id_: names[id_] for id_ in left if id_ not in found})
        return found

    def _standing(self, names: dict[str, list[str]]) -> set[str]:
        """Return the keys of those whose messages stand somewhere under one of their names."""
        pairs = [(id_, name) for id_, each in names.items() for name in each]
        if not pairs:
            return set()
        with self.server.translated("looking for messages"):
            pipeline = self._client.pipeline(transaction=False)
            queues = self.names()
            for queue in queues:
                keys = self.timeline(queue).keys
                for _, name in pairs:
                    pipeline.hexists(keys.bodies, name)
                    pipeline.zscore(keys.dead, name)
            answers = iter(pipeline.execute())
        found: set[str] = set()
        for _ in queues:
            for id_, _ in pairs:
                is_there, died_at = next(answers), next(answers)
                if is_there and died_at is None:
                    found.add(id_)
        return found

    # -- Pauses on record

    def pauses(self) -> dict[str, OperatorState]:
        """Return what is paused: ``task:…``, ``queue:…`` and ``id:…``, with by whom and why.

        The pause of a queue whose time is over by the server's clock is none any more, whoever takes it off the record.
        Those of tasks and messages hold until what they have parked is put back.
        """
        found = self.pauses_on_record()
        for target, state in list(found.items()):
            kind, _, name = target.partition(":")
            if kind == "queue" and state.until_us is not None and state.until_us <= self.timeline(name).look([])[0]:
                del found[target]
        return found

    def pauses_on_record(self) -> dict[str, OperatorState]:
        """Return the pauses that are on record, those of queues too whose time is over."""
        with self.server.translated("reading what is paused"):
            rows = self._client.hgetall(self._pauses)
        found = {}
        for target, text in rows.items():
            try:
                found[target.decode()] = OperatorState.from_json(text)
            except EntryError:
                found[target.decode()] = OperatorState(paused=True)  # a later release's; it is paused all the same
        return found

    def note(self, target: str, state: OperatorState | None) -> bool:
        """Put a pause on record, or take it off; return whether it was not, or was, on record before."""
        with self.server.translated("recording what is paused"):
            if state is None:
                return bool(self._client.hdel(self._pauses, target))
            return bool(self._client.hset(self._pauses, target, state.to_json()))

    def note_if(self, target: str, known: OperatorState, state: OperatorState | None) -> bool:
        """Put another record in a pause's place, or take it off, unless others did so; return whether it was done."""
        after = b"" if state is None else state.to_json()
        with self.server.translated("recording what is paused"):
            client = self._client
            return bool(client.execute_command("EVAL", _NOTE_IF, 1, self._pauses, target, known.to_json(), after))

    def enforce(self, queues: Iterable[str] | None = None) -> None:
        """Bring what is on record into the rules of queues, all known ones if none are given.

        What is changed meanwhile is brought there as well, whoever of those who do so at once is the last to write.
        """
        names = self.names() if queues is None else list(queues)
        pauses, brought = self.pauses(), None
        while pauses != brought:
            self._bring(names, pauses)
            pauses, brought = self.pauses(), pauses

    def _bring(self, names: list[str], pauses: dict[str, OperatorState]) -> None:
        """Write pauses into the rules of queues."""
        pauses = {target: state for target, state in pauses.items() if not state.resuming}
        tasks = sorted(target.removeprefix("task:") for target in pauses if target.startswith("task:"))
        text = "".join(f"\n{task}\n" for task in tasks)
        with self.server.translated("pausing"):
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                rules = self.timeline(name).keys.rules
                if tasks:
                    pipeline.hset(rules, PAUSED_TASKS, text)
                else:
                    pipeline.hdel(rules, PAUSED_TASKS)
                state = pauses.get(f"queue:{name}")
                if state is not None:
                    pipeline.hset(rules, PAUSED, state.until_us or 1)
                else:
                    pipeline.hdel(rules, PAUSED)
            pipeline.execute()

    # -- Parking and putting back

    def park_task(self, queue: str, task: str, progress: Progress | None = None, *, until: float | None = None) -> int:
        """Park what waits in a queue for a task, due or not; return how many messages.

        Claims park what they come across, so this may end early: at ``until`` on the monotonic clock, in seconds.
        """
        timeline, count = self.timeline(queue), 0
        for level in range(self.levels):
            at = 0
            while until is None or time.monotonic() < until:
                looked, parked = timeline.run("sift", [task, level, at, PORTION])
                count += parked
                at += looked - parked
                if progress is not None and parked:
                    progress(parked)
                if not looked:
                    break
        return count

    def stand_still(self, token: str, queues: Iterable[str] | None = None) -> list[str]:
        """Let queues in which something is parked stand still, all known ones if none are given; return their names.

        They do for :data:`STILL_US`, or until :meth:`go_on` is called with this ``token``: so nothing overtakes what is
        put back, and whoever dies holds nobody up for long. A pause of the queue is another matter.
        """
        names = self.names() if queues is None else list(queues)
        with self.server.translated("looking for what is parked"):
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                pipeline.zcard(self.timeline(name).keys.parked)
            counts = pipeline.execute()
        found = [name for name, count in zip(names, counts, strict=True) if count]
        for name in found:
            self.timeline(name).run("still", [token, STILL_US])
        return found

    def go_on(self, token: str, queue: str) -> None:
        """End the standing still of a queue for one who put back, and wake somebody who waits."""
        self.timeline(queue).run("still", [token, 0])

    def free_task(self, queue: str, task: str, token: str, progress: Progress | None = None) -> int:
        """Put back what is parked in a queue for a task, each to its place in the order; return how many messages.

        The queue goes on standing still (:meth:`stand_still`) for as long as that takes.
        """
        timeline = self.timeline(queue)
        count: int = 0
        at: int = 0
        renew_at = 0.0
        while True:
            if time.monotonic() >= renew_at:
                timeline.run("still", [token, STILL_US])
                renew_at = time.monotonic() + STILL_US / SECOND_US / 6
            looked, freed = timeline.run("free", [f"task:{task}", at, PORTION])
            count += freed
            at += looked - freed
            if progress is not None and freed:
                progress(freed)
            if not looked:
                return count

    def ring(self, queue: str) -> None:
        """Wake somebody who waits for a queue."""
        bell = self.timeline(queue).keys.bell
        with self.server.translated("resuming"):
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zadd(bell, {"ring": 0})
            pipeline.pexpire(bell, 60_000)
            pipeline.execute()

    def parked_for(self, queue: str, limit: int) -> Counter[str]:
        """Return for what messages of a queue are parked (``task:…``, ``id:…``), as far as the first ``limit`` tell."""
        keys = self.timeline(queue).keys
        with self.server.translated("looking for what is parked"):
            ids = self._client.zrange(keys.parked, 0, limit - 1)
            reasons = self._client.hmget(keys.reasons, ids) if ids else []
        return Counter(reason.decode() for reason in reasons if reason)

    def claimed(self, names: Sequence[str]) -> list[int]:
        """Return how many messages of each queue have been handed to consumers since it was declared."""
        with self.server.translated("reading counters"):
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                pipeline.hget(self.timeline(name).keys.rules, "claimed")
            return [int(count or 0) for count in pipeline.execute()]

    def marks(self, schedule: str, entries: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """Return the high-water marks of a schedule's entries in all queues, as (epoch, nominal); see ``lua/put.lua``.

        ``schedule`` is the schedule's key prefix. An entry that no queue has a mark of is left out.
        """
        fields = [mark_field(schedule, name) for name in entries]
        found: dict[str, list[tuple[int, int]]] = {}
        with self.server.translated("reading what was sent"):
            pipeline = self._client.pipeline(transaction=False)
            for queue in self.names():
                pipeline.hmget(self.timeline(queue).keys.marks, fields)
            for marks in pipeline.execute():
                for name, mark in zip(entries, marks, strict=True):
                    if mark is not None:
                        epoch, nominal = mark.split()
                        found.setdefault(name, []).append((int(epoch), int(nominal)))
        return found

    # -- Looking through

    def scan(self, queue: str) -> Iterator[Seen]:
        """Yield what waits, is parked or is leased in a queue, the waiting first and in order, a page at a time."""
        timeline = self.timeline(queue)
        last: Upcoming | None = None
        while True:
            page = timeline.upcoming(MAX_BATCH, last)
            for one in page:
                yield Seen(one.id, queue, Place.WAITING, one.due_us, one.body)
            if len(page) < MAX_BATCH:
                break
            last = page[-1]
        yield from self.members(queue, Place.PARKED)
        yield from self.members(queue, Place.LEASED)

    def members(self, queue: str, place: Place, *, limit: int | None = None) -> Iterator[Seen]:
        """Yield what is leased, parked or dead in a queue, by its moment; at most ``limit``."""
        timeline = self.timeline(queue)
        keys = timeline.keys
        key = {Place.LEASED: keys.leases, Place.PARKED: keys.parked, Place.DEAD: keys.dead}[place]
        at = 0
        while limit is None or at < limit:
            size = MAX_BATCH if limit is None else min(MAX_BATCH, limit - at)
            with self.server.translated(f"listing the {place.value}"):
                rows = self._client.zrange(key, at, at + size - 1, withscores=True)
                contents = self._client.hmget(keys.bodies, [id_ for id_, _ in rows]) if rows else []
            for (id_, score), body in zip(rows, contents, strict=True):
                yield Seen(id_.decode(), queue, place, int(score), body or b"")
            at += len(rows)
            if len(rows) < size:
                break
