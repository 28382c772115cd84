"""Runs that may not overlap, and of which nobody tells the end: they hold their entries back no longer than a lease."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, states
from celery.exceptions import Reject

from celery_zsched import operations, run_leases
from celery_zsched.apps import open_schedules
from celery_zsched.engine import Engine, Options
from celery_zsched.entry import EntrySpec, build, encode, occurrence_header
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.runs import LONGEST_WAIT_US, Mark, Run, Runs
from celery_zsched.settings import Settings
from celery_zsched.types import SECOND_US, Item, Put, from_us, to_us
from tests.entries import entry, put_back
from tests.programs import Program, Project, Sent, messages, sent_of
from tests.servers import RunningServer, wait_until

#: A run of which nobody tells counts so long, in seconds.
LEASE_S = 0.5

#: Our own broker, for the fixture ``scene``.
OURS = "zsched+"

both = pytest.mark.parametrize("overlap", ["skip", "buffer_one"])


class Scene:
    """An app whose broker and schedule are on one server, and one scheduler of its."""

    def __init__(self, broker: str, lease_s: float = LEASE_S, **conf: Any) -> None:
        self.app = Celery("scene", broker=broker, set_as_current=False)
        self.app.conf.update(conf)
        self.site = operations.Site.of(self.app, by="me@here")
        self.schedules = self.site.schedules
        self.runs = Runs(self.schedules)
        settings = Settings.from_conf(self.app.conf)
        self.publisher = CeleryPublisher(self.app, prefix=settings.prefix, declared=dict)
        options = Options(lease_s=30, run_lease_s=lease_s)
        self.engine = Engine(open_schedules(self.app, settings), self.publisher, options)

    def due(self, spec: EntrySpec) -> None:
        """Let an entry be due now; one that there is goes on with its life."""
        if self.schedules.get_many([spec.name]):
            stored = self.schedules.get(spec.name).spec
            assert stored is not None
            item = Item(spec.name, encode(stored), self.schedules.now_us(), mode=Put.REPLACE)
            self.schedules.timeline.put([item])
        else:
            put_back(self.schedules, spec, 0)

    def turn_until(self, condition: Callable[[], Any], what: str) -> None:
        """Let the scheduler work until something is so."""

        def met() -> Any:
            self.engine.turn(0.05)
            return condition()

        wait_until(met, what=what)

    def send(self, name: str, times: int = 1) -> None:
        """Let the scheduler work until an entry was sent so often in all."""
        self.turn_until(lambda: self.schedules.get(name).last.fired >= times, f"{name} to be sent {times} times")

    def take(self) -> list[Sent]:
        """Take what was sent, and tell nobody of it."""
        with self.app.connection_for_read() as connection:
            return [sent for message in messages(connection, "celery") if (sent := sent_of(message)) is not None]

    def standing(self, name: str) -> list[Run]:
        """Return the outstanding runs of an entry."""
        return self.runs.of([name])[name]

    def close(self) -> None:
        """Drop the connections."""
        self.engine.close()
        self.publisher.close()
        self.app.close()


@pytest.fixture
def scene(request: pytest.FixtureRequest, start_server: Callable[..., RunningServer]) -> Iterator[Scene]:
    """An app on our own broker, or on kombu's where a test asks."""
    made = Scene(getattr(request, "param", OURS) + start_server(tcp=True).url)
    yield made
    made.close()


foreign = pytest.mark.parametrize("scene", [""], ids=["kombu's broker"], indirect=True)


def purge(scene: Scene) -> None:
    """Do as ``celery purge`` does."""
    assert scene.app.control.purge() == 1


def delete_queue(scene: Scene) -> None:
    """Delete the queue with what waits in it."""
    with scene.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("celery")


def take_away(scene: Scene) -> None:
    """Take the message as a worker does that reports of nothing."""
    assert len(scene.take()) == 1


def bury(scene: Scene) -> None:
    """Set the message aside with the dead."""
    timeline = scene.site.queues.timeline("celery")
    (seen,) = scene.site.queues.scan("celery")
    assert timeline.bury([(seen.id, "", "tried too often", b"")]) == []


@both
@pytest.mark.parametrize("remove", [purge, delete_queue, take_away, bury])
def test_a_run_whose_message_is_gone_holds_nothing_back(
    scene: Scene, remove: Callable[[Scene], None], overlap: str
) -> None:
    """Whoever removed it, and whether or not anybody could tell, the entry goes on after a run's lease."""
    scene.schedules.save(entry("e", 0.2, overlap=overlap))
    scene.send("e")
    remove(scene)
    scene.send("e", 2)
    assert len(scene.take()) == 1


