"""Schedulers that send to brokers of other makes: the schedule is on our server, the queues are not.

At least once, under the same task id; and where the broker confirms what it has, an entry is moved on only then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import kombu
import pytest
from celery import Celery

from celery_zsched import confirms, operations
from celery_zsched.engine import Engine, Options
from celery_zsched.entry import EntrySpec, occurrence_id
from celery_zsched.errors import ServerUnavailableError
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.schedules import Schedules
from celery_zsched.stored import State
from celery_zsched.types import from_us
from tests.entries import entry, put_back
from tests.programs import Project, Sent, messages, sent_of
from tests.rabbit import RabbitMQ
from tests.servers import RunningServer, wait_until

EVERY_SECOND = """
    each = {"task": "note", "schedule": 1.0}
    app.conf.beat_schedule = {f"entry-{number}": each for number in range(5)}
"""


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitMQ]:
    """A RabbitMQ for the tests of this module that run in this process."""
    server = RabbitMQ()
    yield server
    server.close()


class Site:
    """An app on a broker, and one scheduler of its."""

    def __init__(self, broker: str, schedules: Schedules) -> None:
        self.app = Celery("site", broker=broker, set_as_current=False)
        self.schedules = schedules
        self.publisher = CeleryPublisher(self.app, prefix="zsched", declared=dict)
        self.engine = Engine(schedules, self.publisher, Options(lease_s=30))

    def due(self, name: str, **rules: Any) -> EntrySpec:
        """Let a one-off be due now."""
        spec = entry(name, from_us(self.schedules.now_us()), **rules)
        put_back(self.schedules, spec, 0)
        return spec

    def fired(self, name: str) -> int:
        """Return how often an entry was sent by its record."""
        return self.schedules.get(name).last.fired

    def turn_until(self, condition: Callable[[], Any], what: str) -> None:
        """Let the scheduler work until something is so."""

        def met() -> Any:
            self.engine.turn(0.05)
            return condition()

        wait_until(met, what=what)

    def sent(self, queue: str = "celery") -> list[Sent]:
        """Take what was sent."""
        with self.app.connection_for_read() as connection:
            return [sent for message in messages(connection, queue) if (sent := sent_of(message)) is not None]

    def close(self) -> None:
        """Drop the connections."""
        self.publisher.close(broken=True)
        self.app.close()


@pytest.fixture
def site(schedules: Schedules, close_later: Callable[[Any], Any]) -> Callable[[str], Site]:
    """Make a site on a broker: ``site(url)``."""
    return lambda broker: close_later(Site(broker, schedules))  # type: ignore[no-any-return]


def check_one(site: Site) -> None:
    """Send one occurrence; it carries the derived task id and its header."""
    spec = site.due("once")
    site.turn_until(lambda: site.fired("once"), "the occurrence to be sent")
    (sent,) = site.sent()
    stored = site.schedules.get("once")
    assert stored.spec is not None
    assert sent.task_id == occurrence_id("zsched", "once", stored.spec.epoch, sent.nominal_us) == stored.last.task_id
    assert (sent.entry, sent.missed, sent.cause, sent.nominal_us) == (spec.name, 0, "schedule", stored.last.nominal_us)


def test_a_broker_in_memory_gets_the_occurrence_with_its_derived_id(site: Callable[[str], Site]) -> None:
    """kombu's own transport within one process."""
    check_one(site("memory://"))


def test_kombus_redis_gets_the_occurrence_with_its_derived_id(
    site: Callable[[str], Site], start_server: Callable[..., RunningServer]
) -> None:
    """The schedule and the broker on two servers."""
    check_one(site(start_server(tcp=True).url))


