"""What keeps an entry's occurrences from being sent, or its messages from running, though the entry is not paused.

Blackouts that it names, and pauses of its task name or of the queue that its messages go to.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_zsched import planner
from celery_zsched.blackout_store import Blackouts
from celery_zsched.entry import EntrySpec, OperatorState
from celery_zsched.errors import EntryError, ServerError
from celery_zsched.guesses import asked_of
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import paused_by
from celery_zsched.schedules import Schedules
from celery_zsched.stored import Stored
from celery_zsched.windows import Openings

#: How many windows that follow upon each other are looked through for the end of the last.
MOST_IN_A_ROW = 1000


@dataclass(frozen=True, slots=True)
class Closed:
    """A blackout in which an instant lies, and when the last of the windows ends that follow upon each other."""

    name: str
    until_us: int


class Closings:
    """The blackouts that some entries name, as they are now."""

    def __init__(self, schedules: Schedules, names: Iterable[str]) -> None:
        store = Blackouts(schedules)
        self._openings: dict[str, Openings] = {}
        #: Names that nothing is defined by: they close nothing.
        self.undefined: set[str] = set()
        #: Names of those that cannot be read, and why: their entries are not sent.
        self.unreadable: dict[str, str] = {}
        for name in dict.fromkeys(names):
            try:
                blackout = store.get(name)
            except EntryError as exc:
                self.unreadable[name] = str(exc)
                continue
            if blackout is None:
                self.undefined.add(name)
            else:
                self._openings[name] = Openings(blackout, schedules.zone)

    def at(self, names: Sequence[str], *instants_us: int) -> Closed | None:
        """Return the first of the named blackouts in which one of the instants lies."""
        for name in names:
            openings = self._openings.get(name)
            for instant_us in instants_us if openings is not None else ():
                if openings is not None and openings.covers(instant_us):
                    return Closed(name, _end(openings, instant_us))
        return None

    def of(self, spec: EntrySpec, nominal_us: int, zone: str) -> Closed | None:
        """Return the blackout for which an occurrence of an entry is not sent, if there is one."""
        return self.at(spec.blackouts, nominal_us, planner.due_of(spec, nominal_us, zone=zone))


def closings_of(schedules: Schedules, specs: Iterable[EntrySpec | None]) -> Closings:
    """Return the blackouts of some entries."""
    return Closings(schedules, (name for spec in specs if spec is not None for name in spec.blackouts))


def undefined_blackouts(schedules: Schedules, specs: Iterable[EntrySpec]) -> dict[str, list[str]]:
    """Return the blackouts that entries name and that are not defined, each with the names of its entries."""
    naming: dict[str, list[str]] = {}
    for spec in specs:
        for name in spec.blackouts:
            naming.setdefault(name, []).append(spec.name)
    known = Blackouts(schedules).names() if naming else []
    return {name: entries for name, entries in naming.items() if name not in known}


def require_blackouts(schedules: Schedules, spec: EntrySpec, stored: EntrySpec | None = None) -> None:
    """Raise :class:`~celery_zsched.errors.EntryError` for a blackout that an entry names and that is not defined.

    One that the ``stored`` entry named before is let pass: it was removed by force, and is told of elsewhere.
    """
    asked = [name for name in spec.blackouts if stored is None or name not in stored.blackouts]
    if not asked:
        return
    known = Blackouts(schedules).names()
    for name in asked:
        if name not in known:
            raise EntryError(
                f"the entry {spec.name!r} names the blackout {name!r}, which is not defined"
                f"{asked_of(name, known, 'blackouts')} (define it first, with `celery zsched blackout set`)"
            )


class Pauses:
    """What is paused of the broker's messages, by which an entry's may be held back; nothing of a foreign broker."""

    def __init__(self, site: Site) -> None:
        self._app = site.app
        self._known: Mapping[str, OperatorState] = {}
        try:
            if site.own_queues is not None:
                self._known = site.own_queues.pauses()
        except ServerError:
            pass  # the broker's server may be another than the schedule's, and down
        self._of_queues = any(target.startswith("queue:") for target in self._known)

    def of(self, spec: EntrySpec | None) -> dict[str, OperatorState]:
        """Return the pauses that hold back what an entry sends: ``task:…`` and ``queue:…``, with by whom and why."""
        if spec is None or not self._known:
            return {}
        targets = [f"task:{spec.task}"]
        if self._of_queues:
            targets.append(f"queue:{queue_of(self._app, spec)}")
        return {target: self._known[target] for target in targets if target in self._known}


def messages_held(pauses: Pauses, spec: EntrySpec | None) -> list[str]:
    """Return in words the pauses by which an entry's messages are held back, which is no matter of the entry itself."""
    return [
        f"its messages are held back, though they are sent in time: {target} is {paused_by(operator)} "
        f"(celery zsched resume {target})"
        for target, operator in pauses.of(spec).items()
    ]


