"""The embedded server: one for all users of a directory, there as long as somebody uses it, its data kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_zsched import embedded
from celery_zsched.connection import Server
from celery_zsched.errors import ConfigurationError, ServerUnavailableError
from celery_zsched.supervisor import LONGEST_SOCKET_PATH
from tests.programs import has_ended
from tests.servers import wait_until


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket; removed when its server is gone."""
    path = Path(tempfile.mkdtemp(prefix="zs-")) / "data"
    yield path
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not processes_of(path), what="the embedded server to end")
    for process in processes_of(path):
        kill(process)
    shutil.rmtree(path.parent)


@pytest.fixture
def connect(close_later: Callable[[Any], Any]) -> Callable[..., Server]:
    """Return servers by directory, closed at the end."""
    return lambda path, **options: close_later(Server.from_url(f"embedded://{path}", options))


Connect = Callable[..., Server]


def processes_of(path: Path) -> list[psutil.Process]:
    """Return the processes that run a directory's server: its supervisor, and the server itself."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        words = process.info["cmdline"] or []
        serves = str(path) in words or process.info["cwd"] == str(path)
        if serves and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def kill(process: psutil.Process) -> None:
    """Kill a process that may have ended a moment ago."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def server_of(path: Path) -> psutil.Process:
    """Return the process of the server."""
    with Server.from_url(f"embedded://{path}").blocking() as link:
        link.send_command("INFO", "server")
        text = link.read_response().decode()
    return psutil.Process(int(next(line for line in text.splitlines() if line.startswith("process_id:"))[11:]))


class User:
    """A process that uses a directory's server until it is told to end."""

    program = """
import os, sys
from celery_zsched.connection import Server
server = Server.from_url("embedded://" + sys.argv[1])
server.client.incr("users")
run_id = server.client.info("server")["run_id"]
if len(sys.argv) > 2:
    if os.fork():
        os._exit(0)
print(run_id, os.getpid(), flush=True)
sys.stdin.readline()
"""

    def __init__(self, path: Path, *more: str) -> None:
        command = [sys.executable, "-c", self.program, str(path), *more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run_id(self) -> str:
        """Return the server's id of this run, once the user has it."""
        assert self.process.stdout
        said = self.process.stdout.readline().split()
        assert said, "the user failed"
        self.pid = int(said[1])
        return said[0]

    def end(self, by: signal.Signals | None = None) -> None:
        """End the user, gently or by a signal."""
        if by:
            self.process.send_signal(by)
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)


def test_many_at_once_get_one_server(directory: Path) -> None:
    """Ten processes that start at the same moment share one server."""
    users = [User(directory) for _ in range(10)]
    assert len({user.run_id() for user in users}) == 1
    assert len(processes_of(directory)) - len(users) <= 2
    for user in users:
        user.end()


def test_two_supervisors_at_once_run_one_server(directory: Path) -> None:
    """When whoever started a supervisor died before it was ready, the next one finds its server."""
    hold = embedded.hold(embedded.prepare(str(directory)))
    command = [sys.executable, "-m", "celery_zsched.supervisor", str(directory), str(embedded.find_executable())]
    root = str(Path(embedded.__file__).parents[1])
    both = [subprocess.Popen(command, start_new_session=True, cwd=root) for _ in range(2)]
    assert [one.wait(20) for one in both] == [0, 0]
    servers = [one for one in processes_of(directory) if "celery_zsched.supervisor" not in one.info["cmdline"]]
    assert len(servers) == 1
    # The supervisor that is not needed ends itself once it has said that all is well.
    wait_until(lambda: len(processes_of(directory)) == 2, what="one server to be left")
    assert hold.is_valid()


def test_the_server_ends_with_its_last_user_however_it_went(directory: Path) -> None:
    """Users that are killed are gone; the server stays for the one that is left, and ends with it."""
    users = [User(directory) for _ in range(3)]
    (run_id,) = {user.run_id() for user in users}
    for user in users[:2]:
        user.end(signal.SIGKILL)
    late = User(directory)
    assert late.run_id() == run_id
    users[2].end(signal.SIGKILL)
    late.end(signal.SIGKILL)
    wait_until(lambda: not processes_of(directory), what="the server to end")


def test_a_forked_child_keeps_the_server(directory: Path) -> None:
    """A child that inherited the use counts as a user when its parent is gone."""
    user = User(directory, "fork")
    run_id = user.run_id()
    assert user.process.wait(30) == 0
    other = User(directory)
    assert other.run_id() == run_id
    other.end()
    os.kill(user.pid, 0)
    assert processes_of(directory)
    user.end()


def test_data_outlives_the_server(directory: Path, connect: Connect) -> None:
    """What was written is there in the next run, also when users come while the last run ends."""
    for number in range(1, 6):
        server = connect(directory)
        assert server.client.incr("n") == number
        server.close()
    wait_until(lambda: not processes_of(directory), what="the server to end")
    assert connect(directory).client.incr("n") == 6


def test_a_killed_server_is_started_again(directory: Path, connect: Connect) -> None:
    """The next connection finds no server and starts one; what was written a second ago is there."""
    server = connect(directory)
    server.client.set("a", 1)
    server.client.execute_command("CONFIG", "SET", "appendfsync", "always")
    server.client.set("b", 2)
    server_of(directory).kill()
    wait_until(lambda: server_is_back(server), what="the server to be back")
    assert (server.client.get("a"), server.client.get("b")) == (b"1", b"2")


def server_is_back(server: Server) -> bool:
    """Return whether a server answers, after one that may fail."""
    try:
        with server.translated("asking"):
            return bool(server.client.ping())
    except ServerUnavailableError:
        return False


