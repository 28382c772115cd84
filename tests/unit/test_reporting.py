"""Who listens to Celery for runs that may not overlap, in programs that import the package in their own way."""

from __future__ import annotations

import subprocess
import sys

import pytest

_TELL = """
import sys
from celery import signals
listeners = sum("_begun" in str(receiver) for receiver in signals.task_prerun.receivers)
print(listeners, any(type(finder).__name__ == "Usher" for finder in sys.meta_path))
"""


@pytest.mark.parametrize(
    ("program", "listeners", "waits"),
    [
        ("import celery; import celery_zsched", 1, False),
        ("import celery_zsched; import celery", 0, True),
        ("import celery_zsched; import celery.worker", 1, False),
        ("import celery_zsched; import celery; celery.Celery().Worker", 1, False),
        ("import celery; import celery_zsched; import celery.worker", 1, False),
    ],
    ids=str,
)
def test_a_worker_listens_whatever_is_imported_first(program: str, listeners: int, waits: bool) -> None:
    """One listener in a program that has Celery already, or that becomes a worker; none, as yet, in any other."""
    done = subprocess.run([sys.executable, "-c", f"{program}\n{_TELL}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(listeners), str(waits)]
