"""The channel: AMQP's verbs on timelines."""

from __future__ import annotations

import logging
from typing import Any

from celery_zsched.transport import delivery
from celery_zsched.transport.claiming import ClaimingChannel
from celery_zsched.transport.declaring import DeclaringChannel
from celery_zsched.transport.sending import SendingChannel

logger = logging.getLogger("celery_zsched.transport")


class Channel(ClaimingChannel, SendingChannel, DeclaringChannel):
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
        self.deadletter_queue = self.broker.settings.deadletter_queue
        self._broadcast_queues, self._passing_queues = {}, set()
        connection.poller.add(self)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one event of this connection."""
        self.connection.drain_events(self.connection, timeout=timeout)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming; what was not delivered goes back to its place at once."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self.left(queue)

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
