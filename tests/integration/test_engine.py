"""Two schedulers in one process, and what happens to an occurrence when one of them stops at any step of sending it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery

from celery_zsched import planner
from celery_zsched.beat import Scheduler
from celery_zsched.engine import BACKOFF_S, Engine, Options
from celery_zsched.entry import EntrySpec
from celery_zsched.errors import ServerUnavailableError
from celery_zsched.lookout import Lookout
from celery_zsched.message import mark_field
from celery_zsched.outlet import PublishError
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.runs import Runs
from celery_zsched.schedules import Schedules
from celery_zsched.stored import State
from celery_zsched.types import SECOND_US, from_us
from tests.entries import HOUR_US, entry, put_at, put_back
from tests.programs import Sent, messages, sent_of
from tests.servers import RunningServer, wait_until

LEASE_S = 0.5


class KilledError(BaseException):
    """The end of a scheduler on the spot; nothing catches it."""


class Pair:
    """A server, an app with a broker on it, and as many schedulers as are asked for."""

    def __init__(self, broker: str, open_schedules: Callable[..., Schedules]) -> None:
        self.app = Celery("pair", broker=broker, set_as_current=False)
        self._open = open_schedules
        self._publishers: list[CeleryPublisher] = []
        self.schedules = open_schedules()

    def engine(self) -> tuple[Engine, CeleryPublisher]:
        """Return one more scheduler, and what it sends by."""
        publisher = CeleryPublisher(self.app, prefix="zsched", declared=dict)
        self._publishers.append(publisher)
        return Engine(self._open(), publisher, Options(lease_s=LEASE_S)), publisher

    def due(self, spec: EntrySpec) -> None:
        """Let an entry be due now."""
        put_back(self.schedules, spec, 0)

    def sent(self) -> list[Sent]:
        """Take what was sent."""
        with self.app.connection_for_read() as connection:
            return [sent for message in messages(connection, "celery") if (sent := sent_of(message)) is not None]

    def runs_end(self, name: str, sent: list[Sent]) -> None:
        """Say, as a worker does, that runs of an entry are over."""
        Runs(self.schedules).end([(name, one.task_id) for one in sent])

    def close(self) -> None:
        """Drop the connections."""
        for publisher in self._publishers:
            publisher.close()
        self.app.close()


@pytest.fixture
def ours(valkey: RunningServer, start_server: Callable[..., RunningServer], open_schedules: Any) -> Iterator[Pair]:
    """Our own broker, on another server than the schedule: they need nothing in common."""
    pair = Pair(start_server(tcp=True).url.replace("redis://", "zsched+redis://"), open_schedules)
    yield pair
    pair.close()


@pytest.fixture
def foreign(valkey: RunningServer, start_server: Callable[..., RunningServer], open_schedules: Any) -> Iterator[Pair]:
    """kombu's own broker."""
    pair = Pair(start_server(tcp=True).url, open_schedules)
    yield pair
    pair.close()


def finish(engine: Engine, schedules: Schedules, name: str) -> None:
    """Let a scheduler work until the one-off is done."""

    def done() -> bool:
        engine.turn(0.1)
        return schedules.get(name).state is State.FINISHED

    wait_until(done, timeout_s=10, what=f"{name} to be finished")


def once(schedules: Schedules) -> EntrySpec:
    """Return an entry of one occurrence, which nothing later can stand for."""
    return entry("once", from_us(schedules.now_us()))


def test_a_scheduler_that_hears_late_what_it_claimed_asks_whether_it_is_still_its(foreign: Pair) -> None:
    """One that stood still for longer than its lease before it read the answer sends nothing that another has sent."""
    (slow, _), (other, _) = foreign.engine(), foreign.engine()
    foreign.due(once(foreign.schedules))
    claim = slow.schedules.claim

    def hear_late(*args: Any, **how: Any) -> Any:
        turn = claim(*args, **how)
        finish(other, foreign.schedules, "once")
        return turn

    slow.schedules.claim = hear_late  # type: ignore[method-assign]
    slow.turn(0)
    assert len(foreign.sent()) == 1
    slow.close()
    other.close()


