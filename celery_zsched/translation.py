"""redis-py's errors -> ours: what was being done, with which server, what it said, and what to do. No passwords."""

from __future__ import annotations

import re
from contextlib import ContextDecorator
from types import TracebackType

from redis import exceptions as theirs

from celery_zsched.errors import (
    ServerAuthenticationError,
    ServerError,
    ServerFullError,
    ServerUnavailableError,
    ZschedError,
)

#: An error's code, as the server sends it or as Redis 6.2 hides it in a script's error, and what to do about it.
_CODES: dict[str, tuple[type[ServerError], str]] = {
    "OOM": (ServerFullError, "the server is at maxmemory; free memory or raise maxmemory, then retry"),
    "READONLY": (ServerUnavailableError, "it is a replica now; the primary is looked for at the next try"),
    "LOADING": (ServerUnavailableError, "it is still reading its data; retry in a moment"),
    "MASTERDOWN": (ServerUnavailableError, "it is a replica without its primary; retry after the failover"),
    "CLUSTERDOWN": (ServerUnavailableError, "the cluster has slots without a primary; see CLUSTER INFO, then retry"),
    "TRYAGAIN": (ServerUnavailableError, "the cluster is moving slots; retry in a moment"),
    "MOVED": (ServerUnavailableError, "the cluster has moved the key to another node; retry"),
    "ASK": (ServerUnavailableError, "the cluster is moving the key to another node; retry"),
    "UNBLOCKED": (ServerUnavailableError, "its role has changed; the primary is looked for at the next try"),
    "BUSY": (ServerUnavailableError, "a script keeps it busy; see SCRIPT KILL, then retry"),
    "MISCONF": (ServerUnavailableError, "it cannot write to its disk and refuses changes; see its log, then retry"),
    "NOREPLICAS": (ServerUnavailableError, "it has too few replicas to accept changes; see min-replicas-to-write"),
    "NOAUTH": (ServerAuthenticationError, "give the user name and password in the URL"),
    "WRONGPASS": (ServerAuthenticationError, "check the user name and password in the URL"),
    "NOPERM": (ServerAuthenticationError, "grant the user the command, key or channel (see ACL LOG on the server)"),
}
#: What redis-py raises: not all of it has one base.
_FOREIGN = (theirs.RedisError, theirs.RedisClusterException, OSError)
_CODE = re.compile(rf"(?:^|\s-|\s)({'|'.join(_CODES)})\b")
_REACH = "check that the server runs, and the host and port in the URL"


class WrappedError(theirs.ConnectionError):
    """Carries an error of ours through redis-py, which would take it for one of the socket's and reword it."""

    def __init__(self, ours: ZschedError) -> None:
        super().__init__(str(ours))
        self.ours = ours


def _fits(exc: BaseException) -> tuple[type[ServerError], str]:
    text = str(exc)
    if isinstance(exc, theirs.ResponseError):
        code = _CODE.search(text[:300])
        if code:
            return _CODES[code[1]]
    if isinstance(exc, theirs.RedisClusterException) and isinstance(exc.__cause__, theirs.RedisError):
        return _fits(exc.__cause__)  # what the last node asked for the topology said
    # redis-py cuts the code off where it has a class for it.
    name = type(exc).__name__
    for code_name, names in _CLASSES.items():
        if name in names:
            return _CODES[code_name]
    if isinstance(exc, (theirs.AuthenticationError, theirs.AuthorizationError)) or "AUTH <password> called" in text:
        return ServerAuthenticationError, "check the user name and password in the URL"
    if isinstance(exc, theirs.ResponseError):
        return ServerError, "see the server's log"
    if "No connection available" in text:
        return ServerUnavailableError, "all pooled connections were in use for pool_timeout; raise max_connections"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return ServerUnavailableError, "its certificate is not trusted; name its authority in ssl_ca_certs"
    if "SSL" in text or "TLS" in text:
        return ServerUnavailableError, "TLS failed; check that this port speaks TLS, and both sides' certificates"
    if isinstance(exc, (theirs.TimeoutError, TimeoutError)):
        return (
            ServerUnavailableError,
            "no answer in time; see socket_timeout, and whether the server or the way is slow",
        )
    if isinstance(exc, (theirs.ConnectionError, theirs.ClusterError, theirs.RedisClusterException, OSError)):
        return ServerUnavailableError, _REACH
    return ServerError, "see the server's log"


_CLASSES: dict[str, tuple[str, ...]] = {
    "OOM": ("OutOfMemoryError",),
    "READONLY": ("ReadOnlyError",),
    "LOADING": ("BusyLoadingError",),
    "MASTERDOWN": ("MasterDownError",),
    "CLUSTERDOWN": ("ClusterDownError", "SlotNotCoveredError"),
    "TRYAGAIN": ("TryAgainError",),
    "MOVED": ("MovedError",),
    "ASK": ("AskError",),
    "NOPERM": ("NoPermissionError",),
}


def translate(exc: BaseException, masked_url: str, doing: str, secrets: tuple[str, ...] = ()) -> ZschedError:
    """Return our error for one of redis-py's: its message names the act, the server, the reason and the remedy."""
    if isinstance(exc, ZschedError):
        return exc
    if isinstance(exc, WrappedError):
        return exc.ours
    kind, remedy = _fits(exc)
    said = " ".join((str(exc) or type(exc).__name__).split())
    said = _clean(said if len(said) <= 300 else f"{said[:297]}...", secrets).rstrip(".")
    return kind(f"{doing} failed at {masked_url}: {said}; {remedy}")


def _clean(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


class Translated(ContextDecorator):
    """Turns the redis-py errors of a block or function into ours. Others pass."""

    __slots__ = ("_doing", "_masked", "_secrets")

    def __init__(self, masked: str, doing: str, secrets: tuple[str, ...]) -> None:
        self._masked = masked
        self._doing = doing
        self._secrets = secrets

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None or isinstance(exc, ZschedError) or not isinstance(exc, _FOREIGN):
            return
        error = translate(exc, self._masked, self._doing, self._secrets)
        if isinstance(exc, WrappedError) or any(secret in _chain(exc) for secret in self._secrets):
            # The cause would say it twice, or show a password in the traceback; so it is left out.
            raise error from None
        raise error from exc


def _chain(exc: BaseException | None) -> str:
    texts: list[str] = []
    while exc is not None and len(texts) < 20:
        texts.append(repr(exc))
        exc = exc.__cause__ or exc.__context__
    return " ".join(texts)
