"""Celery's maker of task messages, which here also leaves word of how long a task is to wait (its ``countdown``)."""

from __future__ import annotations

from typing import Any

from celery.app import amqp

from celery_zsched.message import Countdown
from celery_zsched.types import SECOND_US


class AMQP(amqp.AMQP):
    """Makes messages as Celery does; where a task has a countdown, its ``eta`` knows that it was computed."""

    def as_task_v2(
        self, task_id: str, name: str, args: Any = None, kwargs: Any = None, countdown: Any = None, *rest: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Return a message of Celery's second protocol."""
        message = super().as_task_v2(task_id, name, args, kwargs, countdown, *rest, **options)
        if countdown:
            eta = Countdown(message.headers["eta"])
            eta.delay_us = max(0, round(float(countdown) * SECOND_US))
            message.headers["eta"] = eta
        return message


def take_over(app: Any) -> None:
    """Make the messages of an app from now on, unless it has a maker of its own."""
    made = app.__dict__.get("amqp")
    if type(made) is amqp.AMQP:
        made.__class__ = AMQP
        made.task_protocols[2] = made.as_task_v2
        made.__dict__.pop("create_task_message", None)
