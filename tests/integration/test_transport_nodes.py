"""Queues of one process of which one is in trouble, or on another node than the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched import scripts
from celery_zsched.connection import Server
from celery_zsched.timeline import Timeline
from celery_zsched.wires import Call, Wires
from tests.servers import RunningServer, wait_until
from tests.stamps import passes
from tests.topologies import Cluster


@pytest.fixture
def connect() -> Iterator[Callable[..., kombu.Connection]]:
    """Make connections: ``connect(url, option=…)``."""
    made: list[kombu.Connection] = []

    def make(url: str, **options: Any) -> kombu.Connection:
        made.append(kombu.Connection(f"zsched+{url}", transport_options=options))
        return made[-1]

    yield make
    for connection in made:
        connection.release()


def consume(connection: kombu.Connection, *queues: str) -> list[kombu.Message]:
    """Consume from queues on a channel of one's own; return where messages are put."""
    got: list[kombu.Message] = []
    kombu.Consumer(connection.channel(), [kombu.Queue(queue) for queue in queues], on_message=got.append).consume()
    return got


def send(connection: kombu.Connection, queue: str, **how: Any) -> None:
    """Publish to a queue by its name."""
    kombu.Producer(connection.default_channel).publish(queue, routing_key=queue, **how)


def drain(connection: kombu.Connection, got: list[kombu.Message], count: int) -> list[Any]:
    """Take so many messages and return their bodies."""
    while len(got) < count:
        connection.drain_events(timeout=10)
    return [message.payload for message in got]


def queues_on(connection: kombu.Connection, count: int, *, together: bool) -> list[str]:
    """Return names of queues that are on one node, or each on another."""
    broker = connection.default_channel.broker
    by_node: dict[str, list[str]] = {}
    for number in range(1000):
        name = f"q{number}"
        by_node.setdefault(broker.wires.node_of(broker.timeline(name).keys.bell), []).append(name)
        if together and len(by_node[max(by_node, key=lambda node: len(by_node[node]))]) >= count:
            return max(by_node.values(), key=len)
        if not together and len(by_node) >= count:
            return [names[0] for names in by_node.values()]
    raise AssertionError("the cluster has too few nodes")


def test_a_queue_that_cannot_be_renewed_takes_no_other_with_it(
    valkey: RunningServer, connect: Callable[..., kombu.Connection]
) -> None:
    """Leases of other queues are renewed though a foreign key stands in the way of the first."""
    connection = connect(valkey.url, lease_timeout=1.5)
    got = consume(connection, "bad", "good")
    for queue in ("bad", "good"):
        send(connection, queue)
    assert sorted(drain(connection, got, 2)) == ["bad", "good"]
    broker = connection.default_channel.broker
    with valkey.client() as client:
        leases = broker.timeline("bad").keys.leases
        client.delete(leases)
        client.set(leases, "foreign")
    passes(3)
    assert broker.timeline("good").claim(1, 1_000_000).items == []


def test_a_pop_on_another_node_is_given_up_while_a_message_is_worked_on(
    cluster: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    """It would take a ring that somebody idle should have."""
    connection = connect(cluster.url)
    one, other = queues_on(connection, 2, together=False)
    got = consume(connection, one, other)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.2)
    poller = connection.transport.poller
    assert len(poller.armed_pops()) == 2
    send(connection, one)
    assert drain(connection, got, 1) == [one]
    assert poller.armed_pops() == []
    send(connection, other)
    assert drain(connection, got, 2) == [one, other]


def test_a_slot_that_moves_costs_no_answer_of_the_calls_beside_it(
    cluster: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    """Of calls in one round trip the one whose key has moved is made anew where it is now."""
    connection = connect(cluster.url)
    stays, moves = queues_on(connection, 2, together=True)[:2]
    send(connection, stays)
    broker = connection.default_channel.broker
    key = broker.timeline(moves).keys.bodies
    target = next(server for server in cluster.servers if server is not cluster.owner_of(key))
    cluster.move_slot(key, target)
    answers = broker.wires.call_each([(broker.call("counts", queue), []) for queue in (stays, moves)])
    assert [answer[1] for answer in answers] == [1, 0]


def test_a_call_that_is_under_way_when_idle_connections_are_closed_ends_well(
    start_server: Callable[..., RunningServer], close_later: Callable[[Any], Any]
) -> None:
    """The last connection of a process may close while another thread still asks something."""
    running = start_server()
    server = close_later(Server.from_url(running.url))
    wires = close_later(Wires(server))
    script = scripts.load("counts")
    call = Call(script, script.key_names(Timeline(server, "q").keys))
    before = wires.call(call, [])
    running.freeze()
    said: list[Any] = []
    asking = threading.Thread(target=lambda: said.append(wires.call(call, [])))
    asking.start()
    wait_until(lambda: not any(wires._free.values()), what="the connection to be taken")
    wires.close()
    running.thaw()
    asking.join()
    assert [answer[1:] for answer in said] == [before[1:]]


def test_who_gets_one_message_keeps_nobody_from_watching(
    valkey: RunningServer, connect: Callable[..., kombu.Connection]
) -> None:
    """A look for a message, as `basic_get` is, waits for nothing, so nobody counts on it."""
    connection = connect(valkey.url)
    send(connection, "q", headers={"eta": "2100-01-01T00:00:00+00:00"})
    broker = connection.default_channel.broker
    timeline = broker.timeline("q")
    soon_us = timeline.counts().now_us + 20_000_000
    with valkey.client() as client:
        client.zadd(timeline.keys.timelines[0], {client.zrange(timeline.keys.timelines[0], 0, 0)[0]: soon_us})
        assert connection.default_channel.basic_get("q") is None
        assert client.zcard(timeline.keys.watch) == 0
