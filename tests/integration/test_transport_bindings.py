"""Bindings: known at once to every publisher, alive as long as their queues, and gone with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from kombu.exceptions import InconsistencyError

from celery_zsched.queues import Queues
from celery_zsched.transport.exchanges import Exchanges
from tests.consumers import Client
from tests.servers import RunningServer, wait_until
from tests.topologies import Cluster


@pytest.fixture
def other(any_server: RunningServer) -> Iterator[Client]:
    """A connection that shares nothing with ``client``, as one of another process."""
    one = Client(any_server.url, max_connections=11)
    yield one
    one.close()


def lapses(client: Client, exchange: str) -> dict[str, float]:
    """Return an exchange's bindings as the server has them: queue -> when it lapses, in microseconds."""
    rows = client.channel.client.zrange(f"zsched:{{exchange:{exchange}}}:bindings", 0, -1, withscores=True)
    return {row.split(b"\0")[2].decode(): score for row, score in rows if row != b"\0\0"}


def queue_keys(client: Client, queue: str) -> list[bytes]:
    """Return the keys of a queue."""
    keys: list[bytes] = client.channel.client.keys(f"zsched:{{queue:{queue}}}:*")
    return keys


def calls(client: Client) -> int:
    """Return how many scripts the server has run."""
    stats = client.channel.client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("eval", "evalsha"))


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_what_others_bind_and_delete_is_known_at_once(client: Client, other: Client, kind: str) -> None:
    """A message is routed by the bindings that stand when it is published, whoever made or took them away."""
    exchange = kombu.Exchange("x", kind)
    first, second = (kombu.Queue(name, exchange, routing_key="k") for name in ("first", "second"))
    first(other.channel).declare()
    exchange(client.channel).declare()
    client.producer.publish("1", exchange=exchange, routing_key="k")
    second(other.channel).declare()
    client.producer.publish("2", exchange=exchange, routing_key="k")
    assert [client.counts(name).ready for name in ("first", "second")] == [2, 1]
    first(other.channel).delete()
    client.producer.publish("3", exchange=exchange, routing_key="k")
    assert not queue_keys(client, "first")
    assert client.counts("second").ready == 2
    second(other.channel).unbind_from(exchange, routing_key="k")
    if kind == "direct":
        with pytest.raises(InconsistencyError, match="goes nowhere"):
            client.producer.publish("4", exchange=exchange, routing_key="k")
    else:
        client.producer.publish("4", exchange=exchange, routing_key="k")
    assert client.counts("second").ready == 2


@pytest.mark.parametrize("kind", ["topic", "fanout"])
def test_a_queue_that_others_delete_loses_all_its_bindings(client: Client, other: Client, kind: str) -> None:
    """Who deletes a queue by its name takes the bindings along; who once declared it does not bring them back."""
    exchange = kombu.Exchange("x", kind)
    kombu.Queue("q", exchange, routing_key="k")(client.channel).declare()
    other.channel.queue_delete("q")
    client.producer.publish("late", exchange=exchange, routing_key="k")
    assert not lapses(client, "x")
    assert not queue_keys(client, "q")
    assert Queues(client.channel.broker.server).names() == []
    assert 0 < client.channel.client.pttl("zsched:{exchange:x}:bindings") <= 86_400_001
    kombu.Queue("q", exchange, routing_key="k")(client.channel).declare()
    other.channel.exchange_declare("x", kind)
    other.producer.publish("anew", exchange="x", routing_key="k")
    assert client.counts("q").ready == 1
    assert client.channel.client.pttl("zsched:{exchange:x}:bindings") == -1


def nearly_lapsed(client: Client, *exchanges: str) -> dict[tuple[str, str], float]:
    """Let an exchange's bindings lapse within ten seconds; return when each does."""
    raw, soon = client.channel.client, client.channel.broker.wires.now_us() + 10_000_000
    for exchange in exchanges:
        key = f"zsched:{{exchange:{exchange}}}:bindings"
        raw.zadd(key, dict.fromkeys(raw.zrange(key, 0, -1), soon), xx=True)
    return moments(client, *exchanges)


def moments(client: Client, *exchanges: str) -> dict[tuple[str, str], float]:
    """Return when the bindings of exchanges lapse."""
    return {(exchange, queue): at for exchange in exchanges for queue, at in lapses(client, exchange).items()}


