"""Coming from kombu's own Redis transport on the same database, and going back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest
from celery import Celery
from celery.contrib.migrate import migrate_tasks

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched.transport.legacy import hand_back, take_over
from tests.servers import RunningServer

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def server(start_server: Any) -> Iterator[RunningServer]:
    """A server on a TCP port, which kombu's transport wants."""
    return start_server(tcp=True)  # type: ignore[no-any-return]


def drained(connection: kombu.Connection, queue: str, count: int) -> list[Any]:
    """Take so many messages from a queue; return their bodies."""
    got: list[Any] = []

    def take(body: Any, message: kombu.Message) -> None:
        got.append(body)
        message.ack()

    with kombu.Consumer(connection.channel(), [kombu.Queue(queue)], callbacks=[take]):
        while len(got) < count:
            connection.drain_events(timeout=5)
    return got


def test_a_live_system_is_switched_over_and_back(server: RunningServer) -> None:
    """Waiting messages of every priority go over in their order, and back, with neither side's keys in the way."""
    old = kombu.Connection(server.url)
    new = kombu.Connection(f"zsched+{server.url}")
    producer = kombu.Producer(old.default_channel)
    eta = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    for n in range(20):
        producer.publish(n, routing_key="q", priority=n % 2 * 6, headers={"id": f"id{n}", "when": datetime.now()})
    producer.publish("late", routing_key="q", headers={"id": "late", "eta": eta})
    assert take_over(new.default_channel, ["q"]) == {"q": 21}
    assert take_over(new.default_channel, ["q"]) == {"q": 0}
    counts = new.default_channel.broker.timeline("q").counts()
    assert (counts.ready, counts.delayed) == (20, 1)
    assert hand_back(new.default_channel, ["q"]) == {"q": 21}
    order = drained(old, "q", 21)
    assert order[-11:] != "late" and [n for n in order if n != "late"] == [*range(0, 20, 2), *range(1, 20, 2)]
    with server.client() as raw:
        assert not any(b"timeline" in key or b"bodies" in key for key in raw.keys("zsched:{queue:q}*"))
    old.release()
    new.release()


def test_a_move_that_was_cut_short_is_finished(server: RunningServer) -> None:
    """What was moved in part is neither lost nor there twice."""
    old = kombu.Connection(server.url)
    new = kombu.Connection(f"zsched+{server.url}")
    producer = kombu.Producer(old.default_channel)
    for n in range(3):
        producer.publish(n, routing_key="q", headers={"id": f"id{n}"})
    with server.client() as raw:
        saved = raw.lrange("q", 0, -1)
        take_over(new.default_channel, ["q"])
        raw.rpush("q:zsched-moving", *saved[1:])  # as if it had died before clearing up
    take_over(new.default_channel, ["q"])
    assert sorted(drained(new, "q", 3)) == [0, 1, 2]
    assert new.default_channel._size("q") == 0
    old.release()
    new.release()


def test_what_stopped_workers_held_is_taken_over_on_demand(server: RunningServer) -> None:
    """Messages in kombu's table of unacked ones come along when asked for."""
    old = kombu.Connection(server.url)
    new = kombu.Connection(f"zsched+{server.url}")
    kombu.Producer(old.default_channel).publish("held", routing_key="q", headers={"id": "held"})
    consumer = kombu.Consumer(old.channel(), [kombu.Queue("q")], on_message=lambda message: None)
    consumer.consume()
    old.drain_events(timeout=5)
    assert take_over(new.default_channel, ["q"]) == {"q": 0}
    assert take_over(new.default_channel, ["q"], unacked=True) == {"q": 1}
    assert drained(new, "q", 1) == ["held"]
    with server.client() as raw:
        assert raw.exists("unacked", "unacked_index") == 0
    consumer.channel.do_restore = False
    old.release()
    new.release()


@pytest.mark.parametrize("direction", ["there", "back"])
def test_celery_migrate_works_both_ways(server: RunningServer, direction: str) -> None:
    """Celery's own command moves tasks from either transport to the other."""
    source, target = server.url, f"zsched+{server.url}"
    if direction == "back":
        source, target = target, source
    sender = Celery(broker=source, set_as_current=False)
    ids = {sender.send_task("t", (n,)).id for n in range(5)}
    app = Celery(broker=source, set_as_current=False)
    with kombu.Connection(source) as one, kombu.Connection(target) as other:
        migrate_tasks(one, other, app=app, queues=["celery"], timeout=1.0, limit=5)
        found: set[str] = set()

        def take(message: kombu.Message) -> None:
            found.add(message.headers["id"])
            message.ack()

        with kombu.Consumer(other.channel(), [kombu.Queue("celery")], on_message=take):
            deadline = time.monotonic() + 10
            while found != ids and time.monotonic() < deadline:
                other.drain_events(timeout=5)
        assert found == ids
    for each in (sender, app):
        each.close()
