"""URLs and options become addresses; bad ones become one clear error; passwords never show."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_zsched.errors import ConfigurationError
from celery_zsched.server_options import ServerOptions, split_options
from celery_zsched.urls import SCHEMES, Address, mask, parse, secrets_of


def faults_of(url: Any, options: dict[str, Any] | None = None) -> list[str]:
    """Return the faults that a URL and options raise."""
    with pytest.raises(ConfigurationError) as caught:
        parse(url, options)
    return list(caught.value.faults)


@pytest.mark.parametrize(
    ("url", "kind", "facts"),
    [
        ("redis://", "tcp", {"hosts": (("localhost", 6379),), "db": 0}),
        ("redis://h", "tcp", {"hosts": (("h", 6379),), "tls": None}),
        ("redis://h:1234/5", "tcp", {"hosts": (("h", 1234),), "db": 5}),
        ("redis://h?db=7", "tcp", {"db": 7}),
        ("redis://h/?virtual_host=7", "tcp", {"db": 7}),
        ("redis://[::1]:99/1", "tcp", {"hosts": (("::1", 99),), "db": 1}),
        ("REDIS://h", "tcp", {"hosts": (("h", 6379),)}),
        ("valkey://u:pw@h/3", "tcp", {"username": "u", "password": "pw", "db": 3}),
        ("redis://:pw@h", "tcp", {"username": None, "password": "pw"}),
        ("redis://u@h", "tcp", {"username": "u", "password": None}),
        ("redis://h?username=u&password=pw", "tcp", {"username": "u", "password": "pw"}),
        ("redis://a%40b:p%2F%3A%3F%23%40%25w@h", "tcp", {"username": "a@b", "password": "p/:?#@%w"}),
        ("redis://:p%C3%A4%20ss@h", "tcp", {"password": "pä ss"}),
        ("rediss://h", "tls", {"hosts": (("h", 6379),)}),
        ("valkeys://h:1", "tls", {"hosts": (("h", 1),)}),
        ("unix:///tmp/a.sock", "unix", {"path": "/tmp/a.sock", "db": 0}),
        ("unix://u:pw@/tmp/a%20b.sock?db=2", "unix", {"path": "/tmp/a b.sock", "db": 2, "password": "pw"}),
        ("redis+socket:///tmp/a.sock?virtual_host=2", "unix", {"path": "/tmp/a.sock", "db": 2}),
        ("sentinel://h/m", "sentinel", {"hosts": (("h", 26379),), "service": "m", "db": 0}),
        ("sentinel://:pw@a,b:1/m/3", "sentinel", {"hosts": (("a", 26379), ("b", 1)), "db": 3, "password": "pw"}),
        (
            "sentinel://:pw@a:1;sentinel://b:2/4?master_name=m",
            "sentinel",
            {"hosts": (("a", 1), ("b", 2)), "service": "m", "db": 4, "password": "pw"},
        ),
        ("sentinels://h/m", "sentinel", {"sentinel_tls": True, "tls": True}),
        ("sentinel+tls://h/m", "sentinel", {"sentinel_tls": True, "tls": True}),
        ("cluster://a:1,b:2", "cluster", {"hosts": (("a", 1), ("b", 2))}),
        ("cluster://a:1;cluster://b:2/0", "cluster", {"hosts": (("a", 1), ("b", 2))}),
        ("clusters://a", "cluster", {"tls": True}),
        ("cluster+tls://a", "cluster", {"tls": True}),
        ("embedded://", "embedded", {"path": None}),
        ("embedded:///srv/my%20dir", "embedded", {"path": "/srv/my dir"}),
        ("embedded:///srv/x?db=3", "embedded", {"path": "/srv/x", "db": 3}),
        ("embedded://./here", "embedded", {"path": "./here"}),
        ("embedded://~/here", "embedded", {"path": "~/here"}),
    ],
)
@pytest.mark.parametrize("prefix", ["", "zsched+"])
def test_every_form_is_read(prefix: str, url: str, kind: str, facts: dict[str, Any]) -> None:
    """Each scheme, with and without the prefix, gives the parts that it names."""
    address = parse(prefix + url)
    assert address.kind == kind
    for name, value in facts.items():
        found = getattr(address, name)
        assert found is not None if value is True else found == value, name


@pytest.mark.parametrize("scheme", [name for name, (_, tls) in SCHEMES.items() if tls])
def test_a_tls_scheme_verifies_unless_asked_otherwise(scheme: str) -> None:
    """TLS is on, certificates and host names are checked, and asking for less gives a warning."""
    strict = parse(f"{scheme}://h/m" if scheme.startswith("sentinel") else f"{scheme}://h")
    assert strict.tls is not None
    assert (strict.tls.cert_reqs, strict.tls.check_hostname, strict.warnings) == ("required", True, ())
    lax = parse(f"{scheme}://h", {"ssl_cert_reqs": "none", "master_name": "m"})
    assert lax.tls is not None and lax.tls.cert_reqs == "none"
    assert "not verified" in lax.warnings[0]


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("none", "none"),
        ("CERT_NONE", "none"),
        (ssl.CERT_NONE, "none"),
        (None, "none"),
        ("optional", "optional"),
        (ssl.CERT_OPTIONAL, "optional"),
        ("CERT_REQUIRED", "required"),
        ("Required", "required"),
        (ssl.CERT_REQUIRED, "required"),
    ],
)
def test_cert_reqs_in_every_spelling(spelled: Any, meant: str) -> None:
    """Celery's, kombu's and redis-py's ways to say how a certificate is verified mean the same, wherever they stand."""
    for options in ({"ssl_cert_reqs": spelled}, {"ssl": {"ssl_cert_reqs": spelled}}, {"ssl": {"cert_reqs": spelled}}):
        tls = parse("rediss://h", options).tls
        assert tls is not None and tls.cert_reqs == meant
    if isinstance(spelled, str):
        tls = parse(f"rediss://h?ssl_cert_reqs={spelled}").tls
        assert tls is not None and tls.cert_reqs == meant


