"""How an idle claimer waits: one blocking pop on a connection of its own, and its own clock for the next due moment.

The pop stays outstanding while the claimer works off a due moment, because the server ends a blocking pop only to a
tenth of a second; so a moment is met by waiting on the socket for as long as it takes, not by the server's time-out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from celery_zsched.errors import ServerError, ServerUnavailableError

if TYPE_CHECKING:
    from celery_zsched.connection import Dedicated, Server

#: How long after its time-out a blocking pop may stay unanswered before the link counts as dead, in seconds.
GRACE_S = 5.0


class Pop:
    """One ``BZPOPMIN`` on a connection of its own, over bells that lie on one node. Not for several threads at once."""

    def __init__(self, server: Server, label: str = "") -> None:
        self.server = server
        self._label = label
        self._block_s = 0.0
        self._wire: Dedicated | None = None
        self.keys: tuple[str, ...] = ()
        #: By when the server must have answered, by our monotonic clock; None while nothing is outstanding.
        self.due_back: float | None = None
        #: Called before the connection is dropped: who watches its descriptor must let go of it.
        self.on_close: Callable[[], object] | None = None

    @property
    def armed(self) -> bool:
        """Whether a pop is outstanding."""
        return self.due_back is not None

    @property
    def labelled(self) -> bool:
        """Whether there is a connection that has its name in ``CLIENT LIST``."""
        return self._wire is not None and self._wire.labelled

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the pop ends."""
        assert self._wire is not None
        return self._wire.fileno()

    def arm(self, keys: Iterable[str], block_s: float) -> None:
        """Send the pop, to stay outstanding for ``block_s`` seconds at most."""
        self.keys = tuple(keys)
        self._block_s = max(0.1, block_s)
        with self._guarded():
            if self._wire is None:
                self._wire = self.server.blocking(self.keys[0], label=self._label)
            self._wire.send_command("BZPOPMIN", *self.keys, self._block_s)
        self.due_back = time.monotonic() + self._block_s + GRACE_S

    def is_over(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds for the answer; return whether it is there."""
        assert self._wire is not None
        with self._guarded():
            return self._wire.can_read(max(0.0, timeout_s))

    def read(self) -> str | None:
        """Return the key that ended the pop, or None for its time-out; waits for the answer if it is not there yet."""
        assert self._wire is not None
        with self._guarded():
            answer = self._wire.read_response()
        self.due_back = None
        return answer[0].decode() if answer else None

    def check(self, now: float) -> None:
        """Raise :class:`ServerUnavailableError` if the answer is overdue: the link is dead."""
        # Who has looked at other things for long finds the answer waiting: that is no silence.
        if self.due_back is not None and now > self.due_back and not self.is_over(0):
            self.close()
            raise ServerUnavailableError(
                f"{self.server.masked} has not answered a blocking pop {GRACE_S:g} s after its time-out of "
                f"{self._block_s:g} s; the link counts as dead and a new one is made"
            )

    def close(self) -> None:
        """Drop the connection; an outstanding pop ends with it, and may take a ring with it."""
        wire, self._wire, self.due_back = self._wire, None, None
        if wire is not None:
            if self.on_close is not None:
                self.on_close()
            with contextlib.suppress(OSError, ServerError):
                wire.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with self.server.translated("waiting for a ring"):
                yield
        except BaseException:
            self.close()
            raise


class Bell:
    """Waits for a ring on the bell ``key``; a marker on ``own`` ends a pop without a ring.

    ``block_s`` is how long one pop stays outstanding, in seconds: what a lost ring costs at most. ``label`` is the name
    of its connection in ``CLIENT LIST``. Not for several threads at once.
    """

    def __init__(self, server: Server, key: str, *, own: str, block_s: float, label: str = "") -> None:
        self._pop = Pop(server, label)
        self._keys = (key, own)
        self._block_s = block_s

    @property
    def armed(self) -> bool:
        """Whether a pop is outstanding, which a claim may be asked to end (``Timeline.claim(armed=True)``)."""
        return self._pop.armed

    @property
    def labelled(self) -> bool:
        """Whether its connection can be found in ``CLIENT LIST`` by its name."""
        return self._pop.labelled

    def arm(self) -> None:
        """Send the pop, unless one is outstanding."""
        if not self._pop.armed:
            self._pop.arm(self._keys, self._block_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait until somebody rings (True), or ``timeout_s`` is over or the pop ended without a ring (False).

        Raises :class:`~celery_zsched.errors.ServerUnavailableError` when the link is broken or silent; the next call
        begins with a new one.
        """
        self.arm()
        pop = self._pop
        patience_s = timeout_s if pop.due_back is None else min(timeout_s, pop.due_back - time.monotonic())
        if not pop.is_over(patience_s):
            pop.check(time.monotonic())
            return False
        return pop.read() == self._keys[0]

    def close(self) -> None:
        """Drop the link; an outstanding pop ends with it."""
        self._pop.close()
