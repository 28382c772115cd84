"""``celery control pause_task | resume_task``: remote-control commands, known to workers and to the shell once imported.

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


@control_command(args=[("target", str), ("reason", str)], signature="ENTRY [REASON]")
def pause_task(state: Any, target: str, reason: str | None = None, **_: Any) -> dict[str, Any]:
    """Pause a periodic task: nothing of it is sent until it is resumed."""
    return _answer(state, lambda schedules: operations.pause_task(schedules, target, reason=reason))


@control_command(args=[("target", str), ("catch_up", strtobool)], signature="ENTRY [catch_up=no]")
def resume_task(state: Any, target: str, catch_up: bool = False, **_: Any) -> dict[str, Any]:
    """Resume a paused periodic task: it is due at its next time."""
    return _answer(state, lambda schedules: operations.resume_task(schedules, target, catch_up=catch_up))


def _answer(state: Any, operate: Callable[[Any], operations.Standing]) -> dict[str, Any]:
    try:
        return {"ok": operate(schedules_of(state.app)).to_dict()}
    except ZschedError as exc:
        return {"error": str(exc)}
