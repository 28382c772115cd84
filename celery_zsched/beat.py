"""``beat_scheduler = "celery_zsched:Scheduler"``: Celery's beat on the shared schedule, as many of them as you like."""

from __future__ import annotations

import logging
import math
import os
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import click
from billiard.process import current_process
from celery import beat
from celery.signals import beat_init

from celery_zsched import cautions, notices, planner
from celery_zsched.apps import open_schedules, static_entries
from celery_zsched.embedding import Parent
from celery_zsched.engine import Engine, Options
from celery_zsched.entry import EntrySpec, Past, encode, from_beat_schedule
from celery_zsched.errors import ConfigurationError, ServerError, ZschedError
from celery_zsched.events import Announcer
from celery_zsched.lookout import SET_BACK_US
from celery_zsched.operations.guarding import undefined_blackouts
from celery_zsched.operations.holding import end_pause
from celery_zsched.operations.reanchoring import REMEDY, Lead, lead
from celery_zsched.operations.records import note
from celery_zsched.operations.site import Site
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.roll import Roll, beats_of
from celery_zsched.settings import Settings
from celery_zsched.types import SECOND_US
from celery_zsched.upkeep import Marks, adopt_zone

logger = logging.getLogger("celery.beat.zsched")

#: A tick comes back at least this often, in seconds, so that Celery sees that beat is alive and can stop it.
LONGEST_TICK_S = 5.0


