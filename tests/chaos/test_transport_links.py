"""Links that are cut, frozen or slow, and publishers who must not hang or publish twice."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import kombu
import pytest
from kombu.exceptions import OperationalError

import celery_zsched  # noqa: F401  makes the transport known
from tests.forwarder import Forwarder
from tests.servers import RunningServer, wait_until
from tests.stamps import Stamped

#: Short time-outs, so that a dead link is noticed within a test.
QUICK = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "max_block": 2.0, "lease_timeout": 3}


@pytest.fixture
def project(tmp_path: Path, close_later: Callable[[Stamped], Stamped]) -> Callable[..., Stamped]:
    """Make a project: ``project(url, options=…, **conf)``."""
    return lambda url, options=None, **conf: close_later(Stamped(tmp_path, url, options=options, **conf))


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_half_open_link_is_noticed_and_replaced(
    start_server: Callable[..., RunningServer],
    forward: Callable[[RunningServer], Forwarder],
    project: Callable[..., Stamped],
    pool: str,
) -> None:
    """A link on which nothing moves any more, without a reset, is given up within about a block interval."""
    server = start_server(tcp=True)
    way = forward(server)
    stamped = project(way.url, QUICK)
    worker = stamped.worker(pool=pool)
    stamped.send("stamp", "before")
    stamped.until(1, "ran", "before")
    way.freeze()
    direct = kombu.Connection(f"zsched+{server.url}")
    message = stamped.app.amqp.as_task_v2("after", "stamp", ("after",))
    kombu.Producer(direct.default_channel).publish(
        message.body, routing_key="celery", serializer="json", headers=message.headers, **message.properties
    )
    direct.release()
    way.replace()  # new connections get through, the frozen ones stay as they are
    stamped.until(1, "ran", "after", timeout_s=30)
    assert worker.is_running


@pytest.mark.parametrize("held", [False, True], ids=["idle", "holding"])
def test_a_silent_link_does_not_hold_up_a_close(
    start_server: Callable[..., RunningServer], forward: Callable[[RunningServer], Forwarder], held: bool
) -> None:
    """A worker's clean-up of a half-open connection ends at once, also with a message that must be given back."""
    server = start_server(tcp=True)
    way = forward(server)
    connection = kombu.Connection(f"zsched+{way.url}", transport_options=QUICK)
    taken: list[str] = []
    consumer = kombu.Consumer(connection, [kombu.Queue("q")], callbacks=[lambda body, _: taken.append(body)])
    consumer.consume()
    if held:
        kombu.Producer(connection.channel()).publish("x", routing_key="q")
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=5 if held else 0.2)
    assert taken == ["x"] * held
    way.freeze()
    closing = threading.Thread(target=connection.close, daemon=True)
    closing.start()
    closing.join(timeout=20)
    assert not closing.is_alive()
    way.thaw()
    if held:
        other = kombu.Connection(f"zsched+{server.url}")
        queue = kombu.Queue("q")(other.default_channel)
        wait_until(lambda: queue.get(no_ack=True), what="the message is given back")
        other.release()


def test_a_cut_link_ends_no_task(
    start_server: Callable[..., RunningServer],
    forward: Callable[[RunningServer], Forwarder],
    project: Callable[..., Stamped],
) -> None:
    """Connections that are cut again and again under a running task do not make it run twice."""
    way = forward(start_server(tcp=True))
    stamped = project(way.url, QUICK)
    stamped.worker(concurrency=2)
    stamped.send("sl", "x", 5)
    stamped.until(1, "start", "x")
    for _ in range(3):
        over = time.monotonic() + 1
        wait_until(lambda over=over: time.monotonic() > over)  # type: ignore[misc]
        way.cut()
    stamped.until(1, "end", "x")
    stamped.until_empty()
    assert len(stamped.stamps("start", "x")) == 1


def test_a_publisher_does_not_hang_and_publishes_once(
    start_server: Callable[..., RunningServer],
    forward: Callable[[RunningServer], Forwarder],
    project: Callable[..., Stamped],
) -> None:
    """On a frozen link a publish raises within its time-outs times its tries; thawed, there is one message or none."""
    server = start_server(tcp=True)
    way = forward(server)
    stamped = project(way.url, QUICK)
    stamped.send("stamp", "warm")
    way.freeze()
    began = time.monotonic()
    with pytest.raises(OperationalError):
        stamped.send("stamp", "x", retry_policy={"max_retries": 2, "interval_start": 0, "interval_step": 0.2})
    assert time.monotonic() - began < 15
    way.thaw()
    passed = time.monotonic() + 2
    wait_until(lambda: time.monotonic() > passed)
    with server.client() as raw:
        assert raw.zcard("zsched:{queue:celery}:timeline") <= 2


def test_a_try_whose_answer_was_lost_is_not_repeated(
    start_server: Callable[..., RunningServer], forward: Callable[[RunningServer], Forwarder]
) -> None:
    """When the first try went through and only its answer did not, the second finds it."""
    server = start_server(tcp=True)
    way = forward(server)
    connection = kombu.Connection(f"zsched+{way.url}", transport_options={"socket_timeout": 1.0})
    producer = kombu.Producer(connection.default_channel)
    producer.publish("warm", routing_key="q", headers={"id": "warm"})
    broker = connection.default_channel.broker
    broker.unsure["one"] = time.monotonic()
    for _ in range(2):
        producer.publish("x", routing_key="q", headers={"id": "one"})
        broker.unsure["one"] = time.monotonic()
    with server.client() as raw:
        assert raw.hlen("zsched:{queue:q}:bodies") == 2
    connection.release()


def test_a_paused_server_bounds_a_publish(
    start_server: Callable[..., RunningServer], project: Callable[..., Stamped]
) -> None:
    """CLIENT PAUSE makes a publish raise in time; afterwards the task is there once or not at all."""
    server = start_server(tcp=True)
    stamped = project(server.url, QUICK)
    stamped.send("stamp", "warm")
    with server.client() as raw:
        raw.client_pause(6000, all=False)
        began = time.monotonic()
        with pytest.raises(OperationalError):
            stamped.send("stamp", "x", retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0.1})
        assert time.monotonic() - began < 6
        over = time.monotonic() + 6
        wait_until(lambda: time.monotonic() > over)
        assert raw.zcard("zsched:{queue:celery}:timeline") <= 2
