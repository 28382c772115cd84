"""What an operator does with messages on our own broker: look, pause, resume, cancel, and raise the dead."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu
import pytest

from celery_zsched import ConfigurationError, ConflictError, NotFoundError, operations
from celery_zsched import message as wire_format
from celery_zsched.entry import OperatorState
from celery_zsched.operations import Site
from celery_zsched.operations.holding import end_pause
from celery_zsched.operations.messages import QueueRow
from celery_zsched.types import Item, to_us
from tests.programs import Project
from tests.servers import RunningServer, wait_until

SOURCE = """
    import os, time

    def write(text):
        with open("log", "a") as log:
            log.write(text + "\\n")

    @app.task(name="count")
    def count(number=0, pause=0.0, until=None):
        write(f"count {number}")
        time.sleep(pause)
        while until and not os.path.exists(until):
            time.sleep(0.01)

    @app.task(name="other")
    def other(number=0):
        write(f"other {number}")
"""


class Ours:
    """A project whose broker is ours, and the site of its app."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.site = Site.of(project.app, by="ann@desk")

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Send a task by name and return its id."""
        return str(self.project.app.send_task(task, args, **options).id)

    def log(self) -> list[str]:
        """Return what tasks have written, in order."""
        path = Path(self.project.directory) / "log"
        return path.read_text().splitlines() if path.exists() else []

    def queue(self, name: str = "celery") -> QueueRow:
        """Return a queue's row."""
        return next(row for row in operations.queues(self.site) if row.queue == name)


@pytest.fixture
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server of the test's own."""
    return start_server(tcp=True)


@pytest.fixture
def ours(server: RunningServer, tmp_path: Path) -> Any:
    """A project on our own broker."""
    project = Project(tmp_path, f"zsched+{server.url}", SOURCE)
    yield Ours(project)
    project.close()


def test_a_paused_task_name_is_held_back_in_every_queue(ours: Ours) -> None:
    """Messages that wait, are delayed or are yet to come stay, in whatever queue; other tasks go on."""
    for number in range(3):
        ours.send("count", number)
        ours.send("other", number)
    ours.send("count", 3, queue="second")
    ours.send("count", 4, countdown=1)
    held = operations.pause_task(ours.site, "task:count", reason="flood")
    assert (held.state, held.changed, held.messages, held.by) == ("paused", True, 5, "ann@desk")
    assert operations.pause_task(ours.site, "task:count").changed is False
    ours.send("count", 5)
    ours.send("count", 6, queue="third")
    ours.send("other", 3, queue="third")
    worker = ours.project.worker("-Q", "celery,second,third")
    wait_until(lambda: len(ours.log()) >= 4, what="the others")
    wait_until(lambda: ours.queue().parked + ours.queue("third").parked == 6, what="the newcomers to be parked")
    late = time.monotonic() + 1.2
    wait_until(lambda: time.monotonic() > late)
    assert sorted(ours.log()) == [f"other {number}" for number in range(4)]
    worker.terminate()
    ours.project.worker("-Q", "celery,second,third")
    freed = operations.resume_task(ours.site, "task:count")
    assert (freed.state, freed.changed, freed.messages) == ("active", True, 7)
    wait_until(lambda: len(ours.log()) == 11, what="all of them")
    mine = [line for line in ours.log() if line in {"count 0", "count 1", "count 2", "count 5"}]
    assert mine == ["count 0", "count 1", "count 2", "count 5"]
    assert {row.parked for row in operations.queues(ours.site)} == {0}
    assert ours.site.queues.pauses() == {}


