"""kombu's own integration suite, its shared base classes, against this transport.

Needs a checkout of kombu, named by KOMBU_CHECKOUT: see run.sh.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from tests.servers import RunningServer

CHECKOUT = os.environ.get("KOMBU_CHECKOUT", "")

pytestmark = [
    pytest.mark.skipif(not CHECKOUT, reason="KOMBU_CHECKOUT names no checkout of kombu"),
    pytest.mark.filterwarnings("default"),
]


def suite() -> ModuleType:
    """Return kombu's module of base classes, or one of empty classes where there is no checkout."""
    if not CHECKOUT:
        empty = ModuleType("empty")
        for name in ("BasicFunctionality", "BaseExchangeTypes", "BaseTimeToLive", "BasePriority", "BaseMessage"):
            setattr(empty, name, type(name, (), {}))
        empty.BaseFailover = empty.BasicFunctionality  # type: ignore[attr-defined]
        return empty
    spec = importlib.util.spec_from_file_location(
        "kombu_integration_common", Path(CHECKOUT) / "t" / "integration" / "common.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common: Any = suite()


@pytest.fixture(params=[None, {"global_keyprefix": "_prefixed_"}], ids=["plain", "prefixed"])
def connection(request: pytest.FixtureRequest, valkey: RunningServer) -> kombu.Connection:
    """A connection to an empty server."""
    return kombu.Connection(f"zsched+{valkey.url}", transport_options=request.param)


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    """A connection to a port where nobody listens."""
    return kombu.Connection("zsched+redis://127.0.0.1:1")


@pytest.fixture
def failover_connection(valkey: RunningServer) -> kombu.Connection:
    """A connection of two URLs, the first of which leads nowhere."""
    return kombu.Connection(
        ["zsched+redis://127.0.0.1:1", f"zsched+{valkey.url}"], transport_options={"max_retries": 2}
    )


class TestBasicFunctionality(common.BasicFunctionality):  # type: ignore[misc]
    """Connecting, publishing, consuming."""


class TestExchangeTypes(common.BaseExchangeTypes):  # type: ignore[misc]
    """Direct, topic and fanout exchanges."""


class TestTimeToLive(common.BaseTimeToLive):  # type: ignore[misc]
    """Messages that expire, which kombu's own Redis transport cannot do."""


class TestPriority(common.BasePriority):  # type: ignore[misc]
    """Priorities in Redis's order, 0 first."""

    PRIORITY_ORDER = "desc"

    @pytest.fixture(autouse=True)
    def _one_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The suite is written for AMQP, where one call drains all that has come; a virtual transport gives one message
        # a call, so that kombu's Redis suite has copies of these tests with as many calls as messages.
        drain_one = kombu.Connection.drain_events

        def drain_all(self: kombu.Connection, **kwargs: Any) -> None:
            drain_one(self, **kwargs)
            while True:
                try:
                    drain_one(self, timeout=0.05)
                except TimeoutError:
                    return

        monkeypatch.setattr(kombu.Connection, "drain_events", drain_all)


class TestMessage(common.BaseMessage):  # type: ignore[misc]
    """Ending a message in each way."""


class TestFailover(common.BaseFailover):  # type: ignore[misc]
    """Going on to the next URL."""
