"""Fixtures of tests that run Celery's own programs, or work on the schedule as they do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_zsched.connection import Server
from celery_zsched.schedules import Schedules
from tests.programs import Project
from tests.servers import RunningServer


@pytest.fixture
def start_project(tmp_path: Path) -> Iterator[Callable[..., Project]]:
    """Make a project on a server: ``start_project(server, source, ours=…, **conf)``; its programs end with the test.

    Its broker is kombu's, or ``ours``.
    """
    with contextlib.ExitStack() as started:

        def start(server: RunningServer, source: str = "", *, ours: bool = False, **conf: Any) -> Project:
            directory = tmp_path / f"project{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            project = Project(directory, f"{'zsched+' if ours else ''}{server.url}", source, **conf)
            started.callback(project.close)
            return project

        yield start


@pytest.fixture
def open_schedules(valkey: RunningServer, close_later: Callable[[Any], Any]) -> Callable[..., Schedules]:
    """Open the schedule as one more process would: ``open_schedules(zone=…)``."""

    def open_one(**how: Any) -> Schedules:
        server = close_later(Server.from_url(valkey.url))
        return Schedules(server, claimer=f"claimer{id(server)}", **how)

    return open_one


@pytest.fixture
def schedules(open_schedules: Callable[..., Schedules]) -> Schedules:
    """The schedule on an empty server."""
    return open_schedules()
