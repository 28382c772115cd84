"""Processes that fork while their threads are at work, as a pool does when it replaces a child."""

from __future__ import annotations

import subprocess
import sys

FORK = """
import os, threading
from celery import Celery
from celery_zsched import apps

app = Celery("forked", broker="memory://", set_as_current=False)
app.conf.zsched_url = "redis://127.0.0.1:1"
apps._lock.acquire()  # a thread of the parent is at it in this very moment
child = os.fork()
if not child:
    reader = threading.Thread(target=apps.schedules_of, args=(app,), daemon=True)
    reader.start()
    reader.join(10)
    os._exit(reader.is_alive())
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_is_forked_amid_a_look_at_the_schedule_can_look_itself() -> None:
    """The lock that a thread of its parent held is none in the child."""
    assert subprocess.run([sys.executable, "-c", FORK], timeout=60, check=False).returncode == 0
