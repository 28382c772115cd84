"""``celery_zsched.current()``: what a task is told about the occurrence it runs for.

The occurrence travels in the header ``zsched`` of its message, and so reaches retries and every pool, by both of
Celery's message protocols. Tasks that the task itself sends are no occurrences of the entry, and have none.
"""

from __future__ import annotations

from celery._state import get_current_task

from celery_zsched.entry import Occurrence
from celery_zsched.run_leases import header_of


def current() -> Occurrence | None:
    """Return the occurrence that the running task stands for; None outside a task, or in one sent by other means.

    ``nominal`` is the time it was due by its schedule, however late it runs: the hour or day that a data job is for.
    """
    task = get_current_task()
    return None if task is None else Occurrence.from_header(header_of(task.request))
