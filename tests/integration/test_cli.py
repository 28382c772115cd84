"""``celery zsched …`` with no worker running, and what our plug-in costs every other ``celery`` command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_zsched import Entry, operations
from celery_zsched.entry import LastRun, encode
from celery_zsched.operations import Site
from celery_zsched.stored import Move
from celery_zsched.types import Item
from tests.entries import HOUR_US, LEASE_US, move, paused, put_back
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


STATES = {
    "later 1": "scheduled", "later 2": "scheduled", "later 3": "scheduled", "in hand": "firing", "on hold": "paused",
    "done": "finished", "broken": "quarantined",
}  # fmt: skip


def of_every_state(project: Project) -> None:
    """Store entries of all states; all but the second and third of the later ones, and the one in hand, have run."""
    schedules, app = project.schedules, project.app
    for name in ("in hand", "broken", "done", "later 1", "on hold"):
        put_back(schedules, Entry(name, "note", 3600, ("secret",), zone="Asia/Tokyo", app=app).spec, 0)
    last = LastRun(nominal_us=1_700_000_000_000_000, fired_us=1_700_000_000_000_000, fired=3)
    for due in schedules.claim(10, LEASE_US * 1000).due:
        if due.name == "broken":
            schedules.quarantine(due, "the moon is not full", last)
        elif due.name != "in hand":
            move(schedules, [Move(due.hold, None if due.name == "done" else due.due_us + HOUR_US, last)])
    for name in ("later 2", "later 3"):
        Entry(name, "note", 3600, ("secret",), zone="Asia/Tokyo", app=app).save()
    schedules.pause("on hold", paused("kept for the audit"))


def check_states(rows: list[dict[str, Any]]) -> None:
    """Look at what is listed of the entries of every state."""
    found = {row["entry"]: row for row in rows}
    assert {name: row["state"] for name, row in found.items()} == STATES
    assert {row["zone"] for row in rows} == {"Asia/Tokyo"}
    assert {name for name, row in found.items() if row["next"]} == {"later 1", "later 2", "later 3", "in hand"}
    ran = {name for name, row in found.items() if row["last"] == "2023-11-14T22:13:20+00:00" and row["fired"] == 3}
    assert ran == {"later 1", "on hold", "done", "broken"}
    assert found["on hold"]["reason"] == "kept for the audit"
    assert found["broken"]["fault"].startswith("the moon is not full")
    assert not any("secret" in json.dumps(row) for row in rows)


def test_entries_of_every_state_are_listed_with_and_without_a_worker_and_no_arguments_shown(project: Project) -> None:
    """C-42: state, zone, next and last run and the reason of each, alike in the shell and by remote control."""
    of_every_state(project)
    said = project.celery("zsched", "list", "--json")
    assert said.returncode == 0, said.stderr
    check_states([json.loads(line) for line in said.stdout.splitlines()])
    said = project.celery("zsched", "list")
    for name, state in STATES.items():
        (line,) = [line for line in said.stdout.splitlines() if line.startswith(name)]
        assert state in line and "Asia/Tokyo" in line
        assert (name not in ("later 1", "on hold", "done", "broken")) or "2023-11-15T07:13:20+09:00" in line
    for text in ("kept for the audit", "the moon is not full"):
        assert text in said.stdout
    assert "secret" not in said.stdout
    project.workers(1)
    said = project.celery("inspect", "--destination=worker0@here", "--timeout=30", "schedule", "--json")
    assert said.returncode == 0, said.stderr
    check_states(json.loads(said.stdout)["worker0@here"])


@pytest.mark.slow
def test_ten_thousand_entries_are_listed_page_by_page_or_all(project: Project) -> None:
    """C-42: by Python and by the shell each is there once, in order, and those of other states are found among them."""
    spec = Entry("entry", "note", 3600, app=project.app).spec
    names = [f"entry-{number:05}" for number in range(10_000)]
    due_us = project.schedules.now_us() + HOUR_US
    project.schedules.timeline.put([Item(name, encode(replace(spec, name=name)), due_us) for name in names])
    of_every_state(project)
    wanted = sorted([*names, *STATES])
    site = Site.of(project.app)

    found: list[str] = []
    page = operations.list_entries(site, limit=1500)
    while page.after is not None:
        assert len(page.rows) == 1500
        found += [row.entry for row in page.rows]
        page = operations.list_entries(site, limit=1500, after=page.after)
    assert [*found, *(row.entry for row in page.rows)] == wanted
    assert [row.entry for row in operations.all_entries(site)] == wanted

    listed: list[str] = []
    more: list[str] = []
    while len(listed) < len(wanted):
        said = project.celery("zsched", "list", "--limit", "4000", *more)
        assert said.returncode == 0, said.stderr
        head, *lines = said.stdout.splitlines()
        assert head.startswith("ENTRY") and len(lines) <= 4001
        told = lines.pop() if lines[-1].startswith("There are more:") else ""
        listed += [re.split(r" {2,}", line)[0] for line in lines]
        more = ["--after", told.split("'")[1]] if told else []
    assert (listed, more) == (wanted, [])
    said = project.celery("zsched", "list", "--json")
    assert [json.loads(line)["entry"] for line in said.stdout.splitlines()] == wanted[:100]
    said = project.celery("zsched", "list", "--json", "--all")
    assert [json.loads(line)["entry"] for line in said.stdout.splitlines()] == wanted
    for state in ("paused", "quarantined"):
        said = project.celery("zsched", "list", "--json", "--state", state)
        assert {json.loads(line)["entry"]: state for line in said.stdout.splitlines()} == {
            name: each for name, each in STATES.items() if each == state
        }


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
