"""Fixtures of tests that run Celery's own programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Project
from tests.servers import RunningServer


@pytest.fixture
def start_project(tmp_path: Path) -> Iterator[Callable[..., Project]]:
    """Make a project on a server: ``start_project(server, source, **conf)``; its programs end with the test."""
    with contextlib.ExitStack() as started:

        def start(server: RunningServer, source: str = "", **conf: Any) -> Project:
            directory = tmp_path / f"project{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            project = Project(directory, server.url, source, **conf)
            started.callback(project.close)
            return project

        yield start