def test_a_broker_use_ssl_dictionary_makes_a_plain_scheme_tls() -> None:
    """``broker_use_ssl`` on redis:// is TLS, as with kombu."""
    address = parse(
        "redis://h", {"ssl": {"ssl_ca_certs": "/ca.pem", "ssl_certfile": "/c.pem", "ssl_keyfile": "/k.pem"}}
    )
    assert address.kind == "tls"
    assert address.tls is not None
    assert (address.tls.ca_certs, address.tls.certfile, address.tls.keyfile) == ("/ca.pem", "/c.pem", "/k.pem")


def test_sentinels_have_their_own_credentials_and_tls() -> None:
    """What is meant for the sentinels, by option or in kombu's sentinel_kwargs, does not reach the servers."""
    by_option = parse(
        "sentinels://u:a@h/m", {"sentinel_password": "b", "sentinel_username": "s", "sentinel_ssl": False}
    )
    assert (by_option.password, by_option.sentinel_username, by_option.sentinel_password) == ("a", "s", "b")
    assert by_option.tls is not None and by_option.sentinel_tls is None and by_option.warnings
    by_kwargs = parse("sentinel://:a@h/m", {"sentinel_kwargs": {"password": "b", "ssl": True, "ssl_ca_certs": "/x"}})
    assert (by_kwargs.password, by_kwargs.sentinel_password) == ("a", "b")
    assert by_kwargs.tls is None and by_kwargs.sentinel_tls is not None and by_kwargs.sentinel_tls.ca_certs == "/x"


def test_the_url_wins_over_options_and_none_means_the_default() -> None:
    """The URL's query is stronger than the mapping, and None is as good as nothing."""
    address = parse("redis://h?socket_timeout=3", {"socket_timeout": 9, "max_connections": None, "db": 4})
    assert (address.options.socket_timeout, address.options.max_connections, address.db) == (3.0, 10, 4)


def test_a_credential_provider_replaces_the_password() -> None:
    """As with kombu, a provider wins, and that is said."""
    address = parse("redis://u:pw@h", {"credential_provider": "package.module:Provider"})
    assert (address.username, address.password) == (None, None)
    assert "credential_provider" in address.warnings[0]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (None, ["NoneType"]),
        ("", ["scheme://"]),
        ("localhost:6379", ["scheme://"]),
        ("rdis://h", ["'rdis'", "did you mean redis"]),
        ("amqp://h", ["'amqp'", "redis://"]),
        ("redis://h:x", ["port"]),
        ("redis://h:0", ["port"]),
        ("redis://h:70000", ["port"]),
        ("redis://h:1:2", ["port"]),
        ("redis://[::1", ["IPv6"]),
        ("redis://h/name", ["'/name'", "number"]),
        ("redis://h/1/2", ["'/1/2'", "number"]),
        ("redis://h/-1", ["'/-1'"]),
        ("redis://a,b", ["one host"]),
        ("redis://a;redis://b", ["one host"]),
        ("redis://a;rediss://b", ["different schemes"]),
        ("redis://:pw/x@h", ["%2F"]),
        ("redis://:p#w@h", ["%23"]),
        ("redis://:%ff@h", ["UTF-8"]),
        ("redis://h?socket_timeot=3", ["socket_timeot", "did you mean socket_timeout"]),
        ("redis://h?socket_timeout=soon", ["socket_timeout", "'soon'", "seconds"]),
        ("redis://h?sentinel_kwargs=x", ["sentinel_kwargs", "option"]),
        ("redis://h?ssl_ca_certs=/x", ["ssl_ca_certs", "rediss://"]),
        ("redis://h?ssl=maybe", ["ssl must be"]),
        ("rediss://h?ssl=false", ["TLS", "False"]),
        ("rediss://h?ssl_cert_reqs=maybe", ["ssl_cert_reqs", "'maybe'", "'required'"]),
        ("unix://tmp/a.sock", ["three slashes"]),
        ("unix://", ["path"]),
        ("unix:///a?ssl=true", ["no TLS"]),
        ("sentinel://h", ["master_name"]),
        ("sentinel://h/a/b?master_name=m", ["/service/number"]),
        ("sentinel://:a@h/m;sentinel://:b@i", ["give them once"]),
        ("cluster://h/1", ["database 0"]),
        ("embedded://directory", ["three slashes"]),
    ],
)
def test_bad_urls_say_what_is_wrong(url: Any, words: list[str]) -> None:
    """A bad URL is one sentence that names the fault and the remedy."""
    (fault,) = faults_of(url)
    for word in words:
        assert word in fault


