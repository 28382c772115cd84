"""Exchanges, broadcasts, batches and lives of queues, by kombu's own means."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import kombu
import pytest
from celery import Celery
from kombu.exceptions import ChannelError, InconsistencyError

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched.amqp import Producer
from celery_zsched.transport.batch import BatchPublishError
from tests.consumers import Client, in_seconds
from tests.servers import RunningServer, wait_until
from tests.stamps import passes


def test_a_bounded_queue_drops_its_oldest(client: Client) -> None:
    """x-max-length keeps the newest."""
    bounded = kombu.Queue("bounded", max_length=3)
    bounded(client.channel).declare()
    for n in range(10):
        client.send(n, "bounded")
    client.consume(bounded)
    assert client.all(3) == [7, 8, 9]


def test_purge_takes_what_waits_and_leaves_what_is_leased(client: Client) -> None:
    """Waiting and delayed messages go and are counted, leased ones stay."""
    client.send("leased")
    client.consume("q", prefetch=1)
    client.next()
    for _ in range(4):
        client.send("waiting")
    client.send("delayed", headers={"eta": in_seconds(100)})
    assert client.channel.queue_purge("q") == 5
    assert client.counts().leased == 1


def test_monitors_read_ready_messages(client: Client) -> None:
    """Passive declare, LLEN and the transport's name say what monitors expect."""
    for priority in (0, 5, 9):
        client.send("ready", priority=priority)
    client.send("delayed", headers={"eta": in_seconds(100)})
    assert client.channel.queue_declare("q", passive=True).message_count == 3
    assert client.channel.client.llen("q") == 3
    assert client.connection.info()["transport"] == "redis"
    assert client.connection.as_uri().startswith("zsched+")
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        client.channel.queue_declare("unknown", passive=True)


def test_exchanges_route(client: Client) -> None:
    """Direct exchanges by the whole key, topics by pattern, kept fanouts to every queue."""
    direct, topic, fanout = (kombu.Exchange(kind, kind) for kind in ("direct", "topic", "fanout"))
    bindings = [(direct, "d.1"), (topic, "t.*"), (topic, "#"), (fanout, "")]
    queues = [kombu.Queue(f"q{n}", exchange, routing_key=key) for n, (exchange, key) in enumerate(bindings)]
    client.consume(*queues)
    other = Client(client.connection.as_uri().removeprefix("zsched+"))
    for exchange, key in [(direct, "d.1"), (topic, "t.x"), (fanout, "any")]:
        exchange(other.channel).declare()
        other.producer.publish(exchange.name, exchange=exchange.name, routing_key=key)
    assert sorted(client.all(4)) == ["direct", "fanout", "topic", "topic"]
    client.nothing()
    with pytest.raises(InconsistencyError, match="goes nowhere"):
        other.producer.publish("x", exchange="nobody", routing_key="k")
    other.close()


def test_a_lost_table_of_bindings_heals(client: Client) -> None:
    """When the server has lost the bindings, those who declared them make them anew."""
    queue = kombu.Queue("q", kombu.Exchange("x", "direct"), routing_key="k")
    client.consume(queue)
    client.channel.client.flushall()
    client.channel.broker.exchanges._tables.clear()
    producer = kombu.Producer(client.connection.channel(), queue.exchange)
    producer.publish("x", routing_key="k")
    assert client.next().payload == "x"


def test_broadcasts_reach_who_listens(client: Client) -> None:
    """Queues of consumers that come and go get what is sent while they are there, filtered by routing key."""
    exchange = kombu.Exchange("news", "fanout")
    client.consume(kombu.Queue("mine", exchange, routing_key="worker.#", auto_delete=True))
    client.nothing(timeout=0.1)
    for key in ("worker.on", "task.on", "worker"):
        client.producer.publish(key, exchange="news", routing_key=key)
    assert client.all(2) == ["worker.on", "worker"]
    client.nothing()


def test_remote_control_is_caught_up_with_once(connect: Callable[..., Client]) -> None:
    """What is sent to a mailbox while its link is down comes when it is up again, once; old commands do not come."""
    box = kombu.Queue("me.celery.pidbox", kombu.Exchange("celery.pidbox", "fanout"), auto_delete=True)
    sender = connect()
    kombu.Exchange("celery.pidbox", "fanout")(sender.channel).declare()
    sender.producer.publish("old", exchange="celery.pidbox")
    client = connect()
    client.consume(box, no_ack=True)
    client.nothing(timeout=0.1)
    sender.producer.publish("one", exchange="celery.pidbox")
    assert client.next().payload == "one"
    client.connection.transport.poller.listener.close()
    sender.producer.publish("two", exchange="celery.pidbox")
    assert client.next().payload == "two"
    client.nothing()


