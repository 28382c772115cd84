"""Entries that cannot be sent: whose fault that is, who tries them next, and how they come back by themselves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery, Task
from celery.schedules import BaseSchedule

from celery_zsched import isolation, operations
from celery_zsched.beat import Scheduler
from celery_zsched.engine import Engine, Options
from celery_zsched.entry import EntrySpec, build, encode
from celery_zsched.operations import Site
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.roll import Roll
from celery_zsched.schedules import PROBE, Schedules
from celery_zsched.stored import State, Stored
from celery_zsched.triggers import register_trigger
from celery_zsched.types import SECOND_US, Item
from tests.entries import HOUR_US, claimed, entry, put_back
from tests.programs import Project, Sent, messages, sent_of
from tests.servers import RunningServer, wait_until

HOURLY = 3600.0

#: What ``Gate`` does with what it is asked to send, by the task's name.
FAULTS: dict[str, Exception | None] = {}


class Gate(Task):
    """A task class that asks somewhere before it sends, as those with locks do, and may fail there."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Send unless there is a fault."""
        fault = FAULTS.get(self.name)
        if fault is not None:
            raise fault
        return super().apply_async(*args, **options)


class Silent(Task):
    """A task class that sends and says nothing of it."""

    def apply_async(self, *args: Any, **options: Any) -> None:
        """Send."""
        super().apply_async(*args, **options)


class Later(BaseSchedule):
    """A schedule class of another release."""

    def next_after(self, instant: datetime) -> datetime:
        """Return the next hour or so."""
        return instant + timedelta(hours=1)


def work() -> None:
    """Do nothing, as a task."""


class Late(Task):
    """A task class that sends and fails then."""

    def apply_async(self, *args: Any, **options: Any) -> None:
        """Send and fail."""
        super().apply_async(*args, **options)
        raise ConnectionError("the lock server is away")


class Neighbours:
    """The others, as a test has them."""

    def __init__(self, release: str = "", *, others: bool = False) -> None:
        self.release = release
        self.there = others

    def others(self) -> bool:
        """Return whether schedulers of another release are alive."""
        return self.there


class Bench:
    """An app with a broker, its schedule, and schedulers on it."""

    def __init__(self, broker: str, open_schedules: Callable[..., Schedules]) -> None:
        self.app = Celery("bench", broker=broker, set_as_current=False)
        self.app.task(name="gated", base=Gate, shared=False)(work)
        self.app.task(name="silent", base=Silent, shared=False)(work)
        self.app.task(name="late", base=Late, shared=False)(work)
        self._open = open_schedules
        self._opened: list[tuple[Engine, CeleryPublisher]] = []
        self.schedules = open_schedules()
        self.found: list[Sent] = []

    def engine(self, neighbours: Neighbours | None = None) -> Engine:
        """Return one more scheduler."""
        publisher = CeleryPublisher(self.app, prefix="zsched", declared=dict)
        engine = Engine(self._open(holder="beat@here"), publisher, Options(lease_s=5.0))
        engine.isolation.neighbours = neighbours
        self._opened.append((engine, publisher))
        return engine

    def due(self, name: str, task: str = "note", schedule: Any = HOURLY, **rules: Any) -> EntrySpec:
        """Let an entry be due now."""
        spec = build(name, task, schedule, **rules)
        put_back(self.schedules, spec, 0)
        return spec

    def sent(self) -> list[Sent]:
        """Return all that was sent so far."""
        with self.app.connection_for_read() as connection:
            self.found += [sent for one in messages(connection, "celery") if (sent := sent_of(one)) is not None]
        return self.found

    def turn_until(self, condition: Callable[[], Any], what: str, *engines: Engine, timeout_s: float = 20.0) -> None:
        """Let schedulers work by turns until something is so."""

        def met() -> Any:
            for engine in engines or [self._opened[0][0]]:
                engine.turn(0.02)
            return condition()

        wait_until(met, timeout_s=timeout_s, what=what)

    def is_aside(self, name: str) -> Stored | None:
        """Return an entry if it is in quarantine."""
        stored = self.schedules.get(name)
        return stored if stored.state is State.QUARANTINED else None

    def close(self) -> None:
        """Drop the connections."""
        FAULTS.clear()
        for engine, publisher in self._opened:
            engine.close()
            publisher.close()
        self.app.close()


