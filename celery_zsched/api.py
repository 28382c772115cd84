"""``from celery_zsched import Entry``: periodic tasks that a program adds, changes and deletes at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from celery import current_app

from celery_zsched.apps import schedules_of
from celery_zsched.entry import EntrySpec, build
from celery_zsched.errors import EntryError
from celery_zsched.planner import nominals
from celery_zsched.stored import Change, Stored
from celery_zsched.types import from_us


class Entry:
    """A periodic task that can be stored in the schedule.

    ``schedule`` is seconds, a ``timedelta``, a Celery ``crontab``, ``schedule`` or ``solar``, cron text, an RFC 5545
    rule, an aware ``datetime`` (once), or a trigger. The other arguments are those of
    :func:`celery_zsched.entry.build`. ``app`` is the current Celery app if none is given.

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
        try:
            self.spec: EntrySpec = build(name, task, schedule, args, kwargs, options, app_zone=schedules.zone, **rules)
        except TypeError as exc:
            raise EntryError(f"the entry {name!r} cannot be made: {exc}") from None

    def save(self) -> Change:
        """Store the entry, and return whether it was created, updated or already so. It is in force at once.

        An unchanged schedule keeps its due time and its grid; a pause stays in force.
        """
        return schedules_of(self._app).save(self.spec)

    def preview(self, n: int = 5) -> list[datetime]:
        """Return the next ``n`` due times, in UTC, as if the entry were saved now."""
        schedules = schedules_of(self._app)
        now_us = schedules.now_us()
        found = nominals(self.spec.installed(now_us), now_us, zone=schedules.zone)
        return [from_us(due_us) for _, due_us in zip(range(n), found, strict=False)]

    @classmethod
    def get(cls, name: str, *, app: Any = None) -> Stored:
        """Return an entry as it stands on the server; raises :class:`~celery_zsched.NotFoundError`."""
        return schedules_of(_app(app)).get(name)

    @classmethod
    def delete(cls, name: str, *, app: Any = None) -> None:
        """Delete an entry; raises :class:`~celery_zsched.NotFoundError`."""
        schedules_of(_app(app)).delete(name)

    @classmethod
    def all(cls, *, app: Any = None) -> Iterator[Stored]:
        """Yield every entry on the server, in no order."""
        yield from schedules_of(_app(app)).all()

    def __repr__(self) -> str:
        return f"<Entry {self.spec.name!r}: {self.spec.task}, {self.spec.trigger}>"


def _app(app: Any) -> Any:
    return app if app is not None else current_app._get_current_object()
