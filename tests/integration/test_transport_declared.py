"""What queues are declared with: whose word counts, when a queue goes, and that nothing of a reply queue stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest
from celery import Celery
from celery.app.task import Context
from kombu.utils.uuid import uuid

from celery_zsched.transport.exchanges import AUTO_DELETE_MS
from tests.consumers import Client
from tests.servers import RunningServer, wait_until

LIMITS: dict[str, Any] = {"max_length": 3, "message_ttl": 30, "queue_arguments": {"x-delivery-limit": 3}}


def keys_of(client: Client, queue: str) -> dict[bytes, int]:
    """Return the keys of a queue with their lives in milliseconds, -1 for ever; of bells and watches none."""
    raw = client.channel.client
    found = {key: raw.pttl(key) for key in raw.scan_iter(f"*{{queue:{queue}}}*", count=1000)}
    return {key: left for key, left in found.items() if left != -2 and not key.endswith((b":bell", b":watch"))}


def lives(client: Client, queue: str, *, at_most_ms: int = AUTO_DELETE_MS) -> bool:
    """Return whether a queue stands, and every key of it has a life."""
    left = keys_of(client, queue)
    return bool(left) and all(0 <= each <= at_most_ms for each in left.values())


def stays(client: Client, queue: str) -> bool:
    """Return whether a queue stands, and all of it for ever."""
    left = keys_of(client, queue)
    return bool(left) and set(left.values()) == {-1}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was warned about since the last call."""
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return told


# -- Reply queues


@pytest.fixture
def asker(valkey: RunningServer) -> Iterator[Celery]:
    """An app whose results come as messages."""
    app = Celery("asker", broker=f"zsched+{valkey.url}", backend="rpc://", set_as_current=False)
    app.conf.result_expires = 600
    yield app
    app.close()


def reply(app: Celery, id_: str) -> None:
    """Send the result of a task, as a worker does."""
    app.backend.store_result(id_, "done", "SUCCESS", request=Context(reply_to=app.thread_oid, correlation_id=id_))


def test_results_go_with_an_asker_that_vanished(asker: Celery, connect: Callable[..., Client]) -> None:
    """The queue of an asker that nobody hears of any more goes with what it holds, and later results do not stay."""
    client, oid = connect(), asker.thread_oid
    task = asker.send_task("noop", queue="q")
    reply(asker, task.id)
    assert len(keys_of(client, oid)) > 1
    assert lives(client, oid, at_most_ms=600_000)
    for key in keys_of(client, oid):
        client.channel.client.pexpire(key, 1)
    wait_until(lambda: not keys_of(client, oid), what="the reply queue to go")
    reply(asker, task.id)
    assert lives(client, oid)
    assert stays(client, "q")


def test_results_go_with_an_asker_that_leaves(asker: Celery, connect: Callable[..., Client]) -> None:
    """An asker gets its result, and when it leaves, what came for it besides goes at once."""
    client, oid = connect(), asker.thread_oid
    task = asker.send_task("noop", queue="q")
    reply(asker, task.id)
    assert task.get(timeout=10) == "done"
    wait_until(lambda: client.channel.client.hget(f"zsched:{{queue:{oid}}}:rules", "consumers") == b"1")
    asker.backend.result_consumer.stop()
    wait_until(lambda: not keys_of(client, oid), what="the reply queue to go")


def test_a_result_that_comes_before_its_asker_listens_is_kept_for_it(
    asker: Celery, connect: Callable[..., Client]
) -> None:
    """A task in a pool asks without having declared its queue: a result waits for it, but not for ever."""
    client, id_ = connect(), uuid()
    reply(asker, id_)
    assert lives(client, asker.thread_oid)
    assert asker.AsyncResult(id_).get(timeout=10) == "done"
    asker.backend.result_consumer.stop()


def test_what_is_no_reply_waits_for_the_first_worker(connect: Callable[..., Client]) -> None:
    """Tasks of both protocols, and messages of others, stay on queues that nobody has declared yet."""
    client, queues = connect(), [uuid(), uuid(), uuid(), "orders"]
    amqp = Celery("web", set_as_current=False).amqp
    for queue, make in zip(queues, (amqp.as_task_v1, amqp.as_task_v2), strict=False):
        task = make(uuid(), "noop", reply_to=uuid())
        client.send(task.body, queue, headers=task.headers, **task.properties)
    client.send("question", queues[2], correlation_id=uuid(), reply_to=uuid())
    client.send("traced", queues[3], correlation_id=uuid())
    for queue in queues:
        assert stays(client, queue)


def test_a_queue_of_a_reply_that_is_declared_for_ever_stays(connect: Callable[..., Client]) -> None:
    """The life that a reply has given to a queue of nobody's ends when somebody declares it."""
    client, queue = connect(), uuid()
    client.send("reply", queue, correlation_id=uuid())
    assert lives(client, queue)
    kombu.Queue(queue)(client.channel).declare()
    assert stays(client, queue)


def test_an_auto_deleted_queue_without_an_exchange_goes(connect: Callable[..., Client]) -> None:
    """A queue on the default exchange lives while it is consumed, and goes with its last consumer."""
    client = connect()
    consumer = client.consume(kombu.Queue("passing", auto_delete=True))
    client.send("x", "passing")
    client.next().ack()
    client.settled("passing")
    client.send("y", "passing", priority=3)
    client.next()
    assert lives(client, "passing")
    consumer.cancel()
    wait_until(lambda: not keys_of(client, "passing"), what="the queue to go")