def test_bindings_live_as_long_as_their_queue_is_consumed(any_server: RunningServer, other: Client) -> None:
    """A consumer of a queue with a life stays bound, and its queue listed, past the moment to which each was bound."""
    client = Client(any_server.url, lease_timeout=1)
    exchanges = {kind: kombu.Exchange(kind, kind) for kind in ("direct", "topic", "fanout")}
    queues = [kombu.Queue(kind, exchange, routing_key="k", expires=60) for kind, exchange in exchanges.items()]
    queues.append(kombu.Queue("auto", exchanges["topic"], routing_key="k", expires=60, auto_delete=True))
    client.consume(*queues)
    before = nearly_lapsed(client, "", *exchanges)
    assert len(before) == 8

    def renewed() -> bool:
        after = moments(client, "", *exchanges)
        return set(after) == set(before) and all(after[row] > before[row] for row in before)

    wait_until(renewed, what="all bindings to be renewed")
    for kind, exchange in exchanges.items():
        exchange(other.channel).declare()
        other.producer.publish(kind, exchange=exchange, routing_key="k")
    assert sorted(client.all(4)) == ["direct", "fanout", "topic", "topic"]
    assert Queues(client.channel.broker.server).names() == ["auto", "direct", "fanout", "topic"]
    client.close()


def test_bindings_on_other_nodes_live_on_too(cluster: Cluster) -> None:
    """On a cluster a queue's bindings are renewed wherever they are kept."""
    client = Client(cluster.url, lease_timeout=1)
    names = [f"x{n}" for n in range(4)]
    bindings = [kombu.binding(kombu.Exchange(name, "topic"), routing_key="k") for name in names]
    client.consume(kombu.Queue("q", bindings=bindings, expires=60))
    before = nearly_lapsed(client, "", *names)

    def renewed() -> bool:
        after = moments(client, "", *names)
        return set(after) == set(before) and all(after[row] > before[row] for row in before)

    wait_until(renewed, what="all bindings to be renewed")
    client.close()


def test_bindings_go_with_a_queue_that_goes_with_its_last_consumer(client: Client, other: Client) -> None:
    """At once, so that it is listed no longer and nobody sends to it; but not if it was declared anew meanwhile."""
    queue = kombu.Queue("auto", kombu.Exchange("x", "topic"), routing_key="k", auto_delete=True)
    for _ in range(2):
        consumer = client.consume(queue)
        assert [list(lapses(client, name)) for name in ("x", "")] == [["auto"], ["auto"]]
        consumer.cancel()
        wait_until(lambda: not lapses(client, "x") and not lapses(client, ""), what="the bindings to go")
    broker = client.channel.broker
    queue(client.channel).declare()
    dropped = broker.wires.call(broker.call("drop", "auto"), [0, 0, 0])
    queue(other.channel).declare()
    broker.exchanges.withdraw(broker.wires, dropped)
    assert [list(lapses(client, name)) for name in ("x", "")] == [["auto"], ["auto"]]


def touched(client: Client, queue: str) -> Any:
    """Tell a queue to live on as the keeper does; return what it answers."""
    broker = client.channel.broker
    return broker.wires.call(broker.call("touch", queue), [0])


def renew(client: Client, answer: Any) -> None:
    """Renew bindings as the keeper does after that."""
    broker = client.channel.broker
    broker.exchanges.renew(broker.wires, [answer])


def test_a_binding_that_was_taken_away_does_not_come_back(client: Client, other: Client) -> None:
    """Not even if it is taken away between asking a queue for its bindings and renewing them."""
    exchange = kombu.Exchange("x", "topic")
    queue = kombu.Queue("q", exchange, routing_key="k", expires=60)
    queue(client.channel).declare()
    answer = touched(client, "q")
    exchange(other.channel).declare()
    other.channel.queue_unbind("q", "x", "k")
    for _ in range(3):
        renew(client, answer)
        answer = touched(client, "q")
    assert lapses(client, "x") == {}
    assert list(lapses(client, "")) == ["q"]


