"""The primitive: a sorted-set timeline on which everything waits, and leases by which everything in work is held.

Each method is one Lua script, so that an id stands in exactly one place whatever dies in between. The server's clock
decides everything. Claims are owned by (id, token): who no longer has the current token changes nothing and is told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from celery_zsched import scripts
from celery_zsched.keys import DEFAULT_PREFIX, TimelineKeys
from celery_zsched.types import (
    SECOND_US,
    Batch,
    Cancel,
    Claimed,
    Counts,
    Hold,
    Item,
    Located,
    Outcome,
    Overdue,
    Place,
    Placed,
    Upcoming,
)
from celery_zsched.wires import Call

if TYPE_CHECKING:
    from celery_zsched.connection import Server

#: The most ids one script handles; larger calls are split, so that none keeps the server from others for long.
MAX_BATCH = 500

#: The longest a claimer blocks without looking again, in seconds: what a lost ring costs at most. The scripts ring for
#: nothing later than this (``lua/include/ring.lua``), so it may be lowered but not raised.
MAX_BLOCK_S = 30.0

#: How much later than the first a second idle claimer wakes for the same moment, should the first have died.
BACKUP_US = 500_000

#: What claims of this module say about bodies: they are opaque, so nothing in them can expire.
OPAQUE = ""

#: What stands before the holder in the record of a claim that is to be the last one (``lua/include/record.lua``).
CANCELLED = "!cancelled "

#: How many ids are looked at at most, of those in one place, for the one that is overdue by most.
MOST_OVERDUE = 10_000

#: How many dead ids a timeline keeps; the oldest go first.
KEEP_DEAD = 10_000


class Timeline:
    """One timeline on one server.

    ``levels`` is the number of priority levels, level 0 first. ``holder`` names this process to others ("leased by
    whom"); ``claimer`` tells claimers of one timeline apart and must be unique among them. Errors are
    :class:`~celery_zsched.errors.ServerError` and its kinds.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        levels: int = 1,
        holder: str = "",
        claimer: str = "",
    ) -> None:
        self.server = server
        self.name = name
        self.holder = holder
        self.claimer = claimer
        self.keys = TimelineKeys(name, prefix=prefix, levels=levels)
        self.own_bell = self.keys.own(claimer)
        self._calls: dict[str, Call] = {}

    def run(self, name: str, args: Sequence[scripts.Argument]) -> Any:
        """Call the script ``name`` on this timeline's keys."""
        call = self.call(name)
        return scripts.call(self.server, call.script, call.keys, args)

    def call(self, name: str) -> Call:
        """Return the script ``name`` on this timeline's keys, for who sends it by wires of his own."""
        call = self._calls.get(name)
        if call is None:
            script = scripts.load(name)
            call = self._calls[name] = Call(script, script.key_names(self.keys, self.own_bell))
        return call

    def calls(
        self, name: str, head: list[scripts.Argument], rows: Sequence[tuple[scripts.Argument, ...]]
    ) -> list[tuple[Call, list[scripts.Argument]]]:
        """Return the script ``name`` with the arguments for some rows, as often as it takes to serve them all."""
        return [(self.call(name), head + [field for row in chunk for field in row]) for chunk in _chunks(rows)]

    # -- Placing

    def put(self, items: Iterable[Item], *, not_after_us: int | None = None) -> list[Placed]:
        """Place items, up to :data:`MAX_BATCH` in one step, and return what became of each, in order.

        Past ``not_after_us`` on the server's clock nothing is put: a caller that gave up by then can be sure of it.
        Raises ValueError, with nothing put, for a level that this timeline does not have.
        """
        placed: list[Placed] = []
        every = list(items)
        levels = len(self.keys.timelines)
        for item in every:
            if not 0 <= item.level < levels:
                raise ValueError(f"{item.id!r} has level {item.level}; timeline {self.name!r} has 0 to {levels - 1}")
        for chunk in _chunks(every):
            args: list[scripts.Argument] = [not_after_us or 0]
            for item in chunk:
                args += put_arguments(item)
            placed += parse_placed(self.run("put", args))
        return placed

    def claim(
        self,
        limit: int,
        lease_us: int,
        *,
        settle: Iterable[Hold] = (),
        delivery_limit: int = 0,
        armed: bool = False,
        linger: bool = False,
    ) -> Batch:
        """Take up to ``limit`` ids that are free, under a lease of ``lease_us`` microseconds.

        A lease of 0 removes what is taken at once, for consumers that never settle. ``settle`` ends earlier claims in
        the same step. ``delivery_limit`` buries what was delivered that often and came back (0: no limit). ``armed``
        ends the caller's own blocking pop if something was taken; ``linger`` says that the caller claims again at once,
        so that nobody else need be woken to watch.
        """
        args = claim_arguments(
            limit, lease_us, self.holder, self.claimer, delivery_limit=delivery_limit, armed=armed, linger=linger
        )
        done = list(settle)
        stale = self.settle(done[MAX_BATCH:])
        batch = parse_batch(self.run("claim", args + _pairs(done[:MAX_BATCH])))
        batch.stale.extend(stale)
        return batch

    def leave(self) -> None:
        """End as a claimer: another that is idle is woken, and watches in its place.

        It is woken in any case, since this one may have taken a ring along, or have let nobody watch while it worked.
        """
        self.run("leave", [self.claimer, 1])

    # -- Holding

    def extend(self, holds: Iterable[Hold], lease_us: int) -> list[str]:
        """Renew leases; return the ids that are no longer ours."""
        return self._by_chunks("extend", [lease_us], [(hold.id, hold.token) for hold in holds])

    def settle(self, holds: Iterable[Hold]) -> list[str]:
        """Remove what is done; return the ids that are no longer ours, for which nothing was changed."""
        return self._by_chunks("settle", [], [(hold.id, hold.token) for hold in holds])

    def release(self, holds: Iterable[Hold], *, counted: bool = False, delay_us: int | None = None) -> list[str]:
        """Give ids back to their own place and level; return those that are no longer ours.

        Uncounted, it is as if they had never been delivered. With ``delay_us`` the delivery counts and the id can be
        claimed again that much later; the moment it is due for stays what it was.
        """
        how = f"+{delay_us}" if delay_us is not None else "counted" if counted else "uncounted"
        return self._by_chunks("release", [], [(hold.id, hold.token, how) for hold in holds])

    def reschedule(self, moves: Iterable[tuple[Hold, int, bytes]], *, linger: bool = False) -> list[str]:
        """Move claimed ids to their next due moment; return those that are no longer ours.

        A move is (hold, due in microseconds, note of what happened; an empty note leaves the old one).
        """
        rows = [(hold.id, hold.token, due_us, note) for hold, due_us, note in moves]
        return self._by_chunks("reschedule", [int(linger)], rows)

    # -- Setting aside

    def park(self, ids: Iterable[str], reason: str, *, force: bool = False) -> list[Place | None]:
        """Take waiting ids off the timeline until they are restored; return where each was found (None: unknown).

        A leased id is parked only by ``force``, which voids its holder's token.
        """
        return [_place(found) for found in self._each("park", [reason, int(force)], [(id_,) for id_ in ids])]

    def unpark(self, ids: Iterable[str], due_us: int | None = None) -> list[Place | None]:
        """Put parked ids back at ``due_us``, or where they were; return where each was found."""
        return self._restore(Place.PARKED, ids, due_us)

    def revive(self, ids: Iterable[str], due_us: int | None = None) -> list[Place | None]:
        """Put dead ids back, their deliveries forgotten; return where each was found."""
        return self._restore(Place.DEAD, ids, due_us)

    def bury(self, items: Iterable[tuple[str, str, str, bytes]], *, keep: int = KEEP_DEAD) -> list[str]:
        """Set ids aside as dead; return those that were not: unknown, or no longer the token's.

        An item is (id, token or "" for whoever has it, reason, note of what happened); an empty note keeps the old one.
        """
        return self._by_chunks("bury", [keep], list(items))

    def remove(self, ids: Iterable[str], *, spare_leased: bool = False) -> list[Place | None]:
        """Delete ids wherever they stand; return where each was found. Leased ones stay if they are to be spared."""
        return [_place(found) for found in self._each("remove", [int(spare_leased)], [(id_,) for id_ in ids])]

    def cancel(self, ids: Iterable[str]) -> list[Cancel]:
        """Delete ids wherever they stand; return what became of each.

        What is under a lease that goes on is deleted when that ends without a settle, or when it is given back.
        """
        return [Cancel(word.decode()) for word in self._each("cancel", [], [(id_,) for id_ in ids])]

    def purge(self) -> int:
        """Delete everything that waits, due or not; return how many. What is leased, parked or dead stays."""
        deleted = 0
        while count := int(self.run("purge", [MAX_BATCH])):
            deleted += count
            if count < MAX_BATCH:
                break
        return deleted

    # -- Looking

    def locate(self, ids: Iterable[str]) -> dict[str, Located]:
        """Return where the known ones of ``ids`` stand."""
        return self.look(ids)[1]

    def look(self, ids: Iterable[str]) -> tuple[int, dict[str, Located]]:
        """Return the server's now, in microseconds, and where the known ones of ``ids`` stand."""
        now_us, located = 0, dict[str, Located]()
        for chunk in _chunks(list(ids)):
            answer = self.run("locate", chunk)
            now_us = int(answer[0])
            for at, id_ in enumerate(chunk):
                found = _located(id_, *answer[1 + at * 7 : 8 + at * 7])
                if found is not None:
                    located[id_] = found
        return now_us or int(self.run("locate", [])[0]), located

    def counts(self) -> Counts:
        """Return how many ids stand where."""
        now, ready, delayed, leased, parked, dead, oldest, ended = self.run("counts", [])
        return Counts(int(now), ready, delayed, leased, parked, dead, int(float(oldest)) if oldest else None, ended)

    def overdue(self, ahead_us: int) -> Overdue | None:
        """Return the id that stands for the earliest moment of those that have passed, waiting or leased; None if none.

        A lease is no excuse, be it live or ended; nor is being tried again, up to ``ahead_us`` microseconds from now.
        """
        found: list[Overdue] = []
        for level in range(-1, len(self.keys.timelines)):
            for at in range(0, MOST_OVERDUE, MAX_BATCH):
                seen, *told = self.run("overdue", [level, at, MAX_BATCH, ahead_us])
                if told:
                    now, id_, due, holder = (part.decode() for part in told)
                    holder = holder.removeprefix(CANCELLED)
                    found.append(Overdue(id_, int(due), int(now), holder, leased=level < 0))
                if seen < MAX_BATCH:
                    break
        return min(found, key=lambda one: one.due_us, default=None)

    def upcoming(self, limit: int = 100, after: Upcoming | None = None) -> list[Upcoming]:
        """Return one page of what waits, soonest first; ``after`` is the last item of the page before."""
        cursor: list[scripts.Argument] = [after.due_us, after.id] if after else ["-inf", ""]
        answer = self.run("upcoming", [min(limit, MAX_BATCH), *cursor])
        return [
            Upcoming(id_.decode(), int(float(due)), int(level), body)
            for id_, due, level, body in zip(*[iter(answer)] * 4, strict=True)
        ]

    # -- Inside

    def _restore(self, place: Place, ids: Iterable[str], due_us: int | None) -> list[Place | None]:
        due = "" if due_us is None else str(due_us)
        return [_place(found) for found in self._each("restore", [place.value], [(id_, due) for id_ in ids])]

    def _each(
        self, name: str, head: list[scripts.Argument], rows: Sequence[tuple[scripts.Argument, ...]]
    ) -> list[bytes]:
        found: list[bytes] = []
        for call, args in self.calls(name, head, rows):
            found += scripts.call(self.server, call.script, call.keys, args)
        return found

    def _by_chunks(
        self, name: str, head: list[scripts.Argument], rows: Sequence[tuple[scripts.Argument, ...]]
    ) -> list[str]:
        return [id_.decode() for id_ in self._each(name, head, rows)]