class Scheduler(beat.Scheduler):
    """Sends due entries, by :mod:`celery_zsched.engine`; set up by :class:`~celery_zsched.settings.Settings`."""

    max_interval = LONGEST_TICK_S

    def __init__(self, app: Any, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        try:
            self.settings = Settings.from_conf(app.conf)
            options = _engine_options(self.settings, _starting_deadline_us(app))
            self.schedules = open_schedules(app, self.settings)
            self.schedules.on_reminded = lambda target: end_pause(app, self.schedules, target)
            self.schedules.on_replaced = self._tell_of_replaced
        except ConfigurationError as exc:
            _stop_for(exc)
        self._publisher = CeleryPublisher(app, prefix=self.settings.prefix, declared=lambda: self.data)
        self._engine = Engine(self.schedules, self._publisher, options)
        self._announcer = Announcer(app) if self.settings.send_events else None
        self._engine.on_past = partial(self._tell, app)
        self._roll = Roll(self.schedules, self._engine, self.settings, also=self._sweep_marks)
        self._marks: Marks | None = None
        self._installed = False
        self._ticking = False
        self._parent = Parent(embedded=current_process().name == "Beat")
        #: Celery's service that this scheduler works for, until its remote control is seen to.
        self._service: Any = None
        beat_init.connect(self._meet)
        super().__init__(app, *args, lazy=lazy, **kwargs)
        self.max_interval = min(self.max_interval, LONGEST_TICK_S)

    # -- What Celery calls

    def setup_schedule(self) -> None:
        """Collect the entries of ``beat_schedule``; they are stored at the first tick that reaches the server."""
        self.data: dict[str, Any] = static_entries(self.app)

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """Take more static entries, as Celery's own scheduler does."""
        self.data.update(dict_)
        self._installed = False

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, or wait for it; return how many seconds to sleep before the next call.

        Never raises, but for ``SystemExit`` where the worker that it is inside of is gone.
        """
        self._parent.check()
        self._ticking = True
        try:
            if self._service is not None:
                self._answer_commands()
            if not self._installed:
                self._install()
                self._publisher.warm()
                self._caution()
                self._tell_of_an_earlier_clock()
            pause_s = self._engine.turn(min(self.max_interval, self._roll.every_s))
            self._call_roll(failing=bool(pause_s))
            self._tell_of_the_clock()
            return pause_s
        except ServerError as exc:
            return self._engine.back_off("the schedule cannot be reached: %s", exc)
        except Exception as exc:
            logger.exception("a turn of the scheduler failed; nothing is lost, and the next try comes in 1 s")
            self._engine.stumbled(f"a turn of the scheduler failed: {type(exc).__name__}: {exc}")
            self._call_roll(failing=True)
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
            try:
                self._roll.leave()
            except ServerError as exc:
                logger.warning("it could not be told that this beat ends: %s", exc)
            self._engine.close()
            self._publisher.close()
            if self._announcer is not None:
                self._announcer.close()

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

    def _meet(self, sender: Any = None, **_: Any) -> None:
        """Get to know the service, as it starts; it has no remote control before the first tick."""
        if getattr(sender, "scheduler", None) is self:
            self._service = sender

    def _answer_commands(self) -> None:
        """Take our remote-control commands too, if this beat has a remote control."""
        service, self._service = self._service, None
        if getattr(service, "remote_control", False):
            from celery_zsched import remote  # it loads what is a worker's, which other beats do without

            remote.answer(service)

    def _tell(self, app: Any, entry: str, past: Past) -> None:
        notices.tell(app, entry, past)
        if self._announcer is not None:
            self._announcer.occurrence(entry, past)

    def _sweep_marks(self, now_us: int) -> None:
        """Drop the high-water marks of entries that are gone, where the broker is ours."""
        queues = self._publisher.queues()
        if queues is not None:
            self._marks = self._marks or Marks(self.schedules, queues)
            self._marks.sweep(now_us)

    def _caution(self) -> None:
        server = self.schedules.server
        for caution in (cautions.eviction(server), cautions.clock(self.schedules.now_us)):
            if caution:
                logger.warning("%s", caution)

    def _tell_of_the_clock(self) -> None:
        """Tell if the server's clock was set back meanwhile, and what that keeps waiting."""
        back_us = self._engine.lookout.set_back_us
        if not back_us:
            return
        found = lead(self.schedules)
        self._engine.lookout.set_back_us = 0  # only now: what cannot be looked at is told of in another turn
        if found.waiting:
            self._tell_of_lead(f"is {timedelta(seconds=back_us // SECOND_US)} behind what it was", found)
        else:
            logger.warning(
                "the clock of %s is %s behind what it was: it was set back; no entry is ahead of it",
                self.schedules.server.masked, timedelta(seconds=back_us // SECOND_US),
            )  # fmt: skip

    def _tell_of_an_earlier_clock(self) -> None:
        """Tell if the server's clock was set back before this beat started, and if that keeps anything waiting."""
        now_us = self.schedules.now_us()
        back_us = max((beat.at_us for beat in beats_of(self.schedules)), default=now_us) - now_us
        found = lead(self.schedules) if back_us > SET_BACK_US else None
        if found is not None and found.waiting:
            at_least = timedelta(seconds=back_us // SECOND_US)
            self._tell_of_lead(f"is {at_least} or more behind what it was when a beat last called", found)

    def _tell_of_lead(self, behind: str, found: Lead) -> None:
        logger.error(
            "the clock of %s %s: it was ahead and was set back, or another server has taken over. %s, so nothing of "
            "them is sent before it has caught up. Once the clock is right, let them go on with `%s`",
            self.schedules.server.masked, behind, found, REMEDY,
        )  # fmt: skip

    def _tell_of_replaced(self, old: EntrySpec, new: EntrySpec) -> None:
        """Tell that an entry of ``beat_schedule`` took the place of one that was added at run time; it is on record."""
        logger.warning(
            "the entry %r of beat_schedule (%s, %s) has replaced the one of that name that was added at run time (%s, "
            "%s), and is deleted when no release declares it any more. To keep both, rename one in beat_schedule and "
            "save the other anew, under a name of its own",
            new.name, new.task, new.trigger, old.task, old.trigger,
        )  # fmt: skip
        site = Site(self.app, self.schedules, f"beat {self.schedules.timeline.holder}")
        was = {"was_task": old.task, "was_schedule": str(old.trigger)}
        detail = {"task": new.task, "schedule": str(new.trigger), **was}
        try:
            note(site, "replace", f"entry:{new.name}", "beat_schedule declares it", **detail)
        except ServerError as exc:
            logger.warning("that could not be put on record: %s", exc)

    def _caution_blackouts(self, specs: list[EntrySpec]) -> None:
        for name, entries in undefined_blackouts(self.schedules, specs).items():
            logger.warning(
                "there is no blackout %r, which beat_schedule names for %s: it closes nothing until it is defined, so "
                "they are sent as if it were not named; define it with `celery zsched blackout set`, or mend the name",
                name, ", ".join(map(repr, entries)),
            )  # fmt: skip

    def _call_roll(self, *, failing: bool) -> None:
        """Say that this beat lives. One whose turns fail says so too, and what fails there adds nothing to that."""
        try:
            known = self._roll.call()
        except Exception as exc:
            if not failing:
                raise
            logger.debug("it could not be told that this beat fails: %s", exc)
            return
        if not known:
            logger.error(
                "%s has forgotten this beat: its data is gone (flushed, evicted, restarted without persistence), "
                "or this beat was silent for longer than settle_time, or came as another deleted what an old release "
                "had declared. The entries of beat_schedule are stored anew; if the data is gone, entries that were "
                "added at run time must be saved anew",
                self.schedules.server.masked,
            )
            self._installed = False

    def _install(self) -> None:
        """Store the static entries and declare them as this release's."""
        specs: list[EntrySpec] = []
        for name, entry in self.data.items():
            try:
                specs.append(
                    from_beat_schedule(name, entry, self.schedules.zone, serializer=self.app.conf.task_serializer)
                )
            except ZschedError as exc:
                logger.error("the static entry %r is left out, the others go on: %s", name, exc)
        self._caution_blackouts(specs)
        self._engine.lookout.connect()  # so that the roll can tell by which name
        self._roll.declare([spec.name for spec in specs], map(encode, specs))
        moved = adopt_zone(self.schedules)
        if moved:
            logger.info("the app's zone is %s now; entries without one that were moved: %d", self.schedules.zone, moved)
        changes, faults = self.schedules.save_many(specs)
        for name, fault in faults.items():
            logger.error("the static entry %r is left out, the others go on: %s", name, fault)
        done = [change.value for change in changes.values()]
        counts = ", ".join(f"{done.count(word)} {word}" for word in ("created", "updated", "unchanged"))
        logger.info("static entries: %s", counts)
        self._installed = True


def _starting_deadline_us(app: Any) -> int | None:
    """Return Celery's own setting for how late a crontab's occurrence may run; it is the grace of such entries."""
    deadline_s = app.conf.beat_cron_starting_deadline
    if deadline_s is None:
        return None
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, (int, float)) or not 0 <= deadline_s < math.inf:
        raise ConfigurationError(
            f"beat_cron_starting_deadline is {deadline_s!r}, not a number of seconds from 0 up, or None"
        )
    return round(deadline_s * SECOND_US)


def _engine_options(settings: Settings, crontab_grace_us: int | None) -> Options:
    grace_s = settings.misfire_grace
    return Options(
        lease_s=settings.lease_timeout,
        run_lease_s=settings.run_lease,
        block_s=settings.max_block,
        claim_limit=settings.claim_limit,
        quarantine_after=settings.quarantine_after,
        rules=planner.Rules(
            misfire=settings.misfire,
            grace_us=None if grace_s is None else round(grace_s * SECOND_US),
            crontab_grace_us=crontab_grace_us,
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
        if logging.getLogger().hasHandlers():
            logger.critical("beat cannot start: %s", fault)
        else:
            click.echo(f"beat cannot start: {fault}", err=True)  # Celery prints its banner before it sets up logging
    raise SystemExit(os.EX_CONFIG) from None
