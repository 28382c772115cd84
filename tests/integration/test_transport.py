"""Messages by kombu's own means, on every kind of server."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone

import kombu
import pytest
from kombu.exceptions import OperationalError

import celery_zsched  # noqa: F401  makes the transport known
from tests.consumers import Client, in_seconds
from tests.servers import RunningServer, wait_until


def test_messages_come_in_order_and_are_gone_when_acked(client: Client) -> None:
    """What is published first comes first; an ack ends it."""
    for n in range(100):
        client.send({"n": n})
    assert client.channel._size("q") == 100
    client.consume("q", prefetch=10)
    assert [body["n"] for body in client.all(100)] == list(range(100))
    client.settled()
    client.nothing()
    assert client.counts().ready == 0


def test_the_same_task_id_twice_is_two_messages(client: Client) -> None:
    """A retry is published under its task's id while that runs."""
    for _ in range(2):
        client.send("x", headers={"id": "one", "task": "t"})
    client.consume("q")
    assert len(client.all(2)) == 2


@pytest.mark.parametrize("body", [b"", b"\x00\xff\n" * 10, b"x" * 3_000_000], ids=["empty", "binary", "large"])
def test_bodies_are_raw_bytes(client: Client, body: bytes) -> None:
    """A body of any size and content comes back to the byte."""
    client.send(body, content_type="application/data", content_encoding="binary")
    client.consume("q")
    assert client.next(timeout=20).body == body


def test_an_eta_is_kept_by_the_broker(client: Client) -> None:
    """A message with an ETA is delivered at it and not before, whoever waits; one without goes first."""
    client.consume("q")
    due = time.time() + 0.5
    client.send("later", headers={"eta": datetime.fromtimestamp(due, timezone.utc).isoformat()})
    client.send("now")
    assert client.next().payload == "now"
    assert client.counts().delayed == 1
    assert client.next().payload == "later"
    assert 0 <= time.time() - due < 0.2


def test_priorities_are_served_lowest_first_with_ten_levels(connect: Callable[..., Client]) -> None:
    """Redis's order is the default, first in first out in each level; AMQP's order and fewer levels are options."""
    for options, expected in [
        ({}, [0, 0, 3, 3, 5, 5, 9, 9]),
        ({"priority_order": "amqp", "prefix": "b"}, [9, 9, 5, 5, 3, 3, 0, 0]),
        ({"priority_steps": [0, 3, 6, 9], "prefix": "c"}, [0, 0, 5, 5, 3, 3, 9, 9]),
    ]:
        client = connect(**options)
        for priority in (5, 5, 0, 0, 9, 9, 3, 3):
            client.send(priority, priority=priority)
        client.consume("q", prefetch=1)
        assert client.all(8) == expected


def test_a_priority_out_of_range_is_clamped(connect: Callable[..., Client]) -> None:
    """Priority 50 is the lowest there is, and not the first."""
    client = connect()
    client.send("low", priority=50)
    client.send("high", priority=0)
    client.consume("q")
    assert client.all(2) == ["high", "low"]


@pytest.mark.parametrize(
    ("strategy", "first"),
    [("round_robin", 10), ("priority", 45), ("sorted", 5)],
)
def test_queues_are_served_by_strategy(connect: Callable[..., Client], strategy: str, first: int) -> None:
    """A small queue beside a big one is served soon, last or first, as asked."""
    client = connect(queue_order_strategy=strategy)
    for _ in range(40):
        client.send("z", "z")
    for _ in range(5):
        client.send("b", "b")
    client.consume("z", "b", prefetch=1)
    assert client.all(45)[:first].count("b") == 5


def test_prefetch_credit_is_never_exceeded(client: Client) -> None:
    """No more messages are leased than the prefetch count allows."""
    for n in range(50):
        client.send(n)
    client.consume("q", prefetch=7)
    messages = [client.next() for _ in range(7)]
    client.nothing()
    assert client.counts().leased == 7
    for message in messages:
        message.ack()
    assert client.all(43) == list(range(7, 50))


def test_a_handed_back_message_comes_again_marked(client: Client) -> None:
    """A message that is requeued is delivered again, says so, and counts."""
    client.send("x")
    client.consume("q", prefetch=1)
    client.next().requeue()
    again = client.next()
    assert again.delivery_info["redelivered"] is True
    assert again.properties["delivery_count"] == 1
    again.reject()
    client.settled()
    assert client.counts().dead == 0


