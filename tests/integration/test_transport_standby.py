"""Idle consumers whose watchers have died, and links that go while an event loop watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest
from kombu.asynchronous import Hub

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched.connection import Server
from celery_zsched.timeline import Timeline
from celery_zsched.transport import poller, standby
from tests.servers import RunningServer, wait_until
from tests.stamps import passes

MINUTE = 60_000_000


class Listening:
    """A connection that consumes from queues."""

    def __init__(self, url: str, *queues: str | kombu.Queue, no_ack: bool = False) -> None:
        self.connection = kombu.Connection(f"zsched+{url}")
        self.got: list[Any] = []
        #: Messages are worked on for long, and not acked meanwhile.
        self.keeps = False
        self._kept: list[kombu.Message] = []
        self.channel = self.connection.channel()
        self._consumer = kombu.Consumer(
            self.channel, [queue if isinstance(queue, kombu.Queue) else kombu.Queue(queue) for queue in queues],
            on_message=self._take, no_ack=no_ack,
        )  # fmt: skip
        self._consumer.consume()

    def _take(self, message: kombu.Message) -> None:
        self.got.append(message.payload)
        if self.keeps:
            self._kept.append(message)
        else:
            message.ack()

    def send(self, body: Any, queue: str = "q", **kwargs: Any) -> None:
        """Publish to a queue by its name."""
        kombu.Producer(self.connection.default_channel).publish(body, routing_key=queue, **kwargs)

    def close(self) -> None:
        """Close the connection."""
        self.connection.release()


@pytest.fixture
def listen(valkey: RunningServer, close_later: Callable[[Any], Any]) -> Callable[..., Listening]:
    """Consume from queues: ``listen("q", …)``."""
    return lambda *queues, **how: close_later(Listening(valkey.url, *queues, **how))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle consumer looks often whether others watch."""
    for module in (poller, standby):
        monkeypatch.setattr(module, "GUARD_S", 0.3)
        monkeypatch.setattr(module, "EMPTY_GUARD_S", 0.3)


@pytest.mark.usefixtures("often")
def test_a_third_consumer_takes_over_when_both_watchers_die_at_once(
    valkey: RunningServer, listen: Callable[..., Listening], close_later: Callable[[Any], Any]
) -> None:
    """Nobody tells it; it finds that nobody watches for what is due, long before its longest block is over."""
    third = listen("q")
    third.send("due", headers={"eta": (datetime.now(timezone.utc) + timedelta(seconds=1.5)).isoformat()})
    server = close_later(Server.from_url(valkey.url))
    for name in ("first", "second"):
        line = Timeline(server, "queue:q", levels=10, claimer=name)
        assert line.claim(1, MINUTE).wake_us is not None
    third.connection.drain_events(timeout=15)
    assert third.got == ["due"]


@pytest.mark.usefixtures("often")
def test_an_idle_consumer_asks_one_small_question_of_an_empty_queue(
    valkey: RunningServer, listen: Callable[..., Listening]
) -> None:
    """It claims no more, and does not block anew; where somebody else watches it does not claim either."""
    one = listen("q")
    with valkey.client() as client:

        def calls(name: str) -> int:
            return int(client.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])

        with pytest.raises(TimeoutError):
            one.connection.drain_events(timeout=0.3)
        before = {name: calls(name) for name in ("evalsha", "bzpopmin", "exists", "zrange")}
        with pytest.raises(TimeoutError):
            one.connection.drain_events(timeout=1.5)
        asked = {name: calls(name) - count for name, count in before.items()}
    assert asked.pop("exists") >= 2
    assert asked == {"evalsha": 0, "bzpopmin": 0, "zrange": 0}


class Looping:
    """An event loop, as Celery's worker has one, that drives a connection."""

    def __init__(self, listening: Listening) -> None:
        self.hub = Hub()
        self.listening = listening
        self.transport = listening.connection.transport
        self.transport.register_with_event_loop(listening.connection, self.hub)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Let the loop go round until something is so."""

        def so() -> object:
            self.hub.run_once()
            return condition()

        wait_until(so, what=what)

    def close(self) -> None:
        """Stop."""
        self.listening.close()
        self.hub.close()


@pytest.fixture
def looping(listen: Callable[..., Listening]) -> Iterator[Looping]:
    """A loop that drives a consumer of a queue, and of broadcasts."""
    news = kombu.Queue("mine", kombu.Exchange("news", "fanout"), auto_delete=True)
    one = Looping(listen("q", news))
    yield one
    one.close()


def flight_of(looping: Looping) -> Any:
    """Return a claim's link that has been used and is watched."""
    looping.listening.keeps = True  # so the loop has others' work to look after, and claims ahead
    for number in range(50):
        looping.listening.send(number)
    looping.until(lambda: len(looping.listening.got) == 50, "the first messages")
    looping.listening.got.clear()
    return looping.listening.channel.flight


def pop_of(looping: Looping) -> Any:
    """Return a blocking pop that is outstanding."""
    looping.until(looping.transport.poller.armed_pops, "a pop to be outstanding")
    return looping.transport.poller.armed_pops()[0]


def listener_of(looping: Looping) -> Any:
    """Return the link for broadcasts."""
    looping.until(lambda: looping.transport.poller.listener.fileno(), "the link for broadcasts")
    return looping.transport.poller.listener


@pytest.mark.parametrize("link_of", [flight_of, pop_of, listener_of])
def test_a_link_that_is_dropped_leaves_the_event_loop(looping: Looping, link_of: Callable[[Looping], Any]) -> None:
    """Its descriptor is another's at once, so the loop must not know it any more; the next link is watched again."""
    link = link_of(looping)
    looping.until(lambda: link.fileno() in looping.hub.readers, "the link to be watched")
    fd = link.fileno()
    link.close()
    assert fd not in looping.hub.readers
    if link_of is pop_of:
        looping.transport.poller.changed()  # as whoever drops one says
    looping.listening.send("second")
    looping.until(lambda: looping.listening.got == ["second"], "the message")
    news = kombu.Exchange("news", "fanout")
    looping.until(lambda: looping.transport.poller.listener.fileno() in looping.hub.readers, "the broadcasts' link")
    kombu.Producer(looping.listening.connection.default_channel).publish("news", exchange=news)
    looping.until(lambda: looping.listening.got == ["second", "news"], "the broadcast")


def test_what_one_queue_gives_is_delivered_though_another_fails(
    valkey: RunningServer, listen: Callable[..., Listening]
) -> None:
    """What was removed as it was claimed is not lost over somebody else's key; the error comes after it."""
    one = listen("a", "b", no_ack=True)
    with valkey.client() as client:
        client.set(one.channel.broker.timeline("b").keys.timelines[0], "foreign")
        for number in range(2):
            one.send(number, "a")
            one.connection.drain_events(timeout=5)
            assert one.got == list(range(number + 1))
            with pytest.raises(Exception, match="WRONGTYPE"):
                one.connection.drain_events(timeout=5)


def test_two_consumers_of_a_queue_with_a_life_keep_it_until_both_end(listen: Callable[..., Listening]) -> None:
    """One that ends leaves the other's queue alive, also while that has no credit and so claims nothing."""
    brief = kombu.Queue("brief", expires=1.5)
    one, other = listen(brief), listen(brief)
    other.channel.basic_qos(0, 1, False)
    other.keeps = True
    one.send("held", "brief")
    other.connection.drain_events(timeout=5)
    one.close()
    passes(3)
    assert other.channel.queue_declare("brief", passive=True).queue == "brief"
    assert other.channel.broker.timeline("brief").counts().leased == 1
