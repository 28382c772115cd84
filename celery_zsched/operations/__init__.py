"""What an operator can do, one function each: called alike by shell, remote control, Python and tests.

Effects are on the server, so they hold for every process, survive restarts and reach what starts later. What is done
twice is done once: the answer says how things stand, whether or not this call changed them.
"""

from celery_zsched.operations.carrying import export
from celery_zsched.operations.editing import add, edit, remove
from celery_zsched.operations.explaining import explain
from celery_zsched.operations.listing import all_entries, history, list_entries, next_dues, show
from celery_zsched.operations.liveness import beats, health
from celery_zsched.operations.pausing import pause_task, pause_tasks, resume_task, resume_tasks
from celery_zsched.operations.planning import plan
from celery_zsched.operations.records import audit
from celery_zsched.operations.running import backfill, run_task
from celery_zsched.operations.site import Site, whoami
from celery_zsched.operations.standing import Standing, standing

__all__ = [
    "Site",
    "Standing",
    "add",
    "all_entries",
    "audit",
    "backfill",
    "beats",
    "edit",
    "explain",
    "export",
    "health",
    "history",
    "list_entries",
    "next_dues",
    "pause_task",
    "pause_tasks",
    "plan",
    "remove",
    "resume_task",
    "resume_tasks",
    "run_task",
    "show",
    "standing",
    "whoami",
]
