"""Programs that end right after their last ack: what they did is known to be done, what they had is free at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.consumers import Client
from tests.servers import RunningServer

PROGRAM = """
import multiprocessing, sys, threading
import kombu
import celery_zsched

def work(url, how):
    connection = kombu.Connection(url)
    queue = connection.SimpleQueue("q")
    for number in range(20):
        queue.put(number)
    for _ in range(10):
        queue.get(timeout=10).ack()
    queue.get(timeout=10).requeue()
    queue.get(timeout=10).reject()
    kept = queue.get(timeout=10)
    if how == "thread":
        thread = threading.Thread(target=kept.ack)  # amid the end of the process, which waits for it
        connection.release()
        thread.start()
    elif how != "nothing":
        queue.close()
        connection.release()
    if how == "error":
        raise SystemExit(3)

if __name__ == "__main__":
    url, how = sys.argv[1:]
    if how in ("fork", "spawn"):
        child = multiprocessing.get_context(how).Process(target=work, args=(url, how))
        child.start()
        child.join()
    else:
        work(url, how)
"""


@pytest.mark.parametrize("how", ["close", "nothing", "error", "thread", "fork", "spawn"])
def test_a_program_that_ends_leaves_nothing_under_a_lease(
    connect: Callable[..., Client], valkey: RunningServer, tmp_path: Path, how: str
) -> None:
    """Acks, rejections and hand-backs of its last moment count, however it ends; what it did not end goes back."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), f"zsched+{valkey.url}", how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3 if how == "error" else 0, "")
    counts = connect().counts()
    assert (counts.leased, counts.ready) == (0, 8 if how == "thread" else 9)


def test_a_program_whose_server_is_gone_says_what_it_could_not_tell(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    """It ends all the same, soon, with one line of what runs again."""
    server = start_server(tcp=True)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace('    if how == "thread":', '    input("done?")\n    if how == "thread":'))
    command = [sys.executable, str(program), f"zsched+{server.url}", "nothing"]
    pipe = subprocess.PIPE
    running = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert running.stdout is not None
    assert running.stdout.read(5) == "done?"
    server.kill()
    _, said = running.communicate("\n", timeout=60)
    assert running.returncode == 0
    assert "not everything could be told to the broker" in said
