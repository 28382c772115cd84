"""Sentinel and Cluster: the client finds the primary that matters, and finds it again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_zsched.connection import Server
from celery_zsched.errors import ServerAuthenticationError, ServerUnavailableError
from tests.servers import wait_until
from tests.topologies import Cluster, SentinelSetup

StartSentinel = Callable[..., SentinelSetup]
Connect = Callable[..., Server]


@pytest.fixture
def connect(close_later: Callable[[Any], Any]) -> Connect:
    """Return servers by URL and options, closed at the end."""
    return lambda url, **options: close_later(Server.from_url(url, options))


def again(server: Server, act: Callable[[], Any]) -> Any:
    """Do what may fail for a while because servers change places, until it works."""

    def attempt() -> Any:
        try:
            with server.translated("trying"):
                return [act()]
        except ServerUnavailableError:
            return None

    return wait_until(attempt)[0]


# --- Sentinel --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_client_follows_a_failover(start_sentinel: StartSentinel, connect: Connect) -> None:
    """After the primary died, commands and dedicated connections go to the promoted replica."""
    setup = start_sentinel()
    server = connect(f"zsched+{setup.url}/2", socket_timeout=1)
    server.client.set("a", 1)
    server.client.wait(1, 2000)
    with server.blocking("a") as link:
        link.send_command("BLPOP", "q", 20)
        new = setup.fail_over()
        with pytest.raises(ServerUnavailableError), server.translated("waiting"):
            link.read_response(timeout=10)
    assert again(server, lambda: server.client.incr("a")) == 2
    with new.client(db=2) as client, server.blocking("a") as link:
        assert client.get("a") == b"2"
        link.send_command("INCR", "a")
        assert link.read_response() == 3
        assert client.get("a") == b"3"


@pytest.mark.slow
def test_servers_and_sentinels_have_different_passwords(start_sentinel: StartSentinel, connect: Connect) -> None:
    """The URL's password is for the servers, sentinel_password for the sentinels; each wrong one is told apart."""
    setup = start_sentinel(password="pw-of-servers", sentinel_password="pw-of-sentinels")
    url = setup.url.replace("sentinel://", "sentinel://:pw-of-servers@")
    assert connect(url, sentinel_password="pw-of-sentinels").client.ping()
    assert connect(url, sentinel_kwargs={"password": "pw-of-sentinels"}).client.ping()
    # As kombu writes it: several URLs, the service as an option.
    hosts = ";".join(f"sentinel://:pw-of-servers@127.0.0.1:{one.port}" for one in setup.sentinels)
    assert connect(hosts, sentinel_password="pw-of-sentinels", master_name=setup.service).client.ping()
    wrong = connect(setup.url, sentinel_password="pw-of-sentinels")
    with pytest.raises(ServerAuthenticationError), wrong.translated("asking"):
        wrong.client.ping()
    wrong = connect(url, sentinel_password="pw-that-is-wrong")
    with pytest.raises(ServerUnavailableError, match="no sentinel names") as caught, wrong.translated("asking"):
        wrong.client.ping()
    assert "pw-" not in str(caught.value)
    unknown = connect(url.replace(f"/{setup.service}", "/other"), sentinel_password="pw-of-sentinels")
    with pytest.raises(ServerUnavailableError, match=r"'other'.*No such master"), unknown.translated("asking"):
        unknown.client.ping()
    lonely = connect(url, sentinel_password="pw-of-sentinels", min_other_sentinels=2)
    with pytest.raises(ServerUnavailableError, match="min_other_sentinels"), lonely.translated("asking"):
        lonely.client.ping()


@pytest.mark.slow
def test_a_dead_sentinel_is_passed_over(start_sentinel: StartSentinel, connect: Connect) -> None:
    """One answering sentinel is enough, wherever it stands in the list."""
    setup = start_sentinel(sentinels=2)
    url = setup.url
    setup.sentinels[0].kill()
    server = connect(url)
    assert server.client.ping()
    assert server.version() is not None


# --- Cluster ---------------------------------------------------------------------------------------------------------


