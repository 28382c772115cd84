"""Celery's maker of task messages: here it also leaves word of how long a task is to wait (its ``countdown``), and a
message costs less."""

from __future__ import annotations

from typing import Any

import kombu
from celery.app import amqp

from celery_zsched.message import Countdown
from celery_zsched.ours import is_ours
from celery_zsched.types import SECOND_US

#: How many arguments ``as_task_v2`` takes after the countdown and before ``argsrepr``.
_BEFORE_ARGSREPR = 20

_NUMBERS = (int, float, bool, type(None))


class Producer(kombu.Producer):
    """Publishes as kombu's does; what its connection has declared is not copied first to find that out."""

    def maybe_declare(self, entity: Any, retry: bool = False, **retry_policy: Any) -> Any:
        """Declare a queue or an exchange unless that was done; return whether it was done now."""
        link = self.channel.connection
        if (
            link is not None
            and entity
            and entity.can_cache_declaration
            and hash(entity) in link.client.declared_entities
        ):
            return False
        return super().maybe_declare(entity, retry, **retry_policy)


class AMQP(amqp.AMQP):
    """Makes messages as Celery does; where a task has a countdown, its ``eta`` knows that it was computed."""

    @property
    def producer_pool(self) -> Any:
        """The producers of the app."""
        if self._producer_pool is None:
            pool = super().producer_pool
            if is_ours(pool.connections.connection) and pool.Producer is kombu.Producer:
                pool.Producer = Producer
        return self._producer_pool

    publisher_pool = producer_pool

    def as_task_v2(
        self, task_id: str, name: str, args: Any = None, kwargs: Any = None, countdown: Any = None, *rest: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Return a message of Celery's second protocol."""
        if len(rest) <= _BEFORE_ARGSREPR and options.get("argsrepr") is None:
            text = plain_repr(args or ())
            if text is not None and len(text) < self.argsrepr_maxsize:
                options["argsrepr"] = text
            if not kwargs and options.get("kwargsrepr") is None:
                options["kwargsrepr"] = "{}"
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


def plain_repr(args: Any) -> str | None:
    """Return what Celery's ``saferepr`` makes of plain arguments, in a tenth of its time; None for any others.

    It is in every message; numbers and texts without anything to escape are written alike by ``repr``.
    """
    if type(args) not in (list, tuple):
        return None
    for value in args:
        kind = type(value)
        if kind is str:
            if "'" in value or "\\" in value or not value.isprintable():
                return None
        elif kind not in _NUMBERS:
            return None
    return repr(args)
