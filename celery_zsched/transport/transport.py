"""The transport: kombu's connection to a broker on Redis or Valkey."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import redis
from kombu.connection import resolve_aliases
from kombu.transport import virtual

from celery_zsched.errors import ConfigurationError, ServerError, ServerUnavailableError
from celery_zsched.transport.channel import Channel
from celery_zsched.transport.poller import Poller
from celery_zsched.transport.sending import read_headers
from celery_zsched.transport.shared import Broker
from celery_zsched.transport.worker import install
from celery_zsched.urls import mask as masked

#: What kombu's URLs of this transport begin with.
ALIAS = "zsched"

# What monitors read as the transport's name: they look for one they know, and ask for queue lengths accordingly.
resolve_aliases.update({ALIAS: "redis", "celery_zsched:Transport": "redis"})


class Transport(virtual.Transport):
    """One connection. Its channels share the process's broker, so it costs little."""

    Channel = Channel

    can_parse_url = True
    default_port = 6379
    polling_interval = None
    driver_type = "redis"
    driver_name = "celery-zsched"

    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
    )
    connection_errors = (
        *virtual.Transport.connection_errors,
        ServerUnavailableError,
        redis.ConnectionError,
        redis.TimeoutError,
        OSError,
    )
    channel_errors = (*virtual.Transport.channel_errors, ServerError, redis.ResponseError)
    # kombu tries again after the first kind. The second it only translates: settings do not mend themselves.
    recoverable_connection_errors = connection_errors + channel_errors
    recoverable_channel_errors = (ConfigurationError,)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.url = url_of(client)
        if client.hostname and "://" in client.hostname and not client.uri_prefix:
            client.uri_prefix = ALIAS  # a plain URL with the transport named apart: say what it is
        if self.url.startswith(("sentinel", "cluster")):
            client.cycle = None  # the hosts of the URL are one broker, and not several to choose from
        elif client.cycle is not None and not isinstance(client.cycle, Alternatives):
            client.cycle = Alternatives(client.cycle)
        self._broker: Broker | None = None
        self._poller: Poller | None = None
        self._open = False
        #: Is told of messages that were set aside, if somebody wants to know.
        self.buried_hook: Callable[[str, Sequence[str]], None] | None = None
        install()

    @property
    def broker(self) -> Broker:
        """The process's broker."""
        if self._broker is None:
            options = dict(self.client.transport_options)
            if self.client.ssl:
                options["ssl"] = self.client.ssl
            self._broker = Broker.of(self.url, options)
        return self._broker

    @property
    def poller(self) -> Poller:
        """What makes this connection's consumers go."""
        if self._poller is None:
            self._poller = Poller(self, read_headers)
        return self._poller

    def driver_version(self) -> str:
        """Return the version of this package."""
        from celery_zsched import __version__

        return __version__

    def establish_connection(self) -> Any:
        """Connect, and see that the server answers."""
        self.broker.look_at_clock()
        if not self._open:
            self._open = True
            self.broker.opened()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close the channels and the links."""
        for channels in (self._avail_channels, self.channels):
            while channels:
                channels.pop().close()
        if self._broker is not None:
            self._broker.keeper.finish()  # where the server does not answer, the last acks are tried on
        if self._poller is not None:
            self._poller.close()
            self._poller = None
        if self._open:
            self._open = False
            self.broker.closed()

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Wait for one event and deliver it; raise ``TimeoutError`` when there is none in ``timeout`` seconds."""
        self.poller.drain(timeout)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Be driven by Celery's event loop."""
        self.poller.join(loop)

    def on_buried(self, queue: str, ids: Sequence[str]) -> None:
        """Hear of messages that were set aside as dead by this connection's claims."""
        if self.buried_hook is not None:
            self.buried_hook(queue, ids)

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL for people."""
        shown = self.url if include_password else masked(self.url).replace(":***@", f":{mask}@")
        return f"{ALIAS}+{shown}"

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What kombu shows for what was not given."""
        return {"hostname": "localhost", "port": self.default_port, "virtual_host": "/"}


class Alternatives:
    """The URLs that a connection tries in turn: kombu's own choice, remembered whole and with the transport named."""

    def __init__(self, urls: Iterator[str]) -> None:
        self._urls = urls
        self.current: str | None = None

    def __iter__(self) -> Alternatives:
        return self

    def __next__(self) -> str:
        url = str(next(self._urls))
        self.current = url.removeprefix(f"{ALIAS}+")
        # kombu would take the bare scheme for one of its own transports.
        return f"{ALIAS}+{self.current}"


def url_of(client: Any) -> str:
    """Return the URL that a kombu connection is for, without the transport's own prefix."""
    if isinstance(client.cycle, Alternatives) and client.cycle.current is not None:
        return client.cycle.current
    hostname = client.hostname or ""
    if "://" in hostname:
        url = str(hostname).removeprefix(f"{ALIAS}+")
        if url.startswith(("sentinel", "cluster")) and len(client.alt or ()) > 1:
            return ";".join(str(one).removeprefix(f"{ALIAS}+") for one in client.alt)
        return url
    scheme = client.transport_cls if isinstance(client.transport_cls, str) else "redis"
    scheme = scheme.removeprefix(f"{ALIAS}+") if scheme.startswith(f"{ALIAS}+") else "redis"
    user = quote(client.userid or "", safe="")
    if client.password:
        user += ":" + quote(client.password() if callable(client.password) else client.password, safe="")
    if not hostname and scheme != "unix":  # a socket has a path only
        hostname = "localhost"
    where = f"{hostname}:{client.port}" if client.port else hostname
    path = (client.virtual_host or "").strip("/")
    return f"{scheme}://{user}{'@' if user else ''}{where}/{quote(path)}"
