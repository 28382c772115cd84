"""Blocking pops: how a consumer with nothing to do waits for a ring on the bells of its queues."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from celery_zsched.connection import Dedicated, Server
from celery_zsched.errors import ServerError, ServerUnavailableError

#: How long after its time-out a pop may stay unanswered before the link counts as dead, in seconds.
GRACE_S = 5.0


class Pop:
    """One ``BZPOPMIN`` on a connection of its own, over the bells of queues that lie on one node."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._block_s = 0.0
        self._wire: Dedicated | None = None
        self.keys: tuple[str, ...] = ()
        #: By when the server must have answered, by our monotonic clock; None while nothing is outstanding.
        self.due_back: float | None = None

    @property
    def armed(self) -> bool:
        """Whether a pop is outstanding."""
        return self.due_back is not None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the pop ends."""
        assert self._wire is not None
        return self._wire.fileno()

    def arm(self, keys: Iterable[str], block_s: float) -> None:
        """Send the pop, to stay outstanding for ``block_s`` seconds at most."""
        self.keys = tuple(keys)
        self._block_s = max(0.1, block_s)
        try:
            with self._server.translated("waiting for a ring"):
                if self._wire is None:
                    self._wire = self._server.blocking(self.keys[0])
                self._wire.send_command("BZPOPMIN", *self.keys, self._block_s)
        except BaseException:
            self.close()
            raise
        self.due_back = time.monotonic() + self._block_s + GRACE_S

    def read(self) -> str | None:
        """Return the key that ended the pop, or None for its time-out; waits for the answer if it is not there yet."""
        assert self._wire is not None
        try:
            with self._server.translated("waiting for a ring"):
                answer = self._wire.read_response()
        except BaseException:
            self.close()
            raise
        self.due_back = None
        return answer[0].decode() if answer else None

    def check(self, now: float) -> None:
        """Raise :class:`ServerUnavailableError` if the answer is overdue: the link is dead."""
        if self.due_back is not None and now > self.due_back:
            self.close()
            raise ServerUnavailableError(
                f"{self._server.masked} has not answered a blocking pop {GRACE_S:g} s after its time-out of "
                f"{self._block_s:g} s; the link counts as dead and a new one is made"
            )

    def close(self) -> None:
        """Drop the connection; an outstanding pop ends with it, and may take a ring with it."""
        wire, self._wire, self.due_back = self._wire, None, None
        if wire is not None:
            with contextlib.suppress(OSError, ServerError):
                wire.close()
