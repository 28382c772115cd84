"""Clients of real servers: what is sent, how often, by which connection, and what a failure says."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from celery_zsched.connection import Server
from celery_zsched.errors import (
    ConfigurationError,
    ServerAuthenticationError,
    ServerError,
    ServerFullError,
    ServerUnavailableError,
    ZschedError,
)
from tests.forwarder import Forwarder
from tests.servers import RunningServer, wait_until

Start = Callable[..., RunningServer]
Forward = Callable[[RunningServer], Forwarder]


@pytest.fixture
def connect(close_later: Callable[[Any], Any]) -> Callable[..., Server]:
    """Return servers by URL and options, closed at the end."""
    return lambda url, **options: close_later(Server.from_url(url, options))


Connect = Callable[..., Server]


def calls_of(server: RunningServer, command: str) -> int:
    """Return how often a server has run a command."""
    with server.client() as client:
        stats = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


def client_count(server: RunningServer) -> int:
    """Return how many clients are connected, apart from the one that asks."""
    with server.client() as client:
        return len(client.client_list()) - 1


# --- what works -----------------------------------------------------------------------------------------------------


def test_a_server_is_reached_by_its_socket_and_database(any_server: RunningServer, connect: Connect) -> None:
    """A value written through one database is in that database; answers are bytes."""
    server = connect(f"zsched+{any_server.url}?db=3")
    server.client.set("a", "1")
    with any_server.client(db=3) as client:
        assert client.get("a") == server.client.get("a") == b"1"


def test_the_version_is_known(any_server: RunningServer, connect: Connect) -> None:
    """The name and the version are the server's own."""
    name, numbers = connect(any_server.url).version() or ("", (0, 0, 0))
    assert (f"{name}{numbers[0]}{numbers[1]}", len(numbers)) == (any_server.kind, 3)


def test_a_restricted_user_leaves_no_trace_in_the_acl_log(any_server: RunningServer, connect: Connect) -> None:
    """Connecting and asking for the version does nothing that a user without dangerous commands may not do."""
    with any_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "u1", "on", ">p/w", "resetkeys", "~zz:*", "+@all", "-@dangerous")
        admin.execute_command("ACL", "LOG", "RESET")
        server = connect(f"unix://u1:p%2Fw@{any_server.socket}")
        assert server.client.set("zz:a", 1)
        assert server.version() is not None
        with server.blocking("zz:a") as link:
            link.send_command("PING")
            assert link.read_response() in (b"PONG", "PONG")
        assert admin.execute_command("ACL", "LOG") == []
        said = r"writing failed at unix://u1:\*\*\*@.*grant"
        with pytest.raises(ServerAuthenticationError, match=said), server.translated("writing"):
            server.client.set("other", 1)
        admin.execute_command("ACL", "DELUSER", "u1")


def test_a_credential_provider_logs_in(start_server: Start, connect: Connect) -> None:
    """redis-py's providers work as objects, and by their path."""
    server = start_server(config={"requirepass": "secret pw"})
    provider = redis.UsernamePasswordCredentialProvider("default", "secret pw")
    assert connect(server.url, credential_provider=provider).client.ping()
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        connect(server.url, credential_provider="no.such:Provider")
    with pytest.raises(ConfigurationError, match="get_credentials"):
        connect(server.url, credential_provider=3)


# --- how often ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipelined", [False, True], ids=["alone", "pipelined"])
def test_a_write_is_not_sent_again_after_a_time_out(
    any_server: RunningServer, connect: Connect, pipelined: bool
) -> None:
    """A command whose answer did not come in time runs once, not twice, when the server goes on."""
    server = connect(any_server.url, socket_timeout=0.2)
    server.client.set("n", 0)
    with any_server.client() as client:
        client.config_resetstat()
        any_server.freeze()
        with pytest.raises(ServerUnavailableError, match="in time"), server.translated("counting"):
            if pipelined:
                server.client.pipeline().incrby("n", 1).incrby("n", 1).execute()
            else:
                server.client.incrby("n", 1)
        any_server.thaw()
        sent = 2 if pipelined else 1
        wait_until(lambda: int(client.get("n")) >= sent, what="what was sent to the frozen server")
        assert server.client.incrby("n", 1) == sent + 1
        assert calls_of(any_server, "incrby") == sent + 1


