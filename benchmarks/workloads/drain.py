"""A kombu consumer drains a waiting queue: prefetch 64, each message acked."""

from __future__ import annotations

from typing import Any

from kombu import Consumer, Exchange, Queue

from benchmarks.app import SPEC, app
from benchmarks.meter import Meter, per_item


def measure(size: int, prefetch: int = 64) -> dict[str, Any]:
    """Fill a queue with ``size`` messages and take them out again."""
    queue = Queue("drain", Exchange("drain"), "drain")
    meter = Meter(SPEC["server"])
    done = 0
    with app.connection_for_write() as connection:
        with connection.Producer() as producer:
            for number in range(size):
                producer.publish(
                    {"number": number}, exchange=queue.exchange, routing_key="drain", declare=[queue] * (not number)
                )

        def take(_: Any, message: Any) -> None:
            nonlocal done
            message.ack()
            done += 1

        channel = connection.channel()
        consumer = Consumer(channel, [queue], callbacks=[take], accept=["json"])
        consumer.qos(prefetch_count=prefetch)
        before = meter.read()
        with consumer:
            while done < size:
                connection.drain_events(timeout=30)
            after = meter.read()
    return per_item(before, after, size)
