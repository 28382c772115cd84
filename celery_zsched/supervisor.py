"""The process that runs an embedded server: ``python -m celery_zsched.supervisor DIRECTORY PROGRAM``.

It is started by :mod:`celery_zsched.embedded`, whose page says how it and the users agree. It starts the server, waits
until the users' lock is free, stops the server, and ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_zsched.embedded import (
    SERVER_LOG,
    SOCKET,
    START_S,
    STOP_S,
    SUPERVISOR,
    SUPERVISOR_LOG,
    USERS,
    listening,
    locked,
)
from celery_zsched.errors import ServerUnavailableError

#: The most bytes that the path of a Unix socket may have on every system.
LONGEST_SOCKET_PATH = 100
#: A log longer than this is set aside at the next start, in bytes.
LONGEST_LOG = 1_000_000


def _main(arguments: list[str]) -> int:
    """Become the supervisor: return when the server answers (0) or has failed (1, with the reason on stderr)."""
    directory, program = (Path(argument) for argument in arguments)
    ours, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        with os.fdopen(ours, "rb") as reported:
            said = reported.read()
        if said == b"ready":
            return 0
        sys.stderr.write(said.decode(errors="replace") or f"the supervisor ended; see {directory / SUPERVISOR_LOG}")
        return 1
    os.close(ours)
    report_fd: list[int] = [theirs]

    def report(text: str) -> None:
        if report_fd:
            fd = report_fd.pop()
            os.write(fd, text.encode())
            os.close(fd)

    code = 1
    try:
        _detach(directory)
        _supervise(directory, program, report)
        code = 0
    except BaseException as exc:
        traceback.print_exc()
        report(str(exc) or type(exc).__name__)
    finally:
        sys.stderr.flush()
        os._exit(code)  # the thread that waits for the users may still do so


def _detach(directory: Path) -> None:
    _set_aside(directory / SUPERVISOR_LOG)
    log = os.open(directory / SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, sink in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, sink)
    os.close(log)
    os.close(nothing)
    os.chdir(directory)
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _supervise(directory: Path, program: Path, report: Callable[[str], None]) -> None:
    """Run the server until it ends, or until its last user is gone. Locks end with the process."""
    if not _is_the_only_one(directory):
        report("ready")
        return
    _end_orphan(directory)
    path = _make_socket_path(directory)
    _set_aside(directory / SERVER_LOG)
    server = subprocess.Popen(
        _command(program, directory, path),
        stdin=subprocess.DEVNULL,
        preexec_fn=_end_with_supervisor if sys.platform == "linux" else None,
    )
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    ended = threading.Event()

    def stop_after_the_last_user() -> None:
        users = os.open(directory / USERS, os.O_RDWR | os.O_CREAT, 0o600)
        # Kept to the end: a user who comes now waits for this process to be gone, and then starts the next.
        fcntl.flock(users, fcntl.LOCK_EX)
        server.terminate()
        if not ended.wait(STOP_S):
            server.kill()

    try:
        _wait_until_ready(server, path, directory)
        report("ready")
        threading.Thread(target=stop_after_the_last_user, daemon=True).start()
        server.wait()
    finally:
        ended.set()
        if server.poll() is None:
            server.kill()
            server.wait()
        _remove_socket(directory)


def _is_the_only_one(directory: Path) -> bool:
    """Take the supervisor's lock for good; return False when another supervisor has a server for us.

    That happens when who started the other was killed before it was ready. It cannot be stopping, for the user that
    started us holds the users' lock. Without a server it is about to end.
    """
    deadline = time.monotonic() + START_S
    while True:
        try:
            locked(directory / SUPERVISOR, fcntl.LOCK_EX, 0)
            return True
        except ServerUnavailableError:
            if listening(directory):
                return False
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _command(program: Path, directory: Path, path: str) -> list[str]:
    options = {
        "dir": str(directory),
        "logfile": str(directory / SERVER_LOG),
        "port": "0",
        "unixsocket": path,
        "unixsocketperm": "700",
        "daemonize": "no",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
    }
    return [str(program), *(word for name, value in options.items() for word in (f"--{name}", value))]


def _end_with_supervisor() -> None:
    """Ask the kernel to stop the server in the orderly way should the supervisor be killed (Linux)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _wait_until_ready(server: subprocess.Popen[bytes], path: str, directory: Path) -> None:
    deadline = time.monotonic() + START_S
    client = redis.Redis(unix_socket_path=path, socket_timeout=5, protocol=2, retry=Retry(NoBackoff(), 0))
    said = "it did not answer"
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise ServerUnavailableError(
                f"it ended with exit code {server.returncode}; its last words, from {directory / SERVER_LOG}: "
                f"{_last_words(directory / SERVER_LOG)}"
            )
        try:
            client.ping()
            return
        except redis.RedisError as exc:  # not listening yet, or reading its data
            said = str(exc)
        time.sleep(0.01)
    raise ServerUnavailableError(f"it was not ready within {START_S:g} s ({said}); see {directory / SERVER_LOG}")


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    # A line with a "#" is a warning; without any, the last few lines have to do.
    telling = [line.strip() for line in lines if " # " in line and "WARNING" not in line] or lines
    return " | ".join(telling[-3:]) or "(empty log)"


def _end_orphan(directory: Path) -> None:
    """Stop a server whose supervisor was killed, where the kernel did not; it would keep the data to itself."""
    path = listening(directory)
    if path is not None:
        client = redis.Redis(unix_socket_path=path, socket_timeout=STOP_S, protocol=2)
        with contextlib.suppress(redis.RedisError):
            client.shutdown()
        deadline = time.monotonic() + STOP_S
        while listening(directory) and time.monotonic() < deadline:
            time.sleep(0.01)
    _remove_socket(directory)


def _make_socket_path(directory: Path) -> str:
    path = str(directory / "server.sock")
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        path = str(Path(tempfile.mkdtemp(prefix="zsched-")) / "server.sock")
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            path = str(Path(tempfile.mkdtemp(prefix="zsched-", dir="/tmp")) / "server.sock")
    (directory / SOCKET).symlink_to(path)
    return path


def _remove_socket(directory: Path) -> None:
    """Remove the socket and what led to it; after a power failure they are still there."""
    with contextlib.suppress(OSError):
        path = (directory / SOCKET).readlink()
        path.unlink(missing_ok=True)
        if path.parent != directory and path.parent.name.startswith("zsched-"):
            path.parent.rmdir()
    with contextlib.suppress(OSError):
        (directory / SOCKET).unlink()


def _set_aside(log: Path) -> None:
    with contextlib.suppress(OSError):
        if log.stat().st_size > LONGEST_LOG:
            log.replace(log.with_suffix(".old.log"))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
