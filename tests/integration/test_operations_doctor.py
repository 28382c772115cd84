"""The check-up finds what is wrong, and blackouts are kept from the shell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_zsched import operations
from celery_zsched.operations import Site
from tests.programs import Project
from tests.servers import RunningServer


@pytest.fixture
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server of the test's own."""
    return start_server(tcp=True)


@pytest.fixture
def project(server: RunningServer, tmp_path: Path) -> Iterator[Project]:
    """A project on our own broker, with settings that lose nothing."""
    project = Project(
        tmp_path, f"zsched+{server.url}", task_acks_late=True, task_reject_on_worker_lost=True,
        beat_scheduler="celery_zsched:Scheduler",
    )  # fmt: skip
    yield project
    project.close()


def verdicts(site: Site) -> dict[str, str]:
    """Return each check with its verdict."""
    return {finding.check: finding.verdict for finding in operations.doctor(site)}


def test_a_server_that_may_lose_what_waits_is_found(server: RunningServer, project: Project) -> None:
    """Eviction, missing persistence, foreign keys and bells without an end are told apart from what is well."""
    site = Site.of(project.app)
    operations.add(site, "report", {"task": "note", "every": "1h"})
    project.app.send_task("note")
    operations.pause_task(site, "queue:celery")
    operations.run_task(site, "report")
    project.beat().terminate()
    found = verdicts(site)
    assert found["schedule eviction"] == "good"
    assert found["schedule persistence"] == "look"
    assert found["keys"] == "good", operations.doctor(site)
    server.config("maxmemory", "200mb")
    server.config("maxmemory-policy", "allkeys-lru")
    client = server.client()
    client.set("zsched:{schedule}:zzz", "1")
    client.set("zsched:other", "1")
    client.close()
    found = verdicts(site)
    assert found["schedule eviction"] == "bad"
    assert found["keys"] == "look"
    assert not {"task_acks_late", "task_reject_on_worker_lost", "beat_scheduler", "broker"} & found.keys()


def test_settings_that_lose_tasks_and_a_foreign_broker_are_found(
    server: RunningServer, start_project: Callable[..., Project]
) -> None:
    """Early acks and another scheduler are worth a look; without a beat that calls, nothing is sent."""
    project = start_project(server)
    project.app.conf.beat_schedule = {"broken": {"task": "note", "shedule": 1.0}}
    site = Site.of(project.app)
    operations.add(site, "report", {"task": "note", "every": "1h"})
    found = verdicts(site)
    assert {found[name] for name in ("task_acks_late", "beat_scheduler", "broker")} == {"look"}
    assert {found[name] for name in ("beats", "beat_schedule")} == {"bad"}
    assert project.celery("zsched", "doctor").returncode == 1


def test_a_server_that_is_away_is_a_finding(project: Project, server: RunningServer) -> None:
    """The check-up itself never fails."""
    site = Site.of(project.app)
    server.kill()
    assert verdicts(site)["schedule server"] == "bad"


def test_every_check_has_its_name_whatever_it_finds(project: Project, server: RunningServer) -> None:
    """Those that cannot be made, since the server is away, have the documented names as well."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"`([^`]+)`", page.partition("What `doctor` checks")[2].partition("\n\n")[0]))
    site = Site.of(project.app)
    project.app.conf.beat_schedule = {"broken": {"task": "note", "shedule": 1.0}}
    well = set(verdicts(site))
    assert {"schedule server", "schedule eviction", "keys", "ahead", "beat_schedule", "parked"} <= well <= documented
    server.kill()
    away = verdicts(site)
    assert {"schedule server", "keys", "beats", "ahead", "beat_schedule", "blackouts", "parked"} <= away.keys()
    assert away.keys() <= documented


def test_blackouts_from_the_shell(project: Project, server: RunningServer) -> None:
    """A blackout is stored, listed, shown and removed, and every change is on record."""
    site = Site.of(project.app)
    window = "2099-12-24/2099-12-26"
    assert project.celery("zsched", "blackout", "set", "xmas", window, "--reason", "rest").returncode == 0
    (listed,) = project.celery("zsched", "blackout", "list", "--json").stdout.splitlines()
    assert (json.loads(listed)["name"], json.loads(listed)["start"]) == ("xmas", "2099-12-24T00:00:00+00:00")
    (shown,) = project.celery("zsched", "blackout", "show", "xmas", "--json").stdout.splitlines()
    assert json.loads(shown)["end"] == "2099-12-27T00:00:00+00:00"
    operations.add(site, "report", {"task": "note", "every": "1h", "blackouts": ["xmas"]})
    refused = project.celery("zsched", "blackout", "rm", "xmas")
    assert (refused.returncode, "report" in refused.stderr) == (1, True)
    assert project.celery("zsched", "blackout", "rm", "xmas", "--force").returncode == 0
    records = [(each.verb, each.reason) for each in operations.audit(site, target="blackout:xmas")]
    assert records == [("blackout rm", None), ("blackout set", "rest")]