def test_a_connection_closed_while_idle_is_made_anew(any_server: RunningServer, connect: Connect) -> None:
    """What the server closed meanwhile is found before anything is sent, so the next command just works."""
    server = connect(any_server.url)
    assert server.client.incr("n") == 1
    with any_server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert server.client.incr("n") == 2


def test_an_idle_connection_that_went_dead_is_made_anew(
    start_server: Start, forward: Forward, connect: Connect
) -> None:
    """A pooled connection whose link went silent while it was idle costs one time-out, and no error."""
    way = forward(start_server())
    server = connect(f"{way.url}/1", max_connections=1, socket_timeout=0.3, health_check_interval=1e-9)
    assert server.client.incr("n") == 1
    way.freeze()
    way.replace()
    assert server.client.incr("n") == 2
    way.freeze()
    began = time.monotonic()
    with pytest.raises(ServerUnavailableError), server.translated("counting"):
        server.client.incr("n")
    assert time.monotonic() - began < 5


def test_a_restarted_server_is_used_again(start_server: Start, connect: Connect) -> None:
    """After a restart the next command works."""
    running = start_server(aof=True)
    server = connect(running.url)
    server.client.incr("n")
    running.restart()
    assert server.client.incr("n") == 2


# --- how many -------------------------------------------------------------------------------------------------------


def test_who_finds_all_connections_taken_waits(start_server: Start, connect: Connect) -> None:
    """Many threads on a small bound all get their turn, and the bound holds."""
    running = start_server()  # on a shared one others' connections may be left to be collected
    server = connect(running.url, max_connections=2)
    seen: list[int] = []
    with ThreadPoolExecutor(12) as threads:
        jobs = [threads.submit(server.client.blpop, "none", 0.05) for _ in range(24)]
        while not all(job.done() for job in jobs):
            seen.append(client_count(running))
        assert [job.result() for job in jobs] == [None] * 24
    assert max(seen) <= 2


def test_waiting_for_a_connection_ends_in_a_clear_error(start_server: Start, connect: Connect) -> None:
    """When no connection becomes free within pool_timeout, the error says which option to raise."""
    running = start_server()  # on a shared one others' connections may be left to be collected
    server = connect(running.url, max_connections=1, pool_timeout=0.1)
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(server.client.blpop, "q", 5)
        wait_until(lambda: client_count(running) == 1)
        with pytest.raises(ServerUnavailableError, match="max_connections"), server.translated("asking"):
            server.client.ping()
        with running.client() as client:
            client.rpush("q", 1)
        job.result()


def test_closing_leaves_no_connection_and_is_no_end(start_server: Start, connect: Connect) -> None:
    """A closed server has no connections left, and connects again when it is used."""
    running = start_server()  # on a shared one others' connections may be left to be collected
    server = connect(running.url)
    server.client.ping()
    server.close()
    wait_until(lambda: client_count(running) == 0)
    assert server.client.ping()