def overtaken(pair: Pair) -> list[Sent]:
    """Let one scheduler claim a due entry, stand still until the other has sent it, and then go on."""
    (slow, publisher), (other, _) = pair.engine(), pair.engine()
    pair.due(once(pair.schedules))
    send = publisher.send

    def send_late(*args: Any, **how: Any) -> str:
        finish(other, pair.schedules, "once")
        return send(*args, **how)

    publisher.send = send_late  # type: ignore[method-assign]
    slow.turn(0)
    assert pair.schedules.get("once").last.fired == 1
    slow.close()
    other.close()
    return pair.sent()


def test_a_scheduler_that_was_overtaken_between_claim_and_send_is_refused(ours: Pair) -> None:
    """One message, by the one that took over when the lease had ended."""
    assert len(overtaken(ours)) == 1


def test_a_foreign_broker_gets_a_repeat_with_the_same_task_id(foreign: Pair) -> None:
    """At least once: whoever must not work twice can tell by the id."""
    sent = overtaken(foreign)
    assert len(sent) == 2
    assert len({one.task_id for one in sent}) == 1


#: Step -> what is called there, and whether the scheduler dies after it or instead of it.
STEPS = {
    "claimed": ("last_runs", False),
    "before sending": ("send", False),
    "started": ("start", True),
    "sent": ("finish", True),
    "before the move": ("start_move", False),
    "moving": ("start_move", True),
    "moved": ("finish_move", True),
}


@pytest.mark.parametrize("step", STEPS)
def test_whichever_step_a_scheduler_dies_at_the_occurrence_is_sent_once(ours: Pair, step: str) -> None:
    """The other one ends what was begun, once the lease is over."""
    (victim, publisher), (heir, _) = ours.engine(), ours.engine()
    ours.due(once(ours.schedules))

    def die(*_: Any, **__: Any) -> None:
        raise KilledError

    def after(deed: Callable[..., Any]) -> Callable[..., Any]:
        def do_and_die(*args: Any, **how: Any) -> None:
            deed(*args, **how)
            raise KilledError

        return do_and_die

    name, is_done = STEPS[step]
    owner = publisher if hasattr(publisher, name) else victim.schedules
    setattr(owner, name, after(getattr(owner, name)) if is_done else die)
    with pytest.raises(KilledError):
        victim.turn(0)
    finish(heir, ours.schedules, "once")
    (sent,) = ours.sent()
    stored = ours.schedules.get("once")
    assert (stored.last.nominal_us, stored.last.fired, stored.last.task_id) == (sent.nominal_us, 1, sent.task_id)
    (past,) = ours.schedules.history("once")
    assert (past.nominal_us, past.outcome, past.task_id) == (sent.nominal_us, "sent", sent.task_id)
    heir.close()


