"""kombu's own integration suite, its shared base classes, against this transport.

Needs a checkout of kombu, named by KOMBU_CHECKOUT: see run.sh.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from tests.servers import RunningServer

CHECKOUT = os.environ.get("KOMBU_CHECKOUT", "")

pytestmark = [
    pytest.mark.skipif(not CHECKOUT, reason="KOMBU_CHECKOUT names no checkout of kombu"),
    pytest.mark.filterwarnings("default"),
]


#: The classes that are run, by the module of the checkout's ``t/integration`` that has them.
CLASSES = {
    "common": (
        "BasicFunctionality",
        "BaseExchangeTypes",
        "BaseTimeToLive",
        "BasePriority",
        "BaseMessage",
        "BaseEventLoop",
        "BaseFailover",
    ),
    "test_redis": ("test_RedisPublishBatch",),
}


def suite() -> Any:
    """Return kombu's classes by name: those of the checkout, or empty ones where there is no checkout."""
    if not CHECKOUT:
        return SimpleNamespace(**{name: type(name, (), {}) for names in CLASSES.values() for name in names})
    # A package of its own name, so that its modules find each other and nobody else's `t`.
    package = ModuleType("kombu_integration")
    package.__path__ = [str(Path(CHECKOUT) / "t" / "integration")]
    sys.modules[package.__name__] = package
    found = {}
    for module, names in CLASSES.items():
        loaded = importlib.import_module(f"{package.__name__}.{module}")
        found.update({name: getattr(loaded, name) for name in names})
    return SimpleNamespace(**found)


common = suite()


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


class TestEventLoop(common.BaseEventLoop):  # type: ignore[misc]
    """Consuming by kombu's event loop, acknowledged from another thread."""


class TestPublishBatch(common.test_RedisPublishBatch):  # type: ignore[misc]
    """Batches: of kombu's Redis suite, what does not look at its keys and channels (docs/conformance.md)."""

    test_retry_on_timeout_keeps_publication_immediate = None  # batches are safe to retry here
    test_fanout_is_deferred_until_flush = None  # listens on a channel of a name of kombu's


class TestFailover(common.BaseFailover):  # type: ignore[misc]
    """Going on to the next URL."""

    def test_failover_switches_to_alternate_url(
        self, failover_connection: kombu.Connection, valkey: RunningServer
    ) -> None:
        """A first URL that leads nowhere is left for the second, and its scheme is kept."""
        # kombu's own reads Connection.port before it connects, which kombu leaves empty for every URL of the form
        # name+scheme://, since it is the transport that reads those.
        assert failover_connection.connect()
        assert failover_connection.connected
        assert failover_connection.transport_cls == f"zsched+{urlsplit(valkey.url).scheme}"
        assert failover_connection.default_channel.broker.server.masked == valkey.url
        failover_connection.close()