def test_a_forked_child_has_connections_of_its_own(valkey: RunningServer) -> None:
    """Parent and child use different connections, and the parent's still works when the child is gone."""
    program = f"""
import os
from celery_zsched.connection import Server
server = Server.from_url({valkey.url!r})
before = server.client.client_id()
ours, theirs = os.pipe()
if os.fork() == 0:
    os.write(theirs, str(server.client.client_id()).encode())
    os._exit(0)
os.wait()
child = int(os.read(ours, 100))
assert child != before, child
assert server.client.client_id() == before
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- dedicated connections ------------------------------------------------------------------------------------------


def test_a_dedicated_connection_is_outside_the_pool(any_server: RunningServer, connect: Connect) -> None:
    """A long blocking command takes no pooled connection, and its answer comes when it is due."""
    server = connect(any_server.url, max_connections=1, socket_timeout=0.3)
    with server.blocking("q") as link:
        link.send_command("BLPOP", "q", 30)
        assert not link.can_read(0.4)
        assert select.select([link], [], [], 0)[0] == []
        server.client.rpush("q", "v")
        assert link.read_response(timeout=5) == [b"q", b"v"]
        link.send_packed_command(link.pack_commands([("PING",), ("GET", "none")]))
        assert [link.read_response(), link.read_response()] == [b"PONG", None]


def test_a_half_open_link_is_found_dead_by_its_deadline(
    start_server: Start, forward: Forward, connect: Connect
) -> None:
    """A link that stays open and silent ends in a time-out at the caller's deadline, and is closed for good."""
    way = forward(start_server())
    server = connect(way.url, socket_timeout=0.5, socket_connect_timeout=0.5)
    link = server.blocking("q")
    way.freeze()
    link.send_command("BLPOP", "q", 0.1)
    began = time.monotonic()
    with pytest.raises(ServerUnavailableError, match="no answer"), server.translated("waiting"):
        link.read_response(timeout=0.4)
    assert time.monotonic() - began < 2
    assert not link.is_connected
    with pytest.raises(ServerUnavailableError, match="closed"), server.translated("waiting"):
        link.send_command("PING")
    way.replace()
    with server.blocking("q") as link:
        link.send_command("PING")
        assert link.read_response(timeout=5) == b"PONG"


def test_a_cut_link_is_noticed_at_once(start_server: Start, forward: Forward, connect: Connect) -> None:
    """A blocked reader learns of a closed connection when it is closed, not at its deadline."""
    way = forward(start_server())
    server = connect(way.url)
    link = server.blocking("q")
    link.send_command("BLPOP", "q", 0)
    threading.Timer(0.1, way.cut).start()
    began = time.monotonic()
    with pytest.raises(ServerUnavailableError), server.translated("waiting"):
        link.read_response(timeout=20)
    assert time.monotonic() - began < 5


def test_the_system_probes_silent_peers(start_server: Start, connect: Connect) -> None:
    """Keep-alive is on with short times, for what no deadline of ours covers."""
    running = start_server(tcp=True)
    with (
        connect(running.url).blocking() as link,
        socket.fromfd(link.fileno(), socket.AF_INET, socket.SOCK_STREAM) as tcp,
    ):
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
    with (
        connect(running.url, socket_keepalive=False).blocking() as link,
        socket.fromfd(link.fileno(), socket.AF_INET, socket.SOCK_STREAM) as tcp,
    ):
        assert not tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# --- what a failure says --------------------------------------------------------------------------------------------


def everything_shown(exc: BaseException) -> str:
    """Return all that a log would show of an error."""
    return "".join(traceback.format_exception(exc)) + repr(exc)


