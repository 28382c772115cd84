"""What the verbs work on: a Celery app and its schedule."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from typing import Any

from celery_zsched.apps import schedules_of
from celery_zsched.schedules import Schedules


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


def whoami() -> str:
    """Return who runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container's user id without a name
    return f"{user}@{socket.gethostname()}"
