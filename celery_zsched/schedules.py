"""The schedule: a timeline whose ids are entries, each waiting at its next due moment.

Three things never share a field: the entry as declared (its body), what happened last (its note), and what an operator
has decided (its reason for being parked). Writing one leaves the others as they are.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from celery_zsched import planner, scripts
from celery_zsched.connection import Server
from celery_zsched.entry import EntrySpec, LastRun, OperatorState, Past, decode, encode
from celery_zsched.errors import ConflictError, EntryError, NotFoundError, ScheduleError, ZschedError
from celery_zsched.keys import DEFAULT_PREFIX, SCHEDULE_TIMELINE, ScheduleKeys
from celery_zsched.placing import NothingToComeError, digest, is_set_aside, item_of
from celery_zsched.stored import FINISHED, Change, Due, Move, State, Stored, Turn, last_run_of, stored_of
from celery_zsched.timeline import KEEP_DEAD, MAX_BATCH, Timeline
from celery_zsched.types import SECOND_US, Hold, Item, Outcome, Place, Put
from celery_zsched.wires import Call, UnderWay, Wires

logger = logging.getLogger("celery.beat.zsched")

_T = TypeVar("_T")

#: Entries that are stored together begin their lives so far apart, in microseconds, so that many of one interval do
#: not all come at one instant ever after.
APART_US = 1000

#: What the id of a note to ourselves begins with that stands on the timeline among the entries.
NOTE = "\0"

#: Of a note to resume an entry, and of one to resume what else was paused for a time (see :meth:`Schedules.remind`).
RESUME = f"{NOTE}resume{NOTE}"
REMIND = f"{NOTE}remind{NOTE}"

#: Of a note to try an entry again that was set aside.
PROBE = f"{NOTE}probe{NOTE}"

#: How much later a note is tried again that could not be attended to, in microseconds.
NOTE_RETRY_US = 5 * SECOND_US

#: How long at most an entry waits that the broker takes no message of, in microseconds.
LONGEST_PUT_OFF_US = 30 * SECOND_US

#: How often a write is tried anew when somebody else wrote the same entry at the same moment.
ATTEMPTS = 5


class Schedules:
    """The schedule under one prefix on one server.

    ``zone`` (IANA name) is the app's, for entries that name none. ``holder`` and ``claimer`` are those of
    :class:`~celery_zsched.timeline.Timeline`. Errors are :class:`~celery_zsched.errors.ServerError` and its kinds.
    """

    def __init__(
        self,
        server: Server,
        *,
        prefix: str = DEFAULT_PREFIX,
        zone: str = "UTC",
        holder: str = "",
        claimer: str = "",
        history_limit: int = 20,
    ) -> None:
        self.server = server
        self.prefix = prefix
        self.zone = zone
        self.history_limit = history_limit
        #: Called by a claimer with what :meth:`remind` was given, when its moment has come.
        self.on_reminded: Callable[[str], None] | None = None
        #: Called by a claimer with the name of an entry that was set aside, when it is to be tried again; answers after
        #: how many microseconds it is to be called once more, or None if all is done.
        self.on_probe: Callable[[str], int | None] | None = None
        self.timeline = Timeline(server, SCHEDULE_TIMELINE, prefix=prefix, holder=holder, claimer=claimer)
        #: Called with an entry that was added at run time, and with the one of ``beat_schedule`` that replaced it.
        self.on_replaced: Callable[[EntrySpec, EntrySpec], None] | None = None
        #: Connections for what is not waited for, and for small questions beside it.
        self.wires = Wires(server, limit=2)

    # -- Declaring

    def save(self, spec: EntrySpec) -> Change:
        """Store an entry. An unchanged schedule keeps its due time, a changed one is computed anew.

        What happened last and an operator's decisions stay. Raises :class:`~celery_zsched.errors.ScheduleError` for an
        entry that has nothing to come, :class:`~celery_zsched.errors.ConflictError` when others keep writing it.
        """
        changes, faults = self.save_many([spec])
        for fault in faults.values():
            raise fault
        return changes[spec.name]

    def save_many(
        self, specs: Iterable[EntrySpec], *, fired: Mapping[str, int] | None = None
    ) -> tuple[dict[str, Change], dict[str, ZschedError]]:
        """Store entries, in few round trips however many; return what was done, and the fault of each that was not.

        ``fired`` is by name how often those were sent elsewhere that are not here yet: it counts towards their count.
        """
        left = {spec.name: spec for spec in specs}
        changes: dict[str, Change] = {}
        faults: dict[str, ZschedError] = {}
        for _ in range(ATTEMPTS):
            for chunk in _chunks(list(left.values())):
                self._save_chunk(chunk, changes, faults, fired or {})
            left = {name: spec for name, spec in left.items() if name not in changes and name not in faults}
            if not left:
                break
        faults.update({name: ConflictError(f"the entry {name!r} is being written by others; retry") for name in left})
        return changes, faults

    def _save_chunk(
        self,
        specs: Sequence[EntrySpec],
        changes: dict[str, Change],
        faults: dict[str, ZschedError],
        fired: Mapping[str, int],
    ) -> None:
        now_us, located = self.timeline.look([spec.name for spec in specs])
        items: list[Item] = []
        static = {spec.name: spec for spec in specs if spec.owner == "static"} if self.on_replaced is not None else {}
        set_aside = [name for name, found in located.items() if is_set_aside(found)]
        for position, spec in enumerate(specs):
            try:
                item = item_of(spec, located.get(spec.name), now_us, now_us + position * APART_US, zone=self.zone)
            except (ScheduleError, EntryError) as exc:
                faults[spec.name] = exc
                continue
            if item is None:
                changes[spec.name] = Change.UNCHANGED
            else:
                items.append(item)
        saved = {item.id for item in items}
        for name in saved.intersection(set_aside):
            self._forget_faults(name, last_run_of(located[name].note))
        self._bring_fired({name: fired[name] for name in saved if name not in located and fired.get(name)})
        for item, placed in zip(items, self.timeline.put(items), strict=True):
            if placed.outcome is not Outcome.CHANGED:
                changes[item.id] = Change.UPDATED if item.id in located else Change.CREATED
                if item.id in static and item.id in located and self.on_replaced is not None:
                    stored = stored_of(located[item.id]).spec
                    if stored is not None and stored.owner != "static":
                        self.on_replaced(stored, static[item.id])
        self.timeline.remove([PROBE + name for name in saved.intersection(set_aside)], spare_leased=True)

    def _bring_fired(self, fired: Mapping[str, int]) -> None:
        """Note how often entries were sent before they came here, so that none is sent before that is known."""
        if not fired:
            return
        with self.server.translated("noting how often entries were sent"):
            pipeline = self.server.client.pipeline(transaction=False)
            for name, count in fired.items():
                pipeline.hsetnx(self.timeline.keys.notes, name, LastRun(fired=count).to_json())
            pipeline.execute()

    def rehearse(self, spec: EntrySpec) -> tuple[EntrySpec, LastRun, int | None, int]:
        """Return how an entry would stand if it were saved now, without saving it.

        That is the entry with its grid, what happened last, the moment at which it is due next (None if there is none),
        and the server's clock.
        """
        now_us, located = self.timeline.look([spec.name])
        standing = located.get(spec.name)
        last = last_run_of(standing.note) if standing is not None else LastRun()
        try:
            item = item_of(spec, standing, now_us, now_us, zone=self.zone)
        except NothingToComeError:
            return spec.installed(now_us), last, None, now_us
        if item is None and standing is not None:
            stored = stored_of(standing)
            return stored.spec or spec.installed(now_us), last, stored.due_us, now_us
        assert item is not None  # of an entry that is not there yet, there is always something to put
        merged, due_us = decode(item.body), item.due_us
        if item.mode is Put.REBODY and standing is not None:
            due_us = None if planner.has_run_out(merged, last, standing.due_us) else standing.due_us
        return merged, last, due_us, now_us

    def delete(self, name: str) -> None:
        """Delete an entry with all that is known of it; raises :class:`~celery_zsched.errors.NotFoundError`."""
        if self._remove([name]) == [None]:
            raise NotFoundError(f"there is no entry {name!r}")

    def retire(self, names: Sequence[str]) -> list[str]:
        """Delete those of the named entries that are static; return their names."""
        found = [stored.name for stored in self.get_many(names) if stored.spec is None or stored.spec.owner == "static"]
        self._remove(found)
        return found

    def _remove(self, names: Sequence[str]) -> list[Place | None]:
        places = self.timeline.remove(names)
        self.timeline.remove([note + name for name in names for note in (RESUME, PROBE)])
        for chunk in _chunks(names):
            self.timeline.run("run_forget", chunk)
        with self.server.translated("forgetting what became of entries"):
            for chunk in _chunks(names):
                self.server.client.hdel(self.timeline.keys.history, *chunk)
                self.server.client.hdel(ScheduleKeys(self.prefix).imports, *chunk)
        return places

    # -- Looking

    def get(self, name: str) -> Stored:
        """Return an entry; :class:`~celery_zsched.errors.NotFoundError` if there is none of that name."""
        for stored in self.get_many([name]):
            return stored
        raise NotFoundError(f"there is no entry {name!r}")

    def get_many(self, names: Iterable[str]) -> list[Stored]:
        """Return those of the named entries that exist."""
        return [stored_of(located) for located in self.timeline.locate(names).values()]

    def names(self) -> Iterator[str]:
        """Yield the names of all entries, in no order; one that is added or deleted meanwhile may be missed."""
        with self.server.translated("listing entries"):
            seen: set[bytes] = set()
            for name, _ in self.server.client.hscan_iter(self.timeline.keys.bodies, count=1000):
                if name not in seen and not name.startswith(NOTE.encode()):
                    seen.add(name)
                    yield name.decode()

    def all(self) -> Iterator[Stored]:
        """Yield all entries, in no order, read a batch at a time."""
        batch: list[str] = []
        for name in self.names():
            batch.append(name)
            if len(batch) == MAX_BATCH:
                yield from self.get_many(batch)
                batch = []
        yield from self.get_many(batch)

    def now_us(self) -> int:
        """Return the server's clock."""
        return self.timeline.look([])[0]

    # -- Operating

    def pause(self, name: str, operator: OperatorState) -> bool:
        """Take an entry off the timeline until it is resumed; a paused one gets the new state. Return if it was not.

        Raises :class:`~celery_zsched.errors.NotFoundError`, and :class:`~celery_zsched.errors.ConflictError` for one
        that is finished or in quarantine, since there is nothing to pause.
        """
        (found,) = self.timeline.park([name], operator.to_json().decode(), force=True)
        if found is None:
            raise NotFoundError(f"there is no entry {name!r}")
        if found is Place.DEAD:
            state = self.get(name).state.value
            raise ConflictError(f"the entry {name!r} is {state}, so there is nothing to pause")
        if operator.until_us is None:
            self.timeline.remove([RESUME + name])
        else:
            self.timeline.put([Item(RESUME + name, b"", operator.until_us, mode=Put.REPLACE)])
        return found is not Place.PARKED

    def resume(self, name: str, *, catch_up: bool = False) -> bool:
        """Put a paused entry back at its next future occurrence; return whether it was this call that did.

        With ``catch_up`` the newest occurrence that the pause has swallowed is due at once, whatever the misfire rule
        says. One that is in quarantine is tried anew at once, for what the misfire rule says of the occurrence that it
        failed at. An entry that is neither is left alone.
        """
        for _ in range(ATTEMPTS):
            now_us, located = self.timeline.look([name])
            if name not in located:
                raise NotFoundError(f"there is no entry {name!r}")
            stored = stored_of(located[name])
            if stored.state is State.QUARANTINED:
                if self._resume_aside(stored, now_us, catch_up=catch_up):
                    return True
                continue
            if stored.state is not State.PAUSED:
                self.timeline.remove([RESUME + name], spare_leased=True)
                return False
            if stored.spec is None:
                raise EntryError(f"the entry {name!r} cannot be resumed: {stored.fault}")
            waited_us = located[name].due_us
            plan = planner.resume(stored.spec, stored.last, waited_us, now_us, zone=self.zone, catch_up=catch_up)
            due_us = plan.next_due_us
            if plan.sends:
                asked_us = plan.sends[-1].nominal_us
                due_us = planner.due_of(stored.spec, asked_us, zone=self.zone)
                self._ask_for(stored, asked_us)
            if due_us is None:
                done = not self.timeline.bury([(name, "", FINISHED, b"")])
            else:
                done = self.timeline.unpark([name], due_us) == [Place.PARKED]
            if done:
                self.timeline.remove([RESUME + name], spare_leased=True)
                return True
        raise ConflictError(f"the entry {name!r} is being paused and resumed by others; retry")

    def _resume_aside(self, stored: Stored, now_us: int, *, catch_up: bool) -> bool:
        last, spec = stored.last, stored.spec
        if catch_up and spec is not None:
            plan = planner.resume(spec, last, stored.located.due_us, now_us, zone=self.zone, catch_up=True)
            last = last.but(asked_us=plan.sends[-1].nominal_us if plan.sends else last.asked_us)
        self._forget_faults(stored.name, last)
        return self.put_back(stored)

    def _ask_for(self, stored: Stored, nominal_us: int) -> None:
        """Note that a paused entry shall make up for an occurrence: nobody else writes its note while it is paused."""
        note = dataclasses.replace(stored.last, asked_us=nominal_us).to_json()
        with self.server.translated("resuming an entry"):
            self.server.client.hset(self.timeline.keys.notes, stored.name, note)

    def remind(self, what: str, at_us: int | None) -> None:
        """Let whichever scheduler runs then be reminded of something at a moment; None takes the reminder back."""
        if at_us is None:
            self.timeline.remove([REMIND + what])
        else:
            self.timeline.put([Item(REMIND + what, b"", at_us, mode=Put.REPLACE)])

    # -- Firing

    def claim(self, limit: int, lease_us: int, *, delivery_limit: int = 0) -> Turn:
        """Take up to ``limit`` due entries under a lease of ``lease_us`` microseconds."""
        batch = self.timeline.claim(limit, lease_us, linger=True, delivery_limit=delivery_limit)
        notes = tuple(Hold(item.id, item.token) for item in batch.items if item.id.startswith(NOTE))
        due = [
            Due(item.id, item.body, Hold(item.id, item.token), item.due_us, item.count)
            for item in batch.items
            if not item.id.startswith(NOTE)
        ]
        return Turn(batch.now_us, batch.now_us if notes else batch.wake_us, due, batch.lost, notes)

    def attend(self, notes: Iterable[Hold], now_us: int) -> None:
        """Do what notes say that were claimed; one that cannot be done now is tried again a little later."""
        for note in notes:
            later_us: int | None = None
            try:
                if note.id.startswith(RESUME):
                    self._resume_in_time(note.id.removeprefix(RESUME), now_us)
                elif note.id.startswith(PROBE):
                    later_us = NOTE_RETRY_US if self.on_probe is None else self.on_probe(note.id.removeprefix(PROBE))
                elif self.on_reminded is not None:
                    self.on_reminded(note.id.removeprefix(REMIND))
            except Exception as exc:  # a custom schedule's error, or the broker's: the entries go on in any case
                what = note.id.replace(NOTE, " ").strip()
                logger.error("what was to be done now could not be (%s): %s; tried again in 5 s", what, exc)
                later_us = NOTE_RETRY_US
            if later_us is None:
                self.timeline.settle([note])
            elif note.id.startswith(PROBE):
                self.timeline.reschedule([(note, now_us + later_us, b"")])
            else:
                self.timeline.release([note], delay_us=later_us)

    def _resume_in_time(self, name: str, now_us: int) -> None:
        """Resume an entry whose pause has a time limit, unless it was resumed or paused anew meanwhile."""
        try:
            operator = self.get(name).operator
            if operator.until_us is not None and operator.until_us <= now_us:
                self.resume(name)
        except (NotFoundError, EntryError, ConflictError):
            pass  # there is nothing to resume, or nobody could

    def start_move(self, moves: Sequence[Move]) -> UnderWay:
        """Let entries go on to what comes next, and do not wait for it; to be ended by :meth:`finish_move`, or dropped.

        What became of their occurrences is noted before.
        """
        calls = self._remembering([(move.hold.id, past) for move in moves for past in move.past])
        going: list[tuple[scripts.Argument, ...]] = []
        ending: list[tuple[scripts.Argument, ...]] = []
        for move in moves:
            if move.due_us is None:
                ending.append((move.hold.id, move.hold.token, FINISHED, move.last.to_json()))
            else:
                going.append((move.hold.id, move.hold.token, move.due_us, move.last.to_json()))
        calls += self.timeline.calls("reschedule", [1], going)  # lingering: this one claims again at once
        calls += self.timeline.calls("bury", [KEEP_DEAD], ending)
        return self.wires.begin(calls)

    @staticmethod
    def finish_move(under_way: UnderWay) -> list[str]:
        """Wait for entries to have moved on; return the names that were no longer ours, which were left alone."""
        return [name.decode() for lost in Wires.raised(under_way.answers()) for name in lost or ()]

    def begin_anew(self, due: Due, above: int) -> bool:
        """Give a claimed entry a new life, of a higher epoch than ``above``, and put it back where it was due.

        Returns False, with nothing changed, if the entry is another by now.
        """
        spec = decode(due.document)
        fresh = dataclasses.replace(spec, epoch=max(spec.epoch, above) + 1)
        item = Item(due.name, encode(fresh), due.due_us, mode=Put.REPLACE, expect=digest(due.document))
        return self.timeline.put([item])[0].outcome is Outcome.REPLACED

    def quarantine(self, due: Due, fault: str, last: LastRun | None = None) -> bool:
        """Set an entry aside with its fault until it is mended; return whether it was still ours.

        At the moment ``last.again_us`` it is tried again, by whichever scheduler runs then.
        """
        note = b"" if last is None else last.to_json()
        if last is not None and last.again_us is not None:
            # Before it is set aside, so that a scheduler that dies in between leaves nothing aside for good.
            self.timeline.put([Item(PROBE + due.name, b"", last.again_us, mode=Put.REPLACE)])
        return not self.timeline.bury([(due.name, due.hold.token, fault, note)])

    def put_back(self, stored: Stored) -> bool:
        """Put an entry that is set aside back where it was due, to be sent now; return whether it was there.

        If that is still to come (the server's clock was set back since), it is due at its next occurrence.
        """
        now_us, due_us = self.now_us(), None
        if stored.located.due_us > now_us and stored.spec is not None:
            due_us = planner.first(stored.spec, now_us, zone=self.zone, last=stored.last).next_due_us
        back = self.timeline.revive([stored.name], due_us) == [Place.DEAD]
        self.timeline.remove([PROBE + stored.name], spare_leased=True)
        return back

    def keep_aside(self, name: str, last: LastRun) -> None:
        """Note why and how often an entry that is set aside failed, and when it is tried again."""
        with self.server.translated("noting what failed"):
            self.server.client.hset(self.timeline.keys.notes, name, last.to_json())

    def _forget_faults(self, name: str, last: LastRun) -> None:
        """Let an entry that is set aside begin with all its tries: nobody else writes its note meanwhile."""
        self.keep_aside(name, last.but(failures=0, error=None, asides=0, aside_by=None, again_us=None))

    def remember(self, records: Iterable[tuple[str, Past]]) -> None:
        """Note what became of occurrences, given with their entries' names, oldest first; what is known stays so."""
        for call, args in self._remembering(records):
            scripts.call(self.server, call.script, call.keys, args)

    def _remembering(self, records: Iterable[tuple[str, Past]]) -> list[tuple[Call, list[scripts.Argument]]]:
        rows = [(name, past.to_line()) for name, past in records] if self.history_limit else []
        return self.timeline.calls("remember", [self.history_limit], rows)

    def history(self, name: str) -> list[Past]:
        """Return what became of an entry's last occurrences, the newest first."""
        with self.server.translated("reading what became of an entry"):
            client: Any = self.server.client
            text = client.hget(self.timeline.keys.history, name) or b""
        return [Past.from_line(line) for line in text.decode().splitlines()]

    def last_runs(self, names: Sequence[str]) -> dict[str, LastRun]:
        """Return what happened last to entries; a record that cannot be read counts as none."""
        runs: dict[str, LastRun] = {}
        with self.server.translated("reading what happened last"):
            for chunk in _chunks(names):
                notes = self.server.client.hmget(self.timeline.keys.notes, chunk)
                runs.update({name: last_run_of(note) for name, note in zip(chunk, notes, strict=True)})
        return runs


def _chunks(rows: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(rows), MAX_BATCH):
        yield rows[start : start + MAX_BATCH]
