"""A channel's side towards queues and exchanges: declaring, binding, counting, purging and deleting them."""

from __future__ import annotations

from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from celery_zsched import scripts
from celery_zsched.transport.exchanges import (
    Binding,
    binding,
    is_reply_exchange,
    life_text,
    record_of,
    records,
    rules_of,
)
from celery_zsched.transport.shared import Broker
from celery_zsched.transport.standing import RULES, Standing, gives_rules, warn


class DeclaringChannel(virtual.Channel):
    """AMQP's verbs of queues and bindings."""

    broker: Broker
    #: Queue -> the exchange and binding key by which it gets broadcasts.
    _broadcast_queues: dict[str, tuple[str, str]]
    #: Queues that were declared here to go with their last consumer.
    _passing_queues: set[str]

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Declare a queue, or with ``passive`` ask for it; returns its name and how many messages are ready.

        Without arguments the rules that the queue stands under are left alone; with arguments they are what it stands
        under from then on, and it is warned about where that is not what it stood under before.

        Asking for a queue that is unknown and empty raises kombu's ``ChannelError`` with code 404.
        """
        queue = queue or f"amq.gen-{uuid()}"
        broker = self.broker
        if passive:
            standing = Standing.of(broker.wires.call(broker.call("declare", queue), ["1"]))
            if not standing.known:
                raise ChannelError(
                    f"NOT_FOUND - no queue {queue!r} in vhost {self.connection.client.virtual_host or '/'!r}",
                    (50, 10), "Channel.queue_declare", "404",
                )  # fmt: skip
            return queue_declare_ok_t(queue, standing.ready, 0)
        asked = rules_of(arguments, auto_delete=auto_delete)
        args: list[scripts.Argument] = ["2"]
        if gives_rules(arguments, auto_delete=auto_delete):
            args = ["0", *(part for name in RULES for part in (name, asked.get(name, "")))]
        if auto_delete:
            broker.keeper.finish_chores()  # a consumer that left before would take away what is declared now
        standing = Standing.of(broker.wires.call(broker.call("declare", queue), args))
        warn(queue, asked, standing)
        broker.rules[queue] = standing.rules
        if auto_delete:
            # Listed when it is bound. Boxes for replies are not, which are bound to the default exchange or to one of
            # their own: they come by the thousand, and their names are known to whoever replies.
            self._passing_queues.add(queue)
        else:
            self._bind("", binding(queue, "", queue))
        return queue_declare_ok_t(queue, standing.ready, 0)

    def _bind(self, exchange: str, row: Binding) -> None:
        # To the default exchange every queue is bound by its name, which makes its table the list of all queues.
        broker, queue = self.broker, row[2]
        expires = broker.rules.get(queue, {}).get("expires")
        if exchange or expires:
            # Noted with the queue first: whoever renews or deletes it sees to all bindings that there may be.
            known = broker.wires.call(broker.call("bound", queue), [record_of(exchange, row), 1])
            expires = expires if known is None else known
        broker.exchanges.change(exchange, [(row, life_text(expires))])

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        """Bind a queue, as kombu's own ``queue_bind`` asks when it has noted the binding."""
        broker = self.broker
        rules = broker.rules.get(queue, {})
        if self.typeof(exchange).type == "fanout" and self._is_passing(queue):
            # Of a consumer that comes and goes: it gets what is sent while it is there. Other queues keep messages.
            if queue not in self._broadcast_queues:
                broker.wires.call(broker.call("drop", queue), [0, 0, 2])
            self._broadcast_queues[queue] = (exchange, routing_key or "")
            return
        if not is_reply_exchange(exchange):
            if "auto_delete" in rules:
                self._bind("", binding(queue, "", queue))
            self._bind(exchange, binding(routing_key, pattern, queue))

    def _is_passing(self, queue: str) -> bool:
        return queue in self._passing_queues or "auto_delete" in self.broker.rules.get(queue, {})

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Bind a queue to an exchange: each time, since others may have taken the binding or the queue away."""
        exchange = exchange or "amq.direct"
        self._unnote_binding(queue, exchange, routing_key, arguments)
        super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Take a binding away."""
        exchange = exchange or "amq.direct"
        row = self._unnote_binding(queue, exchange, routing_key, arguments)
        # Off the record first, so that nobody renews it.
        self.broker.wires.call(self.broker.call("bound", queue), [record_of(exchange, row), 0])
        self.broker.exchanges.change(exchange, [(row, "-")])

    def _unnote_binding(self, queue: str, exchange: str, routing_key: str, arguments: Any) -> Binding:
        """Take a binding out of what this connection has noted for itself; return it."""
        self.state.binding_delete(queue, exchange, routing_key)
        row = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        table = self.state.exchanges.get(exchange, {}).get("table", [])
        table[:] = [meta for meta in table if meta != row]
        return binding(*row)

    def _unnote_bindings(self, queue: str) -> list[tuple[str, Binding]]:
        """Take a queue's bindings out of what this connection has noted; return them with their exchanges."""
        noted = [
            (exchange, self._unnote_binding(queue, exchange, routing_key, arguments))
            for exchange, routing_key, arguments in list(self.state.queue_bindings(queue))
        ]
        self.state.queue_bindings_delete(queue)
        return noted

    def get_table(self, exchange: str) -> list[Binding]:
        """Return an exchange's bindings."""
        return self.broker.exchanges.table(exchange).rows

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int | None:
        """Delete a queue with all it holds; returns how many messages were ready, or None if it stays."""
        broker = self.broker
        desks = [desk for desk in list(broker.keeper.desks.values()) if desk.queue == queue]
        broker.keeper.flush(desks)  # what was done before this is no news
        for desk in desks:
            desk.expect_nothing()
        ready, _, *noted = broker.wires.call(broker.call("drop", queue), [int(if_empty), int(if_unused), 0])
        if ready < 0:
            for desk in desks:
                desk.expect_all()
            return None
        rows = records(noted)
        if "auto_delete" not in broker.rules.get(queue, {}):
            rows.append(("", binding(queue, "", queue)))
        for exchange, row in self._unnote_bindings(queue):
            if not is_reply_exchange(exchange) and queue not in self._broadcast_queues:
                rows.append((exchange, row))
        changes: dict[str, list[tuple[Binding, str]]] = {}
        for exchange, row in dict.fromkeys(rows):
            changes.setdefault(exchange, []).append((row, "-"))
        for exchange, some in changes.items():
            broker.exchanges.change(exchange, some)
        broker.rules.pop(queue, None)
        self._passing_queues.discard(queue)
        broker.forget(queue)
        return int(ready)

    def left(self, queue: str) -> None:
        """Note that this channel consumes no longer from a queue: one that goes with its last consumer is forgotten."""
        if self._is_passing(queue):
            self._passing_queues.discard(queue)
            self._unnote_bindings(queue)
            self.broker.forget(queue)

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


class Client:
    """redis-py's client with queue lengths as monitors ask for them: ``llen(queue)`` is how many messages are ready."""

    def __init__(self, channel: DeclaringChannel) -> None:
        self._channel = channel

    def llen(self, name: str) -> int:
        """Return how many messages are ready in a queue."""
        return self._channel._size(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel.broker.server.client, name)
