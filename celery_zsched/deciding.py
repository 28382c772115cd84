"""What a scheduler decides with before it sends: plans, with what is outstanding and which windows are closed.

Entries whose runs may overlap and that know no blackout, which is most of them, cost nothing here. For the others one
look at the server serves a whole chunk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from celery_zsched import planner
from celery_zsched.blackout_store import Blackouts
from celery_zsched.entry import EntrySpec, LastRun, decode, occurrence_id
from celery_zsched.errors import ZschedError
from celery_zsched.runs import LONGEST_WAIT_US, SENDING_US, Mark, Runs
from celery_zsched.schedules import Schedules
from celery_zsched.stored import Due
from celery_zsched.types import SECOND_US

#: Most entries come again and again with the document that they had before.
_decode = lru_cache(maxsize=10_000)(decode)

#: An entry and its plan, or why there is none.
Ruling = tuple[EntrySpec, planner.Plan] | Exception


class Decider:
    """Plans entries of a schedule by the app's rules. One scheduler's, not for several threads at once.

    ``lease_s`` is how long an entry stays with this scheduler if it falls silent, in seconds.
    """

    def __init__(self, schedules: Schedules, rules: planner.Rules, *, lease_s: float) -> None:
        self._schedules = schedules
        # Longer than another scheduler waits before it takes over.
        self._sending_us = max(SENDING_US, round(2 * lease_s * SECOND_US))
        self._rules = rules
        self._runs = Runs(schedules)
        self._blackouts = Blackouts(schedules)
        self._rulings: dict[str, Ruling] = {}
        #: Entries whose runs may not overlap, as they were decided about and not yet concluded.
        self._alone: dict[str, tuple[EntrySpec, planner.Plan]] = {}

    def look(self, dues: Sequence[Due], lasts: Mapping[str, LastRun], at_us: int) -> None:
        """Decide about those of the entries that need a look at the server, at ``at_us`` (microseconds).

        Occurrences that are about to be sent are marked as outstanding. Raises
        :class:`~celery_zsched.errors.ServerError` and its kinds.
        """
        self._rulings = {}
        for due in dues:
            self._alone.pop(due.name, None)
        specs = self._special(dues)
        if not specs:
            return
        closed = self._blackouts.predicates({name: spec.blackouts for name, spec in specs.items() if spec.blackouts})
        alone = [name for name, spec in specs.items() if spec.overlap != "allow"]
        outstanding = {name: {run.id for run in runs} for name, runs in self._runs.of(alone).items()} if alone else {}
        for due in dues:
            spec = specs.get(due.name)
            if spec is None:
                continue
            try:
                plan = self._plan(spec, lasts[due.name], due.due_us, at_us, outstanding.get(due.name), closed)
            except Exception as exc:  # the entry's own, a custom schedule's included: raised in its turn
                self._rulings[due.name] = exc
                continue
            self._rulings[due.name] = spec, plan
            if due.name in outstanding:
                self._alone[due.name] = spec, plan
        self._runs.mark(self._marks({name: self._alone[name] for name in alone if name in self._alone}, "sending"))

    def decide(self, due: Due, last: LastRun, at_us: int) -> tuple[EntrySpec, planner.Plan]:
        """Return an entry and its plan; raises what is wrong with the entry."""
        ruling = self._rulings.get(due.name)
        if isinstance(ruling, Exception):
            raise ruling
        if ruling is not None:
            return ruling
        spec = _decode(due.document)
        return spec, planner.plan(spec, last, due.due_us, at_us, zone=self._schedules.zone, rules=self._rules)

    def sent(self, names: Iterable[str]) -> None:
        """Note that the broker has what was to be sent of these entries; to be called before they are moved on.

        So a scheduler that dies in between leaves the entry to one that sends the same again, and no unmarked run.
        """
        self._runs.mark(self._marks({name: self._alone[name] for name in names if name in self._alone}, "sent"))

    def dropped(self, names: Iterable[str]) -> None:
        """Note that nothing of these entries was sent after all."""
        gone = {name: self._alone.pop(name) for name in names if name in self._alone}
        self._runs.end([(mark.entry, mark.id) for mark in self._marks(gone, "sent")])

    def conclude(self, names: Iterable[str]) -> None:
        """Note that these entries were moved on: those with an occurrence kept back are due when their run ends."""
        done = {name: self._alone.pop(name) for name in names if name in self._alone}
        self._runs.wait([name for name, (_, plan) in done.items() if plan.last.buffered_us is not None])

    # -- Inside

    def _special(self, dues: Sequence[Due]) -> dict[str, EntrySpec]:
        """Return the entries that need a look; what cannot be read is found out in its turn."""
        careful = self._rules.overlap != "allow"
        specs: dict[str, EntrySpec] = {}
        for due in dues:
            if not careful and b'"overlap"' not in due.document and b'"blackouts"' not in due.document:
                continue
            try:
                spec = decode(due.document)
            except ZschedError:
                continue
            spec = dataclasses.replace(spec, overlap=overlap_of(spec, self._rules))
            if spec.overlap != "allow" or spec.blackouts:
                specs[due.name] = spec
        return specs

    def _plan(
        self, spec: EntrySpec, last: LastRun, due_us: int, at_us: int, outstanding: set[str] | None,
        closed: Mapping[str, Callable[[int], bool]],
    ) -> planner.Plan:  # fmt: skip
        zone, blackout = self._schedules.zone, closed.get(spec.name)
        if outstanding is None:
            return planner.plan(spec, last, due_us, at_us, zone=zone, rules=self._rules, blackout=blackout)
        plan = planner.plan_alone(
            spec, last, due_us, at_us, outstanding=outstanding, id_of=self._id_of(spec), zone=zone, rules=self._rules,
            blackout=blackout,
        )  # fmt: skip
        # A message that outlives its mark must not begin beside a later one.
        limit_us = at_us + LONGEST_WAIT_US
        sends = [
            dataclasses.replace(send, expires_us=min(send.expires_us or limit_us, limit_us)) for send in plan.sends
        ]
        return dataclasses.replace(plan, sends=tuple(sends))

    def _id_of(self, spec: EntrySpec) -> Callable[[int], str]:
        return lambda nominal_us: occurrence_id(self._schedules.prefix, spec.name, spec.epoch, nominal_us)

    def _marks(self, decided: Mapping[str, tuple[EntrySpec, planner.Plan]], note: str) -> list[Mark]:
        marks = []
        for name, (spec, plan) in decided.items():
            for send in plan.sends:
                id_ = self._id_of(spec)(send.nominal_us)
                if note == "sending":
                    marks.append(Mark(name, id_, "sending", for_us=self._sending_us))
                else:
                    marks.append(Mark(name, id_, "sent", until_us=send.expires_us))
        return marks


def overlap_of(spec: EntrySpec, rules: planner.Rules) -> str:
    """Return what holds for an entry that is due while a run of it goes on."""
    return spec.overlap or rules.overlap
