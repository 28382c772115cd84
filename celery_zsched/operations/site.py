"""What the verbs work on: a Celery app, its schedule, and its broker's queues."""

from __future__ import annotations

import getpass
import socket
import weakref
from dataclasses import dataclass
from typing import Any

from celery_zsched.apps import schedules_of
from celery_zsched.errors import ConfigurationError
from celery_zsched.planner import Rules
from celery_zsched.queues import Queues
from celery_zsched.schedules import Schedules
from celery_zsched.settings import Settings

_queues: weakref.WeakKeyDictionary[Any, Queues | None] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Site:
    """A Celery app, its schedule, and who acts on it (user@host)."""

    app: Any
    schedules: Schedules
    by: str

    @classmethod
    def of(cls, app: Any, *, by: str | None = None) -> Site:
        """Return the site of an app; ``by`` says who wants what is done, this user if not given.

        Raises :class:`~celery_zsched.errors.ConfigurationError` with every fault of the settings.
        """
        return cls(app, schedules_of(app), by or whoami())

    @property
    def overlap(self) -> str:
        """What holds for runs of entries that have no overlap rule of their own."""
        try:
            return Settings.from_conf(self.app.conf).overlap
        except ConfigurationError:
            return Rules().overlap  # the schedule was opened without the app's settings

    @property
    def own_queues(self) -> Queues | None:
        """The queues of the app's broker, or None if that is not ours."""
        if self.app not in _queues:
            _queues[self.app] = self._find_queues()
        return _queues[self.app]

    @property
    def queues(self) -> Queues:
        """The queues of the app's broker; :class:`~celery_zsched.errors.ConfigurationError` if that is not ours."""
        found = self.own_queues
        if found is None:
            name = self.app.connection_for_write().transport.driver_type
            raise ConfigurationError(
                f"the broker is {name}, which nobody can look into or hold back from outside; what waits there can be "
                "seen, paused and cancelled with broker_url = 'zsched+redis://…'"
            )
        return found

    def _find_queues(self) -> Queues | None:
        with self.app.connection_for_write() as connection:
            broker = getattr(connection.transport, "broker", None)
        if broker is None:
            return None
        return Queues(broker.server, prefix=broker.settings.key_prefix, levels=broker.levels)


def whoami() -> str:
    """Return who runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container's user id without a name
    return f"{user}@{socket.gethostname()}"