@pytest.mark.parametrize("user", ["", "default", "nobody"])
def test_a_wrong_password_is_an_authentication_error(start_server: Start, connect: Connect, user: str) -> None:
    """It says which server and what to check, and shows no password."""
    running = start_server(config={"requirepass": "right-secret"})
    for password in ("wrong-secret", ""):
        server = connect(f"unix://{user}:{password}@{running.socket}" if user or password else running.url)
        said = "password in the URL"
        with pytest.raises(ServerAuthenticationError, match=said) as caught, server.translated("asking"):
            server.client.ping()
        shown = (
            everything_shown(caught.value) + repr(server) + repr(server.client) + repr(server.client.connection_pool)
        )
        assert "wrong-secret" not in shown
        assert str(running.socket) in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:{port}",
        "rediss://127.0.0.1:{port}",
        "unix:///tmp/no/such/socket",
        "sentinel://127.0.0.1:{port}/m",
        "cluster://:hidden-pw@127.0.0.1:{port}",
        "redis://no-such-host.invalid:{port}",
    ],
)
def test_an_unreachable_server_is_named(connect: Connect, url: str) -> None:
    """Nobody listening is a clear error, for commands and for dedicated connections alike."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets it
        server = connect(url.format(port=taken.getsockname()[1]))
        for act in (lambda: server.client.get("a"), lambda: server.blocking("a")):
            with pytest.raises(ServerUnavailableError, match="failed at") as caught, server.translated("asking"):
                act()
            assert server.masked in str(caught.value)
            assert "hidden-pw" not in everything_shown(caught.value)


def test_a_full_server_is_a_full_error(any_server: RunningServer, connect: Connect) -> None:
    """OOM is told from other errors, in commands and in scripts."""
    any_server.config("maxmemory", "1")
    server = connect(any_server.url)
    for act in (
        lambda: server.client.set("a", 1),
        lambda: server.client.eval("return redis.call('set', KEYS[1], 1)", 1, "a"),
        lambda: server.client.pipeline(transaction=False).set("a", 1).execute(),
    ):
        with pytest.raises(ServerFullError, match="maxmemory"), server.translated("putting"):
            act()


def test_a_demoted_server_is_left_for_the_new_primary(
    any_server: RunningServer, start_server: Start, forward: Forward, connect: Connect
) -> None:
    """READONLY, in commands and in scripts, is an unavailable server, and the next command goes to a new connection."""
    other = start_server(any_server.kind)
    way = forward(any_server)
    server = connect(way.url, max_connections=1)
    script = "return redis.call('incr', KEYS[1])"
    assert server.client.eval(script, 1, "n") == 1
    with any_server.client() as admin:
        admin.replicaof("127.0.0.1", 1)
        try:
            way.point_to(other)
            for act in (lambda: server.client.incr("n"), lambda: server.client.eval(script, 1, "n")):
                with pytest.raises(ServerUnavailableError, match="replica"), server.translated("counting"):
                    act()
                assert act() == 1
                other.reset()
                way.point_to(any_server)
                server.close()
                server.client.ping()
                way.point_to(other)
        finally:
            admin.replicaof("NO", "ONE")


def test_other_errors_and_ours_pass_unharmed(valkey: RunningServer, connect: Connect) -> None:
    """An error with no class of its own is a server error; what is not the server's is not touched."""
    server = connect(valkey.url)
    server.client.set("a", 1)
    with (
        pytest.raises(ServerError, match=r"listing failed at unix://.*WRONGTYPE") as caught,
        server.translated("listing"),
    ):
        server.client.lpush("a", 1)
    assert type(caught.value) is ServerError
    assert isinstance(caught.value.__cause__, redis.ResponseError)
    with pytest.raises(KeyError), server.translated("x"):
        raise KeyError("a")
    ours = ZschedError("b")
    with pytest.raises(ZschedError) as same, server.translated("x"):
        raise ours
    assert same.value is ours


def test_a_function_can_be_translated(valkey: RunningServer, connect: Connect) -> None:
    """The context manager is a decorator too."""
    server = connect(valkey.url)

    @server.translated("counting")
    def count() -> None:
        server.client.execute_command("NOSUCHCOMMAND")

    for _ in range(2):
        with pytest.raises(ServerError, match="counting failed"):
            count()


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls_server(start_server: Start, certificates: Any) -> RunningServer:
    """Debian's server behind TLS with a certificate that no system trusts."""
    return start_server("redis70", tls=certificates, config={"requirepass": "tls-secret"})


def test_an_unknown_certificate_is_refused(tls_server: RunningServer, connect: Connect) -> None:
    """By default an untrusted certificate ends in an error that names the remedy."""
    server = connect(f"rediss://:tls-secret@127.0.0.1:{tls_server.port}")
    with pytest.raises(ServerUnavailableError, match="ssl_ca_certs"), server.translated("asking"):
        server.client.ping()


