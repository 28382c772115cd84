"""What a worker does about runs that may not overlap: it holds a lease on each on the server for as long as it runs.

Importing this module is all it takes, and every ``celery`` command does (see :mod:`celery_zsched.cli`). Only messages
whose header asks for it cost anything: one round trip as the task begins, one as it ends, and a thread of the process
that runs the task, which renews what is held. Celery's signals come in that process in every pool, so a child that is
killed lets its runs lapse with it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import signals, states

from celery_zsched.errors import ConfigurationError, ServerError
from celery_zsched.types import HEADER, SECOND_US

if TYPE_CHECKING:
    from celery_zsched.runs import Runs

logger = logging.getLogger("celery_zsched.runs")

#: How often leases on runs are renewed, in seconds: several times within one.
RENEW_S = 10.0


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


class RunKeeper:
    """The runs that this process has begun, and the thread that renews its leases on them."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        #: Task id -> entry and the app's runs.
        self._held: dict[str, tuple[str, Runs]] = {}
        self._thread: threading.Thread | None = None
        self._apps_warned: set[int] = set()

    def begin(self, app: Any, entry: str, id_: str) -> None:
        """Take a lease on a run that begins, and keep it."""
        runs = self._runs_of(app, entry)
        if runs is None:
            return
        with self._lock:
            self._held[id_] = (entry, runs)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="zsched-runs", daemon=True)
                self._thread.start()
        self._try("begin", entry, lambda: self._mark(runs, entry, id_, "running"))

    def end(self, app: Any, entry: str, id_: str) -> None:
        """End a run, begun here or never begun at all."""
        with self._lock:
            _, runs = self._held.pop(id_, (entry, None))
        found = runs or self._runs_of(app, entry)
        if found is not None:
            self._try("end", entry, lambda: found.end([(entry, id_)]))

    def put_off(self, entry: str, id_: str, delay_s: float) -> None:
        """Let a run that was begun here wait: its task is to be tried again in ``delay_s`` seconds."""
        from celery_zsched.runs import LONGEST_WAIT_US

        with self._lock:
            _, runs = self._held.pop(id_, (entry, None))
        if runs is not None:
            wait_us = round(max(delay_s, 0.0) * SECOND_US) + LONGEST_WAIT_US
            self._try("put off", entry, lambda: self._mark(runs, entry, id_, "waiting", wait_us))

    def abandon(self, id_: str) -> None:
        """Renew a run no more: how it goes on is not known, and it lapses."""
        with self._lock:
            self._held.pop(id_, None)

    # -- Inside

    def _keep(self) -> None:
        while True:
            time.sleep(RENEW_S)
            with self._lock:
                held = dict(self._held)
                if not held:
                    self._thread = None
                    return
            for runs in {id(runs): runs for _, runs in held.values()}.values():
                mine = {id_: entry for id_, (entry, its) in held.items() if its is runs}
                self._try("renew", ", ".join(mine.values()), partial(self._renew, runs, mine))

    def _renew(self, runs: Runs, mine: dict[str, str]) -> None:
        from celery_zsched.runs import Mark

        for id_ in runs.mark([Mark(entry, id_, "renewed") for id_, entry in mine.items()]):
            # It lapsed, the data is gone, or it has just ended here; only in the last case it must not come back.
            if id_ in self._held:
                self._mark(runs, mine[id_], id_, "running")
                if id_ not in self._held:
                    runs.end([(mine[id_], id_)])

    def _mark(self, runs: Runs, entry: str, id_: str, note: Any, for_us: int | None = None) -> None:
        from celery_zsched.runs import RUN_LEASE_US, Mark

        runs.mark([Mark(entry, id_, note, for_us=for_us or RUN_LEASE_US)])

    def _runs_of(self, app: Any, entry: str) -> Runs | None:
        from celery_zsched.apps import schedules_of
        from celery_zsched.runs import Runs

        try:
            return Runs(schedules_of(app))
        except ConfigurationError as exc:
            if id(app) not in self._apps_warned:
                self._apps_warned.add(id(app))
                logger.error(
                    "the run of %s cannot be reported, so its next may not be sent for long: %s; give workers the "
                    "settings of the scheduler",
                    entry, exc,
                )  # fmt: skip
            return None

    def _try(self, doing: str, entries: str, what: Callable[[], object]) -> None:
        try:
            what()
        except ServerError as exc:
            logger.warning("could not %s the run lease of %s: %s; the task goes on", doing, entries, exc)


_keeper = RunKeeper()
os.register_at_fork(after_in_child=_keeper._start_over)


def _begun(task: Any = None, task_id: str | None = None, **_: Any) -> None:
    entry = _guarded_entry(task.request)
    if entry is not None and task_id and not task.request.is_eager:
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
    elif state == states.REJECTED and getattr(retval, "requeue", False):
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


for _signal, _receiver in (
    (signals.task_prerun, _begun),
    (signals.task_postrun, _ended),
    (signals.task_revoked, _revoked),
    (signals.task_unknown, _unknown),
):
    _signal.connect(_receiver, weak=False, dispatch_uid=f"celery_zsched.{_receiver.__name__}")