def queue_of(app: Any, spec: EntrySpec) -> str | None:
    """Return the queue that an entry's messages go to by the app's routes; None where that cannot be told."""
    task = app.tasks.get(spec.task)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of attributes that Celery will drop: whoever sends is told
            options = {**(task._get_exec_options() if task is not None else {}), **spec.options}
        args, kwargs = spec.arguments.arguments() if spec.arguments is not None else ((), {})
        routed = app.amqp.router.route(options, spec.task, args, kwargs)
    except Exception:  # a route is the app's own code, and whoever sends is told of its errors
        return None
    queue: str | None = getattr(routed.get("queue"), "name", None)
    return queue


def coming(
    spec: EntrySpec, now_us: int, closings: Closings, *, zone: str, fired: int = 0
) -> Iterator[tuple[int, Closed | None]]:
    """Yield an entry's due moments after now, each with the blackout for which it is not sent."""
    nominal_us = planner.next_nominal(spec, now_us, zone=zone, fired=fired)
    while nominal_us is not None:
        closed = closings.of(spec, nominal_us, zone)
        yield planner.due_of(spec, nominal_us, zone=zone), closed
        fired += closed is None  # what is not sent counts towards no limit
        nominal_us = planner.next_nominal(spec, nominal_us, zone=zone, fired=fired)


def first_open(spec: EntrySpec, now_us: int, closings: Closings, *, zone: str, fired: int = 0) -> int | None:
    """Return the first due moment after now at which an entry is sent; None if it does not come, or is not found."""
    after_us = now_us
    for _ in range(MOST_IN_A_ROW):
        nominal_us = planner.next_nominal(spec, after_us, zone=zone, fired=fired)
        closed = None if nominal_us is None else closings.of(spec, nominal_us, zone)
        if nominal_us is None or closed is None:
            return None if nominal_us is None else planner.due_of(spec, nominal_us, zone=zone)
        after_us = max(nominal_us, closed.until_us - spec.jitter_us - 1)
    return None


def held_by(stored: Stored, pauses: Pauses, closings: Closings, zone: str) -> list[str]:
    """Return what holds an entry's next occurrence or its messages back: ``task:…``, ``queue:…``, ``blackout:…``."""
    found = list(pauses.of(stored.spec))
    try:
        closed = next_closed(stored, closings, zone)
    except Exception:  # a custom schedule's own error: it is told of where the entry is sent
        closed = None
    return found + ([f"blackout:{closed.name}"] if closed is not None else [])


def next_closed(stored: Stored, closings: Closings, zone: str) -> Closed | None:
    """Return the blackout in which an entry's next occurrence lies, if there is one."""
    if stored.spec is None or stored.due_us is None or not stored.spec.blackouts:
        return None
    nominal_us = planner.pending(stored.spec, stored.last, stored.due_us, zone=zone)
    return closings.of(stored.spec, nominal_us, zone)


def _end(openings: Openings, instant_us: int) -> int:
    end_us = instant_us
    for _ in range(MOST_IN_A_ROW):
        start_us, following_us = next(openings.coming(end_us), (end_us + 1, end_us))
        if start_us > end_us:
            break
        end_us = following_us
    return end_us
