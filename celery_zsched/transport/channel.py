"""The channel: AMQP's verbs on timelines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import timezone, tzinfo
from queue import Empty
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError, InconsistencyError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps as kombu_dumps
from kombu.utils.json import loads as kombu_loads
from kombu.utils.scheduling import cycle_by_name
from kombu.utils.uuid import uuid

from celery_zsched import message as wire_format
from celery_zsched import scripts
from celery_zsched.transport import delivery
from celery_zsched.transport.batch import PublishBatch
from celery_zsched.transport.exchanges import Binding, binding, is_reply_exchange, life_text, rules_of
from celery_zsched.transport.fanout import Publisher, Subscription, has_backlog, matcher
from celery_zsched.transport.flight import Flight
from celery_zsched.transport.putting import put, told_outcome
from celery_zsched.transport.shared import Broker
from celery_zsched.transport.source import RECHECK_S, REST_S, Source

logger = logging.getLogger("celery_zsched.transport")


#: With less prefetch than this a claim sent ahead would be too small to be worth its while.
AHEAD_LEAST = 16

#: How long a small prefetch credit is given to grow, in seconds: acks come in handfuls.
GROW_S = 0.002


def write_headers(value: Any) -> str:
    """Return headers as JSON, kombu's own types included."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except TypeError:
        return str(kombu_dumps(value))  # moments, UUIDs and the like, as kombu writes them


def read_headers(text: str) -> Any:
    """Return the JSON of a message's headers as values, kombu's own types included."""
    return kombu_loads(text) if "__type__" in text else json.loads(text)


def app_time_zone() -> tzinfo:
    """Return the zone of an ``eta`` without an offset: the current Celery app's, as its worker reads it."""
    state = sys.modules.get("celery._state")
    if state is not None:
        zone = state.get_current_app().timezone
        if isinstance(zone, tzinfo):
            return zone
    return timezone.utc


