"""The scheduler's loop without Celery: claim what is due, send it, move it on, wait for the next moment or a ring.

Any number of engines may run on one schedule. Nothing is lost whichever step one of them dies at: what was claimed is
free again when its lease ends, and what was sent is not sent again where the broker keeps the high-water mark.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from celery_zsched import planner
from celery_zsched.deciding import Decider, NotYetError
from celery_zsched.entry import LastRun, Past
from celery_zsched.errors import ServerError, ServerUnavailableError
from celery_zsched.inheriting import Inheritance
from celery_zsched.isolation import BACKOFF_S, MOST_DOUBLINGS, Isolation, back
from celery_zsched.lookout import Lookout
from celery_zsched.outlet import Publisher, PublishError, RefusedError, StoodStillError
from celery_zsched.schedules import LONGEST_PUT_OFF_US, Schedules
from celery_zsched.signals import undisturbed
from celery_zsched.stored import Due, Move
from celery_zsched.timeline import MAX_BLOCK_S, seconds
from celery_zsched.types import SECOND_US, from_us
from celery_zsched.wires import UnderWay

logger = logging.getLogger("celery.beat.zsched")

#: For how long a failure counts as an engine's fault at most, in seconds: by then it has been tried again.
FAULT_S = 120.0

#: The share of the lease that the server is told, so that by its end another scheduler has taken over from a dead one.
TOLD = 0.8

#: How many entries are sent together at most: so many that a round trip costs little, and so few that most of a claim
#: is made while the broker takes what was made before.
LARGEST_CHUNK = 64

#: How many entries one message of the log names.
NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How an engine works; durations in seconds."""

    lease_s: float = 5.0
    run_lease_s: float = 40.0
    block_s: float = MAX_BLOCK_S
    claim_limit: int = 256
    quarantine_after: int = 3
    rules: planner.Rules = dataclasses.field(default_factory=planner.Rules)


