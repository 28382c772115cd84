"""The transport on Cluster, under Sentinel, over TLS, on the embedded server, and whatever way it is named."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched.errors import ServerUnavailableError
from tests.servers import Certificates, RunningServer, wait_until
from tests.stamps import Stamped
from tests.topologies import Cluster, SentinelSetup

PATH = "celery_zsched:Transport"


@pytest.fixture
def project(tmp_path: Path, close_later: Callable[[Stamped], Stamped]) -> Callable[..., Stamped]:
    """Make a project: ``project(url, options=…, **conf)``."""
    return lambda url, options=None, **conf: close_later(Stamped(tmp_path, url, options=options, **conf))


def test_one_worker_consumes_queues_in_several_slots(
    start_cluster: Callable[..., Cluster], project: Callable[..., Stamped]
) -> None:
    """On a cluster one worker serves four queues on several nodes, ETA, remote control and a failover included."""
    cluster = start_cluster()
    stamped = project(cluster.url)
    worker = stamped.worker("-Q", "a,b,c,d", pool="threads", concurrency=4)
    for n in range(40):
        stamped.send("stamp", n, queue="abcd"[n % 4])
    stamped.send("stamp", "late", time.time() + 1, queue="c", countdown=1)
    stamped.until(41, "ran")
    assert stamped.app.control.inspect(timeout=3, destination=["w1@here"]).ping()
    for queue in "abcd":
        stamped.until_empty(queue)
    assert worker.is_running


def test_a_slot_that_moves_is_followed(cluster: Cluster) -> None:
    """A queue whose slot goes to another node is found there."""
    connection = kombu.Connection(f"zsched+{cluster.url}")
    producer = kombu.Producer(connection.default_channel)
    producer.publish(0, routing_key="other")
    key = connection.default_channel.broker.timeline("q").keys.bodies
    target = next(server for server in cluster.servers if server is not cluster.owner_of(key))
    cluster.move_slot(key, target)
    producer.publish(1, routing_key="q", retry=True)
    got: list[Any] = []
    consumer = kombu.Consumer(connection.channel(), [kombu.Queue("q")], callbacks=[lambda body, _: got.append(body)])
    consumer.consume()
    deadline = time.monotonic() + 10
    while not got and time.monotonic() < deadline:
        try:
            connection.drain_events(timeout=1)
        except (TimeoutError, ServerUnavailableError):
            continue
    assert got == [1]
    connection.release()


def test_a_failover_under_sentinel_is_followed(
    start_sentinel: Callable[..., SentinelSetup], project: Callable[..., Stamped]
) -> None:
    """When the primary is lost, the worker and the publisher go on with the new one."""
    setup = start_sentinel()
    stamped = project(setup.url)
    worker = stamped.worker(pool="threads", concurrency=2)
    stamped.send("stamp", "before")
    stamped.until(1, "ran", "before")
    setup.fail_over()
    wait_until(lambda: _sends(stamped, "after"), timeout_s=60, what="publishing to the new primary")
    stamped.until(1, "ran", "after", timeout_s=60)
    assert worker.is_running


def _sends(stamped: Stamped, name: str) -> bool:
    try:
        stamped.send("stamp", name, retry=False)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("scheme", ["zsched+rediss", "zsched+valkeys", "rediss"])
def test_a_tls_scheme_never_ends_in_plaintext(valkey_tcp: RunningServer, scheme: str) -> None:
    """A TLS URL for a server without TLS is an error, whatever way the transport is named."""
    address = valkey_tcp.url.partition("://")[2]
    transport = {"transport": PATH} if scheme == "rediss" else {}
    connection = kombu.Connection(f"{scheme}://:secret@{address}", connect_timeout=1, **transport)
    connection.transport_options = {"max_retries": 0, "socket_timeout": 2}
    with pytest.raises(Exception, match=r"TLS|SSL|ssl") as caught:
        connection.default_channel  # noqa: B018
    assert "secret" not in str(caught.value)


@pytest.fixture
def valkey_tcp(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server on a TCP port."""
    return start_server(tcp=True)


def test_tls_is_verified_by_default(start_server: Callable[..., RunningServer], certificates: Certificates) -> None:
    """An unknown authority is refused, a named one accepted, by URL and by broker_use_ssl alike."""
    server = start_server("redis70", tls=certificates)
    url = server.url
    with pytest.raises(Exception, match="certificate"):
        kombu.Connection(f"zsched+{url}", transport_options={"max_retries": 0}).connect()
    for connection in (
        kombu.Connection(f"zsched+{url}", ssl={"ssl_ca_certs": str(certificates.authority)}),
        kombu.Connection(url, transport=PATH, transport_options={"ssl_ca_certs": str(certificates.authority)}),
    ):
        kombu.Producer(connection.default_channel).publish("x", routing_key="q")
        connection.release()


def test_the_embedded_server_serves_a_project(tmp_path: Path) -> None:
    """An app with an embedded broker needs no server to be started."""
    connection = kombu.Connection(f"zsched+embedded://{tmp_path}/data")
    queue = connection.SimpleQueue("q")
    queue.put({"hello": 1})
    message = queue.get(timeout=10)
    assert message.payload == {"hello": 1}
    message.ack()
    queue.close()
    connection.release()


def test_a_plain_url_with_the_transport_named_apart(valkey: RunningServer) -> None:
    """broker_transport takes any Redis URL to this transport, and copies of the connection too."""
    connection = kombu.Connection(valkey.url, transport=PATH)
    assert connection.default_channel.broker.server.masked == valkey.url
    assert connection.as_uri() == f"zsched+{valkey.url}"
    assert connection.clone().default_channel.broker is connection.default_channel.broker
    connection.release()


def test_a_connection_is_switched_to_a_socket(valkey: RunningServer) -> None:
    """kombu's `switch` takes a connection to the URL of a unix socket as it does to one of a host."""
    connection = kombu.Connection("zsched+redis://127.0.0.1:1")
    connection.switch(f"zsched+{valkey.url}")
    assert connection.connect()
    assert connection.default_channel.broker.server.masked == valkey.url
    connection.release()


def test_passwords_are_never_shown(start_server: Callable[..., RunningServer]) -> None:
    """Neither the URL for people nor an error shows the password."""
    server = start_server(tcp=True)
    address = server.url.partition("://")[2]
    connection = kombu.Connection(f"zsched+redis://:hunter2@{address}", transport_options={"max_retries": 0})
    assert "hunter2" not in connection.as_uri()
    with pytest.raises(Exception) as caught:
        connection.connect()
    assert "hunter2" not in str(caught.value)
