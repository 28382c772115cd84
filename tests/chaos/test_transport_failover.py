"""Servers that change places under a running worker: a cluster's replica takes over, a primary becomes a replica."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from celery_zsched.errors import ServerError
from tests.forwarder import Forwarder
from tests.servers import DEFAULT_KIND, RunningServer, wait_until
from tests.stamps import Stamped
from tests.topologies import Cluster

#: How long a failover may take, in seconds, until everything goes on.
FAILOVER_S = 60.0


@pytest.fixture
def project(tmp_path: Path, close_later: Callable[[Stamped], Stamped]) -> Callable[..., Stamped]:
    """Make a project: ``project(url, options=…, **conf)``."""
    return lambda url, options=None, **conf: close_later(Stamped(tmp_path, url, options=options, **conf))


class ReplicatedCluster(Cluster):
    """Three primaries, each with a replica that is promoted a few seconds after its primary is gone."""

    def _start(self, kind: str, config: dict[str, str]) -> None:
        super()._start(kind, config)
        #: Primary -> its replica.
        self.replicas = {primary: self.add(kind, cluster=True, config=config) for primary in self.servers}
        for primary, replica in self.replicas.items():
            with primary.client() as first, replica.client() as second:
                second.execute_command("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
                identity = first.execute_command("CLUSTER", "MYID")
                wait_until(lambda: self._knows(second, identity), what="the primary to be known")  # noqa: B023
                second.execute_command("CLUSTER", "REPLICATE", identity)
                wait_until(lambda: self._follows(second), what="the replica")
        for server in (*self.servers, *self.replicas.values()):
            with server.client() as client:
                wait_until(lambda: self._sees_replicas(client), what="the cluster")

    @staticmethod
    def _knows(client: redis.Redis, identity: bytes) -> bool:
        return identity.decode() in str(client.execute_command("CLUSTER", "NODES"))

    @staticmethod
    def _follows(client: redis.Redis) -> bool:
        return bool(client.info("replication").get("master_link_status") == "up")

    @staticmethod
    def _sees_replicas(client: redis.Redis) -> bool:
        return str(client.execute_command("CLUSTER", "NODES")).count("slave") >= 3

    def fail_over(self, primary: RunningServer) -> None:
        """Kill a primary whose replica has all that it had a moment ago; return once the replica serves."""
        replica = self.replicas[primary]
        with primary.client() as first, replica.client() as second:
            written = first.info("replication")["master_repl_offset"]
            wait_until(lambda: second.info("replication")["slave_repl_offset"] >= written, what="replication")
            primary.kill()
            wait_until(lambda: second.info("replication")["role"] == "master", what="the promotion")


def insist(act: Callable[[], Any], what: str) -> Any:
    """Do what may fail for a while because servers change places, until it works; return what came of it."""

    def attempt() -> list[Any] | None:
        try:
            return [act()]
        except (ServerError, OSError, OperationalError):
            return None

    return wait_until(attempt, timeout_s=FAILOVER_S, what=what)[0]


def until_empty(project: Stamped, queue: str = "celery") -> None:
    """Wait until nothing waits and nothing is leased, on servers that change places."""

    def empty() -> bool:
        counts = insist(lambda: project.counts(queue), f"the counts of queue {queue}")
        return bool(counts.ready == counts.delayed == counts.leased == 0)

    wait_until(empty, timeout_s=FAILOVER_S, what=f"queue {queue} to be empty")


@pytest.mark.slow
def test_a_worker_on_a_cluster_outlives_a_failover(
    project: Callable[..., Stamped], close_later: Callable[[Any], Any]
) -> None:
    """One worker serves four queues in four slots on three primaries, one of which dies: nothing is lost or repeated.

    What ran on goes on and is acked at the promoted replica, what waited there for its ETA runs, and all four queues
    are served again.
    """
    cluster: ReplicatedCluster = close_later(ReplicatedCluster(DEFAULT_KIND))
    queues = ["a", "b", "c", "d"]
    homes = {queue: cluster.owner_of(f"zsched:{{queue:{queue}}}:timeline") for queue in queues}
    assert set(homes.values()) == set(cluster.servers), "these names lie on all three nodes"
    stamped = project(cluster.url, {"socket_timeout": 2.0})
    worker = stamped.worker("-Q", ",".join(queues), pool="threads", concurrency=8)
    for n in range(40):
        stamped.send("stamp", f"before{n}", queue=queues[n % 4])
    stamped.until(40, "ran")
    for queue in queues:
        stamped.send("sl", f"through-{queue}", 6, queue=queue)
        stamped.send("stamp", f"late-{queue}", queue=queue, countdown=8)
    stamped.until(4, "start")
    cluster.fail_over(homes["a"])
    for queue in queues:
        insist(lambda queue=queue: stamped.send("stamp", f"after-{queue}", queue=queue), "publishing")  # type: ignore[misc]
    stamped.until(40 + 4 + 4, "ran", timeout_s=FAILOVER_S)
    stamped.until(4, "end", timeout_s=FAILOVER_S)
    for queue in queues:
        until_empty(stamped, queue)
        assert len(stamped.stamps("start", f"through-{queue}")) == 1
        assert len(stamped.stamps("ran", f"late-{queue}")) == 1
        assert len(stamped.stamps("ran", f"after-{queue}")) == 1
    assert worker.is_running


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_primary_that_becomes_a_replica_is_left(
    start_server: Callable[..., RunningServer],
    forward: Callable[[RunningServer], Forwarder],
    project: Callable[..., Stamped],
    pool: str,
) -> None:
    """A server that turns read-only under a worker counts as lost: the worker goes to whoever has its address now."""
    old = start_server(tcp=True)
    new = start_server(replica_of=old)
    way = forward(old)
    stamped = project(way.url, {"socket_timeout": 2.0, "max_block": 2.0})
    worker = stamped.worker(pool=pool, concurrency=2)
    stamped.send("sl", "through", 5)
    stamped.send("stamp", "late", countdown=7)
    stamped.until(1, "start", "through")
    with old.client() as first, new.client() as second:
        wait_until(lambda: second.info("replication")["master_link_status"] == "up", what="the replica")
        written = first.info("replication")["master_repl_offset"]
        wait_until(lambda: second.info("replication")["slave_repl_offset"] >= written, what="replication")
        second.replicaof("NO", "ONE")
        first.replicaof("127.0.0.1", new.port)
        way.point_to(new)  # connections that there are still lead to the old one
    insist(lambda: stamped.send("stamp", "after"), "publishing")
    stamped.until(1, "ran", "after", timeout_s=FAILOVER_S)
    stamped.until(1, "end", "through", timeout_s=FAILOVER_S)
    stamped.until(1, "ran", "late", timeout_s=FAILOVER_S)
    until_empty(stamped)
    assert len(stamped.stamps("start", "through")) == 1
    assert len(stamped.stamps("ran")) == 2
    assert worker.is_running
    assert "Unrecoverable" not in worker.output()
