"""How an idle claimer knows when to claim next: a ring, its own moment, or a cheap look for what a lost ring hid.

A claim costs the server a dozen commands, so an idle claimer does not repeat it for safety's sake: every ``block_s``
seconds it looks at the first waiting moment or, in turn, at the first lease end, and claims only if that is not what it
knew. Of the claimers of a busy timeline two watch for what comes next; the others look, every ``guard_s`` seconds,
whether there are still two, since those may die one after the other.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from celery_zsched.bell import Bell
from celery_zsched.timeline import MAX_BLOCK_S, Timeline
from celery_zsched.types import SECOND_US

logger = logging.getLogger("celery.beat.zsched")

#: How many looks one blocking pop outlives. Looks are what finds a dead link, so the pop itself may stay for long.
LOOKS_PER_POP = 4

#: The server's clock was set if it is further than this, in microseconds, from what it must be by what it was before: a
#: shorter step keeps nothing waiting that is worth a word.
SET_BACK_US = 5 * SECOND_US

#: Clocks that are steered differ in their pace by no more than one part in so many.
PACE = 2000

#: So many claimers watch for what comes next: one, and one in case that one dies.
WATCHERS = 2


class Lookout:
    """Waits for the next claim of one timeline. Not for several threads at once.

    ``label`` is the name of its waiting connection in ``CLIENT LIST``.
    """

    def __init__(
        self, timeline: Timeline, *, block_s: float = MAX_BLOCK_S, guard_s: float = MAX_BLOCK_S, label: str = ""
    ) -> None:
        self._timeline = timeline
        self._block_s = min(block_s, MAX_BLOCK_S)
        self._guard_s = min(guard_s, self._block_s)
        #: For so long the same set is not looked at again, in seconds, since looks take turns; with some to spare.
        self._unseen_s = 2.2 * self._block_s
        self._bell = Bell(
            timeline.server, timeline.keys.bell, own=timeline.own_bell, block_s=self._block_s * LOOKS_PER_POP,
            label=label,
        )  # fmt: skip
        self._label = label
        #: The server's clock minus ours (monotonic), in microseconds, as of the last answer.
        self._offset_us: int | None = None
        #: Our clock as of the last answer, and as of the question whose answer comes next.
        self._heard_us = 0
        self._asked_us = 0
        #: By how much the server's clock was set back since somebody looked, in microseconds; they set it to 0 again.
        self.set_back_us = 0
        #: Our clock (monotonic, seconds) when the server's was last found to have been set, or this process suspended.
        self.set_at = 0.0
        #: Our clock at which to claim or to look, and whether to look only.
        self._until = 0.0
        self._look_only = False
        self._looks = 0
        #: Whether others may be watching for what comes next.
        self._guarding = False
        #: Whether this claimer has claimed and not ended since, so that others may count on it.
        self.began = False
        #: Whether the last answer was that nothing waits at all, as far as the next look.
        self.nothing_waits = False

    def now_us(self) -> int | None:
        """Return an estimate of the server's clock; None before the first answer."""
        return None if self._offset_us is None else self._offset_us + time.monotonic_ns() // 1000

    def connect(self) -> None:
        """Make the waiting connection before there is anything to wait for."""
        self._bell.arm()

    @property
    def connected_as(self) -> str:
        """The name in ``CLIENT LIST`` of the connection that stays for as long as this claimer lives; empty if none."""
        return self._label if self._bell.labelled else ""

    @property
    def waiting(self) -> bool:
        """Whether this claimer waits for a moment or a ring."""
        return self._until > 0.0

    def claimed(self, now_us: int, wake_us: int | None, *, empty: bool) -> None:
        """Note the answer to a claim: the server's clock, the moment to claim again, and whether nothing was due."""
        self.heard(now_us, self._asked_us)
        self.began = True
        self.nothing_waits = empty and wake_us is None
        if not empty:
            self._until = 0.0
        elif wake_us is not None and wake_us - now_us < self._block_s * SECOND_US:
            self._plan((wake_us - now_us) / SECOND_US, look_only=False)
        else:
            self._guarding = wake_us is None
            self._plan(self._guard_s if self._guarding else self._block_s, look_only=True)

    def heard(self, now_us: int, asked_us: int) -> None:
        """Note the server's clock, as it answers what was asked at ``asked_us`` on our clock (monotonic)."""
        before_us, heard_us = self._offset_us, time.monotonic_ns() // 1000
        if before_us is not None:
            least_us = SET_BACK_US + max(0, asked_us - self._heard_us) // PACE
            # An answer that was long on its way lets the clock seem to be behind; when it was asked it was not later.
            behind_us, ahead_us = asked_us + before_us - now_us, now_us - before_us - heard_us
            if behind_us > least_us:
                self.set_back_us += behind_us
            if max(behind_us, ahead_us) > least_us:
                self.set_at = time.monotonic()
        self._heard_us, self._offset_us = heard_us, now_us - heard_us

    def failed(self) -> None:
        """Note that nothing is known: the next wait ends at once."""
        self._until = 0.0

    def wait(self, patience_s: float) -> bool:
        """Wait up to ``patience_s`` seconds; return whether it is time to claim."""
        claims = self._wait(patience_s)
        self._asked_us = time.monotonic_ns() // 1000
        return claims

    def _wait(self, patience_s: float) -> bool:
        if not self.waiting:
            return True
        if self._listen(min(patience_s, self._until - time.monotonic())):
            return True
        if time.monotonic() < self._until:
            return False
        return not self._look_only or self._look()

    def _listen(self, patience_s: float) -> bool:
        """Wait up to ``patience_s`` seconds for a ring; tell if it took so much longer that others have taken over."""
        self._bell.arm()
        until = time.monotonic() + max(0.0, patience_s)
        rung = self._bell.wait(patience_s)
        still_s = time.monotonic() - until
        if still_s > self._guard_s:
            logger.warning(
                "this beat stood still for %.1f s (it was suspended, or had no processor): what was due meanwhile and "
                "was sent by no other beat goes by the misfire rule now",
                still_s,
            )
        return rung

    def ended(self) -> None:
        """Note that the others no longer count on this claimer."""
        self.began = False
        self._until = 0.0

    def close(self) -> None:
        """Drop the waiting connection."""
        self._bell.close()

    def _plan(self, in_s: float, *, look_only: bool) -> None:
        self._until = time.monotonic() + max(0.0, in_s)
        self._look_only = look_only

    def _look(self) -> bool:
        """Look at the first moment of the waiting or of the leased; return whether there is something to claim for."""
        keys = self._timeline.keys
        self._looks += 1
        moments = keys.timelines if self._looks % 2 else [keys.leases]
        soonest: int | None = None
        with self._timeline.server.translated("looking for what is due"):
            client: Any = self._timeline.server.client
            if self._guarding:
                watchers = client.zcount(keys.watch, self.now_us() or 0, "+inf")
                if watchers:
                    self._plan(self._guard_s, look_only=True)
                    return bool(watchers < WATCHERS)
                moments = [*keys.timelines, keys.leases]
            for key in moments:
                first = client.zrange(key, 0, 0, withscores=True)
                if first:
                    moment_us = int(first[0][1])
                    soonest = moment_us if soonest is None else min(soonest, moment_us)
        now_us = self.now_us()
        self._guarding = False
        until_s = math.inf if soonest is None or now_us is None else (soonest - now_us) / SECOND_US
        if until_s > self._unseen_s:
            self._plan(self._block_s, look_only=True)
            return False
        # It comes before the timeline is looked at again. A claim enters this claimer for it, but not long before.
        claim_in_s = until_s - self._block_s / 2
        if claim_in_s <= 0:
            return True
        self._plan(claim_in_s, look_only=False)
        return False