class Channel(virtual.Channel):
    """A channel on the broker. Not for several threads at once, but acks may come from any."""

    Message = delivery.Message
    QoS = delivery.QoS
    body_encoding = None
    closed: bool
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
        self._claimed_at = 0.0
        #: Claims that are sent ahead, when an event loop drives this.
        self.flight: Flight | None = None
        #: Queue -> the exchange and binding key by which it gets broadcasts.
        self._broadcast_queues: dict[str, tuple[str, str]] = {}
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
        row = self._row(message)
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            batch.add(queue, row)
            return
        # A reply that comes after its asker has gone must not bring the asker's queue back.
        declared_only = is_reply_exchange(message["properties"]["delivery_info"]["exchange"])
        outcome = put(self.broker, queue, row, patience_s=kwargs.get("timeout"), declared_only=declared_only)
        told_outcome(outcome, row)

    def _row(self, message: dict[str, Any]) -> list[scripts.Argument]:
        headers = message["headers"]
        due = wire_format.due_us(message, app_time_zone)
        mark = wire_format.mark_of(headers, message.get("body") or b"")
        return [
            wire_format.task_id(headers) or uuid(),
            wire_format.encode(message, dumps=write_headers),
            "" if due is None else str(due),
            self.broker.level(message["properties"].get("priority")),
            "alias",
            "",
            "" if mark is None else mark.field,
            "" if mark is None else f"{mark.epoch} {mark.nominal_us}",
        ]

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        """Send a broadcast."""
        for queue in self._stored_queues(exchange):
            self._put(queue, message, **kwargs)
        payload = wire_format.encode(message, dumps=write_headers)
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            batch.add_broadcast(exchange, routing_key or "", payload)
        else:
            Publisher(self.broker).publish(exchange, routing_key or "", payload)

    def _stored_queues(self, exchange: str) -> list[str]:
        """Return the queues that get broadcasts as messages to be kept; nobody keeps events and remote control."""
        if exchange == "celeryev" or has_backlog(exchange):
            return []
        return sorted({queue for _, _, queue in self.broker.exchanges.table(exchange)})

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return a batch for kombu's ``Producer.batch``."""
        return PublishBatch(self, max_size)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """Return the queues that a message goes to; never nothing without a word."""
        default = default or self.deadletter_queue
        if not exchange:
            return [routing_key or str(default)]
        if is_reply_exchange(exchange):
            return [f"{routing_key}.{exchange}"]
        kind = self.typeof(exchange)
        exchanges = self.broker.exchanges
        found = kind.lookup(exchanges.table(exchange), exchange, routing_key, default)
        table: list[Binding] = []
        if not found:
            table = exchanges.table(exchange, fresh=True)
            found = kind.lookup(table, exchange, routing_key, default)
        if not found:
            # A table that was lost is made anew from what this connection declared.
            own = [binding(*row) for row in self.state.exchanges.get(exchange, {}).get("table", ())]
            if own:
                table = exchanges.change(exchange, [(row, life_text(self.broker.rules.get(row[2], {}))) for row in own])
                found = kind.lookup(table, exchange, routing_key, default)
        if found:
            return list(found)
        if default is not None:
            logger.warning(
                "no queue is bound to exchange %s for routing key %s; the message goes to the deadletter_queue %s",
                exchange, routing_key, default,
            )  # fmt: skip
            return [default]
        if not table and kind.type == "direct":
            raise InconsistencyError(
                f"no queue is bound to exchange {exchange}, so the message with routing key {routing_key} goes "
                "nowhere; declare a queue for it, or start a worker that does"
            )
        logger.warning(
            "no queue is bound to exchange %s for routing key %s; the message is dropped", exchange, routing_key
        )
        return []

    # -- Consuming

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
        if credit <= 0 or now < self.resumes_at(credit):
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
        qos = self.qos
        limit = qos.prefetch_count
        if not limit or "can_consume" in qos.__dict__:
            return 0.0
        free = limit - len(qos.delivered) - self.buffered()
        if free <= 0:
            return now + REST_S  # an ack makes it look again before
        return float(self._claimed_at + GROW_S) if free * 2 < limit else 0.0

    def resumes_at(self, credit: int) -> float:
        """Return when the next claim is worth its while: a credit of a few is given a moment to grow after a claim."""
        return self._claimed_at + GROW_S if credit * 2 < self.qos.prefetch_count else 0.0

    def _claim(self, plan: list[tuple[Source, int]], now: float, *, armed: bool) -> int:
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
        limit = self.broker.rules.get(desk.queue, {}).get("delivery_limit", desk.delivery_limit)
        if requeue and limit and count >= limit:
            logger.error(
                "message %s of queue %s was handed back after %d deliveries and is set aside with the dead; see "
                "it with `celery zsched dead`",
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
            desk.timeline.bury([(tag[16:], tag[:16], reason, b"")], keep=desk.dead_limit)

    # -- Queues

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Declare a queue, or with ``passive`` ask for it; returns its name and how many messages are ready.

        Asking for a queue that is unknown and empty raises kombu's ``ChannelError`` with code 404.
        """
        queue = queue or f"amq.gen-{uuid()}"
        broker = self.broker
        if passive:
            known, ready = broker.wires.call(broker.call("declare", queue), ["1"])
            if not known:
                raise ChannelError(
                    f"NOT_FOUND - no queue {queue!r} in vhost {self.connection.client.virtual_host or '/'!r}",
                    (50, 10), "Channel.queue_declare", "404",
                )  # fmt: skip
            return queue_declare_ok_t(queue, ready, 0)
        rules = broker.rules[queue] = rules_of(arguments, auto_delete=auto_delete)
        if auto_delete:
            # It may be for broadcasts, which need nothing on the server: that is known once it is bound or consumed.
            return queue_declare_ok_t(queue, broker.wires.call(broker.call("declare", queue), ["1"])[1], 0)
        return queue_declare_ok_t(queue, self._declare(queue, rules), 0)

    def _declare(self, queue: str, rules: dict[str, int]) -> int:
        broker = self.broker
        args: list[scripts.Argument] = ["0"]
        for name in ("expires", "message_ttl", "max_length", "delivery_limit", "auto_delete"):
            args += [name, rules.get(name, "")]
        ready = broker.wires.call(broker.call("declare", queue), args)[1]
        # To the default exchange every queue is bound by its name.
        row = binding(queue, "", queue)
        if "expires" in rules or row not in broker.exchanges.table(""):
            broker.exchanges.change("", [(row, life_text(rules))])
        return int(ready)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        """Bind a queue, as kombu's own ``queue_bind`` asks when it has noted the binding."""
        rules = self.broker.rules.get(queue, {})
        if self.typeof(exchange).type == "fanout" and "auto_delete" in rules:
            # Of a consumer that comes and goes: it gets what is sent while it is there. Other queues keep messages.
            self._broadcast_queues[queue] = (exchange, routing_key or "")
            return
        if "auto_delete" in rules:
            self._declare(queue, rules)
        if not is_reply_exchange(exchange):
            row = binding(routing_key, pattern, queue)
            if "expires" in rules or row not in self.broker.exchanges.table(exchange):
                self.broker.exchanges.change(exchange, [(row, life_text(rules))])

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Take a binding away."""
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        row = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        table = self.state.exchanges.get(exchange, {}).get("table", [])
        table[:] = [meta for meta in table if meta != row]
        self.broker.exchanges.change(exchange, [(binding(*row), "-")])

    def get_table(self, exchange: str) -> list[Binding]:
        """Return an exchange's bindings."""
        return self.broker.exchanges.table(exchange, fresh=True)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int | None:
        """Delete a queue with all it holds; returns how many messages were ready, or None if it stays."""
        broker = self.broker
        ready = broker.wires.call(broker.call("drop", queue), [int(if_empty), int(if_unused)])
        if ready < 0:
            return None
        changes: dict[str, list[tuple[Binding, str]]] = {"": [(binding(queue, "", queue), "-")]}
        for exchange, routing_key, arguments in list(self.state.queue_bindings(queue)):
            kind = self.typeof(exchange)
            if kind.type != "fanout" and not is_reply_exchange(exchange):
                row = kind.prepare_bind(queue, exchange, routing_key, arguments)
                changes.setdefault(exchange, []).append((binding(*row), "-"))
                own = self.state.exchanges.get(exchange, {}).get("table", [])
                own[:] = [meta for meta in own if meta != row]
        for exchange, rows in changes.items():
            if exchange or "auto_delete" not in broker.rules.get(queue, {}):
                broker.exchanges.change(exchange, rows)
        self.state.queue_bindings_delete(queue)
        broker.rules.pop(queue, None)
        return int(ready)

    def _size(self, queue: str) -> int:
        return self.broker.timeline(queue).counts().ready

    def _purge(self, queue: str) -> int:
        self.broker.keeper.flush([self.broker.desk(queue)])
        return self.broker.timeline(queue).purge()

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Return kombu's queue options as AMQP queue arguments."""
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    @property
    def client(self) -> Client:
        """The server's client, for those who ask it for queue lengths."""
        return Client(self)

    # -- The end of a channel

    def close(self) -> None:
        """Close the channel without needing the network; what was not started is given back when that can be."""
        if self.closed:
            return
        for tag in list(self._consumers):
            self.basic_cancel(tag)
        self.closed = True
        if self.flight is not None:
            self.flight.close()
        if self._qos is not None:
            self._qos.let_go()
        if self.connection is not None:
            self.connection.poller.discard(self)
            self.connection.close_channel(self)
        self.exchange_types = None


class Client:
    """redis-py's client with queue lengths as monitors ask for them: ``llen(queue)`` is how many messages are ready."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def llen(self, name: str) -> int:
        """Return how many messages are ready in a queue."""
        return self._channel._size(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel.broker.server.client, name)


def _nobody(message: Any) -> None:
    """Take a message that nobody waits for."""
