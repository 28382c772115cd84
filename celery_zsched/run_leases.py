"""What a worker does about runs that may not overlap: it holds a lease on each on the server for as long as it runs.

Importing this module is all it takes; every ``celery`` command does (see :mod:`celery_zsched.cli`), and so does every
worker that imports the package (see :mod:`celery_zsched.reporting`). Only messages
whose header asks for it cost anything: one round trip as the task begins, one as it ends, and a thread of the process
that runs the task, which renews what is held. Celery's signals come in that process in every pool, so a child that is
killed lets its runs lapse with it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import signals, states

from celery_zsched.errors import ConfigurationError, ServerError
from celery_zsched.types import HEADER, SECOND_US

if TYPE_CHECKING:
    from celery_zsched.runs import Note, Runs

logger = logging.getLogger("celery_zsched.runs")

#: How often within a lease it is renewed.
RENEWALS = 4


def header_of(request: Any) -> Any:
    """Return the ``zsched`` header of a task's request (``Task.request``, or the worker's own), or None."""
    return (getattr(request, "headers", None) or {}).get(HEADER) or getattr(request, HEADER, None)


def _guarded_entry(request: Any) -> str | None:
    """Return the entry of a run that may not overlap with others of its entry; None for any other task."""
    header = header_of(request)
    if not isinstance(header, Mapping) or header.get("overlap", "allow") == "allow":
        return None
    entry = header.get("entry")
    return entry if isinstance(entry, str) and entry else None


@dataclass(frozen=True, slots=True)
class Lessor:
    """Where an app's runs are noted, and for how long each time."""

    runs: Runs
    lease_us: int

    def note(self, entry: str, id_: str, note: Note, for_us: int | None = None) -> list[str]:
        """Note how a run stands; return its id if it was to be renewed and is not known."""
        from celery_zsched.runs import Mark

        return self.runs.mark([Mark(entry, id_, note, for_us=for_us or self.lease_us)])


class RunKeeper:
    """The runs that this process has begun, and the thread that renews its leases on them."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        #: Task id -> entry and where its runs are noted.
        self._held: dict[str, tuple[str, Lessor]] = {}
        self._thread: threading.Thread | None = None
        self._lessors: weakref.WeakKeyDictionary[Any, Lessor | None] = weakref.WeakKeyDictionary()

    def begin(self, app: Any, entry: str, id_: str) -> None:
        """Take a lease on a run that begins, and keep it."""
        lessor = self._lessor_of(app, entry)
        if lessor is None:
            return
        with self._lock:
            self._held[id_] = (entry, lessor)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="zsched-runs", daemon=True)
                self._thread.start()
        self._try("begin", entry, lambda: lessor.note(entry, id_, "running"))

    def end(self, app: Any, entry: str, id_: str) -> None:
        """End a run, begun here or never begun at all."""
        lessor = self.abandon(id_) or self._lessor_of(app, entry)
        if lessor is not None:
            self._try("end", entry, lambda: lessor.runs.end([(entry, id_)]))

    def put_off(self, entry: str, id_: str, delay_s: float) -> None:
        """Let a run that was begun here wait: its task is to be tried again in ``delay_s`` seconds."""
        from celery_zsched.runs import LONGEST_WAIT_US

        lessor = self.abandon(id_)
        if lessor is not None:
            wait_us = round(max(delay_s, 0.0) * SECOND_US) + LONGEST_WAIT_US
            self._try("put off", entry, lambda: lessor.note(entry, id_, "waiting", wait_us))

    def abandon(self, id_: str) -> Lessor | None:
        """Renew a run no more, so that it lapses unless more is said; return where it is noted if it was begun here."""
        with self._lock:
            return self._held.pop(id_, ("", None))[1]

    # -- Inside

    def _keep(self) -> None:
        while True:
            with self._lock:
                held = dict(self._held)
                if not held:
                    self._thread = None
                    return
            time.sleep(min(lessor.lease_us for _, lessor in held.values()) / SECOND_US / RENEWALS)
            for id_, (entry, lessor) in held.items():
                if id_ in self._held:
                    self._try("renew", entry, partial(self._renew, lessor, entry, id_))

    def _renew(self, lessor: Lessor, entry: str, id_: str) -> None:
        if lessor.note(entry, id_, "renewed") and id_ in self._held:
            # It lapsed, or the data is gone. Should it have ended here meanwhile, it must not come back.
            lessor.note(entry, id_, "running")
            if id_ not in self._held:
                lessor.runs.end([(entry, id_)])

    def _lessor_of(self, app: Any, entry: str) -> Lessor | None:
        if app not in self._lessors:
            from celery_zsched.apps import schedules_of
            from celery_zsched.runs import Runs
            from celery_zsched.settings import Settings

            try:
                lease_us = round(Settings.from_conf(app.conf).run_lease * SECOND_US)
                self._lessors[app] = Lessor(Runs(schedules_of(app)), lease_us)
            except ConfigurationError as exc:
                self._lessors[app] = None
                logger.error(
                    "the run of %s cannot be reported, so its next may not be sent for long: %s; give workers the "
                    "settings of the scheduler",
                    entry, exc,
                )  # fmt: skip
        return self._lessors[app]

    def _try(self, doing: str, entry: str, what: Callable[[], object]) -> None:
        try:
            what()
        except ServerError as exc:
            logger.warning("could not %s the run lease of %s: %s; the task goes on", doing, entry, exc)


_keeper = RunKeeper()
os.register_at_fork(after_in_child=_keeper._start_over)


def _begun(task: Any = None, task_id: str | None = None, **_: Any) -> None:
    entry = _guarded_entry(task.request)
    if entry is not None and task_id and not task.request.is_eager:
        _listen(signals.task_postrun, _ended)
        _keeper.begin(task.app, entry, task_id)


def _ended(
    task: Any = None, task_id: str | None = None, state: str | None = None, retval: Any = None, **_: Any
) -> None:
    entry = _guarded_entry(task.request)
    if entry is None or not task_id or task.request.is_eager:
        return
    if state is None:
        _keeper.abandon(task_id)  # the process is being stopped under the task, which may come again
    elif state == states.RETRY:
        _keeper.put_off(entry, task_id, _delay_s(getattr(retval, "when", None)))
    elif state == states.REJECTED and getattr(retval, "requeue", False) and task.acks_late:
        _keeper.put_off(entry, task_id, 0.0)
    else:
        _keeper.end(task.app, entry, task_id)


def _revoked(sender: Any = None, request: Any = None, terminated: bool = False, **_: Any) -> None:
    """End a run whose message was expired or revoked before it began; one that is being killed lapses."""
    entry = _guarded_entry(request)
    if entry is not None and not terminated and getattr(request, "id", None):
        _keeper.end(sender.app, entry, request.id)


def _unknown(sender: Any = None, message: Any = None, id: str | None = None, **_: Any) -> None:  # noqa: A002
    """End a run that no worker can begin, because its task is not known here; the message is gone."""
    entry = _guarded_entry(message)
    if entry is not None and id:
        _keeper.end(sender.app, entry, id)


def _delay_s(when: Any) -> float:
    if isinstance(when, datetime):
        return (when - datetime.now(when.tzinfo)).total_seconds()
    return float(when or 0)


def _listen(signal: Any, receiver: Any) -> None:
    signal.connect(receiver, weak=False, dispatch_uid=f"celery_zsched.{receiver.__name__}")


# A receiver costs every task of the process some microseconds, so the end of tasks is listened for only where a run
# that may not overlap has begun.
_listen(signals.task_prerun, _begun)
_listen(signals.task_revoked, _revoked)
_listen(signals.task_unknown, _unknown)