def test_all_faults_are_raised_together() -> None:
    """One start shows every fault."""
    faults = faults_of("redis://h/x?db=y", {"sokcet_timeout": 1, "max_connections": 0, "ssl": {"ssl_cafile": "/x"}})
    assert len(faults) == 5
    assert all(fault.startswith("redis://h/x?db=y: ") for fault in faults)


def test_unknown_sentinel_kwargs_are_refused_by_name() -> None:
    """A mistyped name inside sentinel_kwargs is found too."""
    (fault,) = faults_of("sentinel://h/m", {"sentinel_kwargs": {"pasword": "x"}})
    assert "pasword" in fault and "did you mean password" in fault


def test_options_are_split_from_a_larger_mapping() -> None:
    """Transport options that are not the connection's are left to others."""
    ours, rest = split_options({"socket_timeout": 1, "visibility_timeout": 2})
    assert (ours, rest) == ({"socket_timeout": 1}, {"visibility_timeout": 2})


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://h/0", "redis://h/0"),
        ("redis://u:pw@h/0", "redis://u:***@h/0"),
        ("redis://:pw@h", "redis://:***@h"),
        ("redis://pw@h", "redis://***@h"),
        ("redis://u:p@w@h", "redis://u:***@h"),
        ("redis://u:p/w@h/1", "redis://u:***@h/1"),
        ("redis://u:p?w@h", "redis://u:***@h"),
        ("redis://u:p#w@h", "redis://u:***@h"),
        ("zsched+sentinel://:a@h1;sentinel://u:b@h2/0", "zsched+sentinel://:***@h1;sentinel://u:***@h2/0"),
        ("unix:///tmp/a@b.sock?password=pw&db=1", "unix:///tmp/a@b.sock?password=***&db=1"),
        ("redis://h?db=1&sentinel_password=pw", "redis://h?db=1&sentinel_password=***"),
        ("rediss://h?ssl_password=p%20w;x", "rediss://h?ssl_password=***;x"),
        ("u:pw@h", "u:***@h"),
        ("not a url", "not a url"),
    ],
)
def test_mask_hides_passwords_wherever_they_stand(url: str, masked: str) -> None:
    """No part of a password is left, even in a URL that no parser takes."""
    assert mask(url) == masked


@settings(deadline=None)
@given(password=st.text(st.characters(categories=("L", "N", "P", "S"), exclude_characters=";&"), min_size=6))
def test_no_message_shows_a_password(password: str) -> None:
    """Whatever stands for a password, encoded or not, is in no message, mask or repr."""
    needle = f"<<{password}>>"
    for url in (
        f"redis://u:{needle}@h:1/0",
        f"unix:///s?password={needle}",
        f"nope://u:{needle}@h",
        f"redis://{needle}@h",
    ):
        try:
            shown = repr(parse(url)) + parse(url).masked
        except ConfigurationError as exc:
            shown = str(exc)
        assert needle not in shown
        assert needle not in mask(url)


def test_an_address_shows_no_password() -> None:
    """The repr of an address, and of its TLS part, has no secret, though the address knows them all."""
    address = parse(
        "sentinels://u:secret1@h/m", {"sentinel_password": "secret2", "ssl_password": "secret3", "ssl_keyfile": "/k"}
    )
    assert isinstance(address, Address)
    assert "secret" not in repr(address) + repr(address.tls)
    assert set(secrets_of(address)) == {"secret1", "secret2", "secret3"}


def test_every_option_says_what_it_means() -> None:
    """The table of options has a kind and a meaning for each."""
    from celery_zsched.options import describe, fields

    table = fields(ServerOptions)
    assert {"socket_timeout", "ssl_cert_reqs", "master_name", "max_connections"} <= set(table)
    assert all(field.metadata["meaning"] for field in table.values())
    assert describe(ServerOptions).count("\n") == len(table) + 1
