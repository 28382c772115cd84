"""The scheduler's loop without Celery: claim what is due, send it, move it on, wait for the next moment or a ring.

Any number of engines may run on one schedule. Nothing is lost whichever step one of them dies at: what was claimed is
free again when its lease ends, and what was sent is not sent again where the broker keeps the high-water mark.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from celery_zsched import planner
from celery_zsched.bell import Bell
from celery_zsched.entry import EntrySpec, LastRun, decode
from celery_zsched.errors import EntryError, ScheduleError, ServerError, ServerUnavailableError
from celery_zsched.schedules import Due, Move, Schedules
from celery_zsched.timeline import MAX_BLOCK_S, seconds
from celery_zsched.types import SECOND_US, from_us

logger = logging.getLogger("celery.beat.zsched")

#: The shortest and the longest pause after a failure, in seconds; it doubles in between.
BACKOFF_S = (0.2, 5.0)


class PublishError(Exception):
    """The broker did not take the message of an occurrence; it may be tried again."""


#: Sends one occurrence and returns its task id: (entry, occurrence, moment of sending in microseconds) -> id. Raises
#: :class:`PublishError` when the broker is at fault; any other error is the entry's.
Publish = Callable[[EntrySpec, planner.Send, int], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How an engine works; durations in seconds."""

    lease_s: float = 5.0
    block_s: float = MAX_BLOCK_S
    claim_limit: int = 256
    quarantine_after: int = 3
    rules: planner.Rules = dataclasses.field(default_factory=planner.Rules)


