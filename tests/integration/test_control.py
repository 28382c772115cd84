"""``celery control pause_task | resume_task``: in force for everybody, and once, whoever hears it or starts later."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

import celery_zsched.control  # noqa: F401  (every `celery` command imports it; these tests broadcast by themselves)
from celery_zsched import Entry, operations
from celery_zsched.apps import schedules_of
from celery_zsched.operations import Site
from celery_zsched.stored import State
from celery_zsched.types import from_us
from tests.programs import Project
from tests.servers import RunningServer, wait_until

EVERY_SECOND = """
    app.conf.beat_schedule = {"each": {"task": "note", "schedule": 1.0, "args": (%r,)}}
"""


@pytest.fixture
def project(start_server: Callable[..., RunningServer], start_project: Callable[..., Project]) -> Project:
    """A project on a server of its own, with an hourly entry."""
    project = start_project(start_server(tcp=True))
    for name in ("report", "repair", "backup"):
        Entry(name, "note", 3600, app=project.app).save()
    return project


def replies(project: Project, command: str, workers: int, **arguments: Any) -> list[dict[str, Any]]:
    """Broadcast a command and return the answers of so many workers."""
    answers = project.app.control.broadcast(command, arguments=arguments, reply=True, timeout=10, limit=workers)
    assert len(answers) == workers
    return [answer for one in answers for answer in one.values()]


def test_all_ways_to_pause_and_resume_lead_to_the_same_standing(project: Project) -> None:
    """Two workers hear a broadcast: both answer with how it stands, and one of them says that it changed something."""
    project.workers(2)
    site = Site.of(project.app)
    due_us = site.schedules.get("report").due_us

    # By remote control: the state, once for all.
    answers = [answer["ok"] for answer in replies(project, "pause_task", 2, target="report", reason="fire drill")]
    assert sorted(answer.pop("changed") for answer in answers) == [False, True]
    assert answers[0] == answers[1]
    paused = answers[0]
    assert (paused["entry"], paused["state"], paused["next"]) == ("report", "paused", None)
    assert paused["reason"] == "fire drill"
    assert site.schedules.get("report").state is State.PAUSED

    # By Python, said again: nothing changes.
    again = operations.pause_task(site, "report").to_dict()
    assert {**again, "by": None, "changed": None} == {**paused, "by": None, "changed": None}
    assert again["changed"] is False

    # By `celery control`: resumed once, with the due time that was to come.
    both = ("--timeout=30", "--destination=worker0@here,worker1@here")  # Celery's second is short on a busy machine
    said = project.celery("control", *both, "resume_task", "report", "--json")
    assert said.returncode == 0, said.stderr
    resumed = [answer["ok"] for one in json.loads(said.stdout) for answer in one.values()]
    assert sorted(answer.pop("changed") for answer in resumed) == [False, True]
    assert resumed[0] == resumed[1] and resumed[0]["state"] == "scheduled"
    assert site.schedules.get("report").due_us == due_us

    # By `celery control` and by `celery zsched`, which names the same person.
    project.celery("control", *both, "pause_task", "report", "by hand")
    said = project.celery("zsched", "pause", "report", "--json")
    shell = json.loads(said.stdout)
    assert (shell["state"], shell["reason"], shell["changed"]) == ("paused", "by hand", False)
    assert shell["by"] == operations.whoami() == site.schedules.get("report").operator.by
    assert json.loads(project.celery("zsched", "resume", "report", "--json").stdout)["changed"] is True


def test_an_unknown_target_is_an_error_that_names_likely_ones(project: Project) -> None:
    """From every worker, and from the shell with exit code 1 and no traceback."""
    project.workers(1)
    (answer,) = replies(project, "pause_task", 1, target="repot")
    assert answer == {"error": "there is no entry 'repot'; did you mean 'report'?"}
    said = project.celery("control", "pause_task", "repot")
    assert "there is no entry 'repot'; did you mean 'report'?" in said.stdout + said.stderr
    said = project.celery("zsched", "pause", "repot")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.strip() == "Error: there is no entry 'repot'; did you mean 'report'?"


@pytest.mark.slow
def test_a_pause_survives_restarts_and_a_redeploy_with_other_arguments(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """Nothing is sent by the beats that start later; the list shows it; resumed, it goes by what is declared now."""
    project = start_project(start_server(tcp=True), EVERY_SECOND % "old")
    worker, beat = project.worker("--queues=idle"), project.beat()
    project.collect(1)
    (answer,) = replies(project, "pause_task", 1, target="entry:each")
    assert answer["ok"]["changed"] is True
    worker.kill()
    assert beat.terminate() == 0
    project.drain()
    beat = project.beat()
    assert "1 unchanged" in beat.output()
    beat.kill()
    project.write(EVERY_SECOND % "new")
    beat = project.beat()
    assert "1 updated" in beat.output()
    assert project.collect_for(1.5) == []
    listed = json.loads(project.celery("zsched", "list", "--json").stdout)
    assert (listed["entry"], listed["state"]) == ("each", "paused")
    assert json.loads(project.celery("zsched", "resume", "each", "--json").stdout)["state"] == "scheduled"
    sent = project.collect(2)
    assert sent[0].body[0] == ["new"] and sent[1].nominal_us - sent[0].nominal_us == 1_000_000


def test_a_worker_on_any_broker_pauses_what_a_redis_holds(valkey: RunningServer) -> None:
    """The broker is in this process's memory, the schedule on a server named by zsched_url."""
    app = Celery("memory", broker="memory://", set_as_current=False)
    app.conf.update(zsched_url=valkey.url, result_backend="cache+memory://")
    schedules = schedules_of(app)
    try:
        Entry("report", "note", 3600, app=app).save()
        with start_worker(app, perform_ping_check=False, pool="solo"):
            answers = app.control.broadcast(
                "pause_task", arguments={"target": "report"}, reply=True, timeout=10, limit=1
            )
            assert [answer["ok"]["state"] for one in answers for answer in one.values()] == ["paused"]
        assert schedules.get("report").state is State.PAUSED
    finally:
        schedules.server.close()
        app.close()


