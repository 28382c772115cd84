"""``celery zsched …`` with no worker running, and what our plug-in costs every other ``celery`` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from celery_zsched import Entry
from celery_zsched.entry import LastRun, encode
from celery_zsched.types import Item
from tests.entries import HOUR_US, LEASE_US, paused, put_back
from tests.programs import Project
from tests.servers import RunningServer

# What celery itself has imported by the time it looks for plug-ins, and what ours add to it.
MEASURE = """
import importlib.metadata, sys
entry_points = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **how: [] if how.get("group") == "celery.commands" else entry_points(**how)
import celery.bin.celery
before = set(sys.modules)
import celery_zsched.cli
print(*sorted(set(sys.modules) - before))
"""


@pytest.fixture
def project(start_server: Callable[..., RunningServer], start_project: Callable[..., Project]) -> Project:
    """A project on a server of its own."""
    return start_project(start_server(tcp=True))


def test_our_commands_are_there_without_an_import_in_the_users_app(project: Project) -> None:
    """In the help of celery, of control and of our own group."""
    assert "zsched" in project.celery("--help").stdout
    said = project.celery("control", "--list").stdout
    assert "pause_task" in said and "resume_task" in said
    assert "pause" in project.celery("zsched", "--help").stdout


def test_celery_commands_that_have_nothing_to_do_with_us_pay_for_few_modules() -> None:
    """A handful of our own, and nothing that talks to a server or reads a schedule."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    added = done.stdout.split()
    assert "celery_zsched.cli" in added
    assert len(added) <= 15, added
    assert [name for name in added if not name.startswith("celery_zsched")] == []


def test_entries_of_every_state_are_listed_with_no_worker_and_no_arguments_shown(project: Project) -> None:
    """State, next due and the reason of each; 120 of them page by page, and all of them when asked for."""
    schedules = project.schedules
    for name in ("later 1", "later 2", "later 3", "on hold"):
        Entry(name, "note", 3600, ("secret",), app=project.app).save()
    schedules.pause("on hold", paused("kept for the audit"))
    put_back(schedules, Entry("done", "note", datetime(2020, 1, 1, tzinfo=timezone.utc), app=project.app).spec, 0)
    schedules.timeline.bury([("done", "", "finished", b"")])
    put_back(schedules, Entry("broken", "note", 3600, app=project.app).spec, 0)
    (due,) = schedules.claim(10, LEASE_US).due
    schedules.quarantine(due, "the moon is not full", LastRun())
    said = project.celery("zsched", "list", "--json")
    assert said.returncode == 0, said.stderr
    rows = {row["entry"]: row for row in map(json.loads, said.stdout.splitlines())}
    assert {name: row["state"] for name, row in rows.items()} == {
        "later 1": "scheduled", "later 2": "scheduled", "later 3": "scheduled", "on hold": "paused",
        "done": "finished", "broken": "quarantined",
    }  # fmt: skip
    assert all(row["next"] for name, row in rows.items() if name.startswith("later"))
    assert rows["on hold"]["reason"] == "kept for the audit"
    assert rows["broken"]["fault"].startswith("the moon is not full")
    said = project.celery("zsched", "list")
    for text in ("later 1", "on hold", "kept for the audit", "the moon is not full"):
        assert text in said.stdout
    assert "secret" not in said.stdout


def test_many_entries_are_listed_page_by_page_or_all(project: Project) -> None:
    """Each once."""
    names = [f"entry-{number:04}" for number in range(250)]
    spec = Entry("entry", "note", 3600, app=project.app).spec
    due_us = project.schedules.now_us() + HOUR_US
    project.schedules.timeline.put([Item(name, encode(replace(spec, name=name)), due_us) for name in names])
    assert len(project.celery("zsched", "list", "--json").stdout.splitlines()) == 100
    said = project.celery("zsched", "list", "--json", "--all").stdout
    assert sorted(json.loads(line)["entry"] for line in said.splitlines()) == names


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("zsched_url='redis://127.0.0.1:1'", "127.0.0.1:1"),
        ("zsched_url='http://127.0.0.1'", "zsched_url has the scheme http://"),
        ("zsched_lease_timeot=5", "zsched_lease_timeout"),
        ("broker_url='redis://:secret@127.0.0.1:1'", "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(project: Project, setting: str, line: str) -> None:
    """No traceback, and no password."""
    project.write(f"app.conf.update({setting})")
    said = project.celery("zsched", "list")
    assert said.returncode == 1
    assert line in said.stderr and "secret" not in said.stderr
    assert "Traceback" not in said.stderr and len(said.stderr.strip().splitlines()) == 1, said.stderr


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_worker_whose_brokers_settings_are_wrong_ends_at_once(tmp_path: Path, pool: str) -> None:
    """One line for each fault, no second try, and the exit code of a fault in the settings."""
    conf = {"broker_transport_options": {"lease_timeot": 5, "claim_limit": "many"}}
    project = Project(tmp_path, f"zsched+embedded://{tmp_path}/server", **conf)
    said = project.celery("-q", "worker", "--concurrency=1", f"--pool={pool}")
    assert said.returncode == os.EX_CONFIG, said.stderr
    told = [line for line in said.stderr.splitlines() if "CRITICAL" in line]
    assert len(told) == 2 and "did you mean broker_transport_options['lease_timeout']?" in told[0]
    assert "Traceback" not in said.stderr and "Trying again" not in said.stderr
