"""A connection by kombu's own means, with what tests of the transport want of it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched.transport.channel import Channel
from tests.servers import wait_until


class Client:
    """A connection with what tests want of it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.connection = kombu.Connection(f"zsched+{url}", transport_options=options)
        self.channel: Channel = self.connection.default_channel
        self.producer = kombu.Producer(self.channel)
        self._taken: list[Any] = []

    def send(self, body: Any, queue: str = "q", **kwargs: Any) -> None:
        """Publish to a queue by its name."""
        self.producer.publish(body, routing_key=queue, **kwargs)

    def consume(self, *queues: str | kombu.Queue, prefetch: int = 0, **kwargs: Any) -> kombu.Consumer:
        """Consume from queues; messages are kept for :meth:`next`."""
        channel = self.connection.channel()
        if prefetch:
            channel.basic_qos(0, prefetch, False)
        consumer = kombu.Consumer(
            channel, [queue if isinstance(queue, kombu.Queue) else kombu.Queue(queue) for queue in queues],
            on_message=self._taken.append, **kwargs,
        )  # fmt: skip
        consumer.consume()
        return consumer

    def next(self, timeout: float = 5) -> kombu.Message:
        """Return the next message."""
        self.connection.drain_events(timeout=timeout)
        return self._taken.pop(0)

    def all(self, count: int) -> list[Any]:
        """Take, ack and return the bodies of so many messages."""
        bodies = []
        for _ in range(count):
            message = self.next()
            message.ack()
            bodies.append(message.payload)
        return bodies

    def nothing(self, timeout: float = 0.2) -> None:
        """Show that nothing comes."""
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=timeout)

    def counts(self, queue: str = "q") -> Any:
        """Return how many messages stand where."""
        return self.channel.broker.timeline(queue).counts()

    def settled(self, queue: str = "q") -> None:
        """Wait until nothing is leased any more."""
        wait_until(lambda: self.counts(queue).leased == 0, what="the acks")

    def close(self) -> None:
        """Close the connection."""
        self.connection.release()


def in_seconds(seconds: float) -> str:
    """Return an ETA."""
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()
