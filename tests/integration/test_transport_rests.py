"""Consumers that do something else for long and look at their queue again, as programs do that ask workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched import bell
from celery_zsched.transport import poller
from tests.servers import RunningServer
from tests.stamps import Stamped, passes


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocking pop counts as overdue at once after its time-out, which comes soon."""
    monkeypatch.setattr(bell, "GRACE_S", 0.0)
    monkeypatch.setattr(poller, "LOOKS_PER_POP", 1)


def drained(connection: kombu.Connection, got: list[Any]) -> list[Any]:
    """Take one message; return what came so far."""
    while not got:
        connection.drain_events(timeout=10)
    return got


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("same", [True, False], ids=["same-consumer", "another-consumer"])
def test_a_consumer_that_looks_away_for_long_finds_its_link_alive(valkey: RunningServer, same: bool) -> None:
    """A pop whose answer has come and was not looked at is no dead link, whether its queue is still consumed or not."""
    with kombu.Connection(f"zsched+{valkey.url}", transport_options={"max_block": 1}) as connection:
        got: list[Any] = []
        queue = kombu.Queue("q")
        consumer = kombu.Consumer(connection.channel(), [queue], callbacks=[lambda body, _: got.append(body)])
        consumer.consume()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        if not same:
            consumer.cancel()
        passes(1.5)
        kombu.Producer(connection.default_channel).publish("x", routing_key="q")
        if not same:
            consumer = kombu.Consumer(connection.channel(), [queue], callbacks=[lambda body, _: got.append(body)])
            consumer.consume()
        assert drained(connection, got) == ["x"]


@pytest.mark.usefixtures("impatient")
def test_workers_are_asked_again_after_a_while(
    start_server: Callable[..., RunningServer], tmp_path: Path, close_later: Callable[[Stamped], Stamped]
) -> None:
    """A program that asks workers now and then, as Flower does, gets its answers through one connection each time."""
    stamped = close_later(Stamped(tmp_path, start_server().url, control_queue_expires=1.0))
    stamped.worker(pool="solo")
    for _ in range(3):
        # Without a destination it waits for more answers until its time is over.
        assert stamped.app.control.inspect(timeout=1).ping()
        passes(0.5)
