"""A channel's side towards consumers: claims within the prefetch credit, and what they bring until it is delivered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.utils.scheduling import cycle_by_name

from celery_zsched import message as wire_format
from celery_zsched.errors import ZschedError
from celery_zsched.transport import delivery
from celery_zsched.transport.fanout import Subscription, matcher
from celery_zsched.transport.flight import Flight
from celery_zsched.transport.sending import app_time_zone, read_headers
from celery_zsched.transport.shared import Broker
from celery_zsched.transport.source import RECHECK_S, REST_S, Source

logger = logging.getLogger("celery_zsched.transport")

#: With less prefetch than this a claim sent ahead would be too small to be worth its while.
AHEAD_LEAST = 16

#: How long a small prefetch credit is given to grow, in seconds: acks come in handfuls.
GROW_S = 0.004


class ClaimingChannel(virtual.Channel):
    """AMQP's verbs of consuming."""

    broker: Broker
    #: Queue -> the exchange and binding key by which it gets broadcasts.
    _broadcast_queues: dict[str, tuple[str, str]]

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.broker = connection.broker
        #: Queue -> what is consumed from it here.
        self.sources: dict[str, Source] = {}
        self._order = cycle_by_name(self.broker.settings.queue_order_strategy)()
        self._in_turn = self.broker.settings.queue_order_strategy == "round_robin"
        self._buffered = 0
        self._claimed_at = 0.0
        #: Why a queue could not be claimed from while others could.
        self._failure: ZschedError | None = None
        #: Claims that are sent ahead, when an event loop drives this.
        self.flight: Flight | None = None

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Consume from a queue."""
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self.connection._callbacks[queue] = callback
        if queue in self._broadcast_queues:
            exchange, key = self._broadcast_queues[queue]
            self.connection.poller.listener.add(
                self,
                Subscription(
                    queue, exchange, key, matcher(key), lambda payload: callback(delivery.Message(payload, self))
                ),
            )
            return
        known = self.sources.get(queue)
        if known is not None and known.no_ack == bool(no_ack):
            known.callback = callback  # as in kombu, the last consumer of a queue on a channel gets its messages
            return
        if known is not None:
            if self.flight is not None:
                self._buffered += self.flight.land()
            self._forget(known)
        if not no_ack and self.broker.wires.command("EXISTS", self.broker.pauses, route=self.broker.pauses):
            # A queue that is new, or was deleted meanwhile, does not know yet what is paused. Imported here, since it
            # brings the schedule's entries along, which few workers need so early.
            from celery_zsched.queues import Queues

            Queues(self.broker.server, prefix=self.broker.settings.key_prefix).enforce([queue])
        self.sources[queue] = Source(
            self.broker, queue, callback, no_ack=bool(no_ack), on_buried=self.connection.on_buried
        )
        self.sources[queue].start()
        self._order.update(list(self.sources))
        self.connection.poller.changed()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming; what was not delivered goes back to its place at once."""
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag, None)
        if queue in self._active_queues:
            self._active_queues.remove(queue)
        if queue in self._active_queues:
            return  # another consumer of this channel goes on
        if queue in self._broadcast_queues and self.connection is not None:
            self.connection.poller.listener.discard(self, queue)
        source = self.sources.get(str(queue))
        if source is not None:
            if self.flight is not None:
                self._buffered += self.flight.land()
            del self.sources[str(queue)]
            self._forget(source)
        self._order.update(list(self.sources))
        if self.connection is not None:
            self.connection._callbacks.pop(queue, None)
            self.connection.poller.changed()

    def _forget(self, source: Source) -> None:
        self._buffered -= len(source.buffer)
        source.stop(armed=self.connection is not None and self.connection.poller.waits_for(source))

    def buffered(self) -> int:
        """Return how many messages were claimed, or are being claimed, and are not delivered yet."""
        return self._buffered if self.flight is None else self._buffered + self.flight.limit

    def ready(self) -> int:
        """Return how many messages can be delivered."""
        return self._buffered

    def start_claim(self, now: float) -> bool:
        """Send a claim and do not wait for its answer; return whether one is on its way."""
        flight = self.flight
        if flight is None or len(self.sources) != 1:
            return False
        if flight.limit:
            flight.check(now)
        else:
            plan = self._plan(now)
            if not plan:
                return False
            self._claimed_at = now
            flight.send(*plan[0], now)
        return True

    def start_ahead(self, now: float) -> bool:
        """Send the next claim while what the last one brought is being delivered, on a long backlog."""
        flight = self.flight
        if flight is None or flight.limit or len(self.sources) != 1:
            return False
        (source,) = self.sources.values()
        prefetch = self.qos.prefetch_count
        if not source.appetite.is_long or prefetch < AHEAD_LEAST or self.rests_until(now) > now:
            return False
        return self.start_claim(now)

    def finish_claim(self) -> int:
        """Take in the answer of a claim that was sent; return how many messages it brought."""
        if self.flight is None or not self.flight.limit:
            return 0
        count = self.flight.take()
        self._buffered += count
        return count

    def claim(self, now: float, *, armed: bool = False) -> bool:
        """Claim what credit and appetite allow; return whether anything came. May take several round trips."""
        if self.finish_claim():
            return True  # what was claimed before goes before
        if not self._buffered:
            self._raise_failure()
        while True:
            plan = self._plan(now)
            if not plan:
                return False
            count = self._claim(plan, now, armed=armed)
            if count:
                self._buffered += count
                return True

    def _plan(self, now: float) -> list[tuple[Source, int]]:
        sources = self.sources
        if not sources:
            return []
        claim_limit = self.broker.settings.claim_limit
        credit = self._qos_credit(claim_limit)
        if credit <= 0 or now < self.resumes_at():
            return []
        order = list(sources.values())
        if len(order) > 1:
            order = [sources[queue] for queue in self._order.consume(len(order))]
        busy = any(not source.dry for source in order)
        plan: list[tuple[Source, int]] = []
        hungry = [source for source in order if not source.dry or (busy and now - source.asked_at > RECHECK_S)]
        share = max(1, credit // len(hungry)) if hungry and self._in_turn else credit
        for source in hungry:
            # Of several queues none is kept waiting for politeness while nothing else is at hand.
            limit = source.limit(min(share, credit), now, courteous=len(order) == 1 or self._holds_any())
            if limit > 0:
                plan.append((source, limit))
                credit -= limit
                if credit <= 0 or not self._in_turn:
                    break
        return plan

    def _qos_credit(self, at_most: int) -> int:
        return int(self.qos.credit(at_most))

    def _holds_any(self) -> bool:
        return bool(self._buffered or self.qos.delivered)

    def rests_until(self, now: float) -> float:
        """Return until when there is nothing to claim, whatever waits; 0: there may be. A loop asks it each round."""
        if "can_consume" in self.qos.__dict__:
            return 0.0
        if self.qos.can_consume_max_estimate() == 0:
            return now + REST_S  # an ack makes it look again before
        return self.resumes_at()

    def resumes_at(self) -> float:
        """Return when the next claim is worth its while; 0: at once.

        A consumer that has the better half of its prefetch at hand gives the rest a moment to grow after a claim.
        """
        free = self.qos.can_consume_max_estimate()
        return self._claimed_at + GROW_S if free is not None and free * 2 < self.qos.prefetch_count else 0.0

    def _claim(self, plan: list[tuple[Source, int]], now: float, *, armed: bool) -> int:
        """Claim from queues; return how many messages came.

        When some came and another queue could not be claimed from, that error is for the next :meth:`claim` to raise:
        what came is delivered first.
        """
        wires = self.broker.wires
        self._claimed_at = now
        if len(plan) == 1:
            source, limit = plan[0]
            try:
                answer = wires.call(source.call, source.arguments(limit, armed=armed))
            except BaseException:
                source.failed()
                raise
            return source.answered(answer, limit, now)
        by_node: dict[str, list[tuple[Source, int]]] = {}
        for source, limit in plan:
            by_node.setdefault(wires.node_of(source.call.route), []).append((source, limit))
        count = 0
        for group in by_node.values():
            try:
                answers = wires.call_each(
                    [(source.call, source.arguments(limit, armed=armed)) for source, limit in group]
                )
            except BaseException:
                for source, _ in group:
                    source.failed()
                self._buffered += count  # what other nodes have given
                raise
            for (source, limit), answer in zip(group, answers, strict=True):
                if isinstance(answer, ZschedError):
                    source.failed()
                    self._failure = answer
                else:
                    count += source.answered(answer, limit, now)
        if not count:
            self._raise_failure()
        return count

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def deliver_next(self) -> bool:
        """Hand one claimed message to its consumer; return False if there is none."""
        sources = self.sources
        while self._buffered:
            if len(sources) == 1:
                (source,) = sources.values()
            else:
                source = next(sources[queue] for queue in self._order.consume(len(sources)) if sources[queue].buffer)
                self._order.rotate(source.queue)
            tag, body, count = source.buffer.popleft()
            self._buffered -= 1
            if source.no_ack or tag in source.desk.held:  # it may have been lost meanwhile
                message = self._message(source, tag, body, count)
                if message is not None:
                    source.callback(message)
                    return True
        return False

    def _message(self, source: Source, tag: str, body: bytes, count: int) -> delivery.Message | None:
        try:
            payload = wire_format.decode(body, loads=read_headers)
        except ValueError as exc:
            logger.error("queue %s: %s; it is set aside with the dead", source.queue, exc)
            if not source.no_ack:
                source.set_aside(tag, "malformed")
            return None
        headers = payload["headers"]
        if headers.get("eta") or headers.get("expires"):
            wire_format.localize(payload, self.broker.wires.now_us(), time.time_ns() // 1000, app_time_zone)
        properties = payload["properties"]
        properties["delivery_tag"] = tag
        if count > 1:
            payload["headers"]["redelivered"] = properties["delivery_info"]["redelivered"] = True
            properties["delivery_count"] = count - 1
        message = delivery.Message(payload, self)
        if not source.no_ack:
            self.qos.delivered[tag] = (source.desk, count, message.reference())
        return message

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> delivery.Message | None:
        """Take one message, or None if none is due."""
        source = Source(self.broker, queue, _nobody, no_ack=no_ack, on_buried=self.connection.on_buried)
        source.timeline.claimer = ""  # it takes what is there and waits for nothing
        self.broker.keeper.flush([source.desk])  # what was handed back before this is to be found
        now = self.connection.poller.clock()
        if not self._claim([(source, 1)], now, armed=False):
            return None
        tag, body, count = source.buffer.popleft()
        return self._message(source, tag, body, count)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        message = self.basic_get(queue, no_ack=True)
        if message is None:
            raise Empty
        return message._raw


def _nobody(message: Any) -> None:
    """Take a message that nobody waits for."""
