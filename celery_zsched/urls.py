"""A URL and options -> an :class:`Address`: pure, no I/O. Every fault is found at once; no message shows a password.

==============================  =====================================================================================
form                            reaches
==============================  =====================================================================================
``redis://[user:pw@]host/db``   one server (``valkey://`` is the same)
``rediss://…``                  one server by TLS (``valkeys://`` is the same)
``unix:///path?db=N``           one server by a Unix socket (``redis+socket://`` is the same)
``sentinel://h1,h2/service/db`` the primary that sentinels name; the service may stand in ``master_name``, and the hosts
                                as ``sentinel://h1;sentinel://h2``; ``user:pw@`` is for the servers, not the sentinels
``cluster://h1,h2``             a cluster; a few of its nodes are enough
``sentinels:// clusters://``    the same by TLS (``sentinel+tls://`` and ``cluster+tls://`` too)
``embedded://[/directory]``     a private server of this package's own, with its files in the directory
==============================  =====================================================================================

Each may carry the prefix ``zsched+``. Reserved characters in names and passwords are percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ssl import TLSVersion
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from celery_zsched.errors import ConfigurationError
from celery_zsched.options import nearest, read_table
from celery_zsched.server_options import OBJECT_OPTIONS, SECRET_OPTIONS, TLS_OPTIONS, ServerOptions

#: What kind of thing an address leads to.
AddressKind = Literal["tcp", "tls", "unix", "sentinel", "cluster", "embedded"]

#: The prefix under which kombu finds this package's transport.
PREFIX = "zsched+"

#: Scheme -> the kind of address, and whether it must be TLS.
SCHEMES: dict[str, tuple[AddressKind, bool]] = {
    "redis": ("tcp", False),
    "valkey": ("tcp", False),
    "rediss": ("tls", True),
    "valkeys": ("tls", True),
    "unix": ("unix", False),
    "redis+socket": ("unix", False),
    "sentinel": ("sentinel", False),
    "sentinels": ("sentinel", True),
    "sentinel+tls": ("sentinel", True),
    "cluster": ("cluster", False),
    "clusters": ("cluster", True),
    "cluster+tls": ("cluster", True),
    "embedded": ("embedded", False),
}

_SEGMENT = re.compile(r";+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_QUERY = re.compile(r"\?(?=[A-Za-z_]+=)")
_SECRET = re.compile(r"(?i)([?&;][^=&;]*(?:passw|pwd|secret|token)[^=&;]*=)[^&;#]*")
_DEFAULT_PORTS = {"sentinel": 26379}


@dataclass(frozen=True, slots=True)
class Tls:
    """How TLS is done: what is trusted, and who we are."""

    cert_reqs: str
    check_hostname: bool
    ca_certs: str | None = None
    ca_path: str | None = None
    ca_data: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = field(default=None, repr=False)
    min_version: TLSVersion | None = None
    ciphers: str | None = None

    @classmethod
    def of(cls, options: ServerOptions, changes: Mapping[str, Any] | None = None) -> Tls:
        """Return the TLS part of options, with ``ssl_…`` changes on top."""
        values = {name: getattr(options, name) for name in TLS_OPTIONS} | dict(changes or {})
        return cls(**{name.removeprefix("ssl_"): value for name, value in values.items()})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and how to get in. The password is in no ``repr``."""

    kind: AddressKind
    masked: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str | None = None
    db: int = 0
    username: str | None = field(default=None, repr=False)  # a lone one may be a password by mistake
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    service: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    sentinel_tls: Tls | None = None
    options: ServerOptions = field(default_factory=ServerOptions, repr=False)
    warnings: tuple[str, ...] = ()


def mask(url: str) -> str:
    """Return a URL with every password in it replaced by ``***``, however malformed it is."""
    return ";".join(_mask_one(segment) for segment in _SEGMENT.split(url))


