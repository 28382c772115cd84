"""``celery control pause_task | resume_task``: commands that workers and the shell know once this module is imported.

Every worker hears a command and each does it; since the effect is on the server and doing it twice is doing it once,
all of them answer with the same standing, and one of them says that it changed something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.serialization import strtobool
from celery.worker.control import control_command

from celery_zsched import operations
from celery_zsched.apps import schedules_of
from celery_zsched.errors import ZschedError
from celery_zsched.schedules import Schedules


def addressed(target: str) -> dict[str, str]:
    """Return a target with who asks for it. The shell calls this before it sends; workers run as somebody else."""
    return {"target": target, "by": operations.whoami()}


@control_command(args=[("target", addressed), ("reason", str)], signature="ENTRY [REASON]")
def pause_task(state: Any, target: str | dict[str, str], reason: str | None = None, **_: Any) -> dict[str, Any]:
    """Pause a periodic task: nothing of it is sent until it is resumed."""
    name, by = _parts(target)
    return _answer(state, lambda schedules: operations.pause_task(schedules, name, reason=reason, by=by))


@control_command(args=[("target", addressed), ("catch_up", strtobool)], signature="ENTRY [catch_up=no]")
def resume_task(state: Any, target: str | dict[str, str], catch_up: bool = False, **_: Any) -> dict[str, Any]:
    """Resume a paused periodic task: it is due at its next time."""
    name, _by = _parts(target)
    return _answer(state, lambda schedules: operations.resume_task(schedules, name, catch_up=catch_up))


def _parts(target: str | dict[str, str]) -> tuple[str, str | None]:
    return (target, None) if isinstance(target, str) else (target["target"], target["by"])


def _answer(state: Any, operate: Callable[[Schedules], operations.Standing]) -> dict[str, Any]:
    try:
        return {"ok": operate(schedules_of(state.app)).to_dict()}
    except ZschedError as exc:
        return {"error": str(exc)}
