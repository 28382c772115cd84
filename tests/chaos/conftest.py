"""Fixtures of tests with workers that have a bad day."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import RunningServer
from tests.stamps import Stamped


@pytest.fixture
def stamped(tmp_path: Path, start_server: Callable[..., RunningServer]) -> Iterator[Callable[..., Stamped]]:
    """Make a project on a server of its own: ``stamped(options, aof=…, **conf)``."""
    made: list[Stamped] = []

    def make(options: dict[str, Any] | None = None, *, aof: bool = False, **conf: Any) -> Stamped:
        server = start_server(aof=aof)
        project = Stamped(tmp_path, server.url, options=options, **conf)
        project.server = server  # type: ignore[attr-defined]
        made.append(project)
        return project

    yield make
    for project in made:
        project.close()