def test_remote_control_is_heard_though_the_servers_clock_was_set_back(connect: Callable[..., Client]) -> None:
    """A command of an hour that has yet to come, as the clock says now, hides none of those that follow it."""
    exchange = kombu.Exchange("celery.pidbox", "fanout")
    sender, client = connect(), connect()
    exchange(sender.channel).declare()
    client.consume(kombu.Queue("me.celery.pidbox", exchange, auto_delete=True), no_ack=True)
    client.nothing(timeout=0.1)
    backlog = client.channel.broker.exchanges.call("broadcast", exchange.name).keys[0]
    raw = client.channel.client
    # The clock is ahead: the backlog's numbers are, too, until it has lapsed.
    raw.xadd(backlog, {"m": b"none"}, id=f"{time.time_ns() // 1_000_000 + 3_600_000}-0")
    sender.producer.publish("ahead", exchange=exchange)
    assert client.next().payload == "ahead"
    raw.delete(backlog)
    sender.producer.publish("back", exchange=exchange)
    assert client.next().payload == "back"
    client.connection.transport.poller.listener.close()
    raw.delete(backlog)
    passes(0.01)  # a backlog lapses after a minute, so its numbers do not begin again at the last one's millisecond
    sender.producer.publish("while away", exchange=exchange)
    assert client.next().payload == "while away"
    client.nothing()


needs_batches = pytest.mark.skipif(not hasattr(kombu.Producer, "batch"), reason="kombu has batches from 5.7 on")


@needs_batches
def test_a_batch_is_published_in_few_round_trips(connect: Callable[..., Client]) -> None:
    """kombu's batches put hundreds of messages at once, to several queues, with ETAs and priorities."""
    client = connect()
    raw = client.channel.client
    before = raw.info("stats")["total_reads_processed"]
    with client.producer.batch(max_size=500):
        for n in range(2000):
            client.send(n, f"q{n % 2}", priority=n % 3, headers={"eta": in_seconds(100)} if n % 10 == 0 else {})
    assert raw.info("stats")["total_reads_processed"] - before < 60
    assert sum(client.counts(f"q{n}").ready + client.counts(f"q{n}").delayed for n in (0, 1)) == 2000


def test_a_batch_can_be_put_while_the_next_is_made(connect: Callable[..., Client]) -> None:
    """What was started is put without being waited for; a batch that is dropped meanwhile keeps no connection."""
    client = connect(max_connections=1)
    message = client.channel.prepare_message("x", content_type="text/plain", content_encoding="utf-8")
    kept = {"exchange": "", "routing_key": "q"}
    batch = client.channel.create_publish_batch(max_size=500)
    batch.publish(message, **kept)
    batch.start()
    batch.publish(message, **kept)
    batch.finish()
    assert client.counts("q").ready == 1
    batch.start()
    batch.discard()
    client.send("goes over the only connection")
    wait_until(lambda: client.counts("q").ready == 3)


@needs_batches
def test_a_batch_that_fails_says_so(start_server: Callable[..., RunningServer]) -> None:
    """A batch cut short raises, and of each message there is one copy or none."""
    server = start_server()
    client = Client(server.url)
    client.send("warm")
    with pytest.raises(BatchPublishError), client.producer.batch(max_size=500):
        for n in range(600):
            client.send(n, headers={"id": f"id{n}"})
        server.kill()
    client.close()


def test_nothing_is_left_of_reply_queues(connect: Callable[..., Client]) -> None:
    """A reply queue goes with its asker, or a little later when that was killed; late replies bring nothing back."""
    client = connect()
    exchange = kombu.Exchange("reply.celery.pidbox", "direct", durable=False)
    reply = kombu.Queue("oid.reply.celery.pidbox", exchange, routing_key="oid", auto_delete=True, expires=0.5)
    reply(client.channel).declare()
    client.producer.publish("late", exchange="reply.celery.pidbox", routing_key="oid")
    keys = client.channel.client.keys
    assert any(b"oid" in key for key in keys())
    wait_until(lambda: not any(b"oid.reply" in key for key in keys()), timeout_s=5, what="the reply queue to go")
    client.producer.publish("too late", exchange="reply.celery.pidbox", routing_key="oid")
    assert not any(b"oid.reply" in key for key in keys())


