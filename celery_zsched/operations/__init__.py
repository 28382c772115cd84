"""What an operator can do, one function each: called alike by shell, remote control, Python and tests.

Effects are on the server, so they hold for every process, survive restarts and reach what starts later. What is done
twice is done once: the answer says how things stand, whether or not this call changed them.

The verbs are imported when they are first used, since every ``celery`` command imports the remote-control commands,
which only workers call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_zsched.operations.cancelling import cancel_once, cancel_task
    from celery_zsched.operations.carrying import export
    from celery_zsched.operations.doctoring import doctor
    from celery_zsched.operations.editing import add, edit, remove
    from celery_zsched.operations.explaining import explain
    from celery_zsched.operations.holding import Holding, paused
    from celery_zsched.operations.listing import all_entries, history, list_entries, next_dues, show
    from celery_zsched.operations.liveness import beats, health
    from celery_zsched.operations.messages import (
        dead,
        dead_purge,
        dead_requeue,
        queues,
        timeline,
    )
    from celery_zsched.operations.pausing import pause_task, pause_tasks, resume_task, resume_tasks
    from celery_zsched.operations.planning import plan
    from celery_zsched.operations.reanchoring import reanchor_named, reanchor_task, reanchor_tasks
    from celery_zsched.operations.records import audit
    from celery_zsched.operations.running import backfill, run_task
    from celery_zsched.operations.site import Site, whoami
    from celery_zsched.operations.standing import Standing
    from celery_zsched.operations.targets import is_pattern
    from celery_zsched.operations.whereabouts import where_is

#: Name -> the module beside this one that has it.
_HOMES = {
    "Holding": "holding",
    "Site": "site",
    "Standing": "standing",
    "add": "editing",
    "all_entries": "listing",
    "audit": "records",
    "backfill": "running",
    "beats": "liveness",
    "cancel_once": "cancelling",
    "cancel_task": "cancelling",
    "dead": "messages",
    "dead_purge": "messages",
    "dead_requeue": "messages",
    "doctor": "doctoring",
    "edit": "editing",
    "explain": "explaining",
    "export": "carrying",
    "health": "liveness",
    "history": "listing",
    "is_pattern": "targets",
    "list_entries": "listing",
    "next_dues": "listing",
    "pause_task": "pausing",
    "pause_tasks": "pausing",
    "paused": "holding",
    "plan": "planning",
    "queues": "messages",
    "reanchor_named": "reanchoring",
    "reanchor_task": "reanchoring",
    "reanchor_tasks": "reanchoring",
    "remove": "editing",
    "resume_task": "pausing",
    "resume_tasks": "pausing",
    "run_task": "running",
    "show": "listing",
    "timeline": "messages",
    "where_is": "whereabouts",
    "whoami": "site",
}

__all__ = [
    "Holding",
    "Site",
    "Standing",
    "add",
    "all_entries",
    "audit",
    "backfill",
    "beats",
    "cancel_once",
    "cancel_task",
    "dead",
    "dead_purge",
    "dead_requeue",
    "doctor",
    "edit",
    "explain",
    "export",
    "health",
    "history",
    "is_pattern",
    "list_entries",
    "next_dues",
    "pause_task",
    "pause_tasks",
    "paused",
    "plan",
    "queues",
    "reanchor_named",
    "reanchor_task",
    "reanchor_tasks",
    "remove",
    "resume_task",
    "resume_tasks",
    "run_task",
    "show",
    "timeline",
    "where_is",
    "whoami",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
