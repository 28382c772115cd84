"""A beat inside a worker (``worker -B``): it lives and dies with the worker, and a worker does not start without it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import click
from celery import signals

logger = logging.getLogger("celery.beat.zsched")


class Parent:
    """The process that a beat was started by, if it is one inside a worker."""

    def __init__(self, *, embedded: bool) -> None:
        self._pid = os.getppid() if embedded else None

    def check(self) -> None:
        """End this process, in the orderly way, if the worker that it belongs to is gone.

        A worker that is killed cannot stop its beat, and nobody else would.
        """
        if self._pid is not None and os.getppid() != self._pid:
            logger.critical("the worker that this beat belongs to (process %d) is gone, so the beat ends", self._pid)
            raise SystemExit(0)


def refuse_faults(
    sender: Any = None, instance: Any = None, conf: Any = None, options: Mapping[str, Any] | None = None, **_: Any
) -> None:
    """End a worker that is to have a beat of ours whose settings are wrong: one line for each fault.

    Its beat would end so in a process of its own, and the worker go on without.
    """
    options = options or {}
    scheduler = options.get("scheduler") or options.get("scheduler_cls") or getattr(conf, "beat_scheduler", "")
    where = getattr(scheduler, "__module__", str(scheduler))
    if not options.get("beat") or where.partition(":")[0].partition(".")[0] not in ("zsched", "celery_zsched"):
        return
    from celery_zsched.apps import open_schedules
    from celery_zsched.errors import ConfigurationError
    from celery_zsched.settings import Settings

    try:
        open_schedules(instance.app, Settings.from_conf(conf))
    except ConfigurationError as exc:
        for fault in exc.faults:
            click.echo(f"the worker cannot start, since its beat cannot: {fault}", err=True)
        raise SystemExit(os.EX_CONFIG) from None


signals.celeryd_init.connect(refuse_faults, dispatch_uid="celery_zsched.embedding")