def put_arguments(item: Item) -> list[scripts.Argument]:
    """Return the ARGV of one item of ``lua/put.lua``."""
    due = f"+{item.delay_us}" if item.delay_us else ""
    if item.due_us is not None:
        due = str(item.due_us)
    expect = "" if item.expect is None else item.expect or "-"
    field, mark = ("", "") if item.mark is None else (item.mark.field, f"{item.mark.epoch} {item.mark.nominal_us}")
    return [item.id, item.body, due, item.level, item.mode.value, expect, field, mark]


def parse_placed(answer: Sequence[bytes]) -> list[Placed]:
    """Return the answer of ``lua/put.lua`` as values."""
    pairs = zip(*[iter(answer)] * 2, strict=True)
    return [Placed(Outcome(outcome.decode()), id_.decode()) for outcome, id_ in pairs]


def claim_arguments(
    limit: int,
    lease_us: int,
    holder: str,
    claimer: str,
    *,
    delivery_limit: int = 0,
    armed: bool = False,
    linger: bool = False,
) -> list[scripts.Argument]:
    """Return the ARGV of ``lua/claim.lua`` up to the pairs it settles first."""
    switches: list[scripts.Argument] = [delivery_limit, int(armed), int(linger), BACKUP_US, KEEP_DEAD, OPAQUE]
    return [min(limit, MAX_BATCH), lease_us, holder, claimer, *switches]


