"""How much a consumer takes at once: much of a long backlog, little of a burst that idle workers could share. Pure."""

from __future__ import annotations

#: A backlog this long is worth taking in large helpings without asking who else is hungry.
LONG = 32

#: The rest of a burst is left to others for so long, in seconds: by then whoever is idle has claimed.
COURTESY_S = 0.008


class Appetite:
    """Chooses the limit of the next claim from what the last ones met."""

    __slots__ = ("_alone", "_left", "not_before")

    def __init__(self) -> None:
        self._left = 0
        self._alone = False
        #: Before this moment of our monotonic clock nothing more is taken; 0 for at once.
        self.not_before = 0.0

    @property
    def is_long(self) -> bool:
        """Whether the last claim left a long backlog."""
        return self._left >= LONG

    def limit(self, credit: int, at_most: int, now: float) -> int:
        """Return how much to take now; 0 says that there is no credit, or to wait until :attr:`not_before`.

        ``credit`` is what may still be taken, ``at_most`` what one claim may take.
        """
        if credit <= 0 or now < self.not_before:
            return 0
        if self._left >= LONG:
            wanted = self._left // 4
        elif self._alone:
            wanted = self._left
        else:
            wanted = self._left // 3
        return min(credit, at_most, max(1, wanted))

    def took(self, count: int, left: int, now: float, *, rung: bool = False) -> None:
        """Note what a claim brought, and what was left that is due; ``rung``: it followed a ring, so more may come."""
        # If nobody else took a part of the burst while we waited, nobody is hungry.
        self._alone = left > 0 and 0 < self._left <= count + left
        self._left = left
        burst = 0 < left < LONG and not self._alone
        self.not_before = now + COURTESY_S if burst or (rung and count and not left) else 0.0
