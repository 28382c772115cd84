"""A model of one timeline in plain Python: what every operation must answer, and what must be stored after it.

The server's clock is not the model's. An operation that depends on it leaves a :class:`tests.lua.tables.Now` behind,
which is settled from what is stored, if that fits the time of the call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from celery_zsched.timeline import CANCELLED
from celery_zsched.types import (
    Batch,
    Cancel,
    Claimed,
    Hold,
    Item,
    Located,
    Outcome,
    Place,
    Placed,
    Put,
    Upcoming,
    names_of,
)
from tests.lua.tables import Now, State

#: A moment, or what the server's clock makes of it.
Moment = int | Now

_KEYS = {Place.LEASED: "leases", Place.PARKED: "parked", Place.DEAD: "dead"}


@dataclass
class Entry:
    """All that is known of one id. ``token`` is that of its current or last claim; None if it never had one."""

    place: Place
    level: int
    moment: Moment
    due: Moment
    body: bytes
    count: int = 0
    token: int | None = None
    holder: str = ""
    reason: str = ""
    note: bytes = b""

    @property
    def has_record(self) -> bool:
        """Whether a field of the claims is kept for it."""
        if self.place in (Place.LEASED, Place.DEAD):
            return True
        return self.count > 0 or (self.place is Place.PARKED and self.level > 0)

    @property
    def record(self) -> str:
        """The field of the claims."""
        token = "" if self.token is None else str(self.token)
        held = token if self.place is Place.LEASED else f"-{token}"
        return f"{held} {self.count} {self.level} {self.due} {self.holder}"

    def wait(self, moment: Moment) -> None:
        """Stand on the timeline from now on."""
        self.place, self.moment, self.reason = Place.WAITING, moment, ""
        if not self.has_record:
            self.due, self.token, self.holder = moment, None, ""

    def forget(self) -> None:
        """Have no deliveries."""
        self.count, self.token, self.holder = 0, None, ""


@dataclass
class Model:
    """The timeline."""

    entries: dict[str, Entry] = field(default_factory=dict)
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)

    # -- Placing

    def put(self, items: Sequence[Item], placed: Sequence[Placed]) -> list[Placed]:
        """Return what becomes of items; the aliases are taken from the answer."""
        return [self._put(item, at, placed[at]) for at, item in enumerate(items)]

    def _put(self, item: Item, position: int, answer: Placed) -> Placed:
        old, id_ = self.entries.get(item.id), item.id
        if item.expect is not None:
            stored = hashlib.sha1(old.body).hexdigest() if old else ""
            if stored != item.expect:
                return Placed(Outcome.CHANGED, id_)
        if item.mark:
            held = self.marks.get(item.mark.field)
            if held is not None and item.mark.epoch < held[0]:
                return Placed(Outcome.OUTDATED, id_)
            if held is not None and (item.mark.epoch, item.mark.nominal_us) <= held:
                return Placed(Outcome.REFUSED, id_)
        moment: Moment = Now(position)
        if item.due_us is not None:
            moment = item.due_us
        elif item.delay_us:
            moment = Now(item.delay_us)
        outcome = Outcome.PUT
        if old is not None and item.mode is Put.NEW:
            return Placed(Outcome.EXISTS, id_)
        same = [name for name in names_of(id_) if name in self.entries and self.entries[name].body == item.body]
        if item.mode is Put.AGAIN and same:
            return Placed(Outcome.EXISTS, same[0])
        elif old is not None and item.mode in (Put.ALIAS, Put.AGAIN):
            id_ = answer.id
            assert id_.startswith(f"{item.id}~")
            assert id_ not in self.entries
            self.entries[id_] = Entry(Place.WAITING, item.level, moment, moment, item.body)
        elif old is None:
            self.entries[id_] = Entry(Place.WAITING, item.level, moment, moment, item.body)
        elif item.mode is Put.REBODY and old.place is not Place.DEAD:
            old.body, outcome = item.body, Outcome.REBODIED
        else:
            outcome = Outcome.REPLACED
            place = Place.PARKED if old.place is Place.PARKED else Place.WAITING
            reason = old.reason if place is Place.PARKED else ""
            self.entries[id_] = Entry(place, item.level, moment, moment, item.body, reason=reason, note=old.note)
        if item.mark:
            self.marks[item.mark.field] = (item.mark.epoch, item.mark.nominal_us)
        return Placed(outcome, id_)

    def claim(
        self, now: int, limit: int, lease: int, holder: str, *, settle: Iterable[Hold], delivery_limit: int
    ) -> Batch:
        """Return what a claim gives; its wake-up is not the model's business."""
        stale = self.settle(settle)
        ended = self._in_order(Place.LEASED, now)[:limit]
        taken: list[str] = []
        buried: list[str] = []
        for id_ in ended:
            entry = self.entries[id_]
            if entry.holder.startswith(CANCELLED):
                del self.entries[id_]
            elif delivery_limit and entry.count >= delivery_limit:
                entry.place, entry.moment = Place.DEAD, now
                entry.reason = f"delivered {entry.count} times without an end"
                buried.append(id_)
            else:
                taken.append(id_)
        taken += self._in_order(Place.WAITING, now)[: limit - len(taken)]
        items = [self._take(id_, now, lease, holder) for id_ in taken]
        left: list[int] = [0]
        if limit and len(taken) == limit:
            over = len(self._in_order(Place.LEASED, now))
            waiting = [self.entries[id_].level for id_ in self._in_order(Place.WAITING, now)]
            left = [over] if over else [waiting.count(level) for level in sorted(set(waiting))] or left
        return Batch(now, None, items, [], buried, stale, left[0])

    def _in_order(self, place: Place, now: int) -> list[str]:
        """Return the ids that are free in a place, as they are to be taken."""
        free = [(e.level if place is Place.WAITING else 0, e.moment, id_.encode(), id_)
                for id_, e in self.entries.items()
                if e.place is place and isinstance(e.moment, int) and e.moment <= now]  # fmt: skip
        return [row[3] for row in sorted(free)]

    def _take(self, id_: str, now: int, lease: int, holder: str) -> Claimed:
        entry = self.entries[id_]
        entry.token = now if entry.token is None else max(now, entry.token + 1)
        entry.count += 1
        entry.holder = holder
        entry.place, entry.moment = Place.LEASED, now + lease
        if lease == 0:
            del self.entries[id_]
        assert isinstance(entry.due, int)
        return Claimed(id_, entry.body, str(entry.token), entry.count, entry.due)

    # -- Holding

    def holds(self, hold: Hold) -> bool:
        """Whether a token is current."""
        entry = self.entries.get(hold.id)
        return entry is not None and entry.place is Place.LEASED and str(entry.token) == hold.token

    def settle(self, holds: Iterable[Hold]) -> list[str]:
        """Remove what is done; return the stale ids."""
        every = list(holds)
        current = [hold for hold in every if self.holds(hold)]
        for hold in current:
            self.entries.pop(hold.id, None)
        return [hold.id for hold in every if hold not in current]

    def extend(self, holds: Iterable[Hold], lease: int) -> list[str]:
        """Renew leases; return the stale ids."""
        stale = []
        for hold in holds:
            if self.holds(hold):
                self.entries[hold.id].moment = Now(lease)
            else:
                stale.append(hold.id)
        return stale

    def release(self, holds: Iterable[Hold], *, counted: bool, delay_us: int | None) -> list[str]:
        """Give back; return the stale ids."""
        stale = []
        for hold in holds:
            entry = self.entries.get(hold.id)
            if entry is None or not self.holds(hold):
                stale.append(hold.id)
                continue
            if entry.holder.startswith(CANCELLED):
                del self.entries[hold.id]
                continue
            if not counted and delay_us is None:
                entry.count -= 1
            entry.wait(entry.due if delay_us is None else Now(delay_us))
        return stale

    def reschedule(self, moves: Iterable[tuple[Hold, int, bytes]]) -> list[str]:
        """Move on; return the stale ids."""
        stale = []
        for hold, due_us, note in moves:
            if not self.holds(hold):
                stale.append(hold.id)
                continue
            entry = self.entries[hold.id]
            entry.forget()
            entry.wait(due_us)
            entry.note = note or entry.note
        return stale

    # -- Setting aside

    def _place(self, id_: str) -> Place | None:
        return self.entries[id_].place if id_ in self.entries else None

    def park(self, ids: Iterable[str], reason: str, *, force: bool) -> list[Place | None]:
        """Park; return where each was found."""
        found = []
        for id_ in ids:
            place = self._place(id_)
            found.append(place)
            if place is Place.WAITING or (place is Place.LEASED and force):
                entry = self.entries[id_]
                if place is Place.LEASED:
                    entry.moment = entry.due
                entry.place = Place.PARKED
            if self._place(id_) is Place.PARKED:
                self.entries[id_].reason = reason
        return found

    def restore(self, place: Place, ids: Iterable[str], due_us: int | None) -> list[Place | None]:
        """Put back what is parked or dead; return where each was found."""
        found = []
        for id_ in ids:
            found.append(self._place(id_))
            if found[-1] is not place:
                continue
            entry = self.entries[id_]
            if place is Place.DEAD:
                entry.moment = entry.due
                entry.forget()
            if due_us is not None:
                entry.due = due_us
            entry.wait(entry.moment if due_us is None else due_us)
        return found

    def bury(self, graves: Iterable[tuple[str, str, str, bytes]]) -> list[str]:
        """Bury; return what was not."""
        left = []
        for id_, token, reason, note in graves:
            entry = self.entries.get(id_)
            if entry is None or (token and not self.holds(Hold(id_, token))):
                left.append(id_)
                continue
            entry.place, entry.moment, entry.reason, entry.note = Place.DEAD, Now(), reason, note or entry.note
        return left

    def remove(self, ids: Iterable[str], *, spare_leased: bool) -> list[Place | None]:
        """Delete; return where each was found."""
        found = []
        for id_ in ids:
            found.append(self._place(id_))
            if not (spare_leased and found[-1] is Place.LEASED):
                self.entries.pop(id_, None)
        return found

    def cancel(self, ids: Iterable[str], answers: Sequence[Cancel], window: tuple[int, int]) -> list[Cancel]:
        """Cancel; return what becomes of each. Of a lease that ends during the call, the answer tells."""
        found = []
        for id_, answer in zip(ids, answers, strict=True):
            entry = self.entries.get(id_)
            if entry is None:
                found.append(Cancel.UNKNOWN)
            elif entry.place is Place.LEASED and int(entry.moment) > window[0 if answer is Cancel.HELD else 1]:
                entry.holder = CANCELLED + entry.holder.removeprefix(CANCELLED)
                found.append(Cancel.HELD)
            else:
                del self.entries[id_]
                found.append(Cancel.REMOVED)
        return found

    def purge(self) -> int:
        """Delete what waits; return how many."""
        waiting = [id_ for id_, entry in self.entries.items() if entry.place is Place.WAITING]
        for id_ in waiting:
            del self.entries[id_]
        return len(waiting)

    # -- Looking

    def upcoming(self) -> list[Upcoming]:
        """Return all that waits, soonest first."""
        rows = [(entry.moment, id_.encode(), id_, entry) for id_, entry in self.entries.items()
                if entry.place is Place.WAITING]  # fmt: skip
        return [
            Upcoming(id_, int(moment), entry.level, entry.body) for moment, _, id_, entry in sorted(rows, key=_first)
        ]

    def located(self, id_: str) -> Located | None:
        """Return what is known of an id."""
        entry = self.entries.get(id_)
        if entry is None:
            return None
        level = entry.level
        claimed = entry.token if entry.place is Place.LEASED else None
        count, holder = (entry.count, entry.holder) if entry.has_record else (0, "")
        moment, due, reason = int(entry.moment), int(entry.due), entry.reason
        if entry.place is Place.LEASED and holder.startswith(CANCELLED):
            reason = "cancelled"
        holder = holder.removeprefix(CANCELLED)
        return Located(id_, entry.place, level, moment, count, holder, claimed, due, reason, entry.note, entry.body)

    def state(self, actual: State, window: tuple[int, int]) -> State:
        """Settle what the clock decided, if it fits, and return all that must be stored."""
        expected: State = {}
        for id_, entry in self.entries.items():
            key = _KEYS.get(entry.place) or ("timeline" + (f":{entry.level}" if entry.level else ""))
            if isinstance(entry.moment, Now):
                stored = actual.get(key, {}).get(id_)
                assert stored is not None, f"{id_!r} is not in {key}"
                assert window[0] <= stored - entry.moment.plus <= window[1], f"{id_!r} stands at {stored} in {key}"
                if isinstance(entry.due, Now):
                    entry.due = stored
                entry.moment = stored
            rows = {
                key: entry.moment,
                "bodies": entry.body.decode(),
                "reasons": entry.reason,
                "notes": entry.note.decode(),
            }
            rows["claims"] = entry.record if entry.has_record else ""
            for name, value in rows.items():
                if value != "" or name == "bodies":
                    expected.setdefault(name, {})[id_] = value
        if self.marks:
            expected["marks"] = {name: f"{epoch} {nominal}" for name, (epoch, nominal) in self.marks.items()}
        return expected


def _first(row: tuple[Moment, bytes, str, Entry]) -> tuple[int, bytes]:
    return int(row[0]), row[1]  # type: ignore[call-overload]