def test_keys_of_all_slots_are_reached(cluster: Cluster, connect: Connect) -> None:
    """A key is written to its owner, and a dedicated connection goes to the owner too."""
    server = connect(f"zsched+{cluster.url}")
    owners = set()
    for key in ("a", "b", "c", "d", "e", "f"):
        server.client.set(key, key)
        owner = cluster.owner_of(key)
        owners.add(owner)
        with server.blocking(key) as link, owner.client() as client:
            assert client.get(key) == key.encode()
            link.send_command("BLPOP", f"{{{key}}}:q", 10)
            client.rpush(f"{{{key}}}:q", "v")
            assert link.read_response(timeout=5) == [f"{{{key}}}:q".encode(), b"v"]
    assert len(owners) == 3
    assert server.version() is not None


def test_a_moved_slot_is_followed(start_cluster: Callable[..., Cluster], connect: Connect) -> None:
    """When a slot moves, commands follow at once, and a dedicated connection at the next one."""
    cluster = start_cluster()
    server = connect(cluster.url)
    server.client.ping()
    source = cluster.owner_of("k")
    target = next(one for one in cluster.servers if one is not source)
    link = server.blocking("k")
    cluster.move_slot("k", target)
    link.send_command("INCR", "k")
    with pytest.raises(ServerUnavailableError, match="moved"), server.translated("counting"):
        link.read_response(timeout=5)
    link.close()
    with server.blocking("k") as link:
        link.send_command("INCR", "k")
        assert link.read_response(timeout=5) == 1
    assert server.client.incr("k") == 2


def test_a_cluster_command_is_not_sent_again_after_a_time_out(cluster: Cluster, connect: Connect) -> None:
    """As on one server: what may have run is not sent again, though the cluster client could."""
    server = connect(cluster.url, socket_timeout=0.3)
    server.client.set("n", 0)
    owner = cluster.owner_of("n")
    owner.freeze()
    began = time.monotonic()
    with pytest.raises(ServerUnavailableError), server.translated("counting"):
        server.client.incrby("n", 1)
    assert time.monotonic() - began < 5
    owner.thaw()
    with owner.client() as client:
        wait_until(lambda: client.get("n") == b"1", what="what was sent to the frozen node")
    assert again(server, lambda: server.client.incrby("n", 1)) == 2


def test_a_cluster_bound_holds_by_waiting(cluster: Cluster, connect: Connect) -> None:
    """Many threads on a small bound per node all get their turn."""
    server = connect(cluster.url, max_connections=2)
    seen = []
    with ThreadPoolExecutor(12) as threads, cluster.owner_of("none").client() as client:
        jobs = [threads.submit(server.client.blpop, "none", 0.05) for _ in range(24)]
        while not all(job.done() for job in jobs):
            seen.append(sum(one["cmd"] == "blpop" for one in client.client_list()))
        assert [job.result() for job in jobs] == [None] * 24
    assert 0 < max(seen) <= 2


def test_a_cluster_asks_for_a_password(start_cluster: Callable[..., Cluster], connect: Connect) -> None:
    """The password reaches every node; a wrong one is an error that shows none."""
    cluster = start_cluster(password="cluster-pw")
    server = connect(cluster.url.replace("://", "://:cluster-pw@"))
    for key in ("a", "b", "c", "d"):
        assert server.client.set(key, 1)
    assert "cluster-pw" not in repr(server.client) + repr(server)
    wrong = connect(cluster.url.replace("://", "://:wrong-pw@"))
    with pytest.raises(ServerAuthenticationError, match="password") as caught, wrong.translated("asking"):
        wrong.client.ping()
    assert "wrong-pw" not in str(caught.value)


@pytest.mark.slow
def test_a_lost_node_is_an_unavailable_server(start_cluster: Callable[..., Cluster], connect: Connect) -> None:
    """Keys of a dead node are unavailable while it is away; those of others, and its own later, are there."""
    cluster = start_cluster()
    server = connect(cluster.url, socket_timeout=1)
    lost = cluster.owner_of("a")
    kept = next(key for key in "bcdefgh" if cluster.owner_of(key) is not lost)
    for node in cluster.servers:
        node.config("cluster-require-full-coverage", "no")
    server.client.set(kept, 1)
    lost.kill()
    with pytest.raises(ServerUnavailableError), server.translated("reading"):
        server.client.get("a")
    assert again(server, lambda: server.client.get(kept)) == b"1"
    lost.start()
    assert again(server, lambda: server.client.incr("a")) == 1
