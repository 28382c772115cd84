"""How an idle claimer waits: one blocking pop on a connection of its own, and its own clock for the next due moment.

The pop stays outstanding while the claimer works off a due moment, because the server ends a blocking pop only to a
tenth of a second; so a moment is met by waiting on the socket for as long as it takes, not by the server's time-out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from celery_zsched.errors import ServerUnavailableError

if TYPE_CHECKING:
    from celery_zsched.connection import Dedicated, Server

#: How long after its time-out a blocking pop may stay unanswered before the link counts as dead, in seconds.
GRACE_S = 5.0


class Bell:
    """Waits for a ring on any of ``keys`` (bells of one hash slot; the claimer's own bell ends a pop without a ring).

    ``block_s`` is how long one pop stays outstanding, in seconds: what a lost ring costs at most. Not for several
    threads at once.
    """

    def __init__(self, server: Server, keys: Sequence[str], *, own: str, block_s: float) -> None:
        self.server = server
        self.block_s = block_s
        self._keys = [*keys, own]
        self._own = own.encode()
        self._connection: Dedicated | None = None
        self._due_back: float | None = None

    @property
    def armed(self) -> bool:
        """Whether a pop is outstanding."""
        return self._due_back is not None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the pop ends; the pop must be armed."""
        assert self._connection is not None
        return self._connection.fileno()

    def arm(self) -> None:
        """Send the blocking pop, unless one is outstanding."""
        if self.armed:
            return
        with self._guarded():
            if self._connection is None:
                self._connection = self.server.blocking(self._keys[0])
            self._connection.send_command("BZPOPMIN", *self._keys, self.block_s)
            self._due_back = time.monotonic() + self.block_s + GRACE_S

    def wait(self, timeout_s: float) -> bool:
        """Wait until somebody rings (True), or ``timeout_s`` is over or the pop ended without a ring (False).

        Raises :class:`~celery_zsched.errors.ServerUnavailableError` when the link is broken or silent; the next call
        begins with a new one.
        """
        self.arm()
        assert self._due_back is not None and self._connection is not None
        with self._guarded():
            patience = min(timeout_s, self._due_back - time.monotonic())
            if not self._connection.can_read(max(0.0, patience)):
                if time.monotonic() >= self._due_back:
                    raise ServerUnavailableError(
                        f"{self.server.masked} has not answered a blocking pop for {GRACE_S:g} s after its time-out; "
                        "the link counts as dead and a new one is made"
                    )
                return False
            answer = self._connection.read_response(disconnect_on_error=False)
            self._due_back = None
        return bool(answer) and answer[0] != self._own

    def close(self) -> None:
        """Drop the link; an outstanding pop ends with it."""
        connection, self._connection, self._due_back = self._connection, None, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with self.server.translated("waiting for a ring"):
                yield
        except BaseException:
            self.close()
            raise
