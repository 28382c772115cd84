"""A channel's side towards queues and exchanges: declaring, binding, counting, purging and deleting them."""

from __future__ import annotations

from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from celery_zsched import scripts
from celery_zsched.transport.exchanges import Binding, binding, is_reply_exchange, life_text, rules_of
from celery_zsched.transport.shared import Broker


class DeclaringChannel(virtual.Channel):
    """AMQP's verbs of queues and bindings."""

    broker: Broker
    #: Queue -> the exchange and binding key by which it gets broadcasts.
    _broadcast_queues: dict[str, tuple[str, str]]

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

    def _declare(self, queue: str, rules: dict[str, int], *, listed: bool = True) -> int:
        broker = self.broker
        if "auto_delete" in rules:
            broker.keeper.finish_chores()  # a consumer that left before would take away what is declared now
        args: list[scripts.Argument] = ["0"]
        for name in ("expires", "message_ttl", "max_length", "delivery_limit", "auto_delete"):
            args += [name, rules.get(name, "")]
        ready = broker.wires.call(broker.call("declare", queue), args)[1]
        # To the default exchange every queue is bound by its name, which makes its table the list of all queues. Boxes
        # for replies are left out: they come by the thousand, and their names are known to whoever replies.
        row = binding(queue, "", queue)
        if listed and ("expires" in rules or row not in broker.exchanges.table("")):
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
            self._declare(queue, rules, listed=not is_reply_exchange(exchange))
        if not is_reply_exchange(exchange):
            row = binding(routing_key, pattern, queue)
            if "expires" in rules or row not in self.broker.exchanges.table(exchange):
                self.broker.exchanges.change(exchange, [(row, life_text(rules))])

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Bind a queue to an exchange. One that goes with its last consumer may have gone: it is declared each time."""
        exchange = exchange or "amq.direct"
        if "auto_delete" in self.broker.rules.get(queue, {}):
            self._unnote_binding(queue, exchange, routing_key, arguments)
        super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Take a binding away."""
        exchange = exchange or "amq.direct"
        row = self._unnote_binding(queue, exchange, routing_key, arguments)
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
        return self.broker.exchanges.table(exchange, fresh=True)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int | None:
        """Delete a queue with all it holds; returns how many messages were ready, or None if it stays."""
        broker = self.broker
        ready = broker.wires.call(broker.call("drop", queue), [int(if_empty), int(if_unused), 0])
        if ready < 0:
            return None
        changes: dict[str, list[tuple[Binding, str]]] = {"": [(binding(queue, "", queue), "-")]}
        for exchange, row in self._unnote_bindings(queue):
            if self.typeof(exchange).type != "fanout" and not is_reply_exchange(exchange):
                changes.setdefault(exchange, []).append((row, "-"))
        for exchange, rows in changes.items():
            if exchange or "auto_delete" not in broker.rules.get(queue, {}):
                broker.exchanges.change(exchange, rows)
        broker.rules.pop(queue, None)
        return int(ready)

    def left(self, queue: str) -> None:
        """Note that this channel consumes no longer from a queue: one that goes with its last consumer is forgotten."""
        if "auto_delete" in self.broker.rules.get(queue, {}):
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
