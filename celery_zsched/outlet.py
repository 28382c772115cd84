"""What a scheduler's loop sends by, whatever the broker is, and how a broker says no."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from celery_zsched import planner
from celery_zsched.entry import EntrySpec


class PublishError(Exception):
    """The broker did not take the message of an occurrence; it may be tried again."""


class StoodStillError(Exception):
    """The scheduler worked on messages for longer than its lease, so that others may have sent them meanwhile."""


class RefusedError(Exception):
    """The broker did not take the message of this one entry; it takes others, and may take this one later."""


class Publisher(Protocol):
    """What an engine sends by."""

    @property
    def keeps_back(self) -> bool:
        """Whether nothing is sent before :meth:`start`."""
        ...

    def send(self, spec: EntrySpec, send: planner.Send, at_us: int) -> str:
        """Send one occurrence at ``at_us`` and return its task id.

        Raises :class:`PublishError` when the broker is at fault, :class:`RefusedError` when it does not take what this
        entry sends; any other error is the entry's.
        """
        ...

    def start(self) -> None:
        """Let the broker take what was sent, and do not wait; :class:`PublishError` if it is at fault."""
        ...

    def finish(self) -> Mapping[str, str]:
        """Return once the broker has all that was started; :class:`PublishError` if that is not certain.

        Returns the entries of which it did not take a message, and why.
        """
        ...

    def close(self) -> None:
        """Forget what is not sent yet, and drop the connection; the next message makes a new one."""
        ...

    def outdated(self, entries: Iterable[str]) -> Collection[str]:
        """Return, once, those of the entries whose occurrence was refused as of an earlier life than the mark is."""
        ...

    def marks(self, entries: Sequence[str]) -> Mapping[str, Sequence[tuple[int, int]]]:
        """Return what the broker knows of the newest occurrence sent of entries, as (epoch, nominal); see ``Queues``.

        Raises :class:`~celery_zsched.errors.ServerError`.
        """
        ...

    def standing(self, ids: Sequence[str]) -> Collection[str] | None:
        """Return which tasks have a message that waits or is with a worker; None if the broker lets nobody see that.

        Raises :class:`~celery_zsched.errors.ServerError`.
        """
        ...

    def expires_us(self, task: str, at_us: int) -> int | None:
        """Return when a message of the task would expire, sent at ``at_us`` with no word about it; None for never."""
        ...
