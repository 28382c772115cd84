"""One connection to a server: how it finds its server, how it notices that the other end is gone.

redis-py does the protocol, the pool and the log-in; this module does the socket, because what is wanted of it differs
between redis-py 5 and 8 in a dozen defaults: TLS that verifies, keep-alive that is tuned, and an address that is asked
for anew at each connect (Sentinel, embedded).
"""

from __future__ import annotations

import inspect
import re
import socket
import ssl
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import MovedError, ResponseError
from redis.retry import Retry

from celery_zsched.errors import ZschedError
from celery_zsched.translation import WrappedError

if TYPE_CHECKING:
    from celery_zsched.urls import Address, Tls

#: Keep-alive: a silent peer is probed after so many seconds, so often, so many times.
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
#: What was sent and not acknowledged for so long (milliseconds) ends the connection, where the system can do that.
USER_TIMEOUT_MS = 30_000

#: The start of an error that says that this server may not be written to any more. Redis 6.2 hides it in a script's.
_DEMOTED = re.compile(r"(?:^|-|\b)(?:READONLY|MASTERDOWN|UNBLOCKED)\b|replica is not|read only replica")

#: Where to connect to: a host and port, or the path of a Unix socket.
Target = tuple[str, int] | str


def no_resend() -> Retry:
    """Return the retry rule of every connection: none.

    redis-py would send a command again after a time-out, though it may have run. A pooled connection that the server
    closed while it was idle is found on the way out of the pool, before anything is sent, and is made anew there.
    """
    return Retry(NoBackoff(), 0)


def quiet() -> dict[str, Any]:
    """Return the arguments that keep redis-py from announcing itself: two round trips saved at each connect."""
    if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters:
        return {"driver_info": None}
    return {"lib_name": None, "lib_version": None}


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context for an address; raises ``OSError`` (``ssl.SSLError``) when a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_hostname and tls.cert_reqs != "none"
    context.verify_mode = ssl.VerifyMode[f"CERT_{tls.cert_reqs.upper()}"]
    if tls.ca_certs or tls.ca_path or tls.ca_data:
        context.load_verify_locations(cafile=tls.ca_certs, capath=tls.ca_path, cadata=tls.ca_data)
    else:
        context.load_default_certs()
    if tls.certfile:
        # A key that needs a password which was not given must fail, not ask at a terminal.
        context.load_cert_chain(tls.certfile, tls.keyfile, password=tls.password or "")
    if tls.min_version is not None:
        context.minimum_version = tls.min_version
    if tls.ciphers:
        context.set_ciphers(tls.ciphers)
    return context


