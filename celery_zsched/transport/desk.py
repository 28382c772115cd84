"""What this process holds of one queue: its leases, and its acks that the server is not known to have."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from celery_zsched import scripts
from celery_zsched.timeline import MAX_BATCH, Timeline

logger = logging.getLogger("celery_zsched.transport")

#: How many digits a token has: the microsecond of a claim, until the year 2286.
TOKEN_DIGITS = 16


class Desk:
    """The leases and acks of one queue in this process; it outlives channels and connections.

    A delivery tag is the token followed by the id. Appending to and taking from the collections are single steps of
    the interpreter, so acks may come from any thread or greenlet without a lock and without touching the network.
    """

    def __init__(self, timeline: Timeline, *, lease_us: int, delivery_limit: int, dead_limit: int) -> None:
        self.timeline = timeline
        self.queue = timeline.name.partition(":")[2]
        self.lease_us = lease_us
        self.delivery_limit = delivery_limit
        self.dead_limit = dead_limit
        #: Delivery tag -> our monotonic clock when its lease was taken.
        self.held: dict[str, float] = {}
        #: Tags that are done, and those to be given back, with how (see ``lua/release.lua``).
        self.acks: deque[str] = deque()
        self.returns: deque[tuple[str, str]] = deque()
        #: When the oldest of both was put there, by our monotonic clock; None while there is none.
        self.waiting_since: float | None = None
        #: The same for the leases that were renewed at the last round.
        self.renewed: dict[str, float] = {}
        #: Tags whose lease passed to somebody else.
        self.lost: set[str] = set()
        # Tags that were sent to be settled by a call whose answer never came: finding them gone is no news.
        self._sent_before: set[str] = set()
        # Tags of which the queue is being deleted, or was deleted, by this very process.
        self._deleted: set[str] = set()
        #: Held while acks and give-backs are on their way.
        self.sending = threading.Lock()
        #: Of a queue with a life of its own: consumer that it must outlive -> its life, in seconds.
        self.living: dict[str, float] = {}
        self.settle_call = timeline.call("settle")
        self.extend_call = timeline.call("extend")
        self.release_call = timeline.call("release")
        self.touch_call = timeline.call("touch")

    @property
    def lives(self) -> float:
        """How long the queue lives unless it is told to live on, in seconds; 0 where nobody here needs it to."""
        return min(list(self.living.values()), default=0.0)

    @property
    def is_bare(self) -> bool:
        """Whether nothing is held or waits here, and no consumer needs its queue to live."""
        return not (self.held or self.acks or self.returns or self.living) and self.waiting_since is None

    # -- Ending

    def ack(self, tag: str) -> bool:
        """Note that a delivery is done; False if it was none of ours."""
        if self.held.pop(tag, None) is None:
            self.lost.discard(tag)
            return False
        self.acks.append(tag)
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()
        return True

    def give_back(self, tag: str, how: str = "uncounted") -> bool:
        """Note that a delivery is to be given back; False if it was none of ours."""
        if self.held.pop(tag, None) is None:
            self.lost.discard(tag)
            return False
        self.returns.append((tag, how))
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()
        return True

    def take_acks(self, at_most: int = MAX_BATCH) -> list[str]:
        """Take tags that are done, to send them; give them back with :meth:`not_sent` if that fails."""
        acks = self.acks
        taken: list[str] = []
        try:
            while len(taken) < at_most:
                taken.append(acks.popleft())
        except IndexError:
            if not self.returns:
                self.waiting_since = None
                if acks or self.returns:  # another thread was quicker than that
                    self.waiting_since = time.monotonic()
        return taken

    def not_sent(self, tags: Iterable[str]) -> None:
        """Take back tags of a call that failed: it may have run, and it is repeated until that is known."""
        tags = list(tags)
        self._sent_before.update(tags)
        self.acks.extendleft(reversed(tags))
        if tags and self.waiting_since is None:
            self.waiting_since = time.monotonic()

    def settled(self, tags: Iterable[str], stale: Iterable[str]) -> None:
        """Note the answer to tags that were sent: the ids of which the token was no longer current."""
        stale = set(stale)
        known, self._sent_before = self._sent_before, self._sent_before.difference(tags) if self._sent_before else set()
        if not stale:
            return
        for tag in tags:
            if tag[TOKEN_DIGITS:] in stale and tag not in known and not self._was_deleted(tag):
                logger.warning(
                    "the ack of %s in queue %s changed nothing: its lease had passed to another worker, which runs it "
                    "again; a lease lapses when a worker is frozen or cut off for longer than lease_timeout",
                    tag[TOKEN_DIGITS:], self.queue,
                )  # fmt: skip

    # -- The queue's end

    def expect_nothing(self) -> None:
        """Note that this process deletes the queue: what is held of it goes along, and that is no news."""
        self._deleted = {*list(self.held), *list(self.acks)}

    def expect_all(self) -> None:
        """Note that the queue was not deleted after all."""
        self._deleted.clear()

    def _was_deleted(self, tag: str) -> bool:
        try:
            self._deleted.remove(tag)
        except KeyError:
            return False
        return True

    # -- Holding

    def is_current(self, tag: str, now: float) -> bool | None:
        """Return whether a lease still stands: True or False if that is certain, None if only the server can tell."""
        since = self.held.get(tag)
        if since is None:
            return False if tag in self.lost else None
        until = max(since, self.renewed.get(tag, 0.0)) + self.lease_us / 1e6
        return True if now < until else None

    def lose(self, ids: Iterable[str]) -> None:
        """Note leases that turned out to be somebody else's."""
        gone = set(ids)
        for tag in [tag for tag in list(self.held) if tag[TOKEN_DIGITS:] in gone]:
            if self.held.pop(tag, None) is not None:
                self.lost.add(tag)
                if self._was_deleted(tag):
                    continue
                logger.warning(
                    "the lease on %s in queue %s passed to another worker; what runs here goes on, and its ack will "
                    "change nothing",
                    tag[TOKEN_DIGITS:], self.queue,
                )  # fmt: skip


def pairs(tags: Iterable[str]) -> list[scripts.Argument]:
    """Return tags as the pairs id, token that the scripts want."""
    parts: list[scripts.Argument] = []
    for tag in tags:
        parts.append(tag[TOKEN_DIGITS:])
        parts.append(tag[:TOKEN_DIGITS])
    return parts
