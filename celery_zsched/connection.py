"""One URL and options -> clients of one server (or Sentinel set-up, or cluster), and errors a person can act on."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster

from celery_zsched import embedded
from celery_zsched.errors import ConfigurationError
from celery_zsched.links import Dedicated, Link, SentinelRoute, no_resend, quiet, tls_context
from celery_zsched.translation import Translated, translate
from celery_zsched.urls import Address, parse, secrets_of

__all__ = ["Client", "Dedicated", "Server", "translate"]

logger = logging.getLogger(__name__)

#: What :attr:`Server.client` is.
Client = redis.Redis | RedisCluster

_servers: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """A Redis or Valkey server, whatever kind of address leads to it.

    Connections are made when they are first needed, are bounded in number, and are not shared with forked children.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        #: Whether the server is believed to know script flags (``#!lua flags=…``); the first call finds out.
        self.script_flags = True
        self._secrets = secrets_of(address)
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._topology_is_old = False
        self._link_kwargs = self._prepare()
        for warning in address.warnings:
            logger.warning("%s: %s", address.masked, warning)
        _servers.add(self)

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any] | None = None) -> Server:
        """Return the server that a URL and options name (see :mod:`celery_zsched.urls`); nothing is connected yet.

        Raises :class:`~celery_zsched.errors.ConfigurationError` with every fault found.
        """
        return cls(parse(url, options))

    @property
    def masked(self) -> str:
        """The URL, safe to print."""
        return self.address.masked

    @property
    def client(self) -> Client:
        """The shared client. Answers are bytes; who finds all connections taken waits for one.

        A command whose answer did not come is never sent again by the client: it may have run.
        """
        client = self._client
        if client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._make_client()
                client = self._client
        return client

    def blocking(self, key: str = "", *, label: str = "") -> Dedicated:
        """Return a new connection to the node that owns ``key``: connected, logged in, outside the pool.

        ``label`` is its name in ``CLIENT LIST``, unless the user has given all connections one (``client_name``).
        The caller closes it, and asks for another when it breaks. Raises translated errors.
        """
        with self.translated("connecting"):
            where: dict[str, Any] = {}
            node = self.node_of(key)
            if node is not None:
                where = {"host": node.host, "port": node.port}
            if not self.address.options.client_name:
                where["label"] = label
            link = Link(**{**self._link_kwargs, "health_check_interval": 0, **where})
            try:
                link.connect()
            except redis.RedisError:
                self._forget_topology()
                raise
            return Dedicated(link, self._forget_topology)

    def node_of(self, key: str = "") -> ClusterNode | None:
        """Return the node of a cluster that owns ``key`` (any, if it is empty); None where there is no cluster.

        Once a node has said that it is another's, the cluster is asked anew. Errors are redis-py's own.
        """
        client = self.client if self.address.kind == "cluster" else None
        if not isinstance(client, RedisCluster):
            return None
        if self._topology_is_old:
            self._topology_is_old = False
            client.nodes_manager.initialize()
        node: ClusterNode = client.get_node_from_key(key) if key else client.get_default_node()
        return node

    def translated(self, doing: str) -> Translated:
        """Return a context manager (and decorator) that turns redis-py's errors into ours.

        ``doing`` says what was being done, for the message: "claim", "connecting".
        """
        return Translated(self.masked, doing, self._secrets)

    def version(self) -> tuple[str, tuple[int, int, int]] | None:
        """Return the server's name (``redis`` or ``valkey``) and version, or None when it will not tell.

        HELLO is open to every user; INFO, which an ACL may refuse (and then log), is asked only where HELLO is unknown.
        """
        with self.translated("asking for the version"):
            try:
                answer = self._ask_one("HELLO")
                facts = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=False))
                name, text = facts[b"server"], facts[b"version"]
            except (redis.ResponseError, KeyError):
                try:
                    facts = self._ask_one("INFO", "server")
                except redis.ResponseError:
                    return None
                name = b"valkey" if "valkey_version" in facts else b"redis"
                text = str(facts.get("valkey_version", facts.get("redis_version", ""))).encode()
        numbers = [int(part) for part in text.decode().split("-")[0].split(".") if part.isdecimal()]
        major, minor, patch = (*numbers, 0, 0, 0)[:3]
        return name.decode(), (major, minor, patch)

    def close(self) -> None:
        """Close every shared connection, and stop being a user of an embedded server.

        The server can be used again afterwards.
        """
        with self._lock:
            client, self._client = self._client, None
        if isinstance(client, RedisCluster):
            client.disconnect_connection_pools()
            client.close()
        elif client is not None:
            client.connection_pool.disconnect()
        release = getattr(self._link_kwargs["locate"], "release", None)
        if release is not None:
            release()

    def __repr__(self) -> str:
        return f"<Server {self.masked}>"

    def _ask_one(self, *command: str) -> Any:
        client = self.client
        if isinstance(client, RedisCluster):
            return client.execute_command(*command, target_nodes=client.get_default_node())
        return client.execute_command(*command)

    def _forget_topology(self) -> None:
        self._topology_is_old = True

    def _forget_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._client = None

    def _prepare(self) -> dict[str, Any]:
        address, options = self.address, self.address.options
        try:
            context = tls_context(address.tls) if address.tls else None
            locate: Any = SentinelRoute(address) if address.kind == "sentinel" else None
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigurationError(
                f"{self.masked}: a TLS file cannot be used ({exc}); check the ssl_… paths"
            ) from exc
        if address.kind == "unix":
            locate = partial(str, address.path)
        elif address.kind == "embedded":
            locate = embedded.Route(address.path, options.executable)
        host, port = address.hosts[0] if address.hosts else ("localhost", 0)
        return {
            "host": host,
            "port": port,
            "db": address.db,
            # A provider even for a plain password: redis-py shows a pool's arguments in its repr.
            "credential_provider": self._credential_provider(),
            "client_name": options.client_name,
            "socket_timeout": options.socket_timeout,
            "socket_connect_timeout": options.socket_connect_timeout,
            "health_check_interval": options.health_check_interval,
            "locate": locate,
            "context": context,
            "keepalive": dict(options.socket_keepalive_options) if options.socket_keepalive else None,
            "retry": no_resend(),
            # RESP2 has all that is used here, and leaves redis-py 8's maintenance notifications and push parsing out.
            "protocol": 2,
            **quiet(),
        }

    def _credential_provider(self) -> Any:
        provider = self.address.options.credential_provider
        if isinstance(provider, str):
            module, _, name = provider.replace(":", ".").rpartition(".")
            try:
                provider = getattr(import_module(module), name)()
            except Exception as exc:
                raise ConfigurationError(
                    f"{self.masked}: credential_provider {provider!r} cannot be imported and called "
                    f"({type(exc).__name__}: {exc}); name a class as package.module:Class"
                ) from exc
        if provider is not None and not callable(getattr(provider, "get_credentials", None)):
            raise ConfigurationError(
                f"{self.masked}: credential_provider is {type(provider).__name__}, which has no get_credentials(); "
                "give a redis.CredentialProvider"
            )
        if provider is None and (self.address.username or self.address.password):
            return redis.UsernamePasswordCredentialProvider(self.address.username, self.address.password)
        return provider

    def _make_client(self) -> Client:
        options = self.address.options
        pool = partial(
            redis.BlockingConnectionPool,
            connection_class=Link,
            max_connections=options.max_connections,
            timeout=options.pool_timeout,
        )
        if self.address.kind == "cluster":
            return self._make_cluster(pool)
        return redis.Redis(
            connection_pool=pool(**self._link_kwargs),
            credential_provider=self._link_kwargs["credential_provider"],
        )

    def _make_cluster(self, pool: partial[redis.BlockingConnectionPool]) -> RedisCluster:
        options = self.address.options
        own = {name: value for name, value in self._link_kwargs.items() if name not in ("host", "port", "db")}
        (host, port), *more = self.address.hosts
        # Only with a URL does redis-py make the nodes' pools by connection_pool_class; ours brings all that a link
        # needs, since the cluster client passes on a fixed list of arguments only.
        arguments: dict[str, Any] = {
            "url": f"redis://{f'[{host}]' if ':' in host else host}:{port}",
            "startup_nodes": [ClusterNode(*other) for other in more],
            "connection_pool_class": partial(pool, **own),
            "credential_provider": own["credential_provider"],
            "protocol": 2,
            "require_full_coverage": options.require_full_coverage,
            "dynamic_startup_nodes": options.dynamic_startup_nodes,
            "address_remap": options.address_remap,
            "retry": no_resend(),
        }
        if int(redis.__version__.split(".")[0]) < 6:
            arguments["cluster_error_retry_attempts"] = 0  # later versions ask the retry rule, and warn at this
        with self.translated("connecting"):
            return RedisCluster(**arguments)


def _forget_all_after_fork() -> None:
    for server in _servers:
        server._forget_after_fork()


os.register_at_fork(after_in_child=_forget_all_after_fork)