class Link(redis.Connection):
    """A connection of ours.

    ``locate`` says where the server is, and is asked at every connect; without it, ``host`` and ``port`` say so.
    ``label`` is its name in ``CLIENT LIST``, where the user may give one; ``labelled`` says whether it has it.
    """

    def __init__(
        self,
        *,
        locate: Callable[[], Target] | None = None,
        context: ssl.SSLContext | None = None,
        keepalive: dict[int, int] | None = None,
        label: str = "",
        **kwargs: Any,
    ) -> None:
        self._locate = locate
        self._context = context
        self._keepalive = keepalive
        self._path: str | None = None
        self._demoted = False
        self._label = label
        self.labelled = False
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]

    def connect(self, *args: Any, **kwargs: Any) -> None:
        """Connect; a connection whose server was demoted meanwhile is made anew, to wherever the primary is now."""
        if self._demoted:
            self.disconnect()
        was_open = self._sock is not None
        super().connect(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self._label and not was_open:
            self._introduce()

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection."""
        self._demoted = False
        super().disconnect(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _introduce(self) -> None:
        # An ACL or a proxy that knows no such command must not keep anybody from working.
        self.send_command("CLIENT", "SETNAME", self._label, check_health=False)
        try:
            self.read_response()
            self.labelled = True
        except ResponseError:
            self.labelled = False

    def check_health(self) -> None:
        """Try a connection that was idle; one that does not answer is made anew, for nothing was sent on it yet."""
        try:
            super().check_health()  # type: ignore[no-untyped-call]
        except (redis.ConnectionError, redis.TimeoutError):
            self.next_health_check = sys.maxsize  # the new one is not tried in turn; its first answer sets this anew
            self.connect()

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next answer. An error that tells of a demoted server is raised, and remembered."""
        try:
            return super().read_response(*args, **kwargs)
        except ResponseError as exc:
            if is_demoted(exc):
                self._demoted = True
            raise

    def _connect(self) -> socket.socket:
        try:
            target: Target = self._locate() if self._locate else (self.host, self.port)
        except ZschedError as exc:
            raise WrappedError(exc) from exc
        if isinstance(target, str):
            self._path = target
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            return self._open(link, target)
        self.host, self.port = target
        failure: OSError | None = None
        for family, kind, protocol, _, where in socket.getaddrinfo(*target, 0, socket.SOCK_STREAM):
            try:
                return self._open(socket.socket(family, kind, protocol), where)
            except OSError as exc:
                failure = exc
        raise failure or OSError(f"{target[0]} has no address")

    def _open(self, link: socket.socket, where: Any) -> socket.socket:
        try:
            link.settimeout(self.socket_connect_timeout)
            if link.family != socket.AF_UNIX:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._keepalive is not None:
                    keep_alive(link, self._keepalive)
            link.connect(where)
            if self._context is not None:
                link = self._shake_hands(link, self._context)
            link.settimeout(self.socket_timeout)
        except BaseException:
            link.close()
            raise
        return link

    def _shake_hands(self, link: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        try:
            secure = context.wrap_socket(link, server_hostname=self.host)
            try:
                self._read_tickets(secure)
            except BaseException:
                secure.close()
                raise
        except TimeoutError:
            # What a server without TLS does: it waits for the end of the line.
            raise redis.TimeoutError(f"{self._host_error()} did not answer the TLS handshake") from None
        return secure

    @staticmethod
    def _read_tickets(secure: ssl.SSLSocket) -> None:
        # TLS 1.3 sends session tickets after the handshake. Unread, they look like an answer that nobody asked for, and
        # redis-py 8 drops the connection; any answer, be it an error, stands behind them.
        secure.sendall(b"PING\r\n")
        said = b""
        while not said.endswith(b"\n"):
            piece = secure.recv(512)
            if not piece:
                raise OSError("the server closed the connection after the TLS handshake")
            said += piece

    def _host_error(self) -> str:
        return self._path or f"{self.host}:{self.port}"

    def repr_pieces(self) -> list[tuple[str, Any]]:
        """Return what ``repr`` shows."""
        return [("server", self._host_error()), ("db", self.db)]


def keep_alive(link: socket.socket, options: dict[int, int]) -> None:
    """Make the system notice a dead peer on a TCP socket; what a platform does not know is left out."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    named = {getattr(socket, name): value for name, value in KEEPALIVE.items() if hasattr(socket, name)}
    for option, value in (named | options).items():
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def is_demoted(exc: Exception) -> bool:
    """Return whether an error says that this server is no primary, so that the primary must be looked for."""
    return _DEMOTED.search(str(exc)[:300]) is not None or type(exc).__name__ in ("ReadOnlyError", "MasterDownError")


class Dedicated:
    """A connection for one caller, already connected and logged in, for commands that block long.

    Once closed, or broken, it stays so: ask :meth:`~celery_zsched.connection.Server.blocking` for another, which goes
    to wherever the key is by then. Errors are redis-py's own; use it within ``server.translated(…)``.
    """

    __slots__ = ("_link", "_moved")

    def __init__(self, link: Link, moved: Callable[[], None]) -> None:
        self._link = link
        self._moved = moved

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return self._link._sock is not None

    @property
    def labelled(self) -> bool:
        """Whether the connection has the name it was to have in ``CLIENT LIST``."""
        return self._link.labelled

    def fileno(self) -> int:
        """Return the socket's number, for a poller."""
        return int(self._socket().fileno())

    def pack_command(self, *args: Any) -> list[bytes]:
        """Return a command as bytes, to be sent with :meth:`send_packed_command`."""
        packed: list[bytes] = self._link.pack_command(*args)
        return packed

    def pack_commands(self, commands: Iterable[tuple[Any, ...]]) -> list[bytes]:
        """Return several commands as bytes, to be sent in one go."""
        packed: list[bytes] = self._link.pack_commands(commands)
        return packed

    def send_command(self, *args: Any) -> None:
        """Send one command; its answer is yet to be read."""
        self.send_packed_command(self._link.pack_command(*args))

    def send_packed_command(self, packed: Any) -> None:
        """Send what ``pack_command`` or ``pack_commands`` returned."""
        self._socket()
        self._link.send_packed_command(packed, check_health=False)

    def can_read(self, timeout: float = 0) -> bool:
        """Return whether an answer (or a part of one) is there within ``timeout`` seconds; the link stays usable."""
        self._socket()
        return bool(self._link.can_read(timeout))

    def read_response(self, timeout: float | None = None, **kwargs: Any) -> Any:
        """Return the next answer.

        When none has begun after ``timeout`` seconds (the ``socket_timeout`` option when none is given), the
        connection is closed and redis-py's ``TimeoutError`` raised: a link that is silent beyond what its command may
        block is dead, whatever its socket says.
        """
        if timeout is not None and not self.can_read(timeout):
            self.close()
            raise redis.TimeoutError(f"no answer from {self._link._host_error()} within {timeout:g} s")
        self._socket()
        try:
            return self._link.read_response(**kwargs)
        except ResponseError as exc:
            if isinstance(exc, MovedError):
                self._moved()
            elif str(exc).startswith("MOVED "):
                # Before redis-py 6 only the cluster client's own parser knows this error.
                self._moved()
                raise MovedError(str(exc)[6:]) from None
            raise

    def close(self) -> None:
        """Close the connection."""
        self._link.disconnect()

    disconnect = close

    def __enter__(self) -> Dedicated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Dedicated {self._link._host_error()}>"

    def _socket(self) -> socket.socket:
        link: socket.socket | None = getattr(self._link, "_sock", None)
        if link is None:
            raise redis.ConnectionError(f"the connection to {self._link._host_error()} is closed")
        return link


class SentinelRoute:
    """Asks sentinels where the primary is: whoever answered last is asked first."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._hosts = list(address.hosts)
        extra = address.options.sentinel_kwargs
        self._kwargs: dict[str, Any] = {
            "username": address.sentinel_username,
            "password": address.sentinel_password,
            "context": tls_context(address.sentinel_tls) if address.sentinel_tls else None,
            "socket_timeout": extra.get("socket_timeout", address.options.socket_timeout),
            "socket_connect_timeout": extra.get("socket_connect_timeout", address.options.socket_connect_timeout),
            "retry": no_resend(),
            "protocol": 2,
            **quiet(),
        }

    def __call__(self) -> Target:
        """Return the primary's host and port; raises redis-py's ``ConnectionError`` when no sentinel names one."""
        said: list[str] = []
        for host, port in tuple(self._hosts):
            link = Link(host=host, port=port, **self._kwargs)
            try:
                link.connect()
                link.send_command("SENTINEL", "MASTER", self._address.service)
                target = self._read(link.read_response(), said)
            except redis.RedisError as exc:
                said.append(f"{host}:{port} says {exc}")
                continue
            finally:
                link.disconnect()
            if target is not None:
                self._hosts.sort(key=lambda known, first=(host, port): known != first)  # type: ignore[misc]
                return target
        raise redis.ConnectionError(f"no sentinel names a primary of {self._address.service!r}: {'; '.join(said)}")

    def _read(self, answer: list[bytes], said: list[str]) -> Target | None:
        facts = {key.decode(): value.decode() for key, value in zip(answer[::2], answer[1::2], strict=True)}
        flags = facts["flags"].split(",")
        others = int(facts["num-other-sentinels"])
        if "master" not in flags or "s_down" in flags or "o_down" in flags:
            said.append(f"the primary {facts['ip']}:{facts['port']} is marked {facts['flags']}")
            return None
        if others < self._address.options.min_other_sentinels:
            said.append(f"a sentinel knows {others} others only (min_other_sentinels)")
            return None
        return facts["ip"], int(facts["port"])