def test_a_paused_queue_delivers_nothing_and_takes_all(ours: Ours) -> None:
    """A queue's pause stops its delivery and nothing else; it may end by itself."""
    ours.project.worker("-Q", "celery,second")
    ours.send("count", 0, queue="second")
    wait_until(lambda: ours.log() == ["count 0"])
    operations.pause_task(ours.site, "queue:second", lasting="1h")
    ours.send("count", 1, queue="second")
    ours.send("other", 1)
    wait_until(lambda: "other 1" in ours.log())
    row = ours.queue("second")
    assert (row.paused, row.ready) == (True, 1)
    assert "count 1" not in ours.log()
    operations.pause_task(ours.site, "queue:second", lasting="2s")  # looked at before, however long that took
    wait_until(lambda: "count 1" in ours.log(), what="the pause to end")
    operations.pause_task(ours.site, "queue:second")
    ours.send("count", 2, queue="second")
    assert operations.resume_task(ours.site, "queue:second").changed
    wait_until(lambda: "count 2" in ours.log(), what="the queue to go on")


def test_the_pause_of_a_task_ends_by_itself(ours: Ours) -> None:
    """A beat resumes what was paused for a time, task names and single messages, and nothing is left on record."""
    ours.project.beat()
    worker = ours.project.worker()
    operations.pause_task(ours.site, "task:count", lasting="1h")
    ours.send("count", 1)
    worker.freeze()  # it would take the other, should half a second pass before that is paused
    one = ours.send("other", 1, countdown=0.5)
    operations.pause_task(ours.site, f"id:{one}", lasting="1h")
    worker.thaw()
    assert [each.target for each in operations.paused(ours.site)] == [f"id:{one}", "task:count"]
    held = operations.pause_task(ours.site, "task:count", lasting="1s")
    operations.pause_task(ours.site, f"id:{one}", lasting="1.2s")
    assert held.until is not None
    wait_until(lambda: sorted(ours.log()) == ["count 1", "other 1"], what="both to go on")
    wait_until(lambda: operations.paused(ours.site) == [])
    assert ours.site.schedules.timeline.counts().delayed == 0


def test_one_message_is_held_back(ours: Ours) -> None:
    """Pausing an id parks that message; resumed it has its place again; one that runs is not touched."""
    first, second = ours.send("count", 1), ours.send("count", 2)
    assert operations.pause_task(ours.site, first).messages == 1
    (where,) = operations.where_is(ours.site, first)
    assert (where.state, where.task, where.queue) == ("paused", "count", "celery")
    assert operations.resume_task(ours.site, f"id:{first}").messages == 1
    assert [row.id for row in operations.timeline(ours.site)] == [first, second]
    running = ours.send("count", 3, 30.0, queue="slow")
    ours.project.worker("-Q", "slow")
    wait_until(lambda: "count 3" in ours.log())
    with pytest.raises(ConflictError, match="what runs is not touched"):
        operations.pause_task(ours.site, running)
    assert operations.where_is(ours.site, running)[0].holder


def test_received_but_not_started_tasks_do_not_start(ours: Ours) -> None:
    """What a worker has received of a paused task and not started goes back, and nothing of it starts after."""
    for number in range(4):
        ours.send("count", number, 0.0, "go")  # the first goes on for as long as it takes to look
    worker = ours.project.start("worker", "--concurrency=1", "--loglevel=INFO", "--without-gossip", name="prefork")
    worker.says("ready.")
    wait_until(lambda: ours.log() == ["count 0"], what="the first to start")
    wait_until(lambda: ours.queue().leased == 3, what="the others to be received")
    (reply,) = ours.project.app.control.broadcast(
        "pause_task", arguments={"target": "task:count"}, reply=True, timeout=10, limit=1
    )
    (answer,) = reply.values()
    assert answer["ok"]["state"] == "paused"
    worker.says("task:count is paused; ")
    wait_until(lambda: (row := ours.queue()).leased == 0 and row.parked == 3, what="the rest to be parked")
    assert ours.log() == ["count 0"]
    operations.resume_task(ours.site, "task:count")
    (Path(ours.project.directory) / "go").touch()
    wait_until(lambda: len(ours.log()) == 4, what="the rest")
    assert ours.log() == [f"count {number}" for number in range(4)]