def parse_batch(answer: Sequence[Any]) -> Batch:
    """Return the answer of ``lua/claim.lua`` as values."""
    now, wake, troubles = answer[:3]
    words: dict[bytes, list[str]] = {b"lost": [], b"buried": [], b"stale": [], b"left": []}
    for word, id_ in zip(*[iter(troubles)] * 2, strict=True):
        words.setdefault(word, []).append(id_.decode())
    items = [
        Claimed(answer[at].decode(), answer[at + 1], answer[at + 2].decode(), answer[at + 3], int(answer[at + 4]))
        for at in range(3, len(answer), 5)
    ]
    wake_us = int(wake)
    left = int(words[b"left"][0]) if words[b"left"] else 0
    return Batch(int(now), wake_us or None, items, words[b"lost"], words[b"buried"], words[b"stale"], left)


def seconds(us: int) -> float:
    """Return microseconds as seconds."""
    return us / SECOND_US


def _pairs(holds: Iterable[Hold]) -> list[scripts.Argument]:
    return [field for hold in holds for field in (hold.id, hold.token)]


def _chunks(rows: Sequence[Any]) -> Iterable[Any]:
    for start in range(0, len(rows), MAX_BATCH):
        yield rows[start : start + MAX_BATCH]


def _place(found: bytes) -> Place | None:
    return None if found == b"unknown" else Place(found.decode())


def _located(
    id_: str, place: bytes, level: int, score: bytes, record: bytes, reason: bytes, note: bytes, body: bytes
) -> Located | None:
    if not place:
        return None
    moment_us = int(float(score))
    where = Place(place.decode())
    token, count, held_level, due, holder = "", 0, level, moment_us, ""
    if record:
        token, count_, level_, due_, holder = record.decode().split(" ", 4)
        count, held_level = int(count_), int(level_)
        due = int(float(due_))
    said = reason.decode()
    if holder.startswith(CANCELLED):
        holder = holder.removeprefix(CANCELLED)
        said = "cancelled" if where is Place.LEASED else said
    claimed = int(token) if where is Place.LEASED and token else None
    at_level = level if where is Place.WAITING else held_level
    return Located(id_, where, at_level, moment_us, count, holder, claimed, due, said, note, body)
