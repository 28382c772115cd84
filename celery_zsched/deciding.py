"""What a scheduler decides with before it sends: plans, with what is outstanding and which windows are closed.

Entries whose runs may overlap and that know no blackout, which is most of them, cost nothing here. For the others one
look at the server serves a whole chunk.
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from celery_zsched import planner
from celery_zsched.blackout_store import Blackouts
from celery_zsched.entry import EntrySpec, LastRun, decode, occurrence_id
from celery_zsched.errors import ServerError, ZschedError
from celery_zsched.outlet import Publisher
from celery_zsched.runs import LONGEST_WAIT_US, SENDING_US, Mark, Run, Runs
from celery_zsched.schedules import Schedules
from celery_zsched.stored import Due
from celery_zsched.types import SECOND_US, from_us

logger = logging.getLogger("celery.beat.zsched")

#: Most entries come again and again with the document that they had before.
_decode = lru_cache(maxsize=10_000)(decode)

#: An entry and its plan, or why there is none.
Ruling = tuple[EntrySpec, planner.Plan] | Exception


#: The part of a run's lease for which a message that was seen in a queue is not looked for again.
TRUSTED = 0.25

#: After how long a run is doubtful that was sent and that nobody has begun, where nobody can look into the broker.
DOUBTFUL_US = 60 * SECOND_US

#: How much later than a run has lapsed its entry is looked at again, in microseconds.
SLACK_US = 10_000


class NotYetError(Exception):
    """Whether the run before is over will be known at ``until_us``: its entry is to be decided about then."""

    def __init__(self, run: str, until_us: int) -> None:
        super().__init__(
            f"the message of the run before, {run}, is in no queue, and no worker has reported to have begun it; it "
            f"counts until {from_us(until_us).isoformat()}, should none do so"
        )
        self.until_us = until_us


class Decider:
    """Plans entries of a schedule by the app's rules. One scheduler's, not for several threads at once.

    ``lease_s`` is how long an entry stays with this scheduler if it falls silent, and ``run_lease_s`` how long a run
    counts whose worker does, in seconds; ``publisher`` knows what waits in queues, and when messages expire.
    """

    def __init__(
        self, schedules: Schedules, rules: planner.Rules, *, publisher: Publisher, lease_s: float, run_lease_s: float
    ) -> None:
        self._schedules = schedules
        self._publisher = publisher
        self._run_lease_us = round(run_lease_s * SECOND_US)
        # Longer than another scheduler waits before it takes over.
        self._sending_us = max(SENDING_US, round(2 * lease_s * SECOND_US))
        self._rules = rules
        self._runs = Runs(schedules)
        self._blackouts = Blackouts(schedules)
        self._rulings: dict[str, Ruling] = {}
        #: Entries whose runs may not overlap, as they were decided about and not yet concluded.
        self._alone: dict[str, tuple[EntrySpec, planner.Plan]] = {}
        #: Runs whose messages were seen in a queue -> until when, by our clock (monotonic), that is believed.
        self._seen: dict[str, float] = {}
        #: Entries that were said to be held back for a run that nobody reports of.
        self._cautioned: set[str] = set()

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
        runs = self._runs.of(alone) if alone else {}
        outstanding = {name: {run.id for run in each} for name, each in runs.items()}
        gone, blind = self._gone(runs, at_us)
        for due in dues:
            spec = specs.get(due.name)
            if spec is None:
                continue
            ids = outstanding.get(due.name)
            try:
                plan = self._plan(spec, lasts[due.name], due.due_us, at_us, ids, closed)
                if ids and not plan.sends:
                    if blind:
                        self._caution(spec, runs[due.name], at_us)
                    if not ids.isdisjoint(gone):
                        free = self._plan(spec, lasts[due.name], due.due_us, at_us, ids.difference(gone), closed)
                        if free.sends:
                            last = max(ids.intersection(gone), key=gone.__getitem__)
                            raise NotYetError(last, gone[last] + SLACK_US)
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
        # A message that outlives its mark must not begin beside a later one; what the task itself says stays so.
        limit_us = at_us + LONGEST_WAIT_US
        own_us = self._publisher.expires_us(spec.task, at_us) if plan.sends else None
        sends = []
        for send in plan.sends:
            wanted_us = own_us if send.expires_us is None else send.expires_us
            sends.append(
                dataclasses.replace(send, expires_us=limit_us if wanted_us is None else min(wanted_us, limit_us))
            )
        return dataclasses.replace(plan, sends=tuple(sends))

    def _gone(self, runs: Mapping[str, Sequence[Run]], at_us: int) -> tuple[dict[str, int], bool]:
        """Look for the messages of runs that nobody has begun, and cut those short that have none.

        Returns until when each of those counts, and whether the broker lets nobody look. A message may have been
        removed, or a worker has acked it and is about to say that it begins: for that it has as long as for a renewal.
        """
        unbegun = {run.id: (name, run) for name, each in runs.items() for run in each if run.state == "sent"}
        now = time.monotonic()
        asked = [id_ for id_ in unbegun if self._seen.get(id_, 0.0) <= now]
        if not asked:
            return {}, False
        try:
            standing = self._publisher.standing(asked)
        except ServerError as exc:
            logger.debug("the messages of runs cannot be looked for: %s", exc)  # they count as before
            return {}, False
        if standing is None:
            return {}, True
        self._seen = {id_: until for id_, until in self._seen.items() if until > now}
        self._seen.update(dict.fromkeys(standing, now + TRUSTED * self._run_lease_us / SECOND_US))
        missing = [unbegun[id_] for id_ in asked if id_ not in standing]
        self._runs.mark([Mark(name, run.id, "missing", for_us=self._run_lease_us) for name, run in missing])
        return {run.id: min(run.until_us, at_us + self._run_lease_us) for _, run in missing}, False

    def _caution(self, spec: EntrySpec, runs: Sequence[Run], at_us: int) -> None:
        """Say once of an entry that it is held back for a run that no worker has reported to have begun."""
        if any(run.state == "running" for run in runs):
            self._cautioned.discard(spec.name)  # its workers do report
            return
        for run in runs:
            if run.state == "sent" and at_us - run.since_us > DOUBTFUL_US and spec.name not in self._cautioned:
                self._cautioned.add(spec.name)
                logger.warning(
                    "%s is held back (overlap %s) for its run %s, which was sent at %s and which no worker has "
                    "reported to have begun: its message waits in a queue or is lost, or the workers do not report "
                    "their runs. Each of them must `import celery_zsched` and have the scheduler's settings. The run "
                    "counts until %s; `celery zsched cancel %s` ends it now",
                    spec.name, spec.overlap, run.id, from_us(run.since_us).isoformat(),
                    from_us(run.until_us).isoformat(), shlex.quote(f"entry:{spec.name}"),
                )  # fmt: skip

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