def test_a_named_authority_is_trusted_however_it_is_named(
    tls_server: RunningServer, connect: Connect, certificates: Any
) -> None:
    """The authority can stand in the URL, in an option, in broker_use_ssl, or be given as text."""
    there = f"127.0.0.1:{tls_server.port}"
    authority = str(certificates.authority)
    for url, options in (
        (f"rediss://:tls-secret@{there}?ssl_ca_certs={authority}", {}),
        (f"valkeys://:tls-secret@{there}", {"ssl_ca_certs": authority}),
        (f"redis://:tls-secret@{there}", {"ssl": {"ssl_ca_certs": authority, "ssl_cert_reqs": "CERT_REQUIRED"}}),
        (f"rediss://:tls-secret@{there}", {"ssl_ca_data": certificates.authority.read_text()}),
        (
            f"rediss://:tls-secret@{there}?ssl_ca_certs={authority}&ssl_min_version=TLSv1.2",
            {"ssl_certfile": str(certificates.certificate), "ssl_keyfile": str(certificates.key)},
        ),
    ):
        server = connect(url, **options)
        assert server.client.ping()
        with server.blocking("q") as link:
            link.send_command("BLPOP", "q", 5)
            server.client.rpush("q", "v" * 20_000)
            assert link.read_response(timeout=5) == [b"q", b"v" * 20_000]


def test_a_new_tls_connection_is_silent(start_server: Start, connect: Connect, certificates: Any) -> None:
    """What TLS itself sends after the handshake is not taken for an answer."""
    server = connect(start_server("redis70", tls=certificates).url, ssl_ca_certs=str(certificates.authority))
    for _ in range(20):
        assert server.client.ping()
        server.close()
        with server.blocking() as link:
            assert not link.can_read(0.005)


def test_no_verification_works_with_a_warning(
    tls_server: RunningServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asks for no verification gets it, and a line in the log that shows no password."""
    assert connect(f"rediss://:tls-secret@127.0.0.1:{tls_server.port}?ssl_cert_reqs=none").client.ping()
    assert "not verified" in caplog.text
    assert "tls-secret" not in caplog.text


def test_a_certificate_for_another_host_is_refused(
    start_server: Start, connect: Connect, tmp_path: Any, certificates: Any
) -> None:
    """A trusted certificate must name the host, unless asked otherwise."""
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("elsewhere.example")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    files = type(certificates)(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    running = start_server("redis70", tls=files)
    server = connect(running.url, ssl_ca_certs=str(files.authority))
    with pytest.raises(ServerUnavailableError, match="certificate"), server.translated("asking"):
        server.client.ping()
    assert connect(running.url, ssl_ca_certs=str(files.authority), ssl_check_hostname=False).client.ping()


@pytest.mark.parametrize("scheme", ["rediss", "valkeys", "clusters", "sentinels"])
def test_a_tls_scheme_never_speaks_plainly(start_server: Start, connect: Connect, scheme: str) -> None:
    """Before a server without TLS, a TLS scheme is an error, and the password is not sent."""
    running = start_server(tcp=True, config={"requirepass": "never-in-clear"})
    with running.client() as client:
        client.config_resetstat()
        server = connect(
            f"{scheme}://:never-in-clear@127.0.0.1:{running.port}",
            ssl_cert_reqs="none",
            master_name="m",
            socket_connect_timeout=0.3,
        )
        with pytest.raises(ServerUnavailableError, match="TLS"), server.translated("asking"):
            server.client.ping()
        assert "cmdstat_auth" not in client.info("commandstats")


def test_a_missing_tls_file_is_a_configuration_error(connect: Connect) -> None:
    """A path that is not there is named before anything is connected."""
    with pytest.raises(ConfigurationError, match="ssl_"):
        connect("rediss://127.0.0.1:1?ssl_ca_certs=/no/such/file.pem")