@both
def test_a_message_that_waits_holds_back_for_as_long_as_it_does(scene: Scene, overlap: str) -> None:
    """A backlog is no lost message, however long it is."""
    scene.schedules.save(entry("e", 0.1, overlap=overlap))
    scene.send("e")
    scene.turn_until(
        lambda: scene.schedules.get("e").last.missed_total > 4 * LEASE_S / 0.1, "occurrences of several leases"
    )
    (run,) = scene.standing("e")
    assert run.until_us - run.since_us > LONGEST_WAIT_US // 2
    assert len(scene.take()) == 1


def test_what_is_paused_or_with_a_worker_holds_back(scene: Scene) -> None:
    """A message that is parked, or leased, is to be run yet; one that stands under a name of its own, too."""
    queues = scene.site.queues
    timeline = queues.timeline("celery")
    timeline.put([Item(id_, b"note\n[]\n") for id_ in ("parked", "leased", "dead", "named")])
    scene.app.send_task("note")  # by which the queue is declared
    timeline.park(["parked"], "task:note")
    timeline.put([Item("named", b"note\n[]\n", mode=Put.ALIAS)])
    timeline.remove(["named"])
    timeline.bury([("dead", "", "why", b"")])
    assert queues.standing(["parked", "leased", "dead", "named", "unknown"]) == {"parked", "leased", "named"}
    timeline.claim(10, 60 * SECOND_US)
    assert queues.standing(["parked", "leased", "dead"]) == {"parked", "leased"}
    assert queues.standing([]) == set()


@both
def test_an_occurrence_waits_to_see_what_became_of_the_run_before(scene: Scene, overlap: str) -> None:
    """It is neither sent nor left out before that is known: a day's run is not skipped for a message that is gone."""
    spec = entry("daily", 86_400, overlap=overlap)
    scene.due(spec)
    scene.send("daily")
    (first,) = scene.take()
    scene.due(spec)
    scene.send("daily", 2)
    (second,) = scene.take()
    assert second.task_id != first.task_id
    last = scene.schedules.get("daily").last
    assert (last.missed_total, last.held, last.failures) == (0, None, 0)


def test_a_worker_that_begins_late_is_not_overtaken(start_server: Callable[..., RunningServer]) -> None:
    """What it acked before it said that it begins holds the next back, which waits for its word."""
    with contextlib.closing(Scene(OURS + start_server(tcp=True).url, lease_s=600)) as scene:
        spec = entry("daily", 86_400, overlap="skip")
        scene.due(spec)
        scene.send("daily")
        (sent,) = scene.take()
        scene.due(spec)
        scene.turn_until(
            lambda: scene.standing("daily")[0].until_us < scene.schedules.now_us() + 601 * SECOND_US,
            "the run to be found without a message",
        )
        last = scene.schedules.get("daily").last
        assert (last.fired, last.held, last.missed_total) == (1, None, 0)
        scene.runs.mark([Mark("daily", sent.task_id, "running", for_us=3600 * SECOND_US)])
        scene.due(spec)
        scene.turn_until(lambda: scene.schedules.get("daily").last.held == "overlap", "the next to be left out")
        assert scene.schedules.get("daily").last.fired == 1


@pytest.mark.parametrize("target", ["entry:e", "task:note", "queue:celery", "id"])
def test_cancelling_ends_the_runs_whose_messages_it_removes(scene: Scene, target: str) -> None:
    """At once, and by whatever name; what it does not remove stays."""
    for name in ("e", "f"):
        scene.due(entry(name, 86_400, overlap="skip"))
        scene.send(name)
    (run,) = scene.standing("e")
    assert operations.cancel_task(scene.site, run.id if target == "id" else target, dry_run=True).removed
    assert scene.standing("e") == [run]
    operations.cancel_task(scene.site, run.id if target == "id" else target)
    assert scene.standing("e") == []
    assert len(scene.standing("f")) == (target in ("entry:e", "id"))


def test_cancelling_ends_what_is_lost(scene: Scene) -> None:
    """A run without a message is ended by the name of its entry, and what is kept back goes at once."""
    spec = entry("e", 86_400, overlap="buffer_one")
    scene.due(spec)
    scene.send("e")
    scene.due(spec)
    scene.turn_until(lambda: scene.schedules.get("e").last.held == "buffered", "the next to be kept back")
    scene.take()
    told = operations.cancel_task(scene.site, "entry:e", dry_run=True)
    assert (told.removed, "no message in any queue: 1" in (told.notice or "")) == (0, True)
    assert len(scene.standing("e")) == 1
    operations.cancel_task(scene.site, "entry:e")
    scene.send("e", 2)
    assert len(scene.take()) == 1


