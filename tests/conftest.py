"""Fixtures for all tests: real servers of every kind, set-ups of several, and a network that can fail.

Every test process (pytest-xdist worker) starts servers of its own.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The helpers are imported as tests.servers and so on; at the end of the path they hide nothing that is installed.
sys.path.append(str(Path(__file__).parents[1]))

from tests.forwarder import Forwarder
from tests.servers import DEFAULT_KIND, KINDS, Certificates, RunningServer
from tests.topologies import Cluster, SentinelSetup

pytest.register_assert_rewrite("tests.lua.tables")


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Leave the root logger's level as it was: a worker in this process sets it, and later tests would hear nothing."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(scope="session")
def _shared_servers() -> Iterator[Callable[[str], RunningServer]]:
    """One server of each kind that is asked for, kept for the session of this test process."""
    with contextlib.ExitStack() as all_of_them:
        running: dict[str, RunningServer] = {}

        def get(kind: str) -> RunningServer:
            if kind not in running:
                running[kind] = all_of_them.enter_context(RunningServer(kind))
            running[kind].reset()
            return running[kind]

        yield get


@pytest.fixture(
    params=[pytest.param(kind, marks=[] if kind == DEFAULT_KIND else pytest.mark.servers) for kind in KINDS]
)
def any_server(request: pytest.FixtureRequest, _shared_servers: Callable[[str], RunningServer]) -> RunningServer:
    """An empty server of each kind in turn; kept for later tests, so use ``start_server`` to break one."""
    return _shared_servers(request.param)


@pytest.fixture
def valkey(_shared_servers: Callable[[str], RunningServer]) -> RunningServer:
    """An empty server of the default kind; kept for later tests, so use ``start_server`` to break one."""
    return _shared_servers(DEFAULT_KIND)


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """Start servers of this test's own: ``start_server(kind, aof=…, tcp=…, tls=…, config={…}, env={…})``."""
    with contextlib.ExitStack() as started:
        yield lambda *args, **kwargs: started.enter_context(RunningServer(*args, **kwargs))


@pytest.fixture
def start_sentinel() -> Iterator[Callable[..., SentinelSetup]]:
    """Start set-ups of primary, replica and sentinels: ``start_sentinel(kind, sentinels=…, password=…)``."""
    with contextlib.ExitStack() as started:
        yield lambda *args, **kwargs: started.enter_context(SentinelSetup(*args, **kwargs))


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """Start clusters of three primaries: ``start_cluster(kind, password=…)``."""
    with contextlib.ExitStack() as started:
        yield lambda *args, **kwargs: started.enter_context(Cluster(*args, **kwargs))


@pytest.fixture(scope="session")
def _shared_cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(_shared_cluster: Cluster) -> Cluster:
    """An empty cluster of the default kind; kept for later tests, so use ``start_cluster`` to break one."""
    _shared_cluster.reset()
    return _shared_cluster


@pytest.fixture
def forward() -> Iterator[Callable[[RunningServer], Forwarder]]:
    """Put a forwarder before a server: ``forward(server)``."""
    with contextlib.ExitStack() as started:
        yield lambda server: started.enter_context(Forwarder(server))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A private authority and a certificate of its for 127.0.0.1 and localhost."""
    import trustme

    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    files = Certificates(directory / "authority.pem", directory / "certificate.pem", directory / "key.pem")
    authority.cert_pem.write_to_path(str(files.authority))
    certificate.cert_chain_pems[0].write_to_path(str(files.certificate))
    certificate.private_key_pem.write_to_path(str(files.key))
    return files


@pytest.fixture
def close_later() -> Iterator[Callable[[Any], Any]]:
    """Close what a test opens, when it ends: ``close_later(thing)`` returns the thing."""
    with contextlib.ExitStack() as opened:

        def later(thing: Any) -> Any:
            opened.callback(thing.close)
            return thing

        yield later