def test_an_asker_that_asks_again_gets_its_replies(connect: Callable[..., Client]) -> None:
    """A reply queue of a name that was used before is as good as new; askers leave nothing behind in their process."""
    client = connect()
    exchange = kombu.Exchange("reply.celery.pidbox", "direct", durable=False)
    broker, noted = client.channel.broker, client.channel.state
    for oid in ("asker", "asker", *(f"asker{n}" for n in range(20)), "asker"):
        reply = kombu.Queue(f"{oid}.reply.celery.pidbox", exchange, routing_key=oid, auto_delete=True, expires=10)
        consumer = client.consume(reply, no_ack=True)
        client.producer.publish("reply", exchange="reply.celery.pidbox", routing_key=oid)
        assert client.next().payload == "reply"
        consumer.channel.close()
    for kept in (broker.rules, broker.keeper.desks, broker._calls, noted.bindings, noted.queue_index):
        assert not [name for name in kept if "asker" in str(name)]
    assert noted.exchanges["reply.celery.pidbox"]["table"] == []


def test_an_expiring_queue_lives_while_it_is_consumed(connect: Callable[..., Client]) -> None:
    """x-expires counts from the last consumer, and takes all keys of the queue along."""
    client = connect()
    queue = kombu.Queue("brief", expires=0.6)
    consumer = client.consume(queue)
    client.nothing(timeout=1.5)
    client.send("x", "brief")
    assert client.next().payload == "x"
    consumer.channel.close()
    keys = client.channel.client.keys
    wait_until(lambda: not any(b"queue:brief" in key for key in keys()), timeout_s=10, what="the queue to go")


def test_an_auto_deleted_queue_goes_with_its_last_consumer(connect: Callable[..., Client]) -> None:
    """The last cancel takes the queue away, not the first."""
    client = connect()
    queue = kombu.Queue("auto", kombu.Exchange("x", "direct"), routing_key="auto", auto_delete=True)
    one, two = client.consume(queue), client.consume(queue)
    client.send("x", "auto")
    client.next().ack()
    one.cancel()
    client.send("y", "auto")
    assert client.next().payload == "y"
    two.cancel()
    keys = client.channel.client.keys
    wait_until(lambda: not any(b"queue:auto" in key for key in keys()), what="the queue to go")


def test_an_auto_deleted_queue_that_is_declared_anew_stays(connect: Callable[..., Client]) -> None:
    """Its last consumer's leave, which nobody waits for, never takes away what was declared after it."""
    client = connect()
    queue = kombu.Queue("auto", kombu.Exchange("x", "direct"), routing_key="auto", auto_delete=True)
    consumer = client.consume(queue)
    keeper, held_up = client.channel.broker.keeper, threading.Event()
    keeper.later(lambda _: held_up.wait(30))
    consumer.cancel()
    soon = threading.Timer(0.2, held_up.set)
    soon.start()
    queue(client.channel).declare()
    client.send("x", "auto")
    soon.join()
    keeper.finish_chores()
    assert client.channel.queue_declare("auto", passive=True).message_count == 1


class Counted(kombu.Queue):
    """A queue that counts how often it is declared."""

    times = 0

    def declare(self, *args: Any, **kwargs: Any) -> Any:
        """Declare it."""
        Counted.times += 1
        return super().declare(*args, **kwargs)


def test_a_producer_declares_once_for_each_connection(valkey: RunningServer) -> None:
    """What is declared is not declared again until the connection is a new one, and other brokers keep kombu's way."""
    for url, kind in ((f"zsched+{valkey.url}", Producer), ("memory://", kombu.Producer)):
        Counted.times = 0
        app = Celery("once", broker=url, set_as_current=False, task_queues=[Counted("once")], task_default_queue="once")
        with app.producer_pool.acquire() as producer:
            assert type(producer) is kind
            app.send_task("noop", producer=producer)
            app.send_task("noop", producer=producer)
            assert Counted.times == 1
        with app.connection_for_write() as connection, kind(connection) as producer:
            app.send_task("noop", producer=producer)
            assert Counted.times == 2
            assert connection.default_channel.queue_declare("once", passive=True).message_count == 3
        app.close()