@pytest.mark.slow
def test_what_rabbitmq_does_not_take_stays_due_and_holds_no_other_entry_up(
    site: Callable[[str], Site], rabbit: RabbitMQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full queue, one declared otherwise, an alarm, a frozen server, a wrong password: each is told of and passes."""
    here = site(rabbit.url)
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    full = kombu.Queue("full", kombu.Exchange("full"), routing_key="full", queue_arguments=limits)
    here.app.conf.task_queues = [full, *(kombu.Queue(name, kombu.Exchange(name), name) for name in ("odd", "celery"))]
    with here.app.connection_for_write() as connection:
        kombu.Queue("odd", durable=False)(connection.default_channel).declare()
        connection.Producer().publish("first", exchange="full", routing_key="full", declare=[full])
    check_one(here)

    # A queue that is full, and one that was declared otherwise.
    for name in ("full-1", "odd-1", *(f"good-{number}" for number in range(5)), "full-2", "odd-2"):
        here.due(name, options={"queue": name.partition("-")[0]})
    good = [f"good-{number}" for number in range(5)]
    here.turn_until(lambda: all(map(here.fired, good)), "the good ones to be sent")
    assert {one.entry for one in here.sent("good")} == set(good)
    refused = ["full-1", "full-2", "odd-1", "odd-2"]
    assert [here.fired(name) for name in refused] == [0] * 4
    assert "did not take full-1: the broker refused the message" in caplog.text
    assert "did not take odd-1: " in caplog.text and "PRECONDITION_FAILED" in caplog.text
    assert {here.schedules.get(name).state for name in refused} == {State.SCHEDULED}
    for name, why in (("full-1", "refused the message"), ("odd-1", "PRECONDITION_FAILED")):
        with pytest.raises(ServerUnavailableError, match=why):
            operations.run_task(operations.Site(here.app, here.schedules, "me@here"), f"entry:{name}", request="one")
    with here.app.connection_for_write() as connection:
        connection.default_channel.queue_purge("full")
        connection.default_channel.queue_delete("odd")
    here.turn_until(lambda: here.fired("full-1") or here.fired("full-2"), "one to fit in")
    here.turn_until(lambda: all(map(here.fired, ("odd-1", "odd-2"))), "those of the odd queue to be sent")

    # An alarm: the server reads nothing from whoever publishes.
    before = here.schedules.get("once")
    rabbit.control("set_vm_memory_high_watermark", "0.00001")
    monkeypatch.setattr(confirms, "PATIENCE_S", 1.0)
    here.publisher.close()
    here.due("alarmed")
    here.turn_until(lambda: "takes no messages for now" in caplog.text, "the alarm to be told of")
    assert here.fired("alarmed") == 0
    rabbit.control("set_vm_memory_high_watermark", "0.4")
    here.turn_until(lambda: here.fired("alarmed"), "the alarm to be over")
    alarmed = here.sent()
    assert {one.entry for one in alarmed} == {"alarmed"} and len({one.task_id for one in alarmed}) == 1
    assert len(alarmed) <= 2 and here.schedules.get("once") == before

    # A server that has fallen silent, and then one that asks for another password.
    rabbit.freeze()
    here.due("silent")
    here.turn_until(lambda: "has not confirmed 1 messages within 1 s" in caplog.text, "the silence to be told of")
    rabbit.thaw()
    here.turn_until(lambda: here.fired("silent"), "the server to go on")
    rabbit.control("change_password", "guest", "other")
    here.publisher.close()
    here.due("locked out")
    here.turn_until(lambda: "ACCESS_REFUSED" in caplog.text, "the password to be told of")
    rabbit.control("change_password", "guest", "guest")
    here.turn_until(lambda: here.fired("locked out"), "the password to be right")
    late = here.sent()
    assert {one.entry for one in late} == {"silent", "locked out"}  # as often as it was tried, under one id
    assert len({one.task_id for one in late}) == 2


@pytest.mark.slow
def test_beats_on_rabbitmq_survive_its_restart_and_lose_nothing(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project], rabbit: RabbitMQ
) -> None:
    """Two beats share the entries; the broker is killed and comes back: what was confirmed is there, once."""
    server = start_server(tcp=True)
    project = start_project(server, EVERY_SECOND, broker=rabbit.url, zsched_url=server.url)
    beats = [project.beat() for _ in range(2)]
    sent = project.collect(15)
    assert max(Counter((one.entry, one.nominal_us) for one in sent).values()) == 1
    rabbit.restart()
    sent += project.collect(15)
    assert [beat.terminate() for beat in beats] == [0, 0]
    sent += project.drain()
    assert all("Traceback" not in beat.output() for beat in beats)
    for name in {one.entry for one in sent}:
        mine = {one.nominal_us: one for one in sent if one.entry == name}
        order = sorted(mine)
        # What was sent without an answer may be told as missed to the next: this broker has no marks.
        between = [(after - before) // 1_000_000 - 1 for before, after in pairwise(order)]
        assert all(mine[at].missed >= gap for at, gap in zip(order[1:], between, strict=True))
    ids = {(one.entry, one.nominal_us): one.task_id for one in sent}
    assert all(ids[one.entry, one.nominal_us] == one.task_id for one in sent)