class Engine:
    """One claimer of the schedule, which sends by ``publish``. Not for several threads at once."""

    def __init__(self, schedules: Schedules, publish: Publish, options: Options) -> None:
        self.schedules = schedules
        self.options = options
        self._publish = publish
        self._lease_us = round(options.lease_s * SECOND_US)
        self._block_s = min(options.block_s, MAX_BLOCK_S)
        timeline = schedules.timeline
        self._bell = Bell(schedules.server, [timeline.keys.bell], own=timeline.own_bell, block_s=self._block_s)
        self._claim_at = 0.0
        self._held: dict[str, Due] = {}
        self._failures = 0

    def turn(self, patience_s: float) -> float:
        """Send what is due, or wait up to ``patience_s`` seconds for something to be; return for how long to pause.

        The pause is 0 unless something failed. No error of the server, the broker or an entry leaves this method.
        """
        try:
            if time.monotonic() < self._claim_at and not self._bell.wait(
                min(patience_s, self._claim_at - time.monotonic())
            ):
                return 0.0
            sent_all = self._claim()
        except ServerError as exc:
            return self.back_off("the schedule cannot be read: %s", exc)
        if not sent_all:
            return self.back_off("the broker takes no messages; what is due stays due%s", "")
        if self._failures:
            logger.warning("working again after %d failures", self._failures)
            self._failures = 0
        return 0.0

    def close(self) -> None:
        """Give back what is claimed and not sent, leave waiting to the others, and drop the connections."""
        self._bell.close()
        held, self._held = list(self._held.values()), {}
        try:
            self.schedules.timeline.release([due.hold for due in held])
            if self._claim_at:
                self.schedules.timeline.leave()
                self._claim_at = 0.0
        except ServerError as exc:
            logger.warning(
                "%d claimed entries could not be given back (%s); they are free when their leases end, in %g s",
                len(held), exc, self.options.lease_s,
            )  # fmt: skip
        self.schedules.server.close()

    # -- One turn

    def _claim(self) -> bool:
        turn = self.schedules.claim(self.options.claim_limit, self._lease_us)
        for name in turn.lost:
            logger.error("the entry %r is lost: its document is gone from the server; save it anew", name)
        if not turn.due:
            sooner = self._block_s if turn.wake_us is None else seconds(turn.wake_us - turn.now_us)
            self._claim_at = time.monotonic() + min(self._block_s, sooner)
            return True
        self._claim_at = 0.0
        self._held = {due.name: due for due in turn.due}
        return self._fire_all(turn.due, turn.now_us)

    def _fire_all(self, dues: list[Due], now_us: int) -> bool:
        started = time.monotonic()
        renewed = started
        runs = self.schedules.last_runs([due.name for due in dues])
        moves: list[Move] = []
        sent_all = True
        try:
            for due in dues:
                if due.name not in self._held:
                    continue
                if time.monotonic() - renewed > self.options.lease_s / 3:
                    self._move(moves)
                    moves = []
                    self._renew()
                    renewed = time.monotonic()
                    if due.name not in self._held:
                        continue
                at_us = now_us + round((time.monotonic() - started) * SECOND_US)
                try:
                    move = self._fire(due, runs[due.name], at_us)
                except PublishError as exc:
                    self._failed_to_publish(due, exc)
                    sent_all = False
                    break
                if move is not None:
                    moves.append(move)
        finally:
            self._move(moves)
        if not sent_all:
            self._give_back(self._held.values())
        self._held = {}
        return sent_all

    def _fire(self, due: Due, last: LastRun, at_us: int) -> Move | None:
        """Send what the plan of one entry says; return where it goes, or None if it is set aside or tried again."""
        try:
            spec = decode(due.document)
            plan = planner.plan(spec, last, due.due_us, at_us, zone=self.schedules.zone, rules=self.options.rules)
            last = plan.last
            for send in plan.sends:
                task_id = self._publish(spec, send, at_us)
                last = dataclasses.replace(last, task_id=task_id, fired_us=at_us)
                logger.info(
                    "sent %s (%s) for %s, %d ms late%s, as %s", spec.name, spec.task,
                    from_us(send.nominal_us).isoformat(), (at_us - due.due_us) // 1000,
                    f", standing also for {send.missed} missed" if send.missed else "", task_id,
                )  # fmt: skip
        except PublishError:
            raise
        except Exception as exc:
            # Whatever is wrong with one entry, a custom schedule's own error included, must not stop the others.
            self._failed(due, last, exc)
            return None
        if plan.held is not None:
            nominal_us, reason = plan.held
            logger.info("%s was not sent for %s (%s)", spec.name, from_us(nominal_us).isoformat(), reason)
        return Move(due.hold, plan.next_due_us, last)

    def _move(self, moves: list[Move]) -> None:
        if not moves:
            return
        for name in self.schedules.move(moves):
            logger.info("%s was moved on or changed by somebody else meanwhile; nothing is repeated", name)
        for move in moves:
            self._held.pop(move.hold.id, None)

    def _renew(self) -> None:
        holds = [due.hold for due in self._held.values()]
        for name in self.schedules.timeline.extend(holds, self._lease_us):
            logger.warning("the lease of %s passed to another scheduler, which sends it; it is left alone here", name)
            del self._held[name]

    # -- When something fails

    def _failed(self, due: Due, last: LastRun, exc: Exception) -> None:
        expected = isinstance(exc, (ScheduleError, EntryError))
        fault = str(exc) if expected else f"{type(exc).__name__}: {exc}"
        self._held.pop(due.name, None)
        if due.tries < self.options.quarantine_after:
            pause_us = _backoff_us(due.tries)
            logger.error(
                "%s cannot be sent (try %d of %d): %s; it is tried again in %g s, the other entries go on",
                due.name, due.tries, self.options.quarantine_after, fault, seconds(pause_us), exc_info=not expected,
            )  # fmt: skip
            self.schedules.timeline.release([due.hold], delay_us=pause_us)
        elif self.schedules.quarantine(due, fault, dataclasses.replace(last, failures=due.tries, error=fault)):
            logger.error(
                "%s is set aside in quarantine after %d tries: %s; mend and save it, and it returns. The others go on",
                due.name, due.tries, fault, exc_info=not expected,
            )  # fmt: skip

    def _failed_to_publish(self, due: Due, exc: PublishError) -> None:
        pause_us = _backoff_us(due.tries)
        logger.error(
            "the broker did not take %s (try %d): %s; it stays due and is tried again in %g s",
            due.name, due.tries, exc, seconds(pause_us),
        )  # fmt: skip
        self._held.pop(due.name, None)
        self.schedules.timeline.release([due.hold], delay_us=pause_us)

    def _give_back(self, dues: Iterable[Due]) -> None:
        self.schedules.timeline.release([due.hold for due in dues])

    def back_off(self, message: str, cause: object) -> float:
        """Log a failure and return for how many seconds to pause, longer each time in a row."""
        least, most = BACKOFF_S
        pause_s: float = min(most, least * 2.0**self._failures)
        self._failures += 1
        self._claim_at = 0.0
        said = message % (cause,)
        if isinstance(cause, ServerError) and not isinstance(cause, ServerUnavailableError):
            logger.error("%s; next try in %g s", said, pause_s)
        else:
            logger.warning("%s; next try in %g s", said, pause_s)
        return pause_s


def _backoff_us(tries: int) -> int:
    least, most = BACKOFF_S
    return round(min(most, least * 2.0 ** (tries - 1)) * SECOND_US)