def test_a_lost_binding_of_a_consumed_queue_is_made_anew(client: Client) -> None:
    """Within two rounds of renewal, though nobody declares it: the queue has it on record."""
    kombu.Queue("q", kombu.Exchange("x", "topic"), routing_key="k", expires=60)(client.channel).declare()
    client.channel.client.delete("zsched:{exchange:x}:bindings")
    for _ in range(2):
        renew(client, touched(client, "q"))
    assert list(lapses(client, "x")) == ["q"]
    assert client.channel.client.pttl("zsched:{exchange:x}:bindings") > 0


def test_who_binds_a_queue_of_others_need_not_know_its_life(client: Client, other: Client) -> None:
    """A binding lapses with the queue whoever made it, and the table with its last binding."""
    kombu.Queue("q", expires=60)(client.channel).declare()
    other.channel.exchange_declare("x", "topic")
    other.channel.queue_bind("q", "x", "k")
    now_us = other.channel.broker.wires.now_us()
    assert now_us < lapses(other, "x")["q"] < now_us + 121_000_000
    assert 0 < other.channel.client.pttl("zsched:{exchange:x}:bindings") <= 121_001


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_a_queue_that_has_gone_is_not_brought_back(
    client: Client, other: Client, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A message for a queue whose life has ended before its binding lapsed is dropped, with a word."""
    exchange = kombu.Exchange("x", kind)
    kombu.Queue("q", exchange, routing_key="k", expires=60)(client.channel).declare()
    exchange(other.channel).declare()
    other.producer.publish("in time", exchange="x", routing_key="k")
    assert client.counts("q").ready == 1
    client.channel.client.delete(*queue_keys(client, "q"))
    with caplog.at_level(logging.WARNING, logger="celery_zsched"):
        other.producer.publish("late", exchange="x", routing_key="k")
    assert not queue_keys(client, "q")
    assert "queue q had a life of its own and has gone" in caplog.text


def test_a_consumer_whose_queue_has_gone_is_warned_of_it(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Once, when the keeper finds it gone."""
    client.consume(kombu.Queue("q", expires=1))
    with caplog.at_level(logging.WARNING, logger="celery_zsched"):
        client.channel.client.delete("zsched:{queue:q}:rules")
        wait_until(lambda: "queue q is consumed here and has gone" in caplog.text, what="the warning")


def test_only_named_exchanges_cost_a_look_at_their_bindings(client: Client) -> None:
    """By the default exchange a message is one call, and broadcasts of Celery's own look for no queues."""
    for name, kind in (("celeryev", "fanout"), ("celery.pidbox", "fanout"), ("reply.celery.pidbox", "direct")):
        client.channel.exchange_declare(name, kind)
    kombu.Queue("t", kombu.Exchange("x", "topic"), routing_key="k")(client.channel).declare()
    wanted = {"": 1, "celeryev": 0, "celery.pidbox": 1, "reply.celery.pidbox": 1, "x": 2}
    found = {}
    for exchange in wanted:
        client.producer.publish("warm", exchange=exchange, routing_key="k")
        before = calls(client)
        for _ in range(5):
            client.producer.publish("x", exchange=exchange, routing_key="k")
        found[exchange] = (calls(client) - before) / 5
    assert found == wanted


def test_a_batch_looks_at_bindings_now_and_then(client: Client) -> None:
    """Messages of a batch are routed by a table that is a moment old at most, and gone queues are not brought back."""
    exchange = kombu.Exchange("x", "topic")
    for name, life in (("kept", {}), ("brief", {"expires": 60})):
        kombu.Queue(name, exchange, routing_key="k", **life)(client.channel).declare()
    client.channel.client.delete(*queue_keys(client, "brief"))
    channel = client.channel
    batch = channel.create_publish_batch(max_size=1000)
    before, began = calls(client), time.monotonic()
    for n in range(300):
        message = channel.prepare_message(str(n), content_type="text/plain", content_encoding="utf-8")
        batch.publish(message, exchange="x", routing_key="k")
    batch.flush()
    assert calls(client) - before <= 10 + (time.monotonic() - began) / 0.1
    assert client.counts("kept").ready == 300
    assert not queue_keys(client, "brief")


def test_a_table_serves_for_the_age_that_is_asked_for(client: Client) -> None:
    """Which is none unless somebody asks for it."""
    exchanges: Exchanges = client.channel.broker.exchanges
    exchanges.change("x", [(("k", "", "q"), "")])
    table = exchanges.table("x")
    assert exchanges.table("x", age_s=60) is table
    assert exchanges.table("x") is not table