def test_a_new_life_knows_nothing_of_what_the_old_one_sent(scene: Scene) -> None:
    """An entry that is deleted and made anew is sent at once; what runs on is still waited for."""
    spec = entry("e", 86_400, overlap="skip")
    scene.due(spec)
    scene.send("e")
    operations.remove(scene.site, "e")
    assert scene.standing("e") == []
    scene.due(spec)
    scene.send("e")
    assert len(scene.take()) == 2
    scene.runs.mark([Mark("e", "on", "running", for_us=3600 * SECOND_US)])
    operations.remove(scene.site, "e")
    assert [run.id for run in scene.standing("e")] == ["on"]


def test_explain_says_which_run_is_waited_for(scene: Scene) -> None:
    """Its id, how it stands and where its message is, until when it counts, and what ends it."""
    spec = entry("e", 86_400, overlap="skip")
    scene.due(spec)
    scene.send("e")
    (run,) = scene.standing("e")

    def told() -> str:
        return "\n".join(operations.explain(scene.site, "e").because)

    assert f"its run {run.id} waits since" in told()
    assert "its message waits, queue 'celery'" in told() and "cancel entry:e" in told()
    scene.take()
    assert "no queue has its message" in told()
    scene.runs.mark([Mark("e", run.id, "running", for_us=3600 * SECOND_US)])
    assert f"its run {run.id} goes on with {scene.schedules.timeline.holder} since" in told()
    scene.runs.end([("e", run.id)])
    assert run.id not in told()


def test_explain_does_not_say_of_what_waits_that_it_goes_on(scene: Scene) -> None:
    """An occurrence that was left out was so for a run that was not over, begun or not."""
    scene.schedules.save(entry("e", 0.5, overlap="skip"))
    scene.send("e")
    scene.turn_until(lambda: scene.schedules.get("e").last.held == "overlap", "the next to be left out")
    (past, *_) = scene.schedules.history("e")
    told = operations.explain(scene.site, "e", from_us(past.nominal_us).isoformat())
    assert told.outcome == "not sent"
    assert "not over: it went on, or waited for a worker" in told.because[0]


