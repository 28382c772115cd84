"""Celery 5.7's remote control of beats: they take our commands too, so that no worker is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, beat

from celery_zsched import Entry, remote
from celery_zsched.stored import State
from tests.programs import Project
from tests.servers import RunningServer, wait_until

pytestmark = pytest.mark.skipif(not hasattr(beat, "BeatPidbox"), reason="beats have a remote control from Celery 5.7")


@pytest.fixture
def project(start_server: Callable[..., RunningServer], start_project: Callable[..., Project]) -> Project:
    """A project on a broker of ours, whose beats answer, with an hourly entry."""
    project = start_project(start_server(tcp=True), ours=True, beat_enable_remote_control=True)
    Entry("report", "note", 3600, app=project.app).save()
    return project


def answers(project: Project, *words: str) -> list[dict[str, Any]]:
    """Return what two beats answer to ``celery control`` or ``inspect``."""
    done = project.celery(*words[:1], "--timeout=30", "--destination=one@here,two@here", *words[1:], "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    each = said if isinstance(said, list) else [said]
    return [answer for one in each for answer in one.values()]


def start_beats(project: Project, *names: str) -> None:
    """Start beats and wait until they hear commands, which is some time after they have begun to work."""
    nodes = [f"{name}@here" for name in names]
    for node in nodes:
        project.beat("--hostname", node)

    def all_answer() -> bool:
        told = project.app.control.ping(destination=nodes, timeout=2, limit=len(nodes))
        return len(told) == len(nodes)

    wait_until(all_answer, what="the beats to answer")


def test_beats_take_our_commands_and_each_is_done_once(project: Project) -> None:
    """Two beats and no worker: all answer alike, one of them has changed it, and one message comes of one run."""
    start_beats(project, "one", "two")
    assert answers(project, "inspect", "ping") == [{"ok": "pong"}] * 2
    paused = [answer["ok"] for answer in answers(project, "control", "pause_task", "report", "fire drill")]
    assert sorted(answer["changed"] for answer in paused) == [False, True]
    stored = project.schedules.get("report")
    assert (stored.state, stored.operator.reason) == (State.PAUSED, "fire drill")
    resumed = [answer["ok"] for answer in answers(project, "control", "resume_task", "report")]
    assert sorted(answer["changed"] for answer in resumed) == [False, True]
    assert project.schedules.get("report").state is State.SCHEDULED
    ran = [answer["ok"] for answer in answers(project, "control", "run_task", "report")]
    assert len({answer["task_id"] for answer in ran}) == 1 and len(ran) == 2
    gone = [answer["ok"] for answer in answers(project, "control", "cancel_task", ran[0]["task_id"])]
    assert {answer["removed"] for answer in gone} == {1}
    assert project.drain() == []
    states = answers(project, "inspect", "task_state", "report")
    assert [state["state"] for state in states] == ["scheduled"] * 2


def test_a_beat_without_remote_control_takes_none(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """As by default: nobody answers."""
    project = start_project(start_server(tcp=True), ours=True)
    project.beat()
    assert project.app.control.broadcast("pause_task", {"target": "x"}, reply=True, timeout=0.5) == []


def test_a_command_to_one_beat_reaches_what_workers_have_received(project: Project) -> None:
    """The workers did not hear it, so the beat tells them: what they have not started goes back to its queue."""
    start_beats(project, "one")
    worker = project.worker()
    (answered,) = project.app.control.broadcast(
        "pause_task", {"target": "task:note"}, destination=["one@here"], reply=True, timeout=30, limit=1
    )
    assert answered["one@here"]["ok"]["state"] == "paused"
    worker.says("task:note is paused")


def test_what_celery_has_inside_is_where_we_look_for_it() -> None:
    """The handlers of a beat's remote control are a dict that is asked with each message, and take our commands."""
    service = beat.Service(Celery("inside", broker="memory://", set_as_current=False), remote_control=True)
    assert remote.answer(service) is False  # not started yet
    service._pidbox = beat.BeatPidbox(service)
    assert remote.answer(service) is True
    handlers = service._pidbox.node.handlers
    assert {"ping", "pause_task", "resume_task", "run_task", "cancel_task", "schedule", "paused"} <= set(handlers)
    assert "zsched_give_back" not in handlers
    heard: list[str] = []
    handlers["pause_task"] = lambda state, **_: heard.append(type(state.app).__name__)
    service._pidbox.on_message({"method": "pause_task", "arguments": {}}, SimpleNamespace(headers={}))
    assert heard == ["Celery"]


def test_a_celery_that_is_built_otherwise_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Beats go on, and a line says who answers instead."""
    assert remote.answer(SimpleNamespace(remote_control=True)) is False
    assert "Send pause_task and the like to a worker" in caplog.text
    assert remote.answer(SimpleNamespace()) is False