def _mask_one(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    query_at = _QUERY.search(rest)
    before, query = (rest[: query_at.start()], rest[query_at.start() :]) if query_at else (rest, "")
    # A password with an unencoded '/', '?' or '#' reaches beyond what a parser takes for the authority, so everything
    # up to the last '@' is taken for the user's part.
    if not before.startswith("/"):
        user, at, where = before.rpartition("@")
        if at:
            name, colon, _ = user.partition(":")
            before = f"{name}:***@{where}" if colon else f"***@{where}"
    return f"{scheme}{mark}{before}" + _SECRET.sub(r"\1***", query)


def parse(url: str, options: Mapping[str, Any] | None = None) -> Address:
    """Return the address that a URL and options name.

    Raises :class:`ConfigurationError` with every fault found: an unknown scheme or option (with the nearest known
    name), a value that cannot be read, parts that contradict each other.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"the server's URL is {type(url).__name__}, not text; give one like redis://host/0")
    masked = mask(url)
    pieces = [_split(piece, masked) for piece in _SEGMENT.split(url.strip().rstrip(";"))]
    faults = [fault for piece in pieces for fault in piece.faults]
    schemes = {piece.scheme for piece in pieces}
    if len(schemes) > 1:
        faults.append(f"{masked}: the hosts have different schemes ({', '.join(sorted(schemes))}); give all the same")
    if faults:
        raise ConfigurationError(*dict.fromkeys(faults))
    return _Reading(url=masked, pieces=pieces, given=dict(options or {})).address()


@dataclass
class _Piece:
    """One ``scheme://…`` of a URL, taken apart."""

    scheme: str = ""
    username: str | None = None
    password: str | None = None
    hosts: list[tuple[str, int]] = field(default_factory=list)
    host_text: str = ""
    path: str = ""
    query: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def _split(url: str, masked: str) -> _Piece:
    piece = _Piece()
    scheme, mark, rest = url.strip().partition("://")
    piece.scheme = scheme.lower().removeprefix(PREFIX)
    if not mark or piece.scheme not in SCHEMES:
        guess = nearest(piece.scheme, SCHEMES) if mark else ""
        named = f"the scheme {piece.scheme!r} is not known{guess}" if mark else "there is no scheme://"
        piece.faults.append(f"{masked}: {named}; use one of {', '.join(f'{name}://' for name in SCHEMES)}")
        return piece
    kind = SCHEMES[piece.scheme][0]
    if "#" in rest:
        piece.faults.append(f"{masked}: holds a bare '#'; write it as %23")
        return piece
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    tail = rest[len(authority) :]
    path, _, query = tail.partition("?")
    if "@" in path and kind not in ("unix", "embedded"):
        piece.faults.append(f"{masked}: a '/' in a user name or password is written as %2F, and a '?' as %3F")
        return piece
    user, at, piece.host_text = authority.rpartition("@")
    try:
        if at:
            name, colon, password = user.partition(":")
            piece.username = unquote(name, errors="strict") or None
            piece.password = unquote(password, errors="strict") if colon else None
        piece.path = unquote(path, errors="strict")
        piece.query = dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        piece.faults.append(f"{masked}: a percent-encoded part is not UTF-8; encode it anew")
    if kind in ("unix", "embedded"):
        return piece
    port = _DEFAULT_PORTS.get(kind, 6379)
    for text in piece.host_text.split(","):
        try:
            piece.hosts.append(_host(text, port))
        except ValueError:
            # The text may be the end of a password that holds a bare ':' or '@', so only its place is named.
            piece.faults.append(
                f"{masked}: a host or port cannot be read; write host:port with a port from 1 to 65535, [address]:port "
                "for IPv6, and percent-encode ':' '/' '?' '#' '@' in a user name or password"
            )
    return piece


def _host(text: str, default_port: int) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:\s]*))(?::(\d*))?", text)
    if match is None:
        raise ValueError(text)
    port = int(match[3]) if match[3] else default_port
    if not 1 <= port <= 65535:
        raise ValueError(text)
    return unquote(match[1] or match[2]) or "localhost", port