def test_the_check_up_names_what_nobody_begins(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that waits for long for a run to begin is worth a look."""

    def told() -> list[str]:
        return [finding.said for finding in operations.doctor(scene.site) if finding.check == "runs"]

    for name in ("e", "f"):
        scene.due(entry(name, 86_400, overlap="skip"))
        scene.send(name)
    scene.runs.mark([Mark("f", scene.standing("f")[0].id, "running", for_us=3600 * SECOND_US)])
    assert told() == []
    monkeypatch.setattr("celery_zsched.operations.doctoring.UNBEGUN_S", 0.0)
    (said,) = told()
    assert f"'e' (run {scene.standing('e')[0].id}, since" in said and "'f'" not in said


@foreign
def test_a_broker_that_lets_nobody_look_is_told_of(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held back for a run that nobody reports of, an entry is named once, with the remedy; the verb ends the run."""
    monkeypatch.setattr("celery_zsched.deciding.DOUBTFUL_US", 0)
    scene.schedules.save(entry("e", 0.2, overlap="skip"))
    scene.send("e")
    assert len(scene.take()) == 1
    scene.turn_until(lambda: scene.schedules.get("e").last.missed_total >= 3, "three to be left out")
    (run,) = scene.standing("e")
    (said,) = [record.getMessage() for record in caplog.records if "held back" in record.getMessage()]
    assert f"e is held back (overlap skip) for its run {run.id}" in said
    assert "import celery_zsched" in said and "cancel entry:e" in said
    told = " ".join(operations.explain(scene.site, "e").because)
    assert "no worker has reported to have begun it" in told and "import celery_zsched" in told
    cancelled = operations.cancel_task(scene.site, "entry:e", dry_run=True)
    assert (cancelled.removed, cancelled.running) == (0, [run.id])
    assert scene.standing("e") == [run]
    assert operations.cancel_task(scene.site, "entry:e").running == [run.id]
    scene.send("e", 2)
    assert operations.cancel_task(scene.site, "entry:e").removed == 0


@foreign
def test_no_word_is_lost_on_an_entry_whose_workers_report(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was begun holds the next back silently."""
    monkeypatch.setattr("celery_zsched.deciding.DOUBTFUL_US", 0)
    scene.schedules.save(entry("e", 0.2, overlap="skip"))
    scene.send("e")
    scene.runs.mark([Mark("e", scene.standing("e")[0].id, "running", for_us=3600 * SECOND_US)])
    scene.turn_until(lambda: scene.schedules.get("e").last.missed_total >= 3, "three to be left out")
    assert "held back" not in caplog.text


@pytest.mark.parametrize(
    ("own", "rules", "lasts_s"),
    [(30, {}, 30), (None, {"expires": 20}, 20), (30, {"expires": 20}, 20), (None, {}, 86_400), (10**6, {}, 86_400)],
    ids=str,
)
@both
def test_an_overlap_rule_makes_no_message_last_longer(
    scene: Scene, own: float | None, rules: dict[str, Any], lasts_s: float, overlap: str
) -> None:
    """What the decorator or the entry says of its end holds as without the rule, and a run counts no longer."""

    @scene.app.task(name="note", expires=own, shared=False)  # type: ignore[untyped-decorator,unused-ignore]
    def note() -> None:
        """Stand for a task of the beat's app."""

    scene.due(entry("e", 86_400, overlap=overlap, **rules))
    scene.send("e")
    (run,) = scene.standing("e")
    (sent,) = scene.take()
    expires_us = to_us(datetime.fromisoformat(sent.headers["expires"]))
    fired_us = to_us(datetime.fromisoformat(sent.fired))
    assert expires_us - fired_us == pytest.approx(lasts_s * SECOND_US, abs=SECOND_US)
    assert run.until_us == expires_us


def test_the_apps_rule_holds_for_what_an_operator_sends(start_server: Callable[..., RunningServer]) -> None:
    """What is run or backfilled holds a lease as what the schedule sends."""
    with contextlib.closing(Scene(OURS + start_server(tcp=True).url, zsched_overlap="skip")) as scene:
        scene.schedules.save(entry("e", "0 * * * *"))
        operations.run_task(scene.site, "e", request="1")
        operations.backfill(scene.site, "e", "2026-01-05T08:00Z", "2026-01-05T08:59Z")
        operations.run_task(scene.site, "e", request="2")
        assert [sent.headers["zsched"]["overlap"] for sent in scene.take()] == ["skip"] * 3


def test_what_is_asked_for_with_other_arguments_is_another_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without an id are one only if they ask for the same; by an entry's name and by a task's."""
    monkeypatch.setattr("celery_zsched.operations.running.FOLD_S", 600)

    @scene.app.task(name="note", shared=False)  # type: ignore[untyped-decorator,unused-ignore]
    def note(*args: Any, **kwargs: Any) -> None:
        """Stand for a task of the beat's app."""

    scene.schedules.save(entry("e", 3600))
    asked: list[dict[str, Any]] = [
        {"args": [1]}, {"args": [2]}, {}, {"kwargs": {"a": 1}}, {"args": ["1"]},
    ]  # fmt: skip
    for target in ("e", "task:note"):
        runs = [operations.run_task(scene.site, target, **each) for each in asked]
        assert len({run.task_id for run in runs}) == len(asked)
        assert all(run.changed for run in runs)
        again = [operations.run_task(scene.site, target, **each) for each in asked]
        assert [(run.task_id, run.changed) for run in again] == [(run.task_id, False) for run in runs]
    one, other = (operations.run_task(scene.site, "e", request="r", args=[number]) for number in (3, 4))
    assert (one.task_id, other.changed) == (other.task_id, False)


def test_a_rejected_message_that_was_acked_comes_not_again(scene: Scene) -> None:
    """Celery gives nothing back that it acked as the task began, so that run is over; acked late, it waits."""
    put_back(scene.schedules, entry("e", 86_400, overlap="skip"), 0)
    header = occurrence_header("e", 0, 0, overlap="skip")
    for late in (False, True):
        scene.runs.mark([Mark("e", str(late), "running", for_us=3600 * SECOND_US)])
        request = SimpleNamespace(headers={"zsched": header}, is_eager=False)
        task = SimpleNamespace(app=scene.app, request=request, acks_late=late)
        run_leases._keeper.begin(scene.app, "e", str(late))
        run_leases._ended(task=task, task_id=str(late), state=states.REJECTED, retval=Reject("no", requeue=True))
    assert [(run.id, run.state) for run in scene.standing("e")] == [("True", "sent")]


def test_a_worker_that_a_program_starts_on_another_broker_reports(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """An import of the package is enough, before Celery's too, whatever the broker is."""
    server = start_server(tcp=True)
    project = start_project(
        server,
        """
        import time

        @app.task(name="slow")
        def slow():
            time.sleep(2)
        """,
    )
    program_text = """
import celery_zsched
from project import app

app.Worker(pool="solo", loglevel="INFO").start()
"""
    (project.directory / "program.py").write_text(program_text)
    project.beat()
    command = [sys.executable, "program.py"]
    with contextlib.closing(Program(command, directory=project.directory, name="program")) as program:
        program.says("ready.")
        project.schedules.save(build("slow", "slow", 0.5, overlap="skip"))
        runs = Runs(project.schedules)
        wait_until(lambda: [run.state for run in runs.of(["slow"])["slow"]] == ["running"], what="a lease on the run")