@pytest.mark.parametrize("rules", [{}, {"overlap": "skip"}, {"misfire": "all"}], ids=str)
@pytest.mark.parametrize("step", ["sent", "told that it failed"])
def test_what_is_sent_late_is_not_told_that_what_was_sent_was_missed(
    ours: Pair, step: str, rules: dict[str, Any]
) -> None:
    """Whoever comes after one that was killed, or that had no answer, finds by the broker's mark what was sent."""
    (victim, publisher), (heir, _) = ours.engine(), ours.engine()
    spec = entry("often", 0.4, **rules)
    ours.due(spec)
    finish_sending = publisher.finish

    def stop() -> None:
        finish_sending()
        raise KilledError if step == "sent" else PublishError("no answer came")

    publisher.finish = stop  # type: ignore[method-assign]
    with contextlib.suppress(KilledError):
        victim.turn(0)
    first, sent = ours.sent(), list[Sent]()
    assert len(first) == 1

    def there() -> bool:
        heir.turn(0.1)
        sent.extend(ours.sent())
        ours.runs_end("often", [*first, *sent])
        return len(sent) >= 2

    wait_until(there, timeout_s=10, what="the heir to go on")
    heir.close()
    every = [*first, *sent]
    distances = [(b.nominal_us - a.nominal_us) // 400_000 - 1 for a, b in pairwise(every)]
    assert [one.missed for one in every] == [0, *distances]
    last = ours.schedules.get("often").last
    assert (last.fired, last.missed_total) == (len(every), sum(distances) + last.missed)
    assert len(ours.schedules.history("often")) == len(every)


def test_what_is_claimed_as_the_server_fails_does_not_wait_for_the_lease(
    ours: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler that has it gives it back when the server is there again."""
    engine, _ = ours.engine()
    ours.due(once(ours.schedules))
    reads, failures = engine.schedules.last_runs, iter([ServerUnavailableError("gone"), ServerUnavailableError("gone")])

    def read(names: Any) -> Any:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return reads(names)

    monkeypatch.setattr(engine.schedules, "last_runs", read)
    monkeypatch.setattr(engine, "_lease_us", 60 * SECOND_US)
    finish(engine, ours.schedules, "once")
    assert len(ours.sent()) == 1
    engine.close()


def test_a_scheduler_that_stood_still_for_longer_than_its_lease_sends_nothing_late(
    ours: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has taken over has looked at what was sent by then, and tells the task what was missed."""
    engine, publisher = ours.engine()
    ours.due(once(ours.schedules))
    send = publisher.send

    def send_slowly(*args: Any, **how: Any) -> str:
        over = time.monotonic() + 1.5 * LEASE_S
        wait_until(lambda: time.monotonic() > over)
        publisher.send = send  # type: ignore[method-assign]
        return send(*args, **how)

    publisher.send = send_slowly  # type: ignore[method-assign]
    engine.turn(0)
    assert "stood still for longer than its lease" in caplog.text
    assert ours.sent() == []
    finish(engine, ours.schedules, "once")
    assert len(ours.sent()) == 1
    engine.close()


def test_an_entry_that_is_deleted_and_made_anew_begins_anew(ours: Pair) -> None:
    """What was sent in its first life does not bind it in its second, though the moment is the same."""
    engine, _ = ours.engine()
    spec = once(ours.schedules)
    for _life in range(2):
        ours.due(spec)
        finish(engine, ours.schedules, "once")
        ours.schedules.delete("once")
    assert len(ours.sent()) == 2
    engine.close()


def test_nothing_leaves_a_tick(ours: Pair, valkey: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    """Not even a fault that nobody thought of; it is logged, and what it hit is sent when its lease is over."""
    ours.app.conf.update(zsched_url=valkey.url, zsched_lease_timeout=LEASE_S, result_expires=None)
    scheduler = Scheduler(ours.app)
    finish_sending, faults = scheduler._publisher.finish, iter([RuntimeError("the moon is not full")] * 2)

    def fail_twice() -> None:
        for fault in faults:
            raise fault
        finish_sending()

    scheduler._publisher.finish = fail_twice  # type: ignore[method-assign]
    scheduler.max_interval = 0.1
    ours.due(once(ours.schedules))

    def done() -> bool:
        scheduler.tick()
        return ours.schedules.get("once").state is State.FINISHED

    wait_until(done, timeout_s=10, what="the one-off to be finished")
    assert len(ours.sent()) == 1
    assert "the moon is not full" in caplog.text
    scheduler.close()


def test_a_scheduler_that_ends_as_it_sends_wakes_one_that_nobody_else_would(ours: Pair) -> None:
    """The first watches, the second in case the first dies, the third for nothing; the first two end, one untold."""
    (first, _), (second, _), (third, _) = (ours.engine() for _ in range(3))
    ours.schedules.save(entry("each", 1))
    for engine in (first, second, third):
        engine.turn(0)
    second.lookout.close()

    def fired(engine: Engine, times: int) -> bool:
        engine.turn(0.1)
        return ours.schedules.get("each").last.fired >= times

    wait_until(lambda: fired(first, 1), timeout_s=5, what="the first occurrence")
    first.close()
    wait_until(lambda: fired(third, 2), timeout_s=5, what="the second, by the third")
    assert [sent.missed for sent in ours.sent()] == [0, 0]
    third.close()


def test_the_third_of_three_takes_over_when_the_others_die_one_after_the_other(ours: Pair) -> None:
    """Nobody tells it; it sees within a lease that nobody watches any more."""
    (first, _), (second, _), (third, _) = (ours.engine() for _ in range(3))
    ours.schedules.save(entry("each", 1))
    for engine in (first, second, third):
        engine.turn(0)
    for engine in (first, second):
        engine.lookout.close()

    def fired() -> bool:
        third.turn(0.1)
        return ours.schedules.get("each").last.fired >= 2

    wait_until(fired, timeout_s=5, what="two occurrences")
    third.close()


def test_many_due_at_one_instant_are_shared_and_each_is_sent_once(ours: Pair) -> None:
    """Two schedulers by turns, 1,200 entries, batches of at most 256."""
    (one, _), (other, _) = ours.engine(), ours.engine()
    due_us = ours.schedules.now_us() + 2 * SECOND_US
    specs = [entry(f"entry-{number}", from_us(due_us)) for number in range(1200)]
    put_at(ours.schedules, specs, due_us)
    sent: list[Sent] = []

    def all_sent() -> bool:
        one.turn(0.05)
        other.turn(0.05)
        sent.extend(ours.sent())
        return len(sent) >= 1200

    wait_until(all_sent, what="1,200 messages")
    assert sorted(each.entry for each in sent) == sorted(spec.name for spec in specs)
    one.close()
    other.close()


@pytest.mark.alone
@pytest.mark.parametrize("looked", [0, 1])
def test_an_idle_scheduler_is_on_time_for_what_its_next_look_would_miss(
    open_schedules: Callable[..., Schedules], looked: int
) -> None:
    """Due in one and a half to two blocks, with nobody to ring: in time, whichever set the looks begin with."""
    schedules = open_schedules()
    schedules.save(entry("later", 1.8))
    lookout = Lookout(schedules.timeline, block_s=1.0)
    lookout._looks = looked
    while True:
        turn = schedules.claim(1, SECOND_US)
        lookout.claimed(turn.now_us, turn.wake_us, empty=not turn.due)
        if turn.due:
            break
        while not lookout.wait(10):
            pass
    lookout.close()
    assert turn.now_us - turn.due[0].due_us < SECOND_US // 4


def test_a_note_that_cannot_be_attended_to_holds_no_entry_up(ours: Pair) -> None:
    """What is due with it is sent, and the note comes again."""
    engine, _ = ours.engine()
    reminded: list[str] = []

    def fail(what: str) -> None:
        reminded.append(what)
        raise RuntimeError("the broker is away")

    engine.schedules.on_reminded = fail
    ours.schedules.remind("queue:q", ours.schedules.now_us())
    ours.due(entry("a", 3600.0))
    wait_until(lambda: engine.turn(0.1) == 0.0 and ours.sent())
    assert reminded == ["queue:q"]
    assert ours.schedules.timeline.counts().leased == 0
    engine.close()


def test_an_outage_of_any_length_ends_no_scheduler(ours: Pair) -> None:
    """The pause between tries stays what it was after thousands of them."""
    engine, _ = ours.engine()
    engine._failures = 5_000
    assert engine.back_off("nothing works%s", "") == BACKOFF_S[1]
    engine.close()


def test_an_entry_that_nobody_can_route_is_set_aside_and_holds_no_other_up(ours: Pair) -> None:
    """That its exchange leads nowhere is its own fault, not the broker's."""
    engine, _ = ours.engine()
    ours.due(entry("lost", 3600.0, options={"exchange": "ghost", "routing_key": "x"}))
    ours.due(entry("fine", 3600.0))
    sent: list[Sent] = []

    def both() -> bool:
        engine.turn(0.1)
        sent.extend(ours.sent())
        return ours.schedules.get("lost").state is State.QUARANTINED

    wait_until(both)
    assert [one.entry for one in sent] == ["fine"]
    engine.close()


def test_a_broker_that_is_away_counts_nothing_against_an_entry(ours: Pair) -> None:
    """However often its message is not taken, it has not been tried once as far as quarantine is concerned."""
    engine, publisher = ours.engine()
    ours.due(once(ours.schedules))
    finish_sending = publisher.finish

    def fail() -> Any:
        raise PublishError("the broker is away")

    publisher.finish = fail  # type: ignore[method-assign]
    for _ in range(4):
        engine.turn(1)
    assert ours.schedules.timeline.locate(["once"])["once"].count == 0
    publisher.finish = finish_sending  # type: ignore[method-assign]
    finish(engine, ours.schedules, "once")
    engine.close()


def mark(pair: Pair, spec: EntrySpec, epoch: int) -> None:
    """Let the queue have had an occurrence of a life of that epoch."""
    with pair.app.connection_for_write() as connection:
        broker = connection.default_channel.broker
        broker.server.client.hset(
            broker.timeline("celery").keys.marks, mark_field("zsched", spec.name), f"{epoch} {HOUR_US}"
        )


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_an_entry_made_anew_after_the_clock_was_set_back_begins_above_the_mark(
    ours: Pair, caplog: pytest.LogCaptureFixture, overlap: str
) -> None:
    """It is sent at once, once, and later occurrences too; an error says what was the matter and what to do."""
    engine, _ = ours.engine()
    spec = entry("each", 1.0, overlap=overlap)
    ours.due(spec)
    ahead = ours.schedules.now_us() + HOUR_US
    mark(ours, spec, ahead)
    sent: list[Sent] = []

    def come() -> bool:
        engine.turn(0.1)
        sent.extend(ours.sent())
        return len(sent) >= 2 or (bool(sent) and overlap == "skip")

    wait_until(come, what="the occurrences")
    assert len({one.nominal_us for one in sent}) == len(sent)
    stored = ours.schedules.get("each")
    assert stored.spec is not None
    assert stored.spec.epoch == ahead + 1
    assert [record.levelname for record in caplog.records if "zsched_prefix" in record.message] == ["ERROR"]
    engine.close()


def test_a_scheduler_with_an_entrys_old_document_gives_it_no_new_life(ours: Pair) -> None:
    """It was frozen while the entry was deleted, made anew and sent: what it sends then is void, and it knows."""
    slow, publisher = ours.engine()
    spec = once(ours.schedules)
    ours.due(spec)
    send = publisher.send

    def send_late(*args: Any, **how: Any) -> str:
        ours.schedules.delete("once")
        other, _ = ours.engine()
        ours.due(spec)
        finish(other, ours.schedules, "once")
        other.close()
        return send(*args, **how)

    publisher.send = send_late  # type: ignore[method-assign]
    slow.turn(1)
    publisher.send = send  # type: ignore[method-assign]
    after = ours.schedules.get("once")
    assert after.state is State.FINISHED
    slow.turn(0.1)
    assert len(ours.sent()) == 1
    assert ours.schedules.get("once").spec == after.spec
    slow.close()


def test_what_is_refused_while_another_chunk_is_made_is_told_with_its_own(ours: Pair) -> None:
    """Who asks about some entries is told of those, and of the others when asked about them."""
    publisher = CeleryPublisher(ours.app, prefix="zsched", declared=dict)
    for name in ("a", "b"):
        mark(ours, entry(name), ours.schedules.now_us() + HOUR_US)
        publisher.send(entry(name), planner.Send(HOUR_US, "schedule", 0, None), HOUR_US)
    publisher.flush()
    assert publisher.outdated(["b", "c"]) == {"b"}
    assert publisher.outdated(["a", "b"]) == {"a"}
    assert publisher.outdated(["a", "b"]) == set()
    publisher.close()
