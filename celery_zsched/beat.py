"""``beat_scheduler = "celery_zsched:Scheduler"``: Celery's beat on the shared schedule, as many of them as you like."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click
from billiard.process import current_process
from celery import beat
from kombu.exceptions import OperationalError

from celery_zsched import planner
from celery_zsched.apps import open_schedules
from celery_zsched.engine import Engine, Options, PublishError
from celery_zsched.entry import HEADER, EntrySpec, from_beat_schedule, occurrence_header, occurrence_id
from celery_zsched.errors import ConfigurationError, ServerError, ZschedError
from celery_zsched.schedules import Change
from celery_zsched.settings import Settings
from celery_zsched.types import SECOND_US, from_us

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("celery.beat.zsched")

#: A tick comes back at least this often, in seconds, so that Celery sees that beat is alive and can stop it.
LONGEST_TICK_S = 5.0


class Scheduler(beat.Scheduler):
    """Sends due entries, by :mod:`celery_zsched.engine`; set up by :class:`~celery_zsched.settings.Settings`."""

    max_interval = LONGEST_TICK_S
    #: There is nothing to write to disk.
    sync_every = float("inf")

    def __init__(self, app: Any, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        try:
            self.settings = Settings.from_conf(app.conf)
            self.schedules = open_schedules(app, self.settings)
        except ConfigurationError as exc:
            _stop_for(exc)
        self._engine = Engine(self.schedules, self._publish, _engine_options(self.settings))
        self._installed = False
        self._ticking = False
        super().__init__(app, *args, lazy=lazy, **kwargs)
        self.max_interval = min(self.max_interval, LONGEST_TICK_S)

    # -- What Celery calls

    def setup_schedule(self) -> None:
        """Collect the entries of ``beat_schedule``; they are stored at the first tick that reaches the server."""
        self.data: dict[str, Any] = {}
        self.install_default_entries(self.data)
        self.data.update(self.app.conf.beat_schedule or {})

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """Take more static entries, as Celery's own scheduler does."""
        self.data.update(dict_)
        self._installed = False

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, or wait for it; return how many seconds to sleep before the next call. Never raises."""
        self._ticking = True
        try:
            if not self._installed:
                pause_s = self._install()
                if pause_s:
                    return pause_s
            return self._engine.turn(self.max_interval)
        except Exception:
            logger.exception("a turn of the scheduler failed; nothing is lost, and the next try comes in 1 s")
            return 1.0
        finally:
            self._ticking = False

    def should_sync(self) -> bool:
        """Return False: every change is on the server at once."""
        return False

    def close(self) -> None:
        """Give back what is claimed and not sent.

        Celery calls this from its signal handler too, amid a tick; that tick ends by the exception that the handler
        raises, and this is called again.
        """
        if not self._ticking:
            self._engine.close()

    @property
    def schedule(self) -> dict[str, Any]:
        """The static entries as declared. What is due, and when, is on the server."""
        return self.data

    @property
    def info(self) -> str:
        """What the start-up banner says."""
        return "\n".join(
            [
                f"    . schedule -> {self.schedules.server.masked}",
                f"    . prefix -> {self.settings.prefix}",
                f"    . lease -> {self.settings.lease_timeout:g} seconds",
            ]
        )

    # -- Static entries

    def _install(self) -> float:
        """Store the static entries; return 0, or for how long to pause when the server cannot be reached."""
        specs: list[EntrySpec] = []
        for name, entry in self.data.items():
            try:
                specs.append(
                    from_beat_schedule(name, entry, self.schedules.zone, serializer=self.app.conf.task_serializer)
                )
            except ZschedError as exc:
                logger.error("the static entry %r is left out, the others go on: %s", name, exc)
        try:
            changes, faults = self.schedules.save_many(specs)
        except ServerError as exc:
            return self._engine.back_off("the schedule cannot be reached: %s", exc)
        for name, fault in faults.items():
            logger.error("the static entry %r is left out, the others go on: %s", name, fault)
        counts = {change: list(changes.values()).count(change) for change in Change}
        logger.info(
            "%d static entries: %s", len(changes), ", ".join(f"{n} {change.value}" for change, n in counts.items())
        )
        self._installed = True
        return 0.0

    # -- Sending

    def _ensure_connected(self) -> Any:
        # Celery's own tries a hundred times, while every entry that was claimed waits.
        return self.connection.ensure_connection(max_retries=1)

    def _publish(self, spec: EntrySpec, send: planner.Send, at_us: int) -> str:
        args, kwargs = self._arguments(spec)
        options = dict(spec.options)
        header = occurrence_header(
            spec.name, send.nominal_us, at_us, epoch=spec.epoch, missed=send.missed, cause=send.cause
        )
        options["headers"] = {**(options.get("headers") or {}), "celery_beat_task": True, HEADER: header}
        options["task_id"] = occurrence_id(self.settings.prefix, spec.name, spec.epoch, send.nominal_us)
        if send.expires_us is not None:
            options["expires"] = from_us(send.expires_us)
        task = self.app.tasks.get(spec.task)
        with self._publishing():
            if task is None:
                result = self.app.send_task(spec.task, args, kwargs, producer=self.producer, **options)
            else:
                result = task.apply_async(args, kwargs, producer=self.producer, **options)
        return str(result.id)

    def _arguments(self, spec: EntrySpec) -> tuple[Any, Any]:
        if not spec.lazy:
            return spec.arguments.arguments() if spec.arguments is not None else ((), {})
        declared = self.data.get(spec.name)
        if declared is None:
            raise ConfigurationError(
                f"the arguments of {spec.name!r} are computed by the beat that sends it, and this one's beat_schedule "
                "does not have it"
            )
        get: Callable[[str], Any] = declared.get if isinstance(declared, dict) else lambda key: getattr(declared, key)
        return beat._evaluate_entry_args(get("args")), beat._evaluate_entry_kwargs(get("kwargs"))

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Tell the broker's faults, which pass, from an entry's own."""
        connection = self.connection
        broken = (*connection.recoverable_connection_errors, *connection.recoverable_channel_errors)
        try:
            yield
        except (OperationalError, *broken) as exc:
            self._reconnect()
            raise PublishError(str(exc) or type(exc).__name__) from exc

    def _reconnect(self) -> None:
        """Forget the broken connection; the next message makes a new one."""
        for name in ("connection", "producer"):
            made = self.__dict__.pop(name, None)
            if name == "connection" and made is not None:
                try:
                    made.release()
                except Exception as exc:
                    logger.debug("the broken connection could not be closed: %s", exc)


def _engine_options(settings: Settings) -> Options:
    grace_s = settings.misfire_grace
    return Options(
        lease_s=settings.lease_timeout,
        block_s=settings.max_block,
        claim_limit=settings.claim_limit,
        quarantine_after=settings.quarantine_after,
        rules=planner.Rules(
            misfire=settings.misfire,
            grace_us=None if grace_s is None else round(grace_s * SECOND_US),
            misfire_limit=settings.misfire_limit,
            overlap=settings.overlap,
        ),
    )


def _stop_for(exc: ConfigurationError) -> NoReturn:
    """End a beat process whose settings are wrong with one line for each fault; raise where a program asked for it."""
    in_command = click.get_current_context(silent=True) is not None or current_process().name == "Beat"
    if not in_command:
        raise exc
    for fault in exc.faults:
        logger.critical("beat cannot start: %s", fault)
    raise SystemExit(os.EX_CONFIG) from None
