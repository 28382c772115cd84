"""Several servers that work together: a primary with a replica and sentinels, and a cluster of three primaries."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

import redis
from redis.cluster import RedisCluster

from tests.servers import DEFAULT_KIND, RunningServer, wait_until

SLOTS = 16384


class _Group:
    """Servers that are closed together."""

    def __init__(self) -> None:
        self._all = contextlib.ExitStack()

    def add(self, *args: Any, **kwargs: Any) -> RunningServer:
        return self._all.enter_context(RunningServer(*args, **kwargs))

    def close(self) -> None:
        """End every process."""
        self._all.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SentinelSetup(_Group):
    """A primary, a replica and sentinels that promote it about a second after the primary is gone."""

    service = "zs"

    def __init__(
        self,
        kind: str = DEFAULT_KIND,
        *,
        sentinels: int = 1,
        password: str | None = None,
        sentinel_password: str | None = None,
        aof: bool = False,
    ) -> None:
        super().__init__()
        try:
            self._start(kind, sentinels, password, sentinel_password, aof)
        except BaseException:
            self.close()
            raise

    def _start(self, kind: str, sentinels: int, password: str | None, own_password: str | None, aof: bool) -> None:
        config = {"requirepass": password, "masterauth": password} if password else {}
        self.servers = [self.add(kind, tcp=True, aof=aof, config=config)]
        self.servers.append(self.add(kind, replica_of=self.servers[0], aof=aof, config=config))
        self.sentinels: list[RunningServer] = []
        lines = [
            f"sentinel monitor {self.service} 127.0.0.1 {self.servers[0].port} {sentinels // 2 + 1}",
            f"sentinel down-after-milliseconds {self.service} 1000",
            f"sentinel failover-timeout {self.service} 6000",
        ]
        if password:
            lines.append(f"sentinel auth-pass {self.service} {password}")
        if own_password:
            lines.append(f"requirepass {own_password}")
        replica = self.servers[1].client()
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up", what="the replica")
        replica.close()
        for _ in range(sentinels):
            self.sentinels.append(self.add(kind, sentinel_text="\n".join(lines) + "\n"))
        for sentinel in self.sentinels:
            client = sentinel.client(password=own_password)
            wait_until(lambda: self._sees_all(client, sentinels), what="the sentinels")  # noqa: B023
            client.close()

    def _sees_all(self, client: redis.Redis, sentinels: int) -> bool:
        state = client.execute_command("SENTINEL MASTER", self.service)  # redis-py 6.4 breaks its own method
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == sentinels - 1)

    @property
    def url(self) -> str:
        """The URL by the sentinels."""
        return f"sentinel://{','.join(f'127.0.0.1:{one.port}' for one in self.sentinels)}/{self.service}"

    def role_of(self, server: RunningServer) -> str:
        """Return ``master`` or ``slave``; nothing while a sentinel promotes it, which cuts every connection it has."""
        client = server.client()
        try:
            return str(client.info("replication")["role"])
        except redis.ConnectionError:
            return ""
        finally:
            client.close()

    @property
    def primary(self) -> RunningServer:
        """The server that is the primary now."""
        return next(one for one in self.servers if one.is_running and self.role_of(one) == "master")

    def fail_over(self) -> RunningServer:
        """Kill the primary; return the new one once the replica is promoted."""
        old = self.primary
        (new,) = (one for one in self.servers if one is not old)
        old.kill()
        wait_until(lambda: self.role_of(new) == "master", what="the promotion")
        return new


class Cluster(_Group):
    """A cluster of three primaries, each with a third of the slots."""

    def __init__(self, kind: str = DEFAULT_KIND, *, password: str | None = None) -> None:
        super().__init__()
        try:
            self._start(kind, {"requirepass": password, "masterauth": password} if password else {})
        except BaseException:
            self.close()
            raise

    def _start(self, kind: str, config: dict[str, str]) -> None:
        self.servers = [self.add(kind, cluster=True, config=config) for _ in range(3)]
        clients = [server.client() for server in self.servers]
        bounds = [SLOTS * part // 3 for part in range(4)]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
        for server in self.servers[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        for client in clients:
            wait_until(lambda: self._is_whole(client), what="the cluster")  # noqa: B023
            client.close()

    @staticmethod
    def _is_whole(client: redis.Redis) -> bool:
        info = client.execute_command("CLUSTER", "INFO")
        facts = (
            info
            if isinstance(info, dict)
            else dict(line.split(":", 1) for line in info.decode().split("\r\n") if ":" in line)
        )
        return bool(facts["cluster_state"] == "ok" and facts["cluster_known_nodes"] == "3")

    @staticmethod
    def _epoch(client: redis.Redis, identity: str) -> int:
        """Return the epoch of a node as another knows it."""
        nodes = client.execute_command("CLUSTER", "NODES").decode()
        (line,) = (one for one in nodes.splitlines() if one.startswith(identity))
        return int(line.split()[6])

    @property
    def url(self) -> str:
        """The URL, by two of the nodes."""
        return f"cluster://{','.join(f'127.0.0.1:{one.port}' for one in self.servers[:2])}"

    def client(self) -> RedisCluster:
        """Return a plain client of the cluster."""
        return RedisCluster(host="127.0.0.1", port=self.servers[0].port)

    def owner_of(self, key: str) -> RunningServer:
        """Return the server in whose slots a key lies."""
        client = self.servers[0].client()
        slot = client.execute_command("CLUSTER", "KEYSLOT", key)
        client.close()
        return self.servers[next(part for part in range(3) if slot < SLOTS * (part + 1) // 3)]

    def move_slot(self, key: str, to: RunningServer) -> None:
        """Give the slot of a key, which must be empty, to another server at once."""
        source = self.owner_of(key)
        clients = {server: server.client() for server in self.servers}
        slot = clients[source].execute_command("CLUSTER", "KEYSLOT", key)
        ids = {server: clients[server].execute_command("CLUSTER", "MYID").decode() for server in (source, to)}
        # Who imports a slot takes it with a new epoch. Without one, or where the others do not know it yet, a word that
        # the former owner sent before would give it back.
        clients[to].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        clients[to].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])
        epoch = self._epoch(clients[to], ids[to])
        for server in (source, *(one for one in self.servers if one not in (to, source))):
            wait_until(lambda: self._epoch(clients[server], ids[to]) == epoch, what="the new epoch")  # noqa: B023
            clients[server].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])
        for client in clients.values():
            client.close()

    def reset(self) -> None:
        """Empty every node."""
        for server in self.servers:
            server.reset()
