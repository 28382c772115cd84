"""Fixtures of tests on real servers: programs of Celery, the schedule as they see it, and a bare timeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_zsched.connection import Server
from celery_zsched.schedules import Schedules
from celery_zsched.timeline import Timeline
from tests.consumers import Client
from tests.programs import Project
from tests.servers import RunningServer


@pytest.fixture
def start_project(tmp_path: Path) -> Iterator[Callable[..., Project]]:
    """Make a project on a server: ``start_project(server, source, ours=…, **conf)``; its programs end with the test.

    Its broker is kombu's on that server, or ``ours``, or at the URL ``broker``.
    """
    with contextlib.ExitStack() as started:

        def start(
            server: RunningServer, source: str = "", *, ours: bool = False, broker: str = "", **conf: Any
        ) -> Project:
            directory = tmp_path / f"project{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            project = Project(directory, broker or f"{'zsched+' if ours else ''}{server.url}", source, **conf)
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


@pytest.fixture
def line(any_server: RunningServer) -> Iterator[Timeline]:
    """A timeline with three levels, on each kind of server."""
    made = Timeline(Server.from_url(any_server.url), "q", levels=3, holder="me", claimer="c")
    yield made
    made.server.close()


@pytest.fixture
def keyspace(any_server: RunningServer) -> Iterator[redis.Redis]:
    """A client to look at the server with."""
    with any_server.client() as client:
        yield client


@pytest.fixture
def client(any_server: RunningServer) -> Iterator[Client]:
    """A connection to an empty server of each kind."""
    one = Client(any_server.url)
    yield one
    one.close()


@pytest.fixture
def connect(valkey: RunningServer) -> Iterator[Callable[..., Client]]:
    """Make connections to an empty server: ``connect(option=…)``."""
    made: list[Client] = []

    def make(**options: Any) -> Client:
        made.append(Client(valkey.url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
