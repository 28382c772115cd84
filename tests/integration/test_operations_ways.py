"""Every verb by each of its ways: the same result object from shell, remote control and Python; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import celery_zsched.control  # noqa: F401  (every `celery` command imports it; these tests broadcast by themselves)
from celery_zsched import ConflictError, EntryError, NotFoundError, operations
from celery_zsched.operations import Site
from celery_zsched.types import Hold
from tests.entries import HOUR_US, sent_ahead
from tests.programs import Project
from tests.servers import RunningServer, wait_until

SOURCE = """
    @app.task(name="other")
    def other(number=0):
        return None
"""


class Ways:
    """A project on our own broker with a worker on an idle queue, and the ways to ask it for something."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.site = Site.of(project.app)

        @project.app.task(name="other", shared=False)  # type: ignore[untyped-decorator,unused-ignore]
        def other(number: int = 0) -> None:
            """Stand for the task of the programs."""

    def send(self, **options: Any) -> str:
        """Send a task for later and return its id."""
        return str(self.project.app.send_task("other", **{"countdown": 3600, **options}).id)

    def shell(self, *words: str) -> Any:
        """Return what ``celery zsched … --json`` prints: one object, or a list of them."""
        done = self.project.celery("zsched", *words, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def control(self, command: str, **arguments: Any) -> Any:
        """Return what the worker answers to a broadcast."""
        (reply,) = self.project.app.control.broadcast(command, arguments=arguments, reply=True, timeout=10, limit=1)
        (answer,) = reply.values()
        return answer


@pytest.fixture
def ways(start_server: Callable[..., RunningServer], tmp_path: Path, close_later: Callable[[Any], Any]) -> Ways:
    """The ways to a project on a server of its own."""
    return Ways(close_later(Project(tmp_path, f"zsched+{start_server().url}", SOURCE)))


@dataclass(frozen=True)
class Verb:
    """One verb by three ways; each is done on the same state, which ``before`` makes."""

    name: str
    shell: tuple[str, ...]
    command: str
    arguments: dict[str, Any]
    python: Callable[[Ways], Any]
    before: Callable[[Ways], Any] = lambda ways: None
    #: What differs from one time to the next, or by what nobody can make alike.
    but: frozenset[str] = frozenset()


def paused_first(target: str) -> Callable[[Ways], Any]:
    """Return what makes a target paused."""
    return lambda ways: operations.pause_task(ways.site, target, reason="before", sweep_s=None)


def resumed_first(target: str) -> Callable[[Ways], Any]:
    """Return what makes a target not paused."""
    return lambda ways: operations.resume_task(ways.site, target)


def day_ahead(ways: Ways) -> None:
    """Let an entry be ahead of the clock by a day."""
    sent_ahead(ways.site.schedules, "hourly", 24 * HOUR_US)


def one_waits(ways: Ways) -> None:
    """Let exactly one message of the task wait."""
    operations.cancel_task(ways.site, "task:other")
    ways.send()


def pauses(target: str) -> list[Verb]:
    """Return pause and resume of a target."""
    name = target.partition(":")[0]
    return [
        Verb(
            f"pause {name}", ("pause", target, "--reason", "flood"),
            "pause_task", {"target": target, "reason": "flood"},
            lambda ways: operations.pause_task(ways.site, target, reason="flood"), resumed_first(target),
            frozenset({"messages"} if name == "task" else ()),  # a worker parks for a moment only before it answers
        ),
        Verb(
            f"resume {name}", ("resume", target), "resume_task", {"target": target},
            lambda ways: operations.resume_task(ways.site, target), paused_first(target),
        ),
    ]  # fmt: skip


SENT = frozenset({"task_id", "nominal", "fired"})

VERBS = [
    *pauses("entry:hourly"),
    *pauses("task:other"),
    *pauses("queue:celery"),
    *pauses("id:one"),
    Verb(
        "task", ("task", "one"), "task_state", {"target": "id:one"}, lambda ways: operations.where_is(ways.site, "one"),
    ),
    Verb(
        "pause many", ("pause", "hour*"), "pause_task", {"target": "hour*"},
        lambda ways: operations.pause_tasks(ways.site, "hour*"), resumed_first("entry:hourly"),
    ),
    Verb(
        "resume many", ("resume", "hour*"), "resume_task", {"target": "hour*"},
        lambda ways: operations.resume_tasks(ways.site, "hour*"), paused_first("entry:hourly"),
    ),
    Verb(
        "reanchor", ("reanchor", "hourly"), "reanchor_task", {"target": "hourly"},
        lambda ways: operations.reanchor_task(ways.site, "hourly"), day_ahead,
    ),
    Verb(
        "reanchor many", ("reanchor", "--ahead"), "reanchor_task", {"target": "*"},
        lambda ways: operations.reanchor_tasks(ways.site), day_ahead,
    ),
    Verb(
        "run entry", ("run", "hourly", "--request", "1"), "run_task", {"target": "hourly", "request": "2"},
        lambda ways: operations.run_task(ways.site, "hourly", request="3"), but=SENT,
    ),
    Verb(
        "run task", ("run", "task:other", "--request", "1", "--args", "[7]"), "run_task",
        {"target": "task:other", "request": "2", "args": [7]},
        lambda ways: operations.run_task(ways.site, "task:other", request="3", args=[7]), but=SENT,
    ),
    Verb(
        "cancel", ("cancel", "task:other"), "cancel_task", {"target": "task:other", "request": "1"},
        lambda ways: operations.cancel_task(ways.site, "task:other"), one_waits,
    ),
    Verb(
        "list", ("list",), "schedule", {}, lambda ways: operations.list_entries(ways.site).rows,
    ),
    Verb("beats", ("beats",), "beats", {}, lambda ways: operations.beats(ways.site)),
    Verb("timeline", ("timeline",), "timeline", {}, lambda ways: operations.timeline(ways.site)),
    Verb(
        "explain", ("explain", "hourly"), "task_state", {"target": "hourly"},
        lambda ways: operations.explain(ways.site, "hourly"), but=frozenset({"because"}),
    ),
    Verb(
        "paused", ("paused",), "paused", {}, lambda ways: operations.paused(ways.site), paused_first("queue:celery"),
    ),
]  # fmt: skip


def test_each_verb_answers_alike_however_it_is_asked(ways: Ways) -> None:
    """By shell, remote control and Python, each on the same state, a verb gives the same result object."""
    ways.project.worker("-Q", "idle")
    operations.add(ways.site, "hourly", {"task": "other", "every": "1h"})
    ways.send(task_id="one")
    by_me = operations.whoami()
    for verb in VERBS:
        answers = []
        for way in ("shell", "control", "python"):
            verb.before(ways)
            if way == "shell":
                found = ways.shell(*verb.shell)
            elif way == "control":
                found = ways.control(verb.command, **verb.arguments, **({"by": by_me} if verb.arguments else {}))
                assert "error" not in found, (verb.name, found)
                found = found["ok"] if isinstance(found, dict) and "ok" in found else found
            else:
                found = verb.python(ways)
            rows = found if isinstance(found, list) else [found]
            documents = [row if isinstance(row, dict) else row.to_dict() for row in rows]
            answers.append([{key: row[key] for key in row if key not in verb.but} for row in documents])
        shell, control, python = answers
        assert control == python, verb.name
        # The shell shows fewer fields of what is paused, and more of others: those that both have are the same.
        assert [
            {key: row.get(key) for key in other if key in row} for row, other in zip(shell, python, strict=True)
        ] == [{key: other[key] for key in other if key in row} for row, other in zip(shell, python, strict=True)], (
            verb.name
        )
        operations.resume_task(ways.site, "queue:celery")


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("cancel_task", {}, "cancel_task needs a target"),
        ("pause_task", {"target": ["report"]}, "not ['report']"),
        ("pause_task", {"target": "hourly", "untl": "18:00"}, "did you mean 'until'?"),
        ("pause_task", {"target": "hourly", "until": "soon"}, "'soon' is no moment"),
        ("pause_task", {"target": "hourly", "lasting": [2]}, "[2] is no duration"),
        ("pause_task", {"target": "hourly", "reason": 7}, "its reason is 7, not text"),
        ("resume_task", {"target": "hourly", "catch_up": "maybe"}, "catch_up is 'maybe'"),
        ("run_task", {"target": "junk"}, "there is no entry 'junk'"),
        ("run_task", {"target": "other"}, "did you mean 'task:other'?"),
        ("run_task", {"target": "hourly", "args": "junk"}, "the args of a run are a list"),
        ("run_task", {"target": "task:other", "kwargs": [1]}, "the kwargs of a run are a mapping"),
        ("task_state", {}, "task_state needs a target"),
    ],
)
def test_what_makes_no_sense_is_answered_in_a_sentence(
    ways: Ways, command: str, arguments: dict[str, Any], said: str
) -> None:
    """A broadcast with a missing, mistyped or wrong argument does nothing and names the thing; no traceback comes."""
    from celery.utils.collections import AttributeDict
    from celery.worker.control import Panel

    operations.add(ways.site, "hourly", {"task": "other", "every": "1h"})
    answer = Panel.data[command](AttributeDict(app=ways.project.app), **arguments)
    assert set(answer) == {"error"} and said in answer["error"]
    assert operations.paused(ways.site) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run_task", "hourly", "[1"), "is no JSON"),
        (("run_task", "hourly", "[]", "[]"), "write them as '{\"a\": 1}'"),
        (("resume_task", "hourly", "maybe"), "write yes or no"),
    ],
)
def test_a_wrong_word_of_the_command_line_is_a_usage_error(ways: Ways, words: tuple[str, ...], said: str) -> None:
    """`celery control` says what is wrong before anything is sent: exit code 2, and no traceback."""
    done = ways.project.celery("control", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_target_that_nobody_knows_is_an_error_unless_it_says_what_it_is(ways: Ways) -> None:
    """Without a prefix it lists candidates; with one it is done, and a notice says that nobody knows such a name."""
    site = ways.site
    ways.send()
    for verb in (operations.pause_task, operations.resume_task, operations.cancel_task):
        with pytest.raises(NotFoundError, match="did you mean 'task:other'"):
            verb(site, "othr")
        with pytest.raises(NotFoundError, match="the known ones are 'queue:celery', 'task:other'"):
            verb(site, "nonsense")
    held = operations.pause_task(site, "task:othr")
    assert held.changed and held.notice is not None and "did you mean 'task:other'?" in held.notice
    freed = operations.resume_task(site, "task:othr")
    assert freed.changed and freed.notice is not None
    held = operations.pause_task(site, "queue:celry")
    assert held.notice is not None and "no queue 'celry' is declared; did you mean 'queue:celery'?" in held.notice
    cancelled = operations.cancel_task(site, "task:othr")
    assert (cancelled.removed, "no task 'othr'" in (cancelled.notice or "")) == (0, True)
    assert operations.pause_task(site, "task:other").notice is None
    with pytest.raises(EntryError, match="patterns select only those"):
        operations.pause_tasks(site, "task:oth*")


def test_a_dry_run_says_how_it_would_stand(ways: Ways) -> None:
    """Pause and resume of each kind are asked for first: what would change is told, and nothing does."""
    site = ways.site
    operations.add(site, "hourly", {"task": "other", "every": "1h"})
    one, _ = ways.send(), ways.send()
    for target, count in (("entry:hourly", None), ("task:other", 2), ("queue:celery", 0), (f"id:{one}", 1)):
        before = operations.pause_task(site, target, reason="flood", dry_run=True)
        assert (before.state, before.changed, before.reason, before.dry_run) == ("paused", True, "flood", True)
        assert getattr(before, "messages", None) == count
        assert not operations.resume_task(site, target, dry_run=True).changed
        done = operations.pause_task(site, target, reason="flood", sweep_s=None)
        assert done.changed and {**done.to_dict(), "dry_run": True} == before.to_dict()
        assert not operations.pause_task(site, target, dry_run=True).changed
        back = operations.resume_task(site, target, dry_run=True)
        done = operations.resume_task(site, target)
        assert done.changed and {**done.to_dict(), "dry_run": True} == back.to_dict()
    assert [each.dry_run for each in operations.pause_tasks(site, "*", dry_run=True)] == [True]
    assert site.schedules.get("hourly").state.value == "scheduled"


def test_an_ended_lease_is_shown_as_such(ways: Ways) -> None:
    """A message whose worker fell silent is told from one that is worked on; it can be paused and cancelled."""
    site = ways.site
    for id_ in ("held", "left", "gone"):
        ways.send(task_id=id_, countdown=0)
    timeline = site.queues.timeline("celery")
    assert len(timeline.claim(1, 3_600_000_000).items) == 1
    assert len(timeline.claim(2, 1).items) == 2
    (row,) = [each for each in operations.queues(site) if each.queue == "celery"]
    assert (row.ready, row.leased, row.ended) == (0, 1, 2)
    states = {id_: operations.where_is(site, id_)[0] for id_ in ("held", "left", "gone")}
    assert [states[id_].state for id_ in states] == ["leased", "ended", "ended"]
    assert "delivers it again" in (states["left"].reason or "")
    with pytest.raises(ConflictError, match="what runs is not touched"):
        operations.pause_task(site, "id:held")
    assert operations.pause_task(site, "id:left").messages == 1
    assert operations.where_is(site, "left")[0].state == "paused"
    assert operations.cancel_task(site, "id:gone").removed == 1


def test_a_message_cancelled_while_it_runs_does_not_come_back(ways: Ways) -> None:
    """Should its worker die, it is removed when its lease ends; an ack before that is as always."""
    site = ways.site
    for id_ in ("dies", "acks"):
        ways.send(task_id=id_, countdown=0)
    timeline = site.queues.timeline("celery")
    claimed = {item.id: item for item in timeline.claim(2, HOUR_US).items}
    done = operations.cancel_task(site, "task:other")
    assert (done.removed, sorted(done.running)) == (0, ["acks", "dies"])
    where = operations.where_is(site, "dies")[0]
    assert (where.state, "cancelled" in (where.reason or "")) == ("leased", True)
    assert timeline.settle([Hold("acks", claimed["acks"].token)]) == []
    assert timeline.extend([Hold("dies", claimed["dies"].token)], 1) == []  # the worker's last, which ends at once
    wait_until(lambda: operations.where_is(site, "dies")[0].state == "ended", what="the lease to end")
    with pytest.raises(ConflictError, match="was cancelled while a worker had it"):
        operations.pause_task(site, "id:dies")
    assert timeline.claim(1, 1_000_000).items == []
    counts = timeline.counts()
    assert (counts.ready, counts.leased, counts.dead) == (0, 0, 0)


def test_a_task_cancelled_while_it_runs_is_not_run_again_when_its_worker_is_killed(
    start_server: Callable[..., RunningServer], tmp_path: Path, close_later: Callable[[Any], Any]
) -> None:
    """With acks_late it would come back when its lease ends; another worker takes what else there is, and not it."""
    source = """
    import time

    @app.task(name="long", acks_late=True)
    def long():
        with open("log", "a") as log:
            log.write("long\\n")
        time.sleep(300)

    @app.task(name="short")
    def short():
        with open("log", "a") as log:
            log.write("short\\n")
    """
    project: Project = close_later(
        Project(
            tmp_path, f"zsched+{start_server(tcp=True).url}", source, broker_transport_options={"lease_timeout": 2}
        )
    )  # fmt: skip
    site, log = Site.of(project.app), tmp_path / "log"
    worker = project.worker()
    id_ = project.app.send_task("long").id
    wait_until(lambda: log.exists() and log.read_text() == "long\n", what="the task to begin")
    assert operations.cancel_task(site, f"id:{id_}").running == [id_]
    worker.kill()
    other = project.worker()
    wait_until(lambda: site.queues.timeline("celery").counts().leased == 0, what="the lease to end and be looked at")
    project.app.send_task("short")
    wait_until(lambda: log.read_text() == "long\nshort\n", what="the other task")
    assert f"message {id_} of queue celery was cancelled" in other.output()
    with pytest.raises(NotFoundError):
        operations.where_is(site, id_)