@dataclass(slots=True)
class _Chunk:
    """Entries that are sent together, and where they go afterwards."""

    dues: list[Due] = dataclasses.field(default_factory=list)
    moves: list[Move] = dataclasses.field(default_factory=list)
    #: For how many seconds the one was made that took longest, and its entry's name.
    slowest: tuple[float, str] = (0.0, "")


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why something was not sent: told at ``at`` on our clock, of one ``entry`` or of the whole ``broker``, or else."""

    text: str
    at: float
    entry: str = ""
    broker: bool = False


class Engine:
    """One claimer of the schedule, which sends by ``publish``. Not for several threads at once."""

    def __init__(self, schedules: Schedules, publisher: Publisher, options: Options) -> None:
        self.schedules = schedules
        self.options = options
        self.lookout = Lookout(
            schedules.timeline, block_s=options.block_s, guard_s=options.lease_s,
            label=f"zsched-beat-{schedules.timeline.claimer}",
        )  # fmt: skip
        #: How late the last occurrence was sent, in microseconds.
        self.lag_us = 0
        #: Told of each occurrence that is over, with its entry's name.
        self.on_past: Callable[[str, Past], None] | None = None
        self._publisher = publisher
        self._decider = Decider(
            schedules, options.rules, publisher=publisher, lease_s=options.lease_s, run_lease_s=options.run_lease_s
        )
        self._inheritance = Inheritance(schedules, options.rules)
        #: What is done with entries that cannot be sent; it is told of other schedulers by whoever knows them.
        self.isolation = Isolation(schedules, quarantine_after=options.quarantine_after)
        schedules.on_probe = self.isolation.probe
        self._lease_us = round(TOLD * options.lease_s * SECOND_US)
        self._held: dict[str, Due] = {}
        #: What was sent and is being moved on, with the entries as they were claimed.
        self._moving: tuple[UnderWay, list[Move], list[Due]] | None = None
        #: How many entries are sent together next. While more is due than is claimed, nobody gains by few.
        self._chunk_size = 1
        self._failures = 0
        self._fault: _Fault | None = None
        #: Whether the schedule's server has answered when it was asked last.
        self.reached = False
        #: What was on record of the claimed entries, and of those that were in quarantine and are sent.
        self._records: dict[str, LastRun] = {}
        self._returning: dict[str, LastRun] = {}

    @property
    def fault(self) -> str:
        """Why this engine cannot send, as it has found when it last tried; empty if it can, as far as is known."""
        fault = self._fault
        return "" if fault is None or time.monotonic() - fault.at > FAULT_S else fault.text

    def turn(self, patience_s: float) -> float:
        """Send what is due, or wait up to ``patience_s`` seconds for something to be; return for how long to pause.

        The pause is 0 unless something failed or is left to others. No error of the server, the broker or an entry
        leaves this method.
        """
        try:
            reached, self.reached = self.reached, False
            if not self.lookout.wait(patience_s):
                self.reached = reached
                return 0.0
            with undisturbed():
                # Left over where the server failed amid a turn: nobody need wait for the leases to end.
                self._give_back_held()
                sent_all = self._claim()
        except ServerError as exc:
            return self.back_off("the schedule cannot be read: %s", exc)
        if not sent_all:
            return self.back_off("the broker takes no messages; what is due stays due%s", "")
        if self._fault is not None and not self._fault.broker and not self._fault.entry:
            self._fault = None
        if self._failures:
            logger.warning("working again after %d failures", self._failures)
            self._failures = 0
        return self.isolation.stand_back()

    def close(self) -> None:
        """Give back what is claimed and not sent, leave waiting to the others, and drop the connections."""
        self.lookout.close()
        try:
            self._finish_move()
            self._give_back_held()
            if self.lookout.began:
                self.schedules.timeline.leave()
                self.lookout.ended()
        except ServerError as exc:
            logger.warning(
                "%d claimed entries could not be given back (%s); they are free when their leases end, in %g s",
                len(self._held), exc, self.options.lease_s,
            )  # fmt: skip
        self._held = {}
        self.schedules.wires.close()
        self.schedules.server.close()

    # -- One turn

    def _claim(self) -> bool:
        asked = time.monotonic()  # the leases may have begun then, however late the answer comes
        turn = self.schedules.claim(self.options.claim_limit, self._lease_us)
        self.reached = True
        for name in turn.lost:
            logger.error("the entry %r is lost: its document is gone from the server; save it anew", name)
        self.lookout.claimed(turn.now_us, turn.wake_us, empty=not turn.due)
        self._held = {due.name: due for due in turn.due}
        sent_all = self._fire_all(turn.due, turn.now_us, asked)
        if len(turn.due) < self.options.claim_limit:
            self._chunk_size = 1
        self.schedules.attend(turn.notes, turn.now_us)
        return sent_all

    def _fire_all(self, dues: list[Due], now_us: int, renewed: float) -> bool:
        """Send what is due and move it on; return False if the broker fails, with all that is unsent given back.

        While a broker that is ours takes one chunk, and the entries of the one before are moved on, the next is made.
        """
        started = time.monotonic()
        runs = self.schedules.last_runs([due.name for due in dues])
        self._records, self._returning = dict(runs), {}
        dues, ended = self._inheritance.take(dues, runs, now_us, self._publisher.marks)
        self._start_move(ended)
        under_way, making = _Chunk(), _Chunk()
        try:
            for chunk in self._chunks(dues):
                if time.monotonic() - renewed > self.options.lease_s / 3:
                    self._renew()
                    renewed = time.monotonic()
                at_us = now_us + round((time.monotonic() - started) * SECOND_US)
                making = _Chunk(self._for_us([due for due in chunk if due.name in self._held]))
                self._make(making, runs, at_us)
                self._finish(under_way)
                if time.monotonic() - renewed > TOLD * self.options.lease_s:
                    self._publisher.close()
                    raise StoodStillError
                self._publisher.start()
                under_way, making = making, _Chunk()
                if not self._publisher.keeps_back:
                    # It refuses no repeat, so nothing more is sent before this is known to have moved on.
                    self._finish(under_way)
                    self._finish_move()
            self._finish(under_way)
            self._finish_move()
        except StoodStillError:
            self._tell_of_standing_still(time.monotonic() - renewed, *making.slowest)
            self._give_back_held()
            self._finish_move()
            self._chunk_size = 1  # whatever took so long keeps no other up next time
        except PublishError as exc:
            # What of this the broker has all the same is refused when it comes again.
            self._failed_to_publish([*under_way.dues, *making.dues], exc)
            self._finish_move()
            self._chunk_size = 1  # which of several it was is told when it is sent alone
            return False
        return True

    def _chunks(self, dues: list[Due]) -> Iterator[list[Due]]:
        """Yield chunks of 1, 2, 4 … entries: the first are not kept waiting, and many cost few round trips."""
        at = 0
        while at < len(dues):
            chunk = dues[at : at + self._chunk_size]
            at += len(chunk)
            self._chunk_size = min(self._chunk_size * 2, LARGEST_CHUNK)
            yield chunk

    def _for_us(self, dues: list[Due]) -> list[Due]:
        """Leave to others, with their entries given back, what this one has failed at and they may be able to send."""
        handed_on = self.isolation.hand_on(dues, self._records)
        for name in handed_on:
            del self._held[name]
        return [due for due in dues if due.name not in handed_on]

    def _make(self, chunk: _Chunk, runs: dict[str, LastRun], at_us: int) -> None:
        """Make the messages of a chunk, and note where its entries go once the broker has them."""
        self._decider.look(chunk.dues, runs, at_us)
        for due in chunk.dues:
            began = time.monotonic()
            move = self._fire(due, runs[due.name], at_us)
            chunk.slowest = max(chunk.slowest, (time.monotonic() - began, due.name))
            if move is not None:
                chunk.moves.append(move)

    def _finish(self, chunk: _Chunk) -> None:
        """See the entries of a chunk on their way once the broker has their messages; a chunk is finished once."""
        if not chunk.dues:
            return
        refused = self._publisher.finish()
        moves = chunk.moves
        if refused:
            moves = [move for move in moves if move.hold.id not in refused]
            for due in chunk.dues:
                if due.name in refused:
                    self._put_off(due, refused[due.name])
        outdated = self._publisher.outdated([due.name for due in chunk.dues])
        if outdated:
            self._begin_anew([due for due in chunk.dues if due.name in outdated and due.name in self._held])
            moves = [move for move in moves if move.hold.id not in outdated]
        self._decider.sent([move.hold.id for move in moves])
        self._start_move(moves)
        chunk.dues.clear()

    def _fire(self, due: Due, last: LastRun, at_us: int) -> Move | None:
        """Send what the plan of one entry says; return where it goes, or None if it is set aside or tried again."""
        past: list[Past] = []
        by = self.schedules.timeline.holder
        before = self._records[due.name]
        try:
            spec, plan = self._decider.decide(due, last, at_us)
            last = plan.last
            for send in plan.sends:
                task_id = self._publisher.send(spec, send, at_us)
                past.append(Past(send.nominal_us, at_us, "sent", send.cause, task_id, send.missed, by))
                if logger.isEnabledFor(logging.INFO):
                    logger.info(
                        "sent %s (%s) for %s, %d ms late%s, as %s", spec.name, spec.task,
                        from_us(send.nominal_us).isoformat(), (at_us - max(send.nominal_us, due.due_us)) // 1000,
                        f", standing also for {send.missed} missed" if send.missed else "", task_id,
                    )  # fmt: skip
        except PublishError:
            raise
        except RefusedError as exc:
            self._put_off(due, str(exc))
            return None
        except NotYetError as exc:
            logger.info("%s waits: %s", due.name, exc)
            self._held.pop(due.name, None)
            self.schedules.timeline.release([due.hold], delay_us=max(0, exc.until_us - at_us))
            return None
        except Exception as exc:
            # Whatever is wrong with one entry, a custom schedule's own error included, must not stop the others.
            # On the record is what was before: the occurrence that failed is still to be dealt with.
            self._held.pop(due.name, None)
            self.isolation.failed(due, before, exc)
            return None
        last = self.isolation.concluded(due, before, last, sent=bool(past))
        if past and before.asides:
            self._returning[due.name] = before
        if past:
            last = last.but(task_id=past[-1].task_id, fired_us=at_us)
            self.lag_us = at_us - due.due_us
        elif plan.held is not None:
            nominal_us, reason = plan.held
            past.append(Past(nominal_us, at_us, reason, missed=last.missed, by=by))
            logger.info("%s was not sent for %s (%s)", spec.name, from_us(nominal_us).isoformat(), reason)
        return Move(due.hold, plan.next_due_us, last, (*self._inheritance.past_of(due.name), *past))

    def _start_move(self, moves: list[Move]) -> None:
        """Move entries on, once those before them are known to be; they count as held until that is known of them."""
        self._finish_move()
        if moves:
            under_way = self.schedules.start_move(moves)
            self._moving = under_way, moves, [self._held.pop(move.hold.id) for move in moves]

    def _finish_move(self) -> None:
        """Return once the entries that are being moved on have been."""
        if self._moving is None:
            return
        (under_way, moves, dues), self._moving = self._moving, None
        try:
            lost = self.schedules.finish_move(under_way)
        except BaseException:
            self._held.update({due.name: due for due in dues})  # nobody knows: what has not moved is to be given back
            raise
        for name in lost:
            logger.info("%s was moved on or changed by somebody else meanwhile; nothing is repeated", name)
        for move in moves:
            if self._fault is not None and self._fault.entry in ("", move.hold.id):
                self._fault = None
            if self.on_past is not None:
                for past in move.past:
                    self.on_past(move.hold.id, past)
            if move.hold.id in self._returning and move.hold.id not in lost:
                back(move.hold.id, self._returning.pop(move.hold.id))
        self._decider.conclude([move.hold.id for move in moves])

    def _renew(self) -> None:
        holds = [due.hold for due in self._held.values()]
        for name in self.schedules.timeline.extend(holds, self._lease_us):
            logger.warning("the lease of %s passed to another scheduler, which sends it; it is left alone here", name)
            del self._held[name]

    # -- When something fails

    def _put_off(self, due: Due, why: str) -> None:
        """Try one entry again later, ever later, that the broker takes no message of; the misfire rule ends that."""
        if self._held.pop(due.name, None) is None:
            return
        self._fault = _Fault(f"the broker did not take {due.name}: {why}", time.monotonic(), entry=due.name)
        pause_us = min(LONGEST_PUT_OFF_US, round(BACKOFF_S[0] * SECOND_US) << min(due.tries - 1, MOST_DOUBLINGS))
        logger.error(
            "the broker did not take %s: %s; it stays due and is tried again in %g s, the other entries go on",
            due.name, why, seconds(pause_us),
        )  # fmt: skip
        self.schedules.timeline.release([due.hold], delay_us=pause_us)

    def _begin_anew(self, dues: Sequence[Due]) -> None:
        """Let entries begin a new life whose occurrences the broker takes for those of an earlier one."""
        names = [due.name for due in dues]
        marks = self._publisher.marks(names)
        self._decider.dropped(names)
        for due in dues:
            self._held.pop(due.name)
            if self.schedules.begin_anew(due, max((epoch for epoch, _ in marks.get(due.name, ())), default=0)):
                logger.error(
                    "the broker refused %s: it has had occurrences of a later life of an entry of that name, so the "
                    "server's clock was set back before this one was made, or two schedules send to one queue under "
                    "the prefix %r. The entry begins a new life and is sent now; if there are two schedules, give each "
                    "a zsched_prefix of its own",
                    due.name, self.schedules.prefix,
                )  # fmt: skip
            else:
                logger.info("%s was deleted or changed meanwhile; what was sent of it is void", due.name)

    def _failed_to_publish(self, tried: Sequence[Due], exc: PublishError) -> None:
        left = [due for due in tried if due.name in self._held]
        self._give_back_held()
        self._fault = _Fault(
            f"the broker did not take {_some(left) or 'anything'}: {exc}", time.monotonic(), broker=True
        )
        logger.error("%s; it stays due as before", self._fault.text)

    def _tell_of_standing_still(self, still_s: float, slowest_s: float, slowest: str) -> None:
        why = "it was suspended, or had no processor"
        if slowest_s > still_s / 2:
            why = f"making the message of {slowest} took {slowest_s:.1f} s of it (what does its task class wait for?)"
        logger.error(
            "this process stood still for longer than its lease: for %.1f s, with a lease of %g s, so that others may "
            "have sent what it had claimed; that is looked at anew. %s",
            still_s, self.options.lease_s, why[0].upper() + why[1:],
        )  # fmt: skip

    def _give_back_held(self) -> None:
        """Give back what is not moved on: uncounted, so that it counts nothing towards quarantine."""
        self.schedules.timeline.release([due.hold for due in self._held.values()])
        self._held = {}

    def stumbled(self, fault: str) -> None:
        """Note why a turn failed, for who asks for the :attr:`fault`."""
        self._fault = _Fault(fault, time.monotonic())

    def back_off(self, message: str, cause: object) -> float:
        """Log a failure and return for how many seconds to pause, longer each time in a row."""
        least, most = BACKOFF_S
        pause_s: float = min(most, least * 2.0 ** min(self._failures, MOST_DOUBLINGS))
        self._failures += 1
        self.lookout.failed()
        said = message % (cause,)
        if isinstance(cause, ServerError):
            self.schedules.wires.distrust(cause)
            self.stumbled(said)
        if isinstance(cause, ServerError) and not isinstance(cause, ServerUnavailableError):
            logger.error("%s; next try in %g s", said, pause_s)
        else:
            logger.warning("%s; next try in %g s", said, pause_s)
        return pause_s


def _some(dues: Sequence[Due]) -> str:
    """Return the names of entries, of many the first."""
    more = f" and {len(dues) - NAMED} more" if len(dues) > NAMED else ""
    return ", ".join(due.name for due in dues[:NAMED]) + more
