"""Exchanges and queues as the broker knows them: bindings, declarations, and who gets a message."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from celery_zsched import scripts
from celery_zsched.keys import TimelineKeys, exchange_timeline
from celery_zsched.wires import Call, Wires

logger = logging.getLogger("celery_zsched.transport")

#: A binding as kombu's exchange types want it: routing key, pattern, queue.
Binding = tuple[str, str, str]

#: A table of bindings is read again when it is this old, in seconds; one that names no queue for a message, at once.
FRESH_S = 5.0

#: An auto-deleted queue without ``x-expires`` whose consumers died without a word goes after this time, in ms.
AUTO_DELETE_MS = 3_600_000

_SEPARATOR = "\0"

#: Queue arguments -> rule, and how many of the rule's units one of the argument's is.
_ARGUMENTS: dict[str, tuple[str, int]] = {
    "x-expires": ("expires", 1),
    "x-message-ttl": ("message_ttl", 1000),
    "x-max-length": ("max_length", 1),
    "x-delivery-limit": ("delivery_limit", 1),
}

#: Queue arguments of AMQP brokers that ask for what is done anyway, or for nothing.
_HARMLESS = frozenset({"x-max-priority", "x-queue-mode", "x-queue-type", "x-overflow"})


def rules_of(arguments: Mapping[str, Any] | None, *, auto_delete: bool) -> dict[str, int]:
    """Return what a queue is declared with, as ``lua/declare.lua`` wants it; what cannot be read is warned about."""
    rules: dict[str, int] = {}
    for name, value in (arguments or {}).items():
        known = _ARGUMENTS.get(name)
        if known is None or value is None:
            if known is None and name not in _HARMLESS:
                logger.warning("queue argument %s = %r is not known here and changes nothing", name, value)
            continue
        try:
            rules[known[0]] = max(0, int(value)) * known[1]
        except (TypeError, ValueError):
            logger.warning("queue argument %s = %r is not a number and changes nothing", name, value)
    if auto_delete:
        rules["auto_delete"] = 1
        rules.setdefault("expires", AUTO_DELETE_MS)
    if rules.get("expires") == 0:
        del rules["expires"]
    return rules


def is_reply_exchange(exchange: str) -> bool:
    """Return whether an exchange carries the replies of remote control: its queues are named after it."""
    return exchange.startswith("reply.") and exchange.endswith(".pidbox")


class Exchanges:
    """The bindings of one broker, read when needed and remembered for a moment."""

    def __init__(self, wires: Wires, prefix: str) -> None:
        self._wires = wires
        self._prefix = prefix
        self._calls: dict[str, Call] = {}
        self._tables: dict[str, tuple[float, list[Binding]]] = {}

    def call(self, name: str, exchange: str) -> Call:
        """Return a script on an exchange's keys."""
        known = self._calls.get(name + exchange)
        if known is None:
            script = scripts.load(name)
            keys = TimelineKeys(exchange_timeline(exchange), prefix=self._prefix)
            known = self._calls[name + exchange] = Call(script, script.key_names(keys))
        return known

    def table(self, exchange: str, *, fresh: bool = False) -> list[Binding]:
        """Return an exchange's bindings; ``fresh`` ones as the server has them now."""
        known = self._tables.get(exchange)
        if fresh or known is None or time.monotonic() - known[0] > FRESH_S:
            return self.change(exchange, [])
        return known[1]

    def change(self, exchange: str, changes: Sequence[tuple[Binding, str]]) -> list[Binding]:
        """Add and take away bindings: (binding, life in milliseconds, "" for ever, "-" to take it away)."""
        args: list[scripts.Argument] = []
        for binding, life in changes:
            args += [_SEPARATOR.join(binding), life]
        answer = self._wires.call(self.call("bind", exchange), args)
        table: list[Binding] = []
        for row in answer:
            routing_key, pattern, queue = row.decode().split(_SEPARATOR)
            table.append((routing_key, pattern, queue))
        self._tables[exchange] = (time.monotonic(), table)
        return table


def binding(routing_key: str | None, pattern: str | None, queue: str) -> Binding:
    """Return a binding with nothing left out."""
    return routing_key or "", pattern or "", queue


def life_text(rules: Mapping[str, int]) -> str:
    """Return how long a binding of a queue lives, for :meth:`Exchanges.change`: as long as twice the queue."""
    return str(2 * rules["expires"]) if "expires" in rules else ""
