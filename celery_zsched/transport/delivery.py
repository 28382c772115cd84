"""A message as kombu hands it to consumers, and the account of what was handed out."""

from __future__ import annotations

import weakref
from typing import Any

from kombu.compression import decompress
from kombu.transport import virtual

from celery_zsched.transport.desk import Desk
from celery_zsched.transport.keeper import Keeper


class Message(virtual.Message):
    """A delivered message. Its delivery tag proves the lease on it."""

    #: Whether it was given back before it was started.
    given_back = False
    #: Whether it is known to be worked on.
    begun = False

    def __init__(self, payload: dict[str, Any], channel: Any = None, **_: Any) -> None:
        # What kombu's own constructors do in three steps, in one: it is run for every message.
        properties = payload["properties"]
        headers = payload.get("headers") or {}
        body = payload.get("body")
        self.channel = channel
        self.delivery_tag = properties.get("delivery_tag")
        self.content_type = payload.get("content-type")
        self.content_encoding = payload.get("content-encoding")
        self.delivery_info = properties.get("delivery_info") or {}
        self.headers = headers
        self.properties = properties
        self.accept = None
        self.errors = None
        self._raw = payload
        self._decoded_cache = None
        self._state = "RECEIVED"
        if isinstance(body, str):
            body = body.encode()
        if "compression" in headers:
            self.errors = []
            try:
                body = decompress(body, headers["compression"])
            except Exception as exc:
                self.errors.append((type(exc), exc, exc.__traceback__))
        self.body = body

    def reference(self) -> weakref.ref[Message]:
        """Return a reference that does not keep the message."""
        return weakref.ref(self)

    def give_back(self) -> None:
        """Give the message back as if it had never been delivered; it must not be worked on any more."""
        found = self.channel.qos.delivered.pop(self.delivery_tag, None)
        if found is not None:
            self.given_back = True
            self._state = "REQUEUED"
            give_back(self.channel.broker.keeper, found[0], self.delivery_tag)

    def serializable(self) -> dict[str, Any]:
        """Return the message as it can be published again."""
        raw: dict[str, Any] = dict(self._raw)
        return raw


class QoS:
    """What a channel has delivered and not seen the end of, against its prefetch credit.

    kombu's and Celery's surface: ``prefetch_count`` (0: no limit) and :meth:`can_consume`, which Celery replaces on the
    instance when ``worker_disable_prefetch`` is set.
    """

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        #: Delivery tag -> what is needed to end it. The message itself is kept by whoever works on it.
        self.delivered: dict[str, tuple[Desk, int, weakref.ref[Message]]] = {}

    def can_consume(self) -> bool:
        """Return whether one more message may be taken."""
        return not self.prefetch_count or len(self.delivered) + self.channel.buffered() < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more messages may be taken; None is without limit."""
        if not self.prefetch_count:
            return None
        return max(0, self.prefetch_count - len(self.delivered) - int(self.channel.buffered()))

    def credit(self, at_most: int) -> int:
        """Return how many messages to take now, up to ``at_most``."""
        if "can_consume" in self.__dict__:
            # Celery counts what its pool holds, so that only one more at a time is known to be welcome.
            return 1 if not self.channel.buffered() and self.can_consume() else 0
        if not self.prefetch_count:
            return at_most - int(self.channel.buffered())
        return min(at_most, self.prefetch_count - len(self.delivered) - int(self.channel.buffered()))

    def append(self, message: Message, delivery_tag: str) -> None:
        """Do nothing: what a claim brought is noted when it is delivered."""

    def get(self, delivery_tag: str) -> Message:
        """Return a message that was delivered, has not ended, and is still worked on; otherwise ``KeyError``."""
        message = self.delivered[delivery_tag][2]()
        if message is None:
            raise KeyError(delivery_tag)
        return message

    def ack(self, delivery_tag: str) -> None:
        """End a message: it is done."""
        found = self.delivered.pop(delivery_tag, None)
        if found is not None and found[0].ack(delivery_tag):
            self.channel.broker.keeper.nudge()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """End a message: it goes back to its place, or away."""
        found = self.delivered.pop(delivery_tag, None)
        if found is not None:
            desk, count, _ = found
            self.channel.rejected(desk, delivery_tag, count, requeue=requeue)

    def let_go(self) -> None:
        """Note that the channel is gone: what nobody works on any more is given back, now or when it is dropped.

        What is still worked on keeps its lease, and its ack is sent by other connections.
        """
        keeper = self.channel.broker.keeper
        for tag, (desk, _, reference) in list(self.delivered.items()):
            message = reference()
            if message is None:
                give_back(keeper, desk, tag)
            else:
                weakref.finalize(message, give_back, keeper, desk, tag).atexit = False

    def restore_unacked(self) -> list[Any]:
        """Give every message back."""
        for tag in list(self.delivered):
            self.reject(tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Do nothing by force: leases see to it."""

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Do nothing: ended leases are claimed like anything that is due."""


def give_back(keeper: Keeper, desk: Desk, tag: str) -> None:
    """Give a delivery back as if it had never been made, unless it has ended meanwhile."""
    if tag in desk.held and desk.give_back(tag):
        keeper.nudge()
