"""The error tree. Every error raised on purpose by this package is a :class:`ZschedError`.

The first line of each class's docstring is its default message, so that an error raised without words still says
something a person can act on.
"""

from __future__ import annotations

import inspect


class ZschedError(Exception):
    """Something went wrong in celery-zsched."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (inspect.getdoc(type(self)) or "").splitlines()[0])


class ConfigurationError(ZschedError):
    """A setting cannot be used as it is.

    Carries every fault found, so that one start shows all of them.
    """

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults) if faults else None)


class ScheduleError(ZschedError, ValueError):
    """A schedule cannot be used: it is malformed, or it can never match."""


class EntryError(ZschedError, ValueError):
    """An entry cannot be used: a field is missing, unknown or of the wrong kind."""


class NotFoundError(ZschedError, LookupError):
    """There is no entry, task or queue of that name."""


class ConflictError(ZschedError):
    """The stored value was changed by somebody else at the same moment; read it again and retry."""


class ServerError(ZschedError):
    """The Redis or Valkey server refused or failed a command."""


class ServerUnavailableError(ServerError, ConnectionError):
    """The Redis or Valkey server cannot be reached; what was asked may be tried again."""


class ServerAuthenticationError(ServerError):
    """The Redis or Valkey server refused the user name, the password or the user's rights."""


class ServerFullError(ServerError):
    """The Redis or Valkey server is at its memory limit and takes nothing new; make room and retry."""