def test_a_message_of_one_who_fell_silent_comes_with_a_line_in_the_log(
    connect: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    """It names the task, its id, who had it, for how long, and which delivery this is."""
    client = connect()
    client.send("x", headers={"task": "app.long", "id": "t-1"})
    other = client.channel.broker.timeline("q")
    other.holder = "dead@there"
    assert [each.id for each in other.claim(1, 1000).items] == ["t-1"]
    client.consume("q", prefetch=1)
    client.next().ack()
    (line,) = [record.getMessage() for record in caplog.records if "redelivered" in record.getMessage()]
    assert re.fullmatch(
        r"task app\.long\[t-1\] is redelivered: dead@there claimed it \d+\.\d s ago and has fallen silent, so that its "
        r"lease has ended; this is delivery 2",
        line,
    )


def test_a_crowd_of_those_comes_with_few_lines(
    connect: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    """When a worker with much at hand falls silent, some are named and the others counted."""
    client = connect()
    for n in range(40):
        client.send("x", headers={"task": "app.long", "id": f"t-{n}"})
    other = client.channel.broker.timeline("q")
    other.holder = "dead@there"
    assert len(other.claim(40, 1000).items) == 40
    client.consume("q", prefetch=100)
    client.all(40)
    lines = [record.getMessage() for record in caplog.records if "redelivered" in record.getMessage()]
    told = [line for line in lines if line.startswith("task app.long[")]
    others = [int(line.split()[0]) for line in lines if line.endswith("like these, of dead@there")]
    assert len(told) + sum(others) == 40 and len(lines) <= 25, lines


def test_who_has_no_credit_and_no_time_is_told_so(client: Client) -> None:
    """``drain_events(timeout=0)`` comes back at once, though there is more than the prefetch allows."""
    for n in range(3):
        client.send(n)
    client.consume("q", prefetch=1)
    held = client.next()
    with pytest.raises(TimeoutError):
        client.connection.drain_events(timeout=0)
    held.ack()
    wait_until(lambda: _drained(client), what="the next")


def _drained(client: Client) -> bool:
    try:
        client.connection.drain_events(timeout=0)
    except TimeoutError:
        return False
    return True


def test_an_ack_of_another_thread_gives_credit_at_once_whatever_else_is_consumed(client: Client) -> None:
    """A connection that waits on one channel goes on with another as soon as something is acked there."""
    for n in range(4):
        client.send(n)
    client.consume("q", prefetch=1)
    client.consume("idle", prefetch=1)
    began = time.monotonic()
    for _ in range(4):
        threading.Timer(0.1, client.next(timeout=20).ack).start()
    assert time.monotonic() - began < 4  # a look at what nobody rings for comes every five seconds


def test_too_many_hand_backs_end_with_the_dead(connect: Callable[..., Client]) -> None:
    """After the delivery limit a message is set aside; the queue's own limit has the last word."""
    client = connect(delivery_limit=2)
    client.send("x")
    client.consume("q", prefetch=1)
    client.next().requeue()
    client.next().requeue()
    client.nothing()
    assert client.counts().dead == 1
    strict = kombu.Queue("strict", queue_arguments={"x-delivery-limit": 1})
    client.consume(strict)
    client.send("y", "strict")
    client.next().requeue()
    client.nothing()
    assert client.counts("strict").dead == 1


def test_closing_gives_back_what_was_not_worked_on(client: Client) -> None:
    """What a channel had claimed is free for others once it is closed, in its place and uncounted."""
    for n in range(20):
        client.send(n)
    consumer = client.consume("q", prefetch=10)
    held = client.next()
    consumer.channel.close()
    wait_until(lambda: client.counts().ready == 19, what="the rest to be given back")
    held.ack()  # what was worked on is acked by whatever connection there is
    wait_until(lambda: client.counts().leased == 0, what="the ack")
    client.consume("q")
    bodies = [client.next() for _ in range(19)]
    assert [message.payload for message in bodies] == list(range(1, 20))
    assert not any(message.delivery_info.get("redelivered") for message in bodies)


def test_a_consumer_without_acks_removes_at_once(client: Client) -> None:
    """With no_ack nothing is leased."""
    for n in range(3):
        client.send(n)
    client.consume("q", no_ack=True)
    assert [client.next().payload for _ in range(3)] == [0, 1, 2]
    assert client.counts().leased == client.counts().ready == 0


def test_a_malformed_message_is_set_aside(client: Client) -> None:
    """What is no message of ours goes to the dead, and the rest goes on."""
    from celery_zsched.types import Item

    client.channel.broker.timeline("q").put([Item("foreign", b"no message")])
    client.send("fine")
    client.consume("q")
    assert client.next().payload == "fine"
    assert client.counts().dead == 1


def test_expired_messages_are_dropped_from_their_due_moment_on(client: Client) -> None:
    """A message whose time to live is over is not delivered; the time counts from when it was due."""
    client.send("short", expiration=0.05)
    client.send("delayed", expiration=0.3, headers={"eta": in_seconds(0.4)})
    brief = kombu.Queue("brief", message_ttl=0.05)
    brief(client.channel).declare()
    client.send("of the queue", "brief")
    over = time.monotonic() + 0.2
    wait_until(lambda: time.monotonic() > over)
    client.consume("q", brief)
    assert client.next().payload == "delayed"
    client.nothing()


def test_a_full_server_takes_nothing_new_and_goes_on_serving(start_server: Callable[..., RunningServer]) -> None:
    """At maxmemory publishing raises; claims, acks and hand-backs go on, and make room."""
    server = start_server()
    client = Client(server.url)
    for n in range(2000):
        client.send("x" * 1000, headers={"n": n})
    client.consume("q", prefetch=100)
    with server.client() as raw:
        raw.config_set("maxmemory", raw.info("memory")["used_memory"] - 100_000)
        with pytest.raises(OperationalError, match="maxmemory"):
            client.send("more", retry=True, retry_policy={"max_retries": 0})
        assert len(client.all(2000)) == 2000
    client.settled()
    client.send("again")
    client.close()


def test_scripts_come_back_after_a_flush(client: Client) -> None:
    """SCRIPT FLUSH costs one more round trip."""
    client.consume("q")
    client.send(1)
    client.channel.client.script_flush()
    client.send(2)
    assert client.all(2) == [1, 2]
    client.channel.client.script_flush()
    client.settled()


def test_a_user_limited_to_its_prefix_is_denied_nothing(start_server: Callable[..., RunningServer]) -> None:
    """An ACL user with keys and channels of one prefix can do all of it, and the server's log of denials is empty."""
    server = start_server(tcp=True)
    with server.client() as raw:
        raw.execute_command("ACL", "SETUSER", "u1", "on", ">p", "~zz:*", "&zz:*", "+@all", "-@dangerous")
        client = Client(server.url.replace("://", "://u1:p@"), global_keyprefix="zz:")
        topic = kombu.Queue("t", kombu.Exchange("x", "topic"), routing_key="a.*")
        events = kombu.Queue("ev", kombu.Exchange("celeryev", "fanout"), routing_key="#", auto_delete=True)
        client.consume("q", topic, events)
        client.send("plain")
        client.send("delayed", headers={"eta": in_seconds(0.1)})
        client.producer.publish("topic", exchange="x", routing_key="a.b")
        assert len(client.all(3)) == 3
        client.producer.publish("event", exchange="celeryev", routing_key="worker.on")
        assert client.all(1) == ["event"]
        client.send("x")
        assert client.channel.queue_purge("q") in (0, 1)
        client.channel.queue_delete("q")
        client.close()
        assert raw.execute_command("ACL", "LOG") == []
        assert {key.decode()[:3] for key in raw.scan_iter()} <= {"zz:"}


def test_a_marked_firing_is_enqueued_once(connect: Callable[..., Client], caplog: pytest.LogCaptureFixture) -> None:
    """A message that a schedule fires is refused when its occurrence, or a later one, was enqueued before."""
    client = connect()
    caplog.set_level("INFO", "celery_zsched.transport")
    for nominal in (5, 5, 4, 6):
        told = {"entry": "e", "epoch": 1, "nominal_us": nominal, "cause": "schedule"}
        client.send(nominal, headers={"zsched": told, "task": "t", "id": f"{nominal}"})
    client.consume("q")
    assert client.all(2) == [5, 6]
    assert caplog.text.count("not repeated") == 2


def test_options_that_are_not_known_are_named(valkey: RunningServer) -> None:
    """A mistyped transport option is an error that says what was probably meant."""
    connection = kombu.Connection(f"zsched+{valkey.url}", transport_options={"lease_timeot": 5})
    with pytest.raises(Exception, match="lease_timeout"):
        connection.connect()


def test_headers_of_odd_types_come_back(connect: Callable[..., Client]) -> None:
    """Moments and the like in headers survive, as with kombu's own transports."""
    client = connect()
    moment = datetime(2030, 1, 1, tzinfo=timezone.utc)
    client.send("x", headers={"when": moment, "deep": {"a": [1, None]}})
    client.consume("q")
    headers = client.next().headers
    assert headers["when"] == moment
    assert headers["deep"] == {"a": [1, None]}
    assert json.dumps(headers["deep"])
