"""Run leases: which occurrences of an entry are sent and not over, so that an overlap is known for what it is.

A message that was acked is no sign of a run, since Celery acks as a task begins. A run is outstanding from its sending:
for as long as its message may wait, then for as long as a worker renews its lease on it. It ends when the worker says
so, and by itself when its worker has died.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from celery_zsched.schedules import Schedules
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.types import SECOND_US

#: How long at least an occurrence that is being sent counts before the scheduler says that it was sent.
SENDING_US = 10 * SECOND_US

#: For how long after its sending a run may wait for a worker. Its message expires then, so that it cannot begin later.
LONGEST_WAIT_US = 24 * 3600 * SECOND_US

#: How a run stands: being sent, waiting for a worker, or under a worker's lease.
State = Literal["sending", "sent", "running"]

#: What can be noted of a run; see ``lua/run_mark.lua``.
Note = Literal["sending", "sent", "running", "renewed", "waiting", "missing"]


@dataclass(frozen=True, slots=True)
class Run:
    """An outstanding run: its task id, how it stands and since when, until when it counts if nothing is heard of it,
    and with whom."""

    id: str
    state: State
    until_us: int
    since_us: int
    holder: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What to note of one run; it counts for ``for_us`` microseconds from now, or until ``until_us`` (an instant)."""

    entry: str
    id: str
    note: Note
    for_us: int = SENDING_US
    until_us: int | None = None


class Runs:
    """The outstanding runs of a schedule's entries. Errors are :class:`~celery_zsched.errors.ServerError`'s kinds."""

    def __init__(self, schedules: Schedules) -> None:
        self._timeline = schedules.timeline

    def of(self, entries: Iterable[str]) -> dict[str, list[Run]]:
        """Return the outstanding runs of each entry, in one round trip for up to :data:`MAX_BATCH` of them."""
        found: dict[str, list[Run]] = {}
        names = list(entries)
        for start in range(0, len(names), MAX_BATCH):
            chunk = names[start : start + MAX_BATCH]
            _now, *lists = self._timeline.run("runs", chunk)
            for name, parts in zip(chunk, lists, strict=True):
                fields = [part.decode() for part in parts]
                found[name] = [
                    Run(id_, _state(state), int(until), int(since), holder)
                    for id_, state, until, since, holder in zip(*[iter(fields)] * 5, strict=True)
                ]
        return found

    def entries(self) -> list[str]:
        """Return the entries of which runs are known, outstanding or not."""
        timeline = self._timeline
        with timeline.server.translated("listing runs"):
            client: Any = timeline.server.client
            return [name.decode() for name in client.hkeys(timeline.keys.runs)]

    def mark(self, marks: Iterable[Mark]) -> list[str]:
        """Note that runs are outstanding; return the ids of those to be renewed that are not known any more."""
        every = list(marks)
        unknown: list[str] = []
        for start in range(0, len(every), MAX_BATCH):
            args: list[str | bytes | int] = [self._timeline.holder]
            for mark in every[start : start + MAX_BATCH]:
                until = f"+{mark.for_us}" if mark.until_us is None else str(mark.until_us)
                args += [mark.entry, mark.id, mark.note, until]
            unknown += [id_.decode() for id_ in self._timeline.run("run_mark", args)]
        return unknown

    def end(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Note that runs, given as (entry, id), are over; an entry that waits for that is due at once."""
        every = list(pairs)
        for start in range(0, len(every), MAX_BATCH):
            self._timeline.run("run_end", [part for pair in every[start : start + MAX_BATCH] for part in pair])

    def wait(self, entries: Iterable[str]) -> None:
        """Let entries be due as soon as no run of theirs is outstanding, which may be now."""
        names = list(entries)
        for start in range(0, len(names), MAX_BATCH):
            self._timeline.run("run_await", names[start : start + MAX_BATCH])


def _state(text: str) -> State:
    return "running" if text == "running" else "sent" if text == "sent" else "sending"
