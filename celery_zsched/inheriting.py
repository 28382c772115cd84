"""What a scheduler finds of one that was stopped between sending and moving on, or was not told that it had sent.

The marks of our own broker tell which occurrences of an entry were sent. Those that are not on record are put there,
so that a task is not told of an occurrence that it was missed, nor an entry of ``count`` sent once more.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence

from celery_zsched import planner
from celery_zsched.deciding import overlap_of
from celery_zsched.entry import LastRun, Past, decode, occurrence_id
from celery_zsched.errors import ServerError
from celery_zsched.runs import LONGEST_WAIT_US, Mark, Runs
from celery_zsched.schedules import Schedules
from celery_zsched.stored import Due, Move

logger = logging.getLogger("celery.beat.zsched")

#: What is later than this, in microseconds, may have been tried before: failures are tried again no sooner.
TRIED_US = 150_000

#: Returns the marks of entries by their names, as (epoch, nominal), from every queue that has one.
Marks = Callable[[Sequence[str]], Mapping[str, Sequence[tuple[int, int]]]]


class Inheritance:
    """What of the entries of a schedule was sent and is not on record. For one scheduler."""

    def __init__(self, schedules: Schedules, rules: planner.Rules) -> None:
        self._schedules = schedules
        self._rules = rules
        self._runs = Runs(schedules)
        #: What is to be noted of entries when they are moved on.
        self._past: dict[str, tuple[Past, ...]] = {}

    def take(
        self, dues: Sequence[Due], runs: dict[str, LastRun], now_us: int, marks: Marks
    ) -> tuple[list[Due], list[Move]]:
        """Put on record, in ``runs``, what was sent already; return what is due then, and the moves of what has ended.

        Costs nothing for what comes in time, and for the rest one look at the broker.
        """
        self._past = {}
        doubtful = [due for due in dues if due.tries > 1 or now_us - due.due_us > TRIED_US]
        try:
            known = marks([due.name for due in doubtful]) if doubtful else {}
        except ServerError as exc:
            logger.debug("it cannot be seen what was sent: %s", exc)  # nor can anything be sent now
            return list(dues), []
        left: list[Due] = []
        ended: list[Move] = []
        for due in dues:
            told = [mark for mark in known.get(due.name, ()) if mark[1] > (runs[due.name].nominal_us or 0)]
            found = self._found(due, runs[due.name], now_us, told) if told else None
            if found is None:
                left.append(due)
                continue
            runs[due.name] = found.last
            if found.due_us is None:
                ended.append(Move(due.hold, None, found.last, self.past_of(due.name)))
            else:
                left.append(dataclasses.replace(due, due_us=found.due_us))
        return left, ended

    def past_of(self, name: str) -> tuple[Past, ...]:
        """Return what was found of an entry, once, for the move that puts it on record."""
        return self._past.pop(name, ())

    def _found(self, due: Due, last: LastRun, now_us: int, marks: Sequence[tuple[int, int]]) -> planner.Found | None:
        try:
            spec = decode(due.document)
            sent_us = max((nominal_us for epoch, nominal_us in marks if epoch == spec.epoch), default=None)
            if sent_us is None:
                return None
            found = planner.acknowledge(
                spec, last, due.due_us, sent_us, now_us, zone=self._schedules.zone, rules=self._rules
            )
        except Exception:  # the entry's own fault, which is told of when it is decided about
            return None
        if found is None:
            return None
        ids = [occurrence_id(self._schedules.prefix, spec.name, spec.epoch, at_us) for at_us in found.nominals_us]
        by = self._schedules.timeline.holder
        self._past[due.name] = tuple(
            Past(at_us, now_us, "sent", "schedule", id_, 0, by)
            for at_us, id_ in zip(found.nominals_us, ids, strict=True)
        )
        if overlap_of(spec, self._rules) != "allow":
            until_us = now_us + LONGEST_WAIT_US
            self._runs.mark([Mark(spec.name, id_, "sent", until_us=until_us) for id_ in ids])
        logger.info("%s was sent already for %d occurrences that were not on record", spec.name, len(ids))
        return dataclasses.replace(found, last=dataclasses.replace(found.last, task_id=ids[-1]))