def body(ours: Ours, id_: str, task: str) -> bytes:
    """Return a message as it is stored."""
    headers, properties, content, _ = ours.project.app.amqp.as_task_v2(id_, task, (), {})
    return wire_format.encode(
        {
            "headers": headers,
            "properties": {**properties, "delivery_info": {"exchange": "", "routing_key": "celery"}},
            "body": json.dumps(content),
            "content-type": "application/json",
            "content-encoding": "utf-8",
        }
    )


@pytest.mark.alone
def test_pausing_a_hundred_thousand_messages(ours: Ours, server: RunningServer) -> None:
    """The pause is in force within 100 ms, resuming restores the order of all, and no script takes 10 ms."""
    client = server.client()
    total, of_other = 100_000, 50
    with ours.project.app.connection_for_write() as connection:
        kombu.Queue("celery")(connection.default_channel).declare()
    ours.site.queues.timeline("celery").put(
        Item(f"{number:06}", body(ours, f"{number:06}", "other" if number % (total // of_other) == 0 else "count"))
        for number in range(total)
    )
    assert ours.queue().ready == total
    client.config_set("slowlog-log-slower-than", 10_000)
    parked, every = total - of_other, total // of_other
    took: list[float] = []
    slow: list[int] = []
    for _ in range(5):  # on a machine that others use too, one of them shows what it takes
        client.slowlog_reset()
        began = time.monotonic()
        held = operations.pause_task(ours.site, "task:count")
        took.append(time.monotonic() - began)
        assert 0 < held.messages < parked
        assert operations.where_is(ours.site, f"{total - 1:06}")[0].state == "paused"
        shell = ours.project.celery("zsched", "pause", "task:count", "--json")
        assert json.loads(shell.stdout)["messages"] == parked - held.messages
        assert ours.queue().parked == parked
        left = [one.id for one in ours.site.queues.timeline("celery").upcoming(of_other)]
        assert left == [f"{number:06}" for number in range(0, total, every)]
        assert operations.resume_task(ours.site, "task:count").messages == parked
        assert [seen.id for seen in ours.site.queues.scan("celery")] == [f"{number:06}" for number in range(total)]
        slow.append(len(client.slowlog_get(50)))
        if took[-1] < 0.1 and not slow[-1]:
            break
    assert min(took) < 0.1, took
    assert min(slow) == 0, slow
    client.close()


def test_cancel_removes_what_waits_for_good(ours: Ours) -> None:
    """By id, by task name and by entry; what is with a worker is revoked and said so."""
    now, delayed = ours.send("count", 1), ours.send("count", 2, countdown=3600)
    ours.send("other", 1)
    done = operations.cancel_task(ours.site, now, dry_run=True)
    assert (done.removed, done.dry_run) == (1, True)
    assert operations.cancel_task(ours.site, now).removed == 1
    assert operations.cancel_task(ours.site, "task:count").removed == 1
    for gone in (now, delayed):
        with pytest.raises(NotFoundError, match="no queue has"):
            operations.where_is(ours.site, gone)
    operations.add(ours.site, "hourly", {"task": "other", "every": "1h"})
    operations.run_task(ours.site, "hourly")
    done = operations.cancel_task(ours.site, "entry:hourly")
    assert (done.removed, done.running) == (1, [])
    assert ours.site.schedules.get("hourly").state.value == "scheduled"
    running = ours.send("count", 3, 30.0)
    ours.project.worker()
    wait_until(lambda: "count 3" in ours.log())
    done = operations.cancel_task(ours.site, f"id:{running}")
    assert (done.removed, done.running) == (0, [running])
    assert ours.log() == ["other 1", "count 3"]


def test_cancel_takes_patterns_of_entries_and_tells_of_unknown_ones(ours: Ours) -> None:
    """A pattern selects as for the other verbs; what nobody knows is told of, with the likely name."""
    for name in ("group-1", "group-2", "alone"):
        operations.add(ours.site, name, {"task": "other", "every": "1h"})
        operations.run_task(ours.site, name)
    done = operations.cancel_task(ours.site, "group-*", dry_run=True)
    assert (done.removed, done.dry_run, done.notice) == (2, True, None)
    assert operations.cancel_task(ours.site, "group-*").removed == 2
    assert "no entry 'alon'" in str(operations.cancel_task(ours.site, "entry:alon").notice)
    assert "'alone'" in str(operations.cancel_task(ours.site, "entry:alon").notice)
    with pytest.raises(NotFoundError, match="no entry matches"):
        operations.cancel_task(ours.site, "nothing-*")
    assert operations.cancel_task(ours.site, "alone").removed == 1


def test_a_dead_message_is_not_paused(ours: Ours) -> None:
    """It does not run; put back it would, so who asks is told what to do."""
    id_ = ours.send("count", 1)
    timeline = ours.site.queues.timeline("celery")
    timeline.bury([(id_, "", "bad", b"")])
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match=f"dead requeue {id_}"):
            operations.pause_task(ours.site, f"id:{id_}", dry_run=dry_run)
    assert operations.paused(ours.site) == []


@pytest.mark.parametrize("target", ["queue:celery", "task:count", "hourly"])
def test_a_pause_after_one_that_is_over_is_another(ours: Ours, target: str) -> None:
    """It has no end if none is given, though nobody has cleared away the pause before, whose time is over."""
    operations.add(ours.site, "hourly", {"task": "other", "every": "1h"})
    first = operations.pause_task(ours.site, target, lasting=0.2)
    assert first.until is not None
    until_us = to_us(datetime.fromisoformat(first.until))
    wait_until(lambda: ours.site.schedules.now_us() > until_us, what="the end")
    after = operations.pause_task(ours.site, target)
    assert (after.state, after.until) == ("paused", None)


def test_the_pause_of_a_queue_that_is_over_is_shown_nowhere(ours: Ours) -> None:
    """No beat has to run for that; whoever pauses or resumes it then finds it not paused."""
    operations.add(ours.site, "hourly", {"task": "count", "every": "1h"})
    id_ = ours.send("count", queue="celery")
    queues, now_us = ours.site.queues, ours.site.schedules.now_us()

    def shown() -> list[bool]:
        return [
            ours.queue().paused,
            operations.list_entries(ours.site).rows[0].held == ["queue:celery"],
            any("queue:celery" in line for line in operations.explain(ours.site, "hourly").because),
            "queue:celery" in (operations.where_is(ours.site, id_)[0].reason or ""),
            bool(operations.paused(ours.site)),
        ]

    state = OperatorState(paused=True, by="bob", reason="flood", until_us=now_us + 3_600_000_000)
    queues.note("queue:celery", state)
    assert shown() == [True] * 5
    over = replace(state, until_us=now_us - 1)
    queues.note("queue:celery", over)
    assert shown() == [False] * 5
    assert not operations.resume_task(ours.site, "queue:celery", dry_run=True).changed
    assert not operations.resume_task(ours.site, "queue:celery").changed
    assert queues.pauses_on_record() == {}
    queues.note("queue:celery", over)
    end_pause(ours.project.app, ours.site.schedules, "queue:celery")
    assert queues.pauses_on_record() == {}


def test_a_resumed_message_says_what_holds_it_still(ours: Ours) -> None:
    """The pauses of its task name and its queue are told of, and it is put back only from its own."""
    id_ = ours.send("count")
    target = f"id:{id_}"
    operations.pause_task(ours.site, target)
    operations.pause_task(ours.site, "task:count", reason="flood")
    operations.pause_task(ours.site, "queue:celery", reason="disk")
    for dry_run in (True, False):
        done = operations.resume_task(ours.site, target, dry_run=dry_run)
        assert isinstance(done, operations.Holding)
        assert (done.state, done.changed, done.messages, done.reason) == ("paused", True, 1, "flood")
        assert done.notice is not None
        assert "task:count is paused by ann@desk" in done.notice and "queue:celery is paused by" in done.notice
    assert operations.where_is(ours.site, id_)[0].state == "paused"
    ours.site.queues.park_task("celery", "count")
    again = operations.resume_task(ours.site, target)
    assert (again.state, again.changed, ours.queue().parked) == ("paused", False, 1)
    operations.resume_task(ours.site, "task:count")
    operations.resume_task(ours.site, "queue:celery")
    operations.pause_task(ours.site, target)
    done = operations.resume_task(ours.site, target)
    assert (done.state, done.notice, ours.queue().ready) == ("active", None, 1)


def test_a_task_is_run_by_its_name(ours: Ours) -> None:
    """A task that no entry is of is sent once a request; a name that the app does not know is refused."""

    @ours.project.app.task(name="other", shared=False)  # type: ignore[untyped-decorator,unused-ignore]
    def other(number: int = 0) -> None:
        """Stand for the task of the worker."""

    run = operations.run_task(ours.site, "task:other", request="1", args=[7])
    again = operations.run_task(ours.site, "task:other", request="1", args=[7])
    assert (run.changed, again.changed, run.task_id) == (True, False, again.task_id)
    with pytest.raises(NotFoundError, match="did you mean 'task:other'"):
        operations.run_task(ours.site, "task:othre")
    ours.project.worker()
    wait_until(lambda: ours.log() == ["other 7"], what="the run")


def test_the_dead_are_listed_put_back_and_deleted(ours: Ours) -> None:
    """A dead message is shown with its reason; put back it runs, deleted it is gone."""
    ids = [ours.send("count", number) for number in range(3)]
    timeline = ours.site.queues.timeline("celery")
    for id_ in ids:
        timeline.bury([(id_, "", "delivered 20 times without an end", b"")])
    rows = operations.dead(ours.site)
    assert [(row.id, row.task, row.reason) for row in rows] == [
        (id_, "count", "delivered 20 times without an end") for id_ in ids
    ]
    assert operations.dead_purge(ours.site, None, dry_run=True) == ids
    assert operations.dead_purge(ours.site, [ids[0]]) == [ids[0]]
    with pytest.raises(NotFoundError, match="not among the dead"):
        operations.dead_requeue(ours.site, [ids[0]])
    assert operations.dead_requeue(ours.site, None) == ids[1:]
    ours.project.worker()
    wait_until(lambda: len(ours.log()) == 2, what="the two to run")
    assert operations.dead(ours.site) == []


def test_of_several_dead_ones_all_are_looked_for_first(ours: Ours) -> None:
    """Where one of them is not dead, or the queue is unknown, nothing is done, and all that are unknown are named."""
    ids = [ours.send("count", number) for number in range(3)]
    ours.send("count", queue="slow")
    timeline = ours.site.queues.timeline("celery")
    for id_ in ids[:2]:
        timeline.bury([(id_, "", "why", b"")])
    for act in (operations.dead_requeue, operations.dead_purge):
        with pytest.raises(NotFoundError) as caught:
            act(ours.site, [ids[0], "nope", ids[2], ids[1]])
        assert [name for name in ("nope", *ids) if repr(name) in str(caught.value)] == ["nope", ids[2]]
        with pytest.raises(NotFoundError, match="not among the dead of the queue 'slow'"):
            act(ours.site, [ids[0]], queue="slow")
        assert act(ours.site, None, queue="slow") == []
        for dry_run in (True, False):
            with pytest.raises(NotFoundError, match="no queue 'celry'; did you mean 'celery'"):
                act(ours.site, None, queue="celry", dry_run=dry_run)
    for look in (operations.dead, operations.timeline):
        with pytest.raises(NotFoundError, match="no queue 'celry'; did you mean 'celery'"):
            look(ours.site, queue="celry")
    assert [row.id for row in operations.dead(ours.site)] == ids[:2]
    assert operations.audit(ours.site) == []


@pytest.mark.parametrize("target", ["task:count", "queue:celery", "entry:hourly", "id:ID", "dead"])
def test_the_pause_of_a_message_goes_with_it(ours: Ours, target: str) -> None:
    """However it is cancelled, or purged from the dead: neither record nor reminder stays, and others' do."""
    operations.add(ours.site, "hourly", {"task": "count", "every": "1h"})
    gone, other = operations.run_task(ours.site, "hourly").task_id, ours.send("other", queue="slow")
    for id_ in (gone, other):
        operations.pause_task(ours.site, f"id:{id_}", lasting="2h")
    reminders = ours.site.schedules.timeline.counts().delayed
    if target == "dead":
        ours.site.queues.timeline("celery").bury([(gone, "", "why", b"")])
        operations.dead_purge(ours.site, [gone], dry_run=True)
        assert len(operations.paused(ours.site)) == 2
        operations.dead_purge(ours.site, [gone])
    else:
        assert operations.cancel_task(ours.site, target.replace("ID", gone)).removed == 1
    assert [each.target for each in operations.paused(ours.site)] == [f"id:{other}"]
    assert ours.site.schedules.timeline.counts().delayed == reminders - 1


def test_the_pause_of_an_id_stays_while_another_message_of_it_is_held(ours: Ours) -> None:
    """It goes with the last of them."""
    for queue in ("slow", "fast"):
        ours.send("count", task_id="one", queue=queue)
    assert operations.pause_task(ours.site, "id:one").messages == 2
    assert operations.cancel_task(ours.site, "queue:slow").removed == 1
    assert [each.target for each in operations.paused(ours.site)] == ["id:one"]
    assert operations.cancel_task(ours.site, "queue:fast").removed == 1
    assert operations.paused(ours.site) == []


def test_the_rate_of_a_queue_is_measured(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many messages are handed to consumers in a second is counted for as long as one asks."""
    ours.project.worker()

    def all_run(seconds: float) -> None:
        over = time.monotonic() + seconds
        for number in range(4):
            ours.send("other", number)
        wait_until(lambda: len(ours.log()) == 4 and time.monotonic() >= over, what="what is sent in that second")

    # The time is the real one; only what happens while it passes is ours.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=all_run)
    monkeypatch.setattr("celery_zsched.operations.messages.time", clock)
    (row,) = operations.queues(ours.site, measure_s=1.0)
    assert row.rate is not None
    assert 2 < row.rate <= 4


def test_one_timeline_shows_everything_in_order(ours: Ours) -> None:
    """Periodic entries, ready and delayed messages stand in one view, soonest first."""
    operations.add(ours.site, "soon", {"task": "count", "every": "5m"})
    operations.add(ours.site, "later", {"task": "count", "every": "3h"})
    ready, eta = ours.send("count", 1), ours.send("other", 2, countdown=3600)
    rows = [(row.kind, row.id, row.queue) for row in operations.timeline(ours.site)]
    assert rows == [
        ("ready", ready, "celery"), ("periodic", "soon", None), ("eta", eta, "celery"), ("periodic", "later", None)
    ]  # fmt: skip
    assert [row.id for row in operations.timeline(ours.site, limit=2)] == [ready, "soon"]


def test_a_name_that_is_several_things_is_refused(ours: Ours) -> None:
    """An entry and a queue of one name are told apart by what is in front."""
    operations.add(ours.site, "celery", {"task": "count", "every": "5m"})
    ours.send("count", 1)
    with pytest.raises(ConflictError, match="entry:celery, queue:celery"):
        operations.pause_task(ours.site, "celery")
    assert operations.pause_task(ours.site, "entry:celery").state == "paused"
    assert operations.pause_task(ours.site, "queue:celery").state == "paused"
    with pytest.raises(NotFoundError, match="did you mean 'entry:celery', 'queue:celery'"):
        operations.pause_task(ours.site, "celer")
    shell = ours.project.celery("zsched", "paused", "--json").stdout.splitlines()
    assert [json.loads(line)["target"] for line in shell] == ["entry:celery", "queue:celery"]


def test_a_foreign_broker_says_what_cannot_be_done(
    server: RunningServer, start_project: Callable[..., Project]
) -> None:
    """With kombu's own Redis transport entries are operated all the same, and messages cannot be."""
    site = Site.of(start_project(server).app)
    operations.add(site, "report", {"task": "note", "every": "5m"})
    assert operations.pause_task(site, "report").state == "paused"
    for verb in (lambda: operations.pause_task(site, "task:note"), lambda: operations.queues(site)):
        with pytest.raises(ConfigurationError, match="the broker is redis"):
            verb()


def test_a_worker_that_a_program_starts_knows_the_commands(server: RunningServer, ours: Ours) -> None:
    """No import in the user's app is needed, also where no shell command has started the worker."""
    program = Path(ours.project.directory) / "program.py"
    program.write_text(
        f"""
from celery import Celery

app = Celery("program", broker={server.url!r})
app.conf.broker_transport = "celery_zsched:Transport"
app.Worker(pool="solo", loglevel="INFO", hostname="program@here").start()
"""
    )
    operations.add(ours.site, "hourly", {"task": "count", "every": "1h"})
    with (Path(ours.project.directory) / "program.log").open("w") as log:
        worker = subprocess.Popen([sys.executable, str(program)], stdout=log, stderr=log, start_new_session=True)
    try:
        control = ours.project.app.control
        wait_until(lambda: control.ping(timeout=1, limit=1), what="the worker")
        (reply,) = control.broadcast("pause_task", arguments={"target": "hourly"}, reply=True, timeout=10, limit=1)
        assert reply["program@here"]["ok"]["state"] == "paused"
    finally:
        worker.kill()
        worker.wait()


def test_a_retry_that_waits_beside_its_task_is_found_by_the_tasks_id(ours: Ours) -> None:
    """Two messages of one id: both are shown, paused and resumed, and both are cancelled."""
    for countdown in (3600, 7200):
        ours.send("count", countdown=countdown, task_id="one")
    assert len(operations.where_is(ours.site, "one")) == 2
    assert operations.pause_task(ours.site, "one").messages == 2
    assert ours.queue().parked == 2
    assert operations.resume_task(ours.site, "one").messages == 2
    ours.site.queues.timeline("celery").remove(["one"])
    assert [where.retries for where in operations.where_is(ours.site, "one")] == [0]
    assert operations.cancel_task(ours.site, "one").removed == 1
    assert ours.queue().delayed == 0


def test_a_dead_retry_is_found_by_its_tasks_id(ours: Ours) -> None:
    """Also where it stands under another id, since its task's was taken when it was sent."""
    for _ in range(2):
        ours.send("count", countdown=3600, task_id="one")
    timeline = ours.site.queues.timeline("celery")
    names = sorted(one.id for one in timeline.upcoming())
    assert names[0] == "one"
    timeline.bury([(names[1], "", "why", b"")])
    timeline.remove(["one"])
    assert operations.dead_requeue(ours.site, ["one"]) == [names[1]]
    timeline.bury([(names[1], "", "why", b"")])
    assert operations.dead_purge(ours.site, [names[1]]) == [names[1]]
    with pytest.raises(NotFoundError, match="'one' is not among the dead"):
        operations.dead_purge(ours.site, ["one"])


def test_whoever_runs_a_second_message_of_an_id_is_told_by_the_tasks_id(ours: Ours) -> None:
    """Cancelled by the task's name, it is revoked under the id that its worker knows."""
    for number in range(2):
        ours.send("count", number, task_id="one")
    assert len(ours.site.queues.timeline("celery").claim(2, 60_000_000).items) == 2
    assert operations.cancel_task(ours.site, "task:count").running == ["one", "one"]