@dataclass
class _Reading:
    """Brings the pieces of a URL and the options together; collects every fault on the way."""

    url: str
    pieces: list[_Piece]
    given: dict[str, Any]
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheme = self.pieces[0].scheme
        self.kind, self.must_be_tls = SCHEMES[self.scheme]

    def address(self) -> Address:
        query = {name: value for piece in self.pieces for name, value in piece.query.items()}
        db, service, path = self.path()
        options = self.options(query)
        tls = self.tls(options, query)
        if db is None:
            db = options.virtual_host if options.virtual_host is not None else options.db
        service = service or options.master_name or options.service_name
        username, password = self.credentials(options)
        hosts = tuple(host for piece in self.pieces for host in piece.hosts)
        if len(hosts) > 1 and self.kind not in ("sentinel", "cluster"):
            self.fault(f"{self.scheme}:// takes one host; for several use sentinel:// or cluster://")
        if self.kind == "cluster" and db:
            self.fault(f"a cluster has database 0 only, not {db}")
        sentinel: dict[str, Any] = {}
        if self.kind == "sentinel":
            if not service:
                self.fault("the service's name is missing; add it as sentinel://host/NAME or as option master_name")
            sentinel = self.sentinel(options, tls)
        if self.faults:
            raise ConfigurationError(*dict.fromkeys(self.faults))
        return Address(
            kind="tls" if self.kind == "tcp" and tls else self.kind,
            masked=self.url,
            hosts=hosts,
            path=path,
            db=db,
            username=username,
            password=password,
            tls=tls,
            service=service if self.kind == "sentinel" else None,
            options=options,
            warnings=tuple(self.warnings),
            **sentinel,
        )

    def fault(self, text: str) -> None:
        self.faults.append(f"{self.url}: {text}")

    def path(self) -> tuple[int | None, str | None, str | None]:
        """Return the database, the service and the file path that the URL's path names."""
        path = next((piece.path for piece in reversed(self.pieces) if piece.path.strip("/")), "")
        if self.kind == "unix":
            if self.pieces[0].host_text or not path:
                self.fault(f"the socket's path is missing; write {self.scheme}:///path/to/socket with three slashes")
            return None, None, path
        if self.kind == "embedded":
            where = self.pieces[0].host_text
            if where not in ("", ".", "..", "~"):
                self.fault("the directory follows three slashes: embedded:///directory (or embedded://./directory)")
            return None, None, f"{where}{path}" or None
        parts = [part for part in path.split("/") if part]
        numbers = [part for part in parts if part.isdecimal()]
        names = [part for part in parts if not part.isdecimal()]
        if len(numbers) > 1 or len(names) > (self.kind == "sentinel"):
            want = "/service/number" if self.kind == "sentinel" else "/number"
            self.fault(f"the path {path!r} is not {want}; a database is a number")
            return None, None, None
        return (int(numbers[0]) if numbers else None), (names[0] if names else None), None

    def options(self, query: dict[str, str]) -> ServerOptions:
        given = {name: value for name, value in self.given.items() if value is not None or name == "ssl_cert_reqs"}
        use_ssl = given.get("ssl")
        if isinstance(use_ssl, Mapping):
            nested = {name if name.startswith("ssl_") else f"ssl_{name}": value for name, value in use_ssl.items()}
            for name in nested:
                if name not in TLS_OPTIONS:
                    self.fault(f"{name} is not a known TLS option{nearest(name, TLS_OPTIONS)}")
            given |= {name: value for name, value in nested.items() if name in TLS_OPTIONS}
        values, faults = read_table(ServerOptions, given)
        spelled = {name: value for name, value in query.items() if name not in OBJECT_OPTIONS}
        for name in query.keys() - spelled.keys():
            self.fault(f"{name} cannot be written in a URL; give it as an option")
        more, more_faults = read_table(ServerOptions, spelled)
        for fault in (*faults, *more_faults):
            self.fault(fault)
        if values.get("retry_on_timeout") or more.get("retry_on_timeout"):
            self.warnings.append("retry_on_timeout is left aside: a write that may have arrived is not sent again")
        return ServerOptions(**(values | more))

    def tls(self, options: ServerOptions, query: dict[str, str]) -> Tls | None:
        wanted = options.ssl
        if isinstance(wanted, str):
            wanted = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(wanted.lower())
        if options.ssl is not None and not isinstance(wanted, (bool, Mapping)):
            self.fault("ssl must be True, False or a dictionary of ssl_… options")
        if self.must_be_tls and wanted is False:
            self.fault(f"{self.scheme}:// is TLS, but ssl is False; drop one of them")
        use = self.must_be_tls or isinstance(wanted, Mapping) or wanted is True
        if use and self.kind in ("unix", "embedded"):
            self.fault(f"{self.scheme}:// has no TLS; drop the ssl option")
            return None
        if not use:
            stray = [name for name in TLS_OPTIONS if name in query or self.given.get(name) is not None]
            if stray:
                secure = {"redis": "rediss", "valkey": "valkeys", "sentinel": "sentinels", "cluster": "clusters"}
                remedy = f"use {secure[self.scheme]}://" if self.scheme in secure else "drop it"
                self.fault(f"{', '.join(stray)} given, but {self.scheme}:// is not TLS; {remedy}")
            return None
        tls = Tls.of(options)
        if tls.cert_reqs != "required":
            self.warnings.append(
                f"ssl_cert_reqs={tls.cert_reqs}: the server's certificate is not verified, so anybody on the way can "
                "read and change what is sent; set ssl_ca_certs instead"
            )
        return tls

    def credentials(self, options: ServerOptions) -> tuple[str | None, str | None]:
        named = {(piece.username, piece.password) for piece in self.pieces} - {(None, None)}
        if len(named) > 1:
            self.fault("the hosts carry different user names or passwords; give them once")
        username, password = next(iter(named), (options.username, options.password))
        if password is None:
            password = options.password
        if options.credential_provider is not None:
            if username or password:
                self.warnings.append("credential_provider is given, so the user name and password are left aside")
            return None, None
        return username, password

    def sentinel(self, options: ServerOptions, tls: Tls | None) -> dict[str, Any]:
        extra = dict(options.sentinel_kwargs)
        known = {"username", "password", "ssl", "socket_timeout", "socket_connect_timeout", *TLS_OPTIONS}
        values, faults = read_table(ServerOptions, {name: value for name, value in extra.items() if name in known})
        faults += [
            f"{name} is not a known option{nearest(name, known)}"
            for name in extra
            if name not in known and not name.startswith("socket_")
        ]
        for fault in faults:
            self.fault(f"sentinel_kwargs: {fault}")
        use = options.sentinel_ssl if options.sentinel_ssl is not None else values.get("ssl")
        if use is None:
            use = tls is not None
        if self.must_be_tls and not use:
            self.warnings.append("the sentinels are asked without TLS, for sentinel_ssl says so")
        changes = {name: value for name, value in values.items() if name in TLS_OPTIONS}
        username, password = options.sentinel_username, options.sentinel_password
        return {
            "sentinel_username": username if username is not None else values.get("username"),
            "sentinel_password": password if password is not None else values.get("password"),
            "sentinel_tls": Tls.of(options, changes) if use else None,
        }


def secrets_of(address: Address) -> tuple[str, ...]:
    """Return every password of an address, so that texts from elsewhere can be cleaned of them."""
    options = [getattr(address.options, name) for name in SECRET_OPTIONS]
    return tuple({secret for secret in (address.password, address.sentinel_password, *options) if secret})
