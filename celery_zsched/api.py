"""``from celery_zsched import Entry``: periodic tasks that a program adds, changes and deletes at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from celery import current_app

from celery_zsched import operations, planner
from celery_zsched.apps import schedules_of
from celery_zsched.entry import OWN_KEYS, EntrySpec, build, is_declared_by
from celery_zsched.errors import EntryError
from celery_zsched.guesses import asked_of, unknown_faults
from celery_zsched.operations.editing import refuse_static
from celery_zsched.operations.guarding import closings_of, first_open, require_blackouts
from celery_zsched.operations.listing import page_of
from celery_zsched.operations.records import note
from celery_zsched.stored import Change, State, Stored
from celery_zsched.types import from_us

#: Moments in UTC, in order; named, since ``list`` is a method of the class below.
Moments: TypeAlias = list[datetime]


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some of the entries on the server, in the order of their names; can be iterated.

    ``after`` is what to give to :meth:`Entry.list` for the next page, None where there is none.
    """

    entries: list[Stored]
    after: str | None

    def __iter__(self) -> Iterator[Stored]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Entry:
    """A periodic task that can be stored in the schedule.

    ``schedule`` is seconds, a ``timedelta``, a Celery ``crontab``, ``schedule`` or ``solar``, cron text, an RFC 5545
    rule, an aware ``datetime`` (once), or a trigger. ``task`` is a task, its name, or a signature such as
    ``report.s("daily").set(queue="slow")``. The other arguments are those of :func:`celery_zsched.entry.build`. ``app``
    is the current Celery app if none is given.

    Raises :class:`~celery_zsched.EntryError` or :class:`~celery_zsched.ScheduleError` with every fault at once.
    """

    def __init__(
        self,
        name: str,
        task: Any,
        schedule: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        app: Any = None,
        **rules: Any,
    ) -> None:
        self._app = _app(app)
        rules.setdefault("serializer", self._app.conf.task_serializer)
        schedules = schedules_of(self._app)
        faults = unknown_faults(rules, (*OWN_KEYS, "relative", "owner"), "argument")
        known = {key: value for key, value in rules.items() if key in OWN_KEYS or key in ("relative", "owner")}
        try:
            self.spec: EntrySpec = build(name, task, schedule, args, kwargs, options, app_zone=schedules.zone, **known)
        except (TypeError, EntryError) as exc:
            faults.append(str(exc).removeprefix(f"the entry {name!r} cannot be used: "))
        if faults:
            raise EntryError(f"the entry {name!r} cannot be used: {'; '.join(faults)}")

    def save(self, *, reason: str | None = None, force: bool = False) -> Change:
        """Store the entry, and return whether it was created, updated or already so. It is in force at once.

        An unchanged schedule keeps its due time and its grid; a pause stays in force. Who changed it, and the
        ``reason``, are on record (``celery zsched audit``). An entry of ``beat_schedule`` is changed only by ``force``,
        since the next start of a beat undoes it: raises :class:`~celery_zsched.ConflictError`; and
        :class:`~celery_zsched.EntryError` for a blackout that is not defined.
        """
        site, name = operations.Site.of(self._app), self.spec.name
        stored = next(iter(site.schedules.get_many([name])), None)
        require_blackouts(site.schedules, self.spec, stored.spec if stored is not None else None)
        if stored is not None and not is_declared_by(stored.located.body, self.spec):
            refuse_static([stored], "changed", force)
        change = site.schedules.save(self.spec)
        if change is not Change.UNCHANGED:
            detail = {"change": change.value, "task": self.spec.task, "schedule": str(self.spec.trigger)}
            note(site, "save", f"entry:{name}", reason, **detail)
        return change

    def preview(self, n: int = 5) -> Moments:
        """Return the next ``n`` moments to come at which the entry is sent, in UTC, as if it were saved now.

        Where there is an entry of the name already, they are on the grid that it would keep, and start with the moment
        for which it waits, if its schedule is unchanged. What lies in one of its blackouts is not sent, and not among
        them; nor is what is overdue. A pause is left out of account.
        """
        schedules = schedules_of(self._app)
        spec, last, due_us, now_us = schedules.rehearse(self.spec)
        if due_us is None:
            return []
        closings, after_us = closings_of(schedules, [spec]), now_us
        found: Moments = []
        if due_us > now_us:
            after_us = planner.pending(spec, last, due_us, zone=schedules.zone)
            if closings.at(spec.blackouts, after_us, due_us) is None:
                found.append(from_us(due_us))
        while len(found) < n:
            coming_us = first_open(spec, after_us, closings, zone=schedules.zone, fired=last.fired + len(found))
            if coming_us is None:
                break
            found.append(from_us(coming_us))
            after_us = coming_us
        return found[:n]

    @classmethod
    def upsert(
        cls,
        name: str,
        task: Any,
        schedule: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        app: Any = None,
        reason: str | None = None,
        force: bool = False,
        **rules: Any,
    ) -> Change:
        """Store an entry, whether there is one of its name or not; return whether it was created, updated, already so.

        The same as ``Entry(…).save(…)``, with the arguments of both.
        """
        return cls(name, task, schedule, args, kwargs, options, app=app, **rules).save(reason=reason, force=force)

    @classmethod
    def get(cls, name: str, *, app: Any = None) -> Stored:
        """Return an entry as it stands on the server; raises :class:`~celery_zsched.NotFoundError`."""
        return schedules_of(_app(app)).get(name)

    @classmethod
    def delete(cls, name: str, *, app: Any = None, reason: str | None = None, force: bool = False) -> None:
        """Delete an entry; who did, and the ``reason``, are on record (``celery zsched audit``).

        Raises :class:`~celery_zsched.NotFoundError`, and :class:`~celery_zsched.ConflictError` for an entry of
        ``beat_schedule`` unless it is forced, since the next start of a beat brings it back.
        """
        site = operations.Site.of(_app(app))
        refuse_static([site.schedules.get(name)], "deleted", force)
        site.schedules.delete(name)
        note(site, "delete", f"entry:{name}", reason)

    @classmethod
    def all(cls, *, app: Any = None) -> Iterator[Stored]:
        """Yield every entry on the server, in no order."""
        yield from schedules_of(_app(app)).all()

    @classmethod
    def list(
        cls,
        *,
        limit: int = 100,
        after: str | None = None,
        pattern: str | None = None,
        state: str | State | None = None,
        app: Any = None,
    ) -> EntryPage:
        """Return one page of the entries on the server, in the order of their names.

        ``limit`` is how many at most, ``after`` the ``after`` of the page before. ``pattern`` (``nightly-*``) and
        ``state`` (``paused``, see :class:`~celery_zsched.stored.State`) choose among them.
        """
        if type(limit) is not int or limit < 1:
            raise EntryError(f"the limit of a page is {limit!r}; give a whole number from 1 up")
        known, state = [each.value for each in State], state.value if isinstance(state, State) else state
        if state is not None and state not in known:
            raise EntryError(f"there is no state {state!r}{asked_of(str(state), known, 'states')}")
        schedules = schedules_of(_app(app))
        return EntryPage(*page_of(schedules, pattern=pattern, state=state, limit=limit, after=after))

    def __repr__(self) -> str:
        return f"<Entry {self.spec.name!r}: {self.spec.task}, {self.spec.trigger}>"


def _app(app: Any) -> Any:
    return app if app is not None else current_app._get_current_object()
