"""Exchanges and queues as the broker knows them: bindings, declarations, and who gets a message."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_zsched import scripts
from celery_zsched.errors import ServerError
from celery_zsched.keys import TimelineKeys, exchange_timeline
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.wires import Call, Wires

logger = logging.getLogger("celery_zsched.transport")

#: A binding as kombu's exchange types want it: routing key, pattern, queue.
Binding = tuple[str, str, str]

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


@dataclass(frozen=True, slots=True)
class Table:
    """An exchange's bindings as the server had them; ``mortal`` queues have a life, and may have gone meanwhile."""

    rows: list[Binding]
    mortal: frozenset[str]
    #: Whether the server knows of the exchange at all; if not, it may have lost the table.
    known: bool
    read_at: float


class Exchanges:
    """The bindings of one broker. Other processes change them at any time, so they are read for each use."""

    def __init__(self, wires: Wires, prefix: str) -> None:
        self._wires = wires
        self._prefix = prefix
        self._calls: dict[str, Call] = {}
        #: Exchange -> its table when it was read last; for batches, and to tell which queues may have gone.
        self._tables: dict[str, Table] = {}
        #: Bindings that did not stand when they were to be renewed last.
        self._missing: set[tuple[str, str]] = set()

    def call(self, name: str, exchange: str) -> Call:
        """Return a script on an exchange's keys."""
        known = self._calls.get(name + exchange)
        if known is None:
            script = scripts.load(name)
            keys = TimelineKeys(exchange_timeline(exchange), prefix=self._prefix)
            known = self._calls[name + exchange] = Call(script, script.key_names(keys))
        return known

    def table(self, exchange: str, *, age_s: float = 0.0) -> Table:
        """Return an exchange's bindings as the server has them, or had them up to ``age_s`` seconds ago."""
        now = time.monotonic()
        known = self._tables.get(exchange)
        if known is not None and now - known.read_at < age_s:
            return known
        answer = self._wires.call(self.call("bind", exchange), ["1"])
        rows: list[Binding] = []
        mortal = set()
        for at in range(0, len(answer), 2):
            routing_key, pattern, queue = answer[at].decode().split(_SEPARATOR)
            if queue:
                rows.append((routing_key, pattern, queue))
                if answer[at + 1] != b"inf":
                    mortal.add(queue)
        found = self._tables[exchange] = Table(rows, frozenset(mortal), bool(answer), now)
        return found

    def may_have_gone(self, exchange: str, queue: str) -> bool:
        """Return whether a queue to which an exchange has just led has a life, which may be over."""
        known = self._tables.get(exchange)
        return known is not None and queue in known.mortal

    def change(self, exchange: str, changes: Sequence[tuple[Binding, str]]) -> None:
        """Add and take away bindings: (binding, life in milliseconds, "" for ever, "-" to take it away)."""
        args: list[scripts.Argument] = [""]
        for row, life in changes:
            args += [_SEPARATOR.join(row), life]
        self._wires.call(self.call("bind", exchange), args)
        self._tables.pop(exchange, None)

    def withdraw(self, wires: Wires, dropped: Sequence[Any], *, clocks_us: int = 0) -> None:
        """Take away the bindings of a queue that went with its last consumer: takes the answer of ``lua/drop.lua``.

        Those stay that somebody made after that, who has declared the queue anew. ``clocks_us`` is by how much the
        clocks of the servers may differ.
        """
        if not dropped[1]:
            return
        rows: dict[str, list[scripts.Argument]] = {}
        for exchange, row in records(dropped[2:]):
            rows.setdefault(exchange, []).extend((_SEPARATOR.join(row), f"-{int(dropped[1]) - clocks_us}"))
        for exchange, args in rows.items():
            wires.call(self.call("bind", exchange), ["", *args])

    def renew(self, wires: Wires, touched: Sequence[Sequence[Any]]) -> None:
        """Have the bindings live on of queues that were told to: takes the answers of ``lua/touch.lua``.

        One that does not stand, though its queue still has it on record a round later, was lost and is made anew.
        """
        wanted: dict[str, list[scripts.Argument]] = {}
        for _, expires, *bound in touched:
            for text in bound if expires else ():
                exchange, _, row = text.decode().partition(_SEPARATOR)
                again = "" if (exchange, row) in self._missing else "~"
                wanted.setdefault(exchange, []).extend((row, f"{again}{2 * int(expires)}"))
        missing: set[tuple[str, str]] = set()
        failure: ServerError | None = None
        for exchange, args in wanted.items():
            for start in range(0, len(args), 2 * MAX_BATCH):
                try:
                    gone = wires.call(self.call("bind", exchange), ["", *args[start : start + 2 * MAX_BATCH]])
                except ServerError as exc:
                    failure = exc  # of one node: others are seen to all the same
                else:
                    missing.update((exchange, row.decode()) for row in gone)
        self._missing = missing
        if failure is not None:
            raise failure


def binding(routing_key: str | None, pattern: str | None, queue: str) -> Binding:
    """Return a binding with nothing left out."""
    return routing_key or "", pattern or "", queue


def record_of(exchange: str, row: Binding) -> str:
    """Return a binding as it is noted with its queue (``lua/bound.lua``)."""
    return _SEPARATOR.join((exchange, *row))


def records(texts: Sequence[bytes]) -> list[tuple[str, Binding]]:
    """Return the bindings that were noted with a queue, with their exchanges."""
    found = []
    for text in texts:
        exchange, routing_key, pattern, queue = text.decode().split(_SEPARATOR)
        found.append((exchange, (routing_key, pattern, queue)))
    return found


def life_text(expires: int | str | None) -> str:
    """Return how long a binding of a queue lives, for :meth:`Exchanges.change`: as long as twice the queue."""
    return str(2 * int(expires)) if expires else ""
