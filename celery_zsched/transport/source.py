"""One queue that one channel consumes from: claims, and what they brought until it is delivered."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from celery_zsched import message as wire_format
from celery_zsched import scripts
from celery_zsched.timeline import BACKUP_US, MAX_BATCH
from celery_zsched.transport.appetite import Appetite
from celery_zsched.transport.desk import TOKEN_DIGITS, Desk, pairs
from celery_zsched.transport.shared import Broker
from celery_zsched.types import SECOND_US
from celery_zsched.wires import Wires

logger = logging.getLogger("celery_zsched.transport")

#: A claimed message that is not delivered yet: delivery tag, body, deliveries.
Waiting = tuple[str, bytes, int]

#: A queue that had nothing is asked again after so long while others keep its consumer busy, in seconds.
RECHECK_S = 0.02

#: A consumer without credit looks after its links so often, in seconds.
REST_S = 1.0

#: How many redelivered messages of one claim the log names; of the others it tells how many they are.
NAMED = 5


class Source:
    """Claims from one queue for one consumer.

    ``on_buried`` is told of ids that were set aside as dead by one of our claims.
    """

    def __init__(
        self,
        broker: Broker,
        queue: str,
        callback: Callable[[Any], Any],
        *,
        no_ack: bool,
        on_buried: Callable[[str, Sequence[str]], None] | None = None,
    ) -> None:
        self.broker = broker
        self.queue = queue
        self.callback = callback
        self.no_ack = no_ack
        self.desk: Desk = broker.desk(queue)
        self.timeline = broker.timeline(queue, claimer=uuid.uuid4().hex[:16])
        self.call = self.timeline.call("claim")
        self.bell = self.timeline.keys.bell
        self.own_bell = self.timeline.own_bell
        self.appetite = Appetite()
        self.buffer: deque[Waiting] = deque()
        #: Whether the last claim found nothing more that is due.
        self.dry = False
        #: Whether somebody rang since the last claim.
        self.rung = False
        self.asked_at = 0.0
        #: When to claim again without a ring, by our monotonic clock.
        self.wake_at: float | None = None
        self._on_buried = on_buried
        self._sent: list[str] = []
        self._rules = broker.rules.get(queue, {})

    @property
    def lives_s(self) -> float | None:
        """How long the queue lives without a claim, in seconds; None for ever."""
        return self._rules["expires"] / 1000 if "expires" in self._rules else None

    def start(self) -> None:
        """Begin to consume: the queue lives as long as this goes on."""
        if self.lives_s is not None:
            self.desk.living[self.timeline.claimer] = self.lives_s
            if "auto_delete" in self._rules:
                self.broker.keeper.later(lambda wires: wires.call(self.desk.touch_call, [1]))
            self.broker.keeper.outlive(self.lives_s)

    def stop(self, *, armed: bool) -> None:
        """End: what was not delivered goes back, others take over the watch, an auto-deleted queue may go."""
        self.give_back()
        leave = self.timeline.call("leave")
        self.broker.keeper.later(lambda wires: wires.call(leave, [self.timeline.claimer, int(armed)]))
        if self.lives_s is not None:
            self.desk.living.pop(self.timeline.claimer, None)
            if "auto_delete" in self._rules:
                # Who declares the queue anew waits for this (see DeclaringChannel.queue_declare).
                drop = self.broker.call("drop", self.queue)
                self.broker.keeper.later(lambda wires: self._withdraw(wires, wires.call(drop, [0, 0, 1])))

    def _withdraw(self, wires: Wires, dropped: list[Any]) -> None:
        clustered = self.broker.server.address.kind == "cluster"
        self.broker.exchanges.withdraw(wires, dropped, clocks_us=SECOND_US if clustered else 0)

    def limit(self, credit: int, now: float, *, courteous: bool) -> int:
        """Return how many messages to claim now; who is ``courteous`` leaves the rest of a burst to others at first."""
        if not courteous:
            self.appetite.not_before = 0.0
        if self.no_ack:
            # Removed as it is claimed: what is not delivered would be lost with us.
            return min(1, self.appetite.limit(credit, 1, now))
        return self.appetite.limit(credit, min(self.broker.settings.claim_limit, MAX_BATCH), now)

    def arguments(self, limit: int, *, armed: bool) -> list[scripts.Argument]:
        """Return the arguments of a claim, with the acks that ride on it."""
        desk = self.desk
        self._sent = desk.take_acks() if desk.acks else []
        head: list[scripts.Argument] = [
            limit, 0 if self.no_ack else desk.lease_us, self.timeline.holder, self.timeline.claimer,
            desk.delivery_limit, "1" if armed else "0", "0", BACKUP_US, desk.dead_limit,
            "1" if self.broker.settings.dead_letter_expired else "0",
        ]  # fmt: skip
        return head + pairs(self._sent) if self._sent else head

    def failed(self) -> None:
        """Note that the claim's answer did not come."""
        self.desk.not_sent(self._sent)
        self._sent = []

    def answered(self, answer: list[Any], limit: int, now: float) -> int:
        """Take in a claim's answer; return how many messages it brought."""
        left, stale = 0, None
        if answer[2]:
            left, stale = self._troubles(answer)
        if self._sent:
            self.desk.settled(self._sent, stale or ())
            self._sent = []
        count = (len(answer) - 3) // 5
        if count:
            buffer, held, keep = self.buffer, self.desk.held, not self.no_ack
            for at in range(3, len(answer), 5):
                tag = (answer[at + 2] + answer[at]).decode()
                buffer.append((tag, answer[at + 1], answer[at + 3]))
                if keep:
                    held[tag] = now
            if keep:
                self.broker.keeper.hold(self.desk)
        self.appetite.took(count, left, now, rung=self.rung)
        self.rung = False
        self.asked_at = now
        server_us, wake_us = int(answer[0]), int(answer[1])
        self.broker.wires.heard_clock(server_us, now)
        self.wake_at = now + (wake_us - server_us) / 1e6 if wake_us else None
        self.dry = count < limit and not (wake_us and wake_us <= server_us)
        return count

    def give_back(self) -> None:
        """Give back what was not delivered, as if it had never been claimed."""
        while self.buffer:
            tag, _, _ = self.buffer.popleft()
            self.desk.give_back(tag)
        self.broker.keeper.nudge()

    def set_aside(self, tag: str, reason: str) -> None:
        """Bury a message that cannot be delivered or shall not be delivered again."""
        self.desk.held.pop(tag, None)
        self.timeline.bury([(tag[TOKEN_DIGITS:], tag[:TOKEN_DIGITS], reason, b"")], keep=self.desk.dead_limit)

    def _troubles(self, answer: list[Any]) -> tuple[int, list[str]]:
        words: Sequence[bytes] = answer[2]
        left, stale, buried, over = 0, [], [], []
        for at in range(0, len(words), 2):
            word, said = words[at], words[at + 1].decode()
            if word == b"left":
                left = int(said)
            elif word == b"stale":
                stale.append(said)
            elif word == b"buried":
                buried.append(said)
                logger.error(
                    "message %s of queue %s was delivered %d times without an end and is set aside with the dead; see "
                    "it with `celery zsched dead`",
                    said, self.queue, self.desk.delivery_limit,
                )  # fmt: skip
            elif word == b"cancelled":
                logger.info(
                    "message %s of queue %s was cancelled while a worker had it whose lease has ended; it is removed",
                    said, self.queue,
                )  # fmt: skip
            elif word == b"over":
                over.append(said)
            elif word == b"expired":
                logger.info("message %s of queue %s has expired and is not delivered", said, self.queue)
            else:
                logger.error("message %s of queue %s had lost its body and is dropped", said, self.queue)
        if over:
            self._taken_over(over, answer)
        if buried and self._on_buried is not None:
            self._on_buried(self.queue, buried)
        return left, stale

    def _taken_over(self, over: Sequence[str], answer: list[Any]) -> None:
        """Log that messages came whose last holders have fallen silent: some by name, of a crowd how many more."""
        bodies = {answer[at]: answer[at + 1] for at in range(3, len(answer), 5)}
        came = []
        for said in over:
            record, _, id_ = said.partition("\n")
            if (body := bodies.get(id_.encode())) is not None:
                came.append((id_, body, *record.split(" ", 2)))
        for id_, body, token, count, holder in came[:NAMED]:
            logger.warning(
                "task %s[%s] is redelivered: %s claimed it %.1f s ago and has fallen silent, so that its lease has "
                "ended; this is delivery %d",
                wire_format.task_name(body) or "?", id_, holder or "a worker",
                (int(answer[0]) - int(token)) / SECOND_US, int(count) + 1,
            )  # fmt: skip
        if len(came) > NAMED:
            holders = sorted({holder or "a worker" for *_, holder in came})
            logger.warning(
                "%d more messages of queue %s are redelivered like these, of %s",
                len(came) - NAMED, self.queue, ", ".join(holders),
            )  # fmt: skip


def wakes_in(sources: Sequence[Source], now: float) -> float | None:
    """Return in how many seconds one of several sources is to be claimed from without a ring, or None."""
    soonest: float | None = None
    for source in sources:
        at = source.wake_at if source.dry else source.appetite.not_before
        if at is not None and (soonest is None or at < soonest):
            soonest = at
    return None if soonest is None else max(0.0, soonest - now)
