"""The servers of the tests themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.forwarder import Forwarder
from tests.servers import RunningServer
from tests.topologies import Cluster, SentinelSetup

_VERSIONS = {"redis62": "6.2", "redis70": "7.0", "redis82": "8.2", "valkey81": "8.1", "valkey91": "9.1"}


def test_each_kind_is_what_it_is_called(any_server: RunningServer) -> None:
    """A kind's version is the one in its name."""
    with any_server.client() as client:
        facts = client.info("server")
    assert str(facts.get("valkey_version") or facts["redis_version"]).startswith(_VERSIONS[any_server.kind])


def test_data_outlives_a_kill_with_aof(start_server: Callable[..., RunningServer]) -> None:
    """With the AOF on, what was acknowledged is there after a kill, at the same address."""
    server = start_server(aof=True)
    with server.client() as client:
        client.set("a", "1")
        server.restart(kill=True)
        assert client.get("a") == b"1"


def test_settings_and_data_are_reset(valkey: RunningServer) -> None:
    """A reset undoes what a test changed."""
    with valkey.client() as client:
        before = client.config_get("maxmemory")
        client.set("a", "1")
        valkey.config("maxmemory", "12mb")
        valkey.reset()
        assert (client.dbsize(), client.config_get("maxmemory")) == (0, before)


def test_a_forwarder_freezes_cuts_and_is_replaced(
    start_server: Callable[..., RunningServer], forward: Callable[[RunningServer], Forwarder]
) -> None:
    """A frozen link is silent, a thawed one delivers late, a cut one is closed, a replaced one serves anew."""
    way = forward(start_server())
    with redis.Redis(port=way.port, socket_timeout=0.2, retry=None) as client:
        assert client.ping()
        way.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        way.replace()
        assert client.ping()
        way.refuse()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        way.replace()
        assert client.ping()


@pytest.mark.slow
def test_a_replica_is_promoted(start_sentinel: Callable[..., SentinelSetup]) -> None:
    """When the primary dies, the sentinels make the replica the primary."""
    setup = start_sentinel()
    assert setup.fail_over() is setup.primary


def test_a_cluster_is_whole(cluster: Cluster) -> None:
    """The three primaries own all slots together."""
    with cluster.client() as client:
        for key in ("a", "b", "c", "d"):
            client.set(key, key)
            with cluster.owner_of(key).client() as owner:
                assert owner.get(key) == key.encode()