def test_queues_for_broadcasts_need_nothing_on_the_server(connect: Callable[..., Client]) -> None:
    """What gets broadcasts while it is there has no keys; a queue that holds something is not taken for one."""
    client = connect()
    exchange = kombu.Exchange("news", "fanout")
    client.consume(kombu.Queue("mine", exchange, auto_delete=True))
    assert not keys_of(client, "mine")
    client.send("x", "held")
    client.consume(kombu.Queue("held", exchange, auto_delete=True))
    assert client.counts("held").ready == 1


# -- Whose word counts


def test_a_declaration_without_arguments_leaves_the_rules_alone(
    connect: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    """Who knows only a queue's name does not take its bounds away, says nothing, and goes by them himself."""
    kombu.Queue("lim", **LIMITS)(connect().channel).declare()
    client = connect(client_name="another")
    for arguments in ({}, {"x-max-priority": 5}):
        kombu.Queue("lim", queue_arguments=arguments)(client.channel).declare()
        assert client.channel.broker.rules["lim"] == {"max_length": 3, "message_ttl": 30_000_000, "delivery_limit": 3}
    for n in range(10):
        client.send(n, "lim")
    assert client.counts("lim").ready == 3
    assert warnings(caplog) == []


def test_a_queue_with_a_life_lives_while_one_consumes_who_knows_its_name(connect: Callable[..., Client]) -> None:
    """A consumer that declares no x-expires keeps a queue alive that has one."""
    kombu.Queue("brief", expires=60)(connect().channel).declare()
    client = connect(client_name="another")
    client.consume(kombu.Queue("brief"))
    assert client.channel.broker.desk("brief").lives == 60
    assert lives(client, "brief", at_most_ms=60_000)


def test_a_declaration_with_other_arguments_counts_and_is_told_of(
    connect: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    """A new length takes effect with one warning of both; the same again is no news, nor is a queue's first."""
    client = connect()
    for n in range(5):
        client.send(n, "lim")

    def declare(**arguments: Any) -> None:
        kombu.Queue("lim", **arguments)(client.channel).declare()

    declare()
    declare(**LIMITS)
    assert warnings(caplog) == []
    declare(**LIMITS | {"max_length": 100})
    (told,) = warnings(caplog)
    assert "queue lim was declared with x-message-ttl = 30000, x-max-length = 3, x-delivery-limit = 3" in told
    assert "under x-message-ttl = 30000, x-max-length = 100, x-delivery-limit = 3:" in told
    declare(**LIMITS | {"max_length": 100})
    assert warnings(caplog) == []
    for n in range(10):
        client.send(n, "lim")
    assert client.counts("lim").ready == 15
    declare(queue_arguments={"x-max-length": None})
    (told,) = warnings(caplog)
    assert "from now on under no arguments" in told
    assert client.channel.broker.rules["lim"] == {}


@pytest.mark.parametrize("how", [{"expires": 30}, {"auto_delete": True}])
def test_what_a_queue_holds_is_not_deleted_by_a_declaration(
    connect: Callable[..., Client], caplog: pytest.LogCaptureFixture, how: dict[str, Any]
) -> None:
    """A queue that has lived for ever takes on a life only while it is empty, and until then it is warned about."""
    client = connect()
    queue = kombu.Queue("plain", max_length=9, **how)
    kombu.Queue("plain")(client.channel).declare()
    for n in range(5):
        client.send(n, "plain")
    consumer = client.consume(queue)
    (told,) = warnings(caplog)
    assert "queue plain stands under no arguments and holds messages (5)" in told
    assert ("x-expires = 30000 of" if "expires" in how else "auto_delete of") in told
    assert stays(client, "plain")
    assert client.channel.broker.rules["plain"] == {"max_length": 9}
    consumer.cancel()
    client.channel.broker.keeper.finish_chores()
    assert stays(client, "plain")
    client.channel.queue_purge("plain")
    wait_until(lambda: client.counts("plain").leased == client.counts("plain").ready == 0 or purge(client, "plain"))
    queue(client.channel).declare()
    assert "from now on under" in "".join(warnings(caplog))
    assert lives(client, "plain")


def purge(client: Client, queue: str) -> bool:
    """Purge a queue once more, for what was given back meanwhile."""
    client.channel.queue_purge(queue)
    return False


# -- Deleting


def test_who_deletes_a_queue_keeps_nothing_of_it_and_is_not_told_it_was_lost(
    connect: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    """What was taken from a queue that this process deleted ends without a word, at an ack and at a renewal."""
    client = connect(lease_timeout=1)
    broker = client.channel.broker
    for n in range(2):
        client.send(n, "gone")
    client.consume("gone")
    done, unfinished = client.next(), client.next()
    desk = broker.desk("gone")
    assert client.channel.queue_delete("gone", if_unused=True) is None
    assert client.channel.queue_delete("gone") == 0
    done.ack()
    wait_until(lambda: not desk.acks and not desk.held, what="the lease to be found gone")
    unfinished.ack()
    assert warnings(caplog) == []
    client.send("x", "other")
    kombu.Queue("other")(client.channel).declare()
    broker.desk("other")
    assert client.channel.queue_delete("other") == 1
    assert not any("other" in kept for kept in (broker.rules, broker.keeper.desks, broker._calls))