def test_a_beat_that_runs_elsewhere_learns_of_a_resume_at_once(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """Paused and resumed from this process, with no worker: in force within a second."""
    project = start_project(start_server(tcp=True), EVERY_SECOND % "")
    project.beat()
    project.collect(1)
    site = Site.of(project.app)
    operations.pause_task(site, "each")
    project.settled()
    assert project.collect_for(1.5) == []
    resumed = operations.resume_task(site, "each")
    (sent, *_) = project.collect(1, timeout_s=5)
    assert resumed.changed and resumed.next == from_us(sent.nominal_us).isoformat()
    wait_until(lambda: site.schedules.get("each").last.fired >= 2, what="the record of what was sent")


def test_the_state_of_a_task_is_asked_for_by_its_bare_id(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """As by `id:`; an entry's name means the entry, and what is neither says both."""
    project = start_project(start_server(tcp=True), ours=True)
    Entry("report", "note", 3600, app=project.app).save()
    project.app.send_task("note", task_id="long-1", countdown=3600)
    project.worker()
    said = project.celery("inspect", "--destination=worker0@here", "--timeout=30", "task_state", "long-1", "--json")
    assert said.returncode == 0, said.stderr
    ((answer,),) = json.loads(said.stdout).values()
    assert (answer["id"], answer["state"]) == ("long-1", "waiting")
    assert replies(project, "task_state", 1, target="id:long-1") == [[answer]]
    (told,) = replies(project, "task_state", 1, target="report")
    assert (told["entry"], told["state"]) == ("report", "scheduled")
    (wrong,) = replies(project, "task_state", 1, target="long-2")
    assert wrong["error"].startswith("no queue has a message 'long-2', and there is no entry 'long-2'")
