"""A channel's side towards publishers: routing, and putting messages on queues."""

from __future__ import annotations

import json
import logging
import sys
from datetime import timezone, tzinfo
from typing import Any

from kombu.exceptions import InconsistencyError
from kombu.transport import virtual
from kombu.utils.json import dumps as kombu_dumps
from kombu.utils.json import loads as kombu_loads
from kombu.utils.uuid import uuid

from celery_zsched import message as wire_format
from celery_zsched import scripts
from celery_zsched.transport.batch import PublishBatch
from celery_zsched.transport.exchanges import Table, binding, is_reply_exchange, life_text
from celery_zsched.transport.fanout import Publisher, has_backlog
from celery_zsched.transport.putting import put, told_outcome
from celery_zsched.transport.shared import Broker
from celery_zsched.transport.standing import PASSING, is_reply

logger = logging.getLogger("celery_zsched.transport")


#: Within a batch, which is put later anyway, a table of bindings serves for so long, in seconds.
BATCH_TABLE_S = 0.1

#: An encoder that is made once, which for small values takes as long as encoding them.
_dumps = json.JSONEncoder(separators=(",", ":")).encode


def write_headers(value: Any) -> str:
    """Return headers as JSON, kombu's own types included."""
    try:
        return _dumps(value)
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


class SendingChannel(virtual.Channel):
    """AMQP's verbs of publishing."""

    broker: Broker
    deadletter_queue: str | None
    #: How old a table of bindings may be by which the message at hand is routed, in seconds.
    _table_age_s = 0.0

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish a message; when this returns, the server has it."""
        info = message["properties"].setdefault("delivery_info", {})
        info["exchange"], info["routing_key"] = exchange, routing_key
        if not exchange:
            return self._put(routing_key, message, **kwargs)
        self._table_age_s = 0.0 if kwargs.get("_publish_batch") is None else BATCH_TABLE_S
        return self.typeof(exchange).deliver(message, exchange, routing_key, **kwargs)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Put a message on its queue's timeline: due at its ``eta``, or now."""
        row = self._row(message)
        # What comes after its queue has gone must not bring it back: a reply, or what a binding leads to that is about
        # to lapse. Or not for long: a result may come before its asker, a task in a pool, has declared its queue.
        exchange, terms = message["properties"]["delivery_info"]["exchange"], ""
        if exchange:
            if is_reply_exchange(exchange) or self.broker.exchanges.may_have_gone(exchange, queue):
                terms = "!"
        elif "task" not in message["headers"] and is_reply(message, queue):
            terms = PASSING
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            batch.add(queue, row, terms)
            return
        outcome = put(self.broker, queue, row, patience_s=kwargs.get("timeout"), terms=terms)
        told_outcome(outcome, row, queue)

    def _row(self, message: dict[str, Any]) -> list[scripts.Argument]:
        headers = message["headers"]
        mark = wire_format.mark_of(headers, message.get("body") or b"")
        return [
            wire_format.task_id(headers) or uuid(),
            wire_format.encode(message, dumps=write_headers),
            wire_format.due_text(message, app_time_zone),
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
        return sorted({queue for _, _, queue in self._table(exchange).rows})

    def _table(self, exchange: str) -> Table:
        """Return the bindings by which to route; a table that was lost is made anew from what this process declared."""
        exchanges = self.broker.exchanges
        table = exchanges.table(exchange, age_s=self._table_age_s)
        if table.known:
            return table
        own = []
        for noted in self.state.exchanges.get(exchange, {}).get("table", ()):
            if self.typeof(exchange).type != "fanout" or not self._is_passing(noted[2]):  # see _queue_bind
                expires = self.broker.rules.get(noted[2], {}).get("expires")
                own.append((binding(*noted), life_text(expires)))
        if not own:
            return table
        exchanges.change(exchange, own)
        return exchanges.table(exchange)

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
        table = self._table(exchange).rows
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
