"""Our remote-control commands in a beat: with ``beat_enable_remote_control`` (Celery 5.7) they need no worker.

Celery's own part answers ``ping`` and passes over every other command. It has no way in for more, so they are added to
its handlers once it is there; where it is built otherwise, a line in the log says that beats do not answer.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import VERSION_BANNER
from celery.worker.control import Panel

from celery_zsched import control

logger = logging.getLogger("celery.beat.zsched")


def commands() -> dict[str, Any]:
    """Return the commands that a beat can do as well as a worker, by name: ours that people send."""
    return {
        name: command
        for name, command in Panel.data.items()
        if command.__module__ == control.__name__ and Panel.meta[name].visible
    }


def answer(service: Any) -> bool:
    """Let a beat whose remote control is on take our commands too; return whether it does.

    ``service`` is Celery's ``beat.Service``, whose remote control has been started.
    """
    if not getattr(service, "remote_control", False):
        return False
    handlers = getattr(getattr(getattr(service, "_pidbox", None), "node", None), "handlers", None)
    if not isinstance(handlers, dict):
        logger.warning(
            "this beat's remote control answers to Celery's own commands only: Celery %s keeps its handlers elsewhere "
            "than is known here. Send pause_task and the like to a worker, or use `celery zsched`",
            VERSION_BANNER,
        )
        return False
    handlers.update(commands())
    return True
