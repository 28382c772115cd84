"""``apply_async`` in a loop, and kombu's batch publish of 1 KiB bodies."""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue

from benchmarks.app import SPEC, app, noop
from benchmarks.meter import Meter, per_item


def measure(size: int) -> dict[str, Any]:
    """Send ``size`` tasks one by one, then as many messages in batches."""
    meter = Meter(SPEC["server"])
    for number in range(min(size, 200)):
        noop.apply_async((number, 0))
    before = meter.read()
    for number in range(size):
        noop.apply_async((number, 0))
    figures = per_item(before, meter.read(), size)
    figures |= {f"batch_{name}": value for name, value in _batch(meter, size).items()}
    return figures


def _batch(meter: Meter, size: int) -> dict[str, float]:
    queue = Queue("batch", Exchange("batch"), "batch")
    body = "x" * 1024
    with app.connection_for_write() as connection, connection.Producer() as producer:
        producer.publish(body, exchange=queue.exchange, routing_key="batch", declare=[queue])
        if not hasattr(producer, "batch"):
            return {}
        before = meter.read()
        with producer.batch(max_size=500):
            for _ in range(size):
                producer.publish(body, exchange=queue.exchange, routing_key="batch")
        return per_item(before, meter.read(), size)