def gaps(sent: list[Sent]) -> set[int]:
    """Return the distances between occurrences, with those told as missed."""
    return {(b.nominal_us - a.nominal_us) // (b.missed + 1) for a, b in pairwise(sent)}


@pytest.fixture(params=["ours", "kombu's"])
def bench(
    request: pytest.FixtureRequest, start_server: Callable[..., RunningServer], open_schedules: Any
) -> Iterator[Bench]:
    """A bench on our broker, and on kombu's own."""
    url = start_server(tcp=True).url
    made = Bench(f"zsched+{url}" if request.param == "ours" else url, open_schedules)
    yield made
    made.close()


@pytest.fixture
def lone(start_server: Callable[..., RunningServer], open_schedules: Any) -> Iterator[Bench]:
    """A bench on our broker."""
    made = Bench(f"zsched+{start_server(tcp=True).url}", open_schedules)
    yield made
    made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is set aside be tried again soon."""
    monkeypatch.setattr(isolation, "ASIDE_S", 0.2)
    monkeypatch.setattr(isolation, "ASIDE_AMID_ROLL_S", 0.2)


# -- Whose fault it is


@pytest.mark.parametrize("fault", [ConnectionError, OSError, TimeoutError], ids=lambda fault: fault.__name__)
def test_what_a_task_class_asks_before_it_sends_is_not_taken_for_the_broker(
    bench: Bench, fault: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """A lock server that is away keeps its entry back, and none of those before and behind it."""
    FAULTS["gated"] = fault("the lock server is away")
    bench.engine()
    for number in range(8):
        bench.due(f"entry-{number}", "gated" if number == 3 else "note")
    bench.turn_until(lambda: bench.is_aside("entry-3") and len(bench.sent()) >= 7, "the others, and quarantine")
    assert sorted(one.entry for one in bench.found) == [f"entry-{number}" for number in range(8) if number != 3]
    assert "broker" not in caplog.text
    stored = bench.is_aside("entry-3")
    assert stored is not None and stored.fault is not None and "the lock server is away" in stored.fault


def test_a_broker_that_is_away_is_told_from_an_entrys_own_fault(lone: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an error could be either's and the broker does not answer, nothing counts against the entry."""
    engine = lone.engine()
    lone.due("gated", "gated")
    FAULTS["gated"] = ConnectionError("away")
    monkeypatch.setattr(CeleryPublisher, "_is_there", lambda _: False)
    for _ in range(4):
        engine.turn(1)
    assert lone.schedules.timeline.locate(["gated"])["gated"].count == 0
    assert lone.schedules.get("gated").state is State.SCHEDULED


def test_a_task_class_that_answers_nothing_has_sent(bench: Bench) -> None:
    """One message, and its id on record."""
    bench.engine()
    bench.due("quiet", "silent")
    bench.turn_until(lambda: bench.schedules.get("quiet").last.fired, "the occurrence to be on record")
    (sent,) = bench.sent()
    assert bench.schedules.get("quiet").last.task_id == sent.task_id


def test_a_task_class_that_fails_after_it_has_sent_has_sent(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Tried again, it would send again each time."""
    bench.engine()
    bench.due("late", "late")
    bench.turn_until(lambda: bench.schedules.get("late").last.fired, "the occurrence to be on record")
    (sent,) = bench.sent()
    assert bench.schedules.get("late").last.task_id == sent.task_id
    assert "the task class of late failed after it had sent" in caplog.text


def test_a_message_that_takes_longer_than_the_lease_to_make_is_told_by_name(
    lone: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not the broker that did not take something, and the one that was slow is sent next time."""
    engine = lone.engine()
    send = engine._publisher.send

    def send_slowly(spec: EntrySpec, *args: Any, **how: Any) -> str:
        if spec.name == "slow":
            engine._publisher.send = send  # type: ignore[method-assign]
            over = time.monotonic() + 0.3
            wait_until(lambda: time.monotonic() > over)
        return send(spec, *args, **how)

    engine._publisher.send = send_slowly  # type: ignore[method-assign]
    object.__setattr__(engine.options, "lease_s", 0.2)
    lone.due("slow")
    lone.turn_until(lone.sent, "the message")
    assert "Making the message of slow took 0." in caplog.text
    assert "broker" not in caplog.text


def test_a_result_backend_is_not_asked_to_listen_for_what_nobody_waits_for(
    start_server: Callable[..., RunningServer], open_schedules: Any
) -> None:
    """One that is away keeps no message up, and one that is there remembers none for as long as the beat lives."""
    away = start_server(tcp=True)
    made = Bench(f"zsched+{start_server(tcp=True).url}", open_schedules)
    made.app.conf.result_backend = away.url
    made.app.conf.task_ignore_result = False
    away.close()
    made.engine()
    made.due("gated", "gated")
    made.turn_until(made.sent, "the message")
    assert made.schedules.get("gated").last.failures == 0
    made.close()


# -- Healing


@pytest.mark.usefixtures("quick")
def test_what_was_set_aside_returns_by_itself_when_its_fault_is_over(
    lone: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent for what it failed at, begins with all its tries again, and leaves nothing behind."""
    FAULTS["gated"] = RuntimeError("not today")
    lone.engine()
    lone.due("often", "gated", 0.5)
    lone.turn_until(lambda: lone.is_aside("often"), "quarantine")
    stored = lone.is_aside("often")
    assert stored is not None
    assert (stored.last.failures, stored.last.asides, stored.last.aside_by) == (3, 1, "beat@here")
    assert stored.last.fired == 0 and stored.last.again_us is not None
    FAULTS.clear()
    lone.turn_until(lambda: len(lone.sent()) >= 2, "two occurrences")
    first, second = lone.found[:2]
    assert first.missed == (first.nominal_us - stored.located.due_us) // 500_000
    assert gaps([first, second]) == {500_000}
    assert "often is sent again: it was in quarantine, tried 3 times in all" in caplog.text
    last = lone.schedules.get("often").last
    assert (last.failures, last.error, last.asides, last.aside_by, last.again_us) == (0, None, 0, None, None)
    assert lone.schedules.timeline.locate([PROBE + "often"]) == {}


@pytest.mark.usefixtures("quick")
def test_what_stays_broken_is_tried_once_each_time_and_ever_more_seldom(
    lone: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each time, after the first tries; the pause doubles up to the longest, and others go on meanwhile."""
    monkeypatch.setattr(isolation, "LONGEST_ASIDE_S", 0.7)
    caplog.set_level(logging.WARNING, "celery.beat.zsched")
    FAULTS["gated"] = RuntimeError("not today")
    lone.engine()
    lone.due("bad", "gated")
    lone.due("good", "note", 0.5)
    lone.turn_until(lambda: lone.schedules.get("bad").last.asides >= 5, "to be set aside five times")
    lines = [record.getMessage() for record in caplog.records if "bad" in record.getMessage()]
    assert ["(try" in line for line in lines[:2]] == [True, True]
    assert "set aside in quarantine after 3 tries" in lines[2] and "tried again in 0.2 s" in lines[2]
    assert [line.rpartition(" in ")[2] for line in lines[3:7]] == ["0.4 s", "0.7 s", "0.7 s", "0.7 s"]
    assert lone.schedules.get("bad").last.failures == 3 + 4
    assert gaps([one for one in lone.sent() if one.entry == "good"]) == {500_000}


@pytest.mark.usefixtures("quick")
def test_a_misfire_rule_that_drops_the_failed_occurrence_does_not_make_a_fault_be_forgotten(lone: Bench) -> None:
    """The next occurrence is the try: failing there, the entry goes on being tried more seldom."""
    FAULTS["gated"] = RuntimeError("not today")
    lone.engine()
    lone.due("skips", "gated", 1.0, misfire="skip", grace=0.1)
    lone.turn_until(lambda: lone.schedules.get("skips").last.asides >= 2, "to be set aside twice")
    assert lone.schedules.get("skips").last.failures == 4


@pytest.mark.usefixtures("quick")
def test_what_no_scheduler_here_can_read_waits_for_one_that_can(lone: Bench) -> None:
    """A schedule class of another release: tried ever later, and sent when a scheduler knows it."""
    lone.engine()
    register_trigger("isolation-known", Later)
    now_us = lone.schedules.now_us()
    known = encode(build("custom", "note", Later()).installed(now_us - 2 * HOUR_US))
    lone.schedules.timeline.put([Item("custom", known.replace(b"isolation-known", b"isolation-later"), now_us)])
    lone.turn_until(lambda: lone.schedules.get("custom").last.asides >= 3, "to be looked at three times")
    register_trigger("isolation-later", Later)
    lone.turn_until(lone.sent, "the occurrence")


def test_an_entry_that_is_saved_anew_begins_with_all_its_tries(lone: Bench) -> None:
    """Nothing of its faults stays, and no note that it is to be tried again."""
    now_us = lone.schedules.now_us()
    spec = lone.due("bad")
    last = lone.schedules.get("bad").last.but(failures=3, error="why", asides=4, again_us=now_us + HOUR_US)
    assert lone.schedules.quarantine(claimed(lone.schedules), "why", last)
    lone.schedules.save(spec)
    after = lone.schedules.get("bad").last
    assert (after.failures, after.error, after.asides, after.again_us) == (0, None, 0, None)
    assert list(lone.schedules.timeline.locate([PROBE + "bad"])) == []
    lone.schedules.delete("bad")


def test_a_deleted_entry_is_not_tried_again(lone: Bench) -> None:
    """Its note goes with it, so that an empty schedule has no keys."""
    lone.due("bad")
    last = lone.schedules.get("bad").last.but(asides=1, again_us=lone.schedules.now_us() + HOUR_US)
    assert lone.schedules.quarantine(claimed(lone.schedules), "why", last)
    lone.schedules.delete("bad")
    assert lone.schedules.timeline.counts().delayed == 0


# -- Handing on


@pytest.mark.usefixtures("quick")
def test_an_entry_that_only_a_new_release_can_send_is_handed_to_it(
    lone: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Two schedulers of the old release fail at every occurrence, each says so once, and nothing is set aside."""
    caplog.set_level(logging.WARNING, "celery.beat.zsched")
    old = [lone.engine(Neighbours("old", others=True)) for _ in range(2)]
    new = lone.engine(Neighbours("new", others=True))
    for engine in old:
        send = engine._publisher.send

        def refuse(spec: EntrySpec, *args: Any, send: Any = send, **how: Any) -> str:
            if spec.name == "new":
                raise TypeError("job() takes 0 positional arguments but 1 was given")
            return str(send(spec, *args, **how))

        engine._publisher.send = refuse  # type: ignore[method-assign]
    lone.due("new", "note", 2.0)
    lone.due("both", "note", 1.0)
    came = lambda: len([one for one in lone.sent() if one.entry == "new"]) >= 3  # noqa: E731
    lone.turn_until(came, "three occurrences", *old, new, timeout_s=60)
    assert lone.schedules.get("new").state is not State.QUARANTINED
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("new ")]
    assert 1 <= len(told) <= 2 and all("handed on" in line and "release old" in line for line in told)


@pytest.mark.usefixtures("quick")
def test_what_no_release_can_send_is_set_aside_after_a_while(lone: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for handing on is over; the record says who set it aside."""
    monkeypatch.setattr(isolation, "HANDED_ON_S", 1.0)
    FAULTS["gated"] = RuntimeError("not today")
    engines = [lone.engine(Neighbours(release, others=True)) for release in ("old", "new")]
    lone.due("bad", "gated")
    lone.turn_until(lambda: lone.is_aside("bad"), "quarantine", *engines)
    stored = lone.is_aside("bad")
    assert stored is not None and stored.last.aside_by in ("beat@here (release old)", "beat@here (release new)")


def test_a_release_that_only_sends_other_arguments_is_another_one(lone: Bench, valkey: RunningServer) -> None:
    """Its beats and those of before know of each other, until one of them ends."""
    lone.app.conf.update(zsched_url=valkey.url, result_expires=None)
    beats = []
    for args in ((), (1,), (1,)):
        lone.app.conf.beat_schedule = {"job": {"task": "note", "schedule": HOURLY, "args": args}}
        beats.append(Scheduler(lone.app))
        beats[-1].max_interval = 0.05
        beats[-1].tick()
    neighbours = [beat._engine.isolation.neighbours for beat in beats]
    assert all(isinstance(each, Roll) and each.others() for each in neighbours)
    assert len({each.release for each in neighbours if each is not None}) == 2
    beats[0].close()
    for each in neighbours[1:]:
        assert each is not None
        wait_until(lambda each=each: not each.others(), what="the others to be gone")
    for beat in beats[1:]:
        beat.close()


# -- What people see and do


@pytest.fixture
def aside(lone: Bench) -> Site:
    """A site whose entry was set aside an hour ago by its due time, and is tried again in an hour."""
    put_back(lone.schedules, entry("bad"), SECOND_US)
    last = lone.schedules.get("bad").last.but(
        failures=3, error="why", asides=1, aside_by="beat@here", again_us=lone.schedules.now_us() + HOUR_US
    )
    assert lone.schedules.quarantine(claimed(lone.schedules), "why", last)
    return Site(lone.app, lone.schedules, "me@here")


def test_resume_puts_an_entry_in_quarantine_back_at_once_and_says_so(lone: Bench, aside: Site) -> None:
    """A dry run does not; by its name or a pattern, with all its tries."""
    told = operations.resume_task(aside, "bad", dry_run=True)
    assert (told.state, told.changed, told.dry_run) == ("scheduled", True, True)
    assert lone.is_aside("bad")
    told = operations.resume_task(aside, "bad", reason="mended")
    assert (told.state, told.changed) == ("scheduled", True)
    assert told.notice is not None and told.notice.startswith("it was in quarantine, and is tried anew now: why")
    assert lone.schedules.get("bad").last.asides == 0
    assert [record.verb for record in operations.audit(aside, target="entry:bad")] == ["resume"]
    lone.engine()
    lone.turn_until(lone.sent, "the occurrence")
    assert operations.resume_task(aside, "bad").changed is False


def test_what_failed_before_the_clock_was_set_back_is_due_at_its_next_occurrence(lone: Bench) -> None:
    """It does not wait until the clock has caught up."""
    put_back(lone.schedules, entry("bad", 60), 0)
    due = claimed(lone.schedules)
    schedules, ahead_us = lone.schedules, lone.schedules.now_us() + 48 * HOUR_US
    schedules.timeline.reschedule([(due.hold, ahead_us, b"")])
    schedules.timeline.bury([("bad", "", "why", b"")])
    assert schedules.get("bad").located.due_us == ahead_us
    assert schedules.resume("bad")
    due_us = schedules.get("bad").due_us
    assert due_us is not None and due_us < schedules.now_us() + 60 * SECOND_US


def test_resume_with_catch_up_sends_what_the_misfire_rule_would_drop(lone: Bench) -> None:
    """An operator's word stands above it."""
    put_back(lone.schedules, entry("bad", misfire="skip"), 3 * HOUR_US)
    assert lone.schedules.quarantine(claimed(lone.schedules), "why")
    assert lone.schedules.resume("bad", catch_up=True)
    lone.engine()
    lone.turn_until(lone.sent, "the occurrence")


def test_health_names_what_is_in_quarantine_as_a_problem(lone: Bench, aside: Site) -> None:
    """Which, since when, why, by whom, and when it is tried again; it waits for nothing but that."""
    told = operations.health(aside)
    (problem,) = [line for line in told.problems if "quarantine" in line]
    assert problem.startswith("the entry 'bad' is in quarantine: why (set aside 2")
    assert " by beat@here, tried again 2" in problem
    assert (told.ok, told.quarantined, told.waiting) == (False, 1, 0)
    operations.resume_task(aside, "bad")
    assert operations.health(aside).quarantined == 0


def test_plan_tells_of_a_static_entry_in_quarantine(lone: Bench) -> None:
    """It is as declared, and does not run: a start takes it out."""
    lone.app.conf.update(beat_schedule={"bad": {"task": "note", "schedule": HOURLY}}, result_expires=None)
    spec = build("bad", "note", HOURLY, owner="static")
    put_back(lone.schedules, spec, 0)
    site = Site(lone.app, lone.schedules, "me@here")
    assert operations.plan(site) == []
    assert lone.schedules.quarantine(claimed(lone.schedules), "why")
    (told,) = operations.plan(site)
    assert (told.entry, told.action, told.fields) == ("bad", "return", [])
    assert told.detail.startswith("it is in quarantine: why")


# -- With real beats

OLD = """
    @app.task(name="job")
    def job():
        return None

    app.conf.beat_schedule = {
        "keep": {"task": "note", "schedule": 1.0},
        "job": {"task": "job", "schedule": 1.0, "options": {"queue": "jobs"}},
    }
"""
NEW = OLD.replace("def job():", "def job(what):").replace('1.0, "opt', '1.0, "args": (1,), "opt')
LAZY = """
    from celery.beat import BeatLazyFunc

    app.conf.beat_schedule["lazy"] = {
        "task": "note", "schedule": 1.0, "args": (BeatLazyFunc(lambda: 1),), "options": {"queue": "lazy"},
    }
"""


@pytest.mark.slow
def test_a_rolling_deploy_sets_no_entry_aside(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """Two beats of the old release and one of the new: what only that can send is sent within seconds."""
    project = start_project(start_server(tcp=True), OLD)
    old = [project.beat() for _ in range(2)]
    project.collect(2)
    project.write(NEW + LAZY)
    new = project.beat()
    for queue in ("jobs", "lazy"):
        project.drain(queue)
        begun = time.monotonic()
        project.collect(6, queue=queue, timeout_s=60)
        assert time.monotonic() - begun < 30
    assert gaps(project.drain()) == {1_000_000}
    for beat in old:
        assert beat.terminate() == 0
    assert "quarantine" not in "".join(beat.output().replace("before it is set aside", "") for beat in [*old, new])
    states = {stored.name: stored.state for stored in project.schedules.all()}
    assert State.QUARANTINED not in states.values()
    project.drain("jobs")
    assert gaps(project.collect(3, queue="jobs")) == {1_000_000}