def test_a_killed_supervisor_takes_its_server_along_or_the_next_one_does(directory: Path, connect: Connect) -> None:
    """No server is left without a supervisor: the data has one writer, and somebody watches the users."""
    server = connect(directory)
    server.client.set("a", 1)
    old = server_of(directory)
    old.parent().kill()
    if sys.platform == "linux":
        wait_until(lambda: has_ended(old), what="the server to end")
    wait_until(lambda: server_is_back(server), what="the server to be back")
    assert server.client.get("a") == b"1"
    server.close()
    wait_until(lambda: not processes_of(directory), what="the server to end")


def test_what_a_power_failure_left_behind_is_no_hindrance(directory: Path, connect: Connect) -> None:
    """Locks and sockets of processes that are no more do not keep a server from starting."""
    server = connect(directory)
    server.client.set("a", 1)
    old = server_of(directory)
    for process in (old.parent(), old):  # the second may be gone with the first
        kill(process)
    wait_until(lambda: not processes_of(directory))
    assert (directory / embedded.SOCKET).is_symlink()
    (log,) = (directory / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as end:
        end.write(b"*3\r\n$3\r\nSET\r\n$1")
    assert connect(directory).client.get("a") == b"1"


def test_the_directory_is_private(directory: Path, connect: Connect) -> None:
    """Nobody else may enter: the directory is 0700, also when it was there before, and open."""
    directory.mkdir(mode=0o755)
    connect(directory).client.ping()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_directory_of_other_things_is_not_touched(directory: Path, connect: Connect) -> None:
    """A directory that is open to others and holds other files is refused, and stays as it is."""
    directory.mkdir(mode=0o755)
    (directory / "other").touch()
    server = connect(directory)
    with pytest.raises(ConfigurationError, match=r"chmod 700") as caught, server.translated("asking"):
        server.client.ping()
    assert str(directory) in str(caught.value)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_a_long_path_is_no_hindrance(directory: Path, connect: Connect) -> None:
    """Where the socket's path would be too long, the socket lies elsewhere, and goes with the server."""
    long = directory / ("d" * LONGEST_SOCKET_PATH)
    server = connect(long)
    server.client.set("a", 1)
    socket = (long / embedded.SOCKET).readlink()
    assert socket.is_socket() and len(str(socket)) <= LONGEST_SOCKET_PATH
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    server.close()
    wait_until(lambda: not processes_of(long), what="the server to end")
    assert not socket.parent.exists()


def test_no_name_means_the_state_directory(directory: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """``embedded://`` keeps its data where the XDG rules say."""
    monkeypatch.setenv("XDG_STATE_HOME", str(directory))
    server = connect("")
    server.client.ping()
    assert (directory / "celery-zsched" / "embedded" / embedded.SOCKET).exists()
    server.close()
    wait_until(lambda: not processes_of(directory / "celery-zsched" / "embedded"), what="the server to end")


def test_a_database_can_be_chosen(directory: Path, connect: Connect) -> None:
    """The number stands in the query, for the path is the directory's."""
    connect(f"{directory}?db=5").client.set("a", 1)
    assert connect(directory, db=5).client.get("a") == b"1"
    assert connect(directory).client.get("a") is None


def test_a_server_that_cannot_start_says_why(directory: Path, connect: Connect) -> None:
    """The error has the last words of the server's log."""
    directory.mkdir(mode=0o700)
    (directory / "appendonlydir").write_text("in the way")
    server = connect(directory)
    said = r"did not start: .*appendonlydir"
    with pytest.raises(ServerUnavailableError, match=said) as caught, server.translated("asking"):
        server.client.ping()
    assert str(directory) in str(caught.value)


def test_a_missing_wheel_names_the_extra(directory: Path) -> None:
    """Where no wheel with a server is installed, the error says what to install."""
    program = f"""
import sys
from importlib import metadata, util
found = util.find_spec
util.find_spec = lambda name, *more: None if name.startswith("valkey") else found(name, *more)
from celery_zsched.connection import Server
from celery_zsched.errors import ConfigurationError
server = Server.from_url("embedded://{directory}")
try:
    with server.translated("asking"):
        server.client.ping()
except ConfigurationError as exc:
    print(exc)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'celery-zsched[embedded]'" in done.stdout


def test_a_named_program_is_used_or_refused(directory: Path, connect: Connect) -> None:
    """The executable option takes the place of the wheel."""
    named = str(embedded.find_executable())
    assert connect(directory, executable=named).client.ping()
    server = connect(directory.parent / "other", executable="no-such-program")
    with pytest.raises(ConfigurationError, match="'no-such-program'"), server.translated("asking"):
        server.client.ping()


def test_a_daemon_that_closed_all_files_is_a_user_again(directory: Path, connect: Connect) -> None:
    """A lost lock is noticed at the next connect, and taken anew."""
    server = connect(directory)
    server.client.ping()
    hold = embedded.hold(directory)
    os.close(hold._fd)
    assert not hold.is_valid()
    server.client.connection_pool.disconnect()
    wait_until(lambda: server_is_back(server), what="a server")
    assert embedded.hold(directory).is_valid()


def test_a_lost_lock_takes_no_other_along(directory: Path) -> None:
    """The lock that is taken in its place may get the same number of a file, and stays when the lost one is dropped."""
    lost = embedded.hold(embedded.prepare(str(directory)))
    os.close(lost._fd)
    anew = embedded.hold(directory)
    del lost
    assert anew.is_valid()
