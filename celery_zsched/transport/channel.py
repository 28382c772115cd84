"""The channel: AMQP's verbs on timelines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from datetime import timezone, tzinfo
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.utils.json import dumps as kombu_dumps
from kombu.utils.json import loads as kombu_loads
from kombu.utils.scheduling import cycle_by_name
from kombu.utils.uuid import uuid

from celery_zsched import message as wire_format
from celery_zsched.errors import ServerError
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.transport.delivery import Message, QoS
from celery_zsched.transport.shared import Broker
from celery_zsched.transport.source import RECHECK_S, Source
from celery_zsched.types import SECOND_US

logger = logging.getLogger("celery_zsched.transport")


def _dumps(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"))
    except TypeError:
        return str(kombu_dumps(value))  # moments, UUIDs and the like, as kombu writes them


def _loads(text: str) -> Any:
    return kombu_loads(text) if "__type__" in text else json.loads(text)


def app_time_zone() -> tzinfo:
    """Return the zone of an ``eta`` without an offset: the current Celery app's, as its worker reads it."""
    state = sys.modules.get("celery._state")
    if state is not None:
        zone = state.get_current_app().timezone
        if isinstance(zone, tzinfo):
            return zone
    return timezone.utc


class Channel(virtual.Channel):  # type: ignore[misc]
    """A channel on the broker. Not for several threads at once, but acks may come from any."""

    Message = Message
    QoS = QoS
    body_encoding = None
    supports_fanout = True
    do_restore = False
    from_transport_options = ()

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.broker: Broker = connection.broker
        self.deadletter_queue = self.broker.settings.deadletter_queue
        #: Queue -> what is consumed from it here.
        self.sources: dict[str, Source] = {}
        self._order = cycle_by_name(self.broker.settings.queue_order_strategy)()
        self._in_turn = self.broker.settings.queue_order_strategy == "round_robin"
        self._buffered = 0
        connection.poller.add(self)

    # -- Publishing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish a message; when this returns, the server has it."""
        info = message["properties"].setdefault("delivery_info", {})
        info["exchange"], info["routing_key"] = exchange, routing_key
        if not exchange:
            return self._put(routing_key, message, **kwargs)
        return self.typeof(exchange).deliver(message, exchange, routing_key, **kwargs)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Put a message on its queue's timeline: due at its ``eta``, or now."""
        broker = self.broker
        headers = message["headers"]
        due = wire_format.due_us(message, app_time_zone)
        mark = wire_format.mark_of(headers)
        row = [
            wire_format.task_id(headers) or uuid(),
            wire_format.encode(message, dumps=_dumps),
            "" if due is None else str(due),
            broker.level(message["properties"].get("priority")),
            "alias",
            "",
            "" if mark is None else mark.field,
            "" if mark is None else f"{mark.epoch} {mark.nominal_us}",
        ]
        wires = broker.wires
        patience = kwargs.get("timeout") or broker.server.address.options.socket_timeout
        for last in (False, True):
            limit = wires.now_us() + int(patience * SECOND_US)
            outcome = wires.call(broker.call("put", queue), [limit, *row])[0]
            if outcome != b"late":
                break
            wires.look_at_clock()  # the server's clock was set forward; if it was not, the next try says so too
            if last:
                raise ServerError(f"publishing to queue {queue} took longer than {patience:g} s; nothing was put")
        if outcome == b"refused" and mark is not None:
            logger.info("occurrence %d of entry %s was enqueued before; not repeated", mark.nominal_us, mark.field)

    # -- Consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Consume from a queue."""
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self.connection._callbacks[queue] = callback
        known = self.sources.get(queue)
        if known is not None and known.no_ack == bool(no_ack):
            known.callback = callback  # as in kombu, the last consumer of a queue on a channel gets its messages
            return
        if known is not None:
            self._forget(known)
        self.sources[queue] = Source(
            self.broker, queue, callback, no_ack=bool(no_ack), on_buried=self.connection.on_buried
        )
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
        source = self.sources.pop(str(queue), None)
        if source is not None:
            self._forget(source)
        self._order.update(list(self.sources))
        if self.connection is not None:
            self.connection._callbacks.pop(queue, None)
            self.connection.poller.changed()

    def _forget(self, source: Source) -> None:
        self._buffered -= len(source.buffer)
        source.give_back()

    def buffered(self) -> int:
        """Return how many messages were claimed and are not delivered yet."""
        return self._buffered

    def claim(self, now: float, *, armed: bool = False) -> bool:
        """Claim what credit and appetite allow; return whether anything came. May take several round trips."""
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
        if credit <= 0:
            return []
        order = [sources[queue] for queue in self._order.consume(len(sources))] if len(sources) > 1 else sources.values()
        busy = any(not source.dry for source in order)
        plan: list[tuple[Source, int]] = []
        hungry = [source for source in order if not source.dry or (busy and now - source.asked_at > RECHECK_S)]
        share = max(1, credit // len(hungry)) if hungry and self._in_turn else credit
        for source in hungry:
            limit = source.limit(min(share, credit), now)
            if limit > 0:
                plan.append((source, limit))
                credit -= limit
                if credit <= 0 or not self._in_turn:
                    break
        return plan

    def _qos_credit(self, at_most: int) -> int:
        return int(self.qos.credit(at_most))

    def _claim(self, plan: list[tuple[Source, int]], now: float, *, armed: bool) -> int:
        wires = self.broker.wires
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
                answers = wires.call_all(
                    [(source.call, source.arguments(limit, armed=armed)) for source, limit in group]
                )
            except BaseException:
                for source, _ in group:
                    source.failed()
                raise
            for (source, limit), answer in zip(group, answers, strict=True):
                count += source.answered(answer, limit, now)
        return count

    def deliver_next(self) -> bool:
        """Hand one claimed message to its consumer; return False if there is none."""
        if not self._buffered:
            return False
        sources = self.sources
        if len(sources) == 1:
            (source,) = sources.values()
        else:
            source = next(sources[queue] for queue in self._order.consume(len(sources)) if sources[queue].buffer)
            self._order.rotate(source.queue)
        tag, body, count = source.buffer.popleft()
        self._buffered -= 1
        if source.no_ack or tag in source.desk.held:
            message = self._message(source, tag, body, count)
            if message is not None:
                source.callback(message)
        return True

    def _message(self, source: Source, tag: str, body: bytes, count: int) -> Message | None:
        try:
            payload = wire_format.decode(body, loads=_loads)
        except ValueError as exc:
            logger.error("queue %s: %s; it is set aside with the dead", source.queue, exc)
            if not source.no_ack:
                source.set_aside(tag, "malformed")
            return None
        properties = payload["properties"]
        properties["delivery_tag"] = tag
        if count > 1:
            payload["headers"]["redelivered"] = properties["delivery_info"]["redelivered"] = True
            properties["delivery_count"] = count - 1
        message = Message(payload, self)
        if not source.no_ack:
            self.qos.delivered[tag] = (source.desk, count, message.reference())
        return message

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Message | None:
        """Take one message, or None if none is due."""
        source = Source(self.broker, queue, _nobody, no_ack=no_ack, on_buried=self.connection.on_buried)
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

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one event of this connection."""
        self.connection.drain_events(self.connection, timeout=timeout)

    # -- Ending

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """End a message: it is done. Returns at once; the ack is sent within milliseconds and seen through."""
        if multiple:
            for tag in list(self.qos.delivered):
                self.qos.ack(tag)
                if tag == delivery_tag:
                    break
        else:
            self.qos.ack(delivery_tag)

    def rejected(self, desk: Any, tag: str, count: int, *, requeue: bool) -> None:
        """End a message that its consumer refused."""
        settings = self.broker.settings
        if requeue and desk.delivery_limit and count >= desk.delivery_limit:
            logger.error(
                "message %s of queue %s was handed back after %d deliveries and is set aside with the dead; see it with "
                "`celery zsched dead`",
                tag[16:], desk.queue, count,
            )  # fmt: skip
            self._bury(desk, tag, f"handed back after {count} deliveries")
            if self.connection is not None:
                self.connection.on_buried(desk.queue, [tag[16:]])
        elif requeue:
            if desk.give_back(tag, "counted"):
                self.broker.keeper.nudge()
        elif settings.dead_letter_rejected:
            self._bury(desk, tag, "rejected")
        elif desk.ack(tag):
            self.broker.keeper.nudge()

    @staticmethod
    def _bury(desk: Any, tag: str, reason: str) -> None:
        if desk.held.pop(tag, None) is not None:
            desk.timeline.bury([(tag[16:], tag[:16], reason)], keep=desk.dead_limit)

    # -- Queues

    def _size(self, queue: str) -> int:
        return self.broker.timeline(queue).counts().ready

    def _purge(self, queue: str) -> int:
        return self.broker.timeline(queue).purge()

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self._purge(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return True

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        """Do nothing: a queue needs no declaration."""

    # -- The end of a channel

    def close(self) -> None:
        """Close the channel without needing the network; what was not started is given back when that can be."""
        if self.closed:
            return
        for tag in list(self._consumers):
            self.basic_cancel(tag)
        self.closed = True
        if self._qos is not None:
            self._qos.let_go()
        if self.connection is not None:
            self.connection.poller.discard(self)
            self.connection.close_channel(self)
        self.exchange_types = None


def _nobody(message: Any) -> None:
    """Take a message that nobody waits for."""


def batches(rows: Sequence[Any]) -> list[Sequence[Any]]:
    """Return rows in portions that one script may handle."""
    return [rows[at : at + MAX_BATCH] for at in range(0, len(rows), MAX_BATCH)]
