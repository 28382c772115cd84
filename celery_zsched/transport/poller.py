"""What makes a connection's consumers go: claims while there is something to take, and one blocking pop when not.

The same steps serve ``drain_events`` and Celery's event loop. A pop is outstanding only while every consumer is idle,
so that nobody takes a ring and then keeps busy with something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.utils.eventio import ERR, READ
from kombu.utils.eventio import poll as make_poll

from celery_zsched.bell import Pop
from celery_zsched.errors import ServerUnavailableError
from celery_zsched.lookout import LOOKS_PER_POP
from celery_zsched.transport.fanout import Listener
from celery_zsched.transport.loop import LoopSide
from celery_zsched.transport.source import Source, wakes_in
from celery_zsched.transport.standby import EMPTY_GUARD_S, GUARD_S, look


class Poller:
    """Claims and delivers for the channels of one connection."""

    def __init__(self, transport: Any, loads: Callable[[str], Any]) -> None:
        self._transport = transport
        self._broker = transport.broker
        self.channels: list[Any] = []
        #: Group of queues whose bells one pop can wait for -> the pop.
        self._pops: dict[str, Pop] = {}
        #: Broadcasts for this connection's consumers.
        self.listener = Listener(self._broker, loads)
        self._stale_pops = False
        #: When to look whether somebody watches for what comes next, and how much later to look again, in seconds.
        self._look_at = 0.0
        self._guard_s = GUARD_S
        self._loop: LoopSide | None = None

    @staticmethod
    def clock() -> float:
        """Return our monotonic clock."""
        return time.monotonic()

    def add(self, channel: Any) -> None:
        """Serve a channel."""
        self.channels.append(channel)

    def discard(self, channel: Any) -> None:
        """Serve a channel no longer."""
        if channel in self.channels:
            self.channels.remove(channel)
        self.changed()

    def changed(self) -> None:
        """Note that channels consume from other queues than before."""
        self._stale_pops = True

    def close(self) -> None:
        """Drop every link."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        for pop in self._pops.values():
            pop.close()
        self._pops.clear()
        self.listener.close()

    # -- The steps

    def deliver_next(self) -> bool:
        """Hand one message to its consumer, broadcasts first; return False if there is none."""
        if self.listener.waiting and self.listener.deliver_next():
            return True
        for channel in self.channels:
            if channel.deliver_next():
                if len(self.channels) > 1 and channel in self.channels:
                    self.channels.remove(channel)
                    self.channels.append(channel)
                return True
        return False

    def rests_until(self, now: float) -> float:
        """Return until when no channel has the credit for a claim that is worth its while, as between acks; 0: now."""
        soonest = 0.0
        if self._stale_pops:
            return soonest
        for channel in self.channels:
            if channel.sources:
                until = channel.rests_until(now)
                if now >= until:
                    return 0.0
                soonest = min(soonest, until) if soonest else until
        return soonest

    def has_buffered(self) -> bool:
        """Return whether something was claimed and is not delivered yet."""
        return bool(self.listener.waiting) or any(channel.ready() for channel in self.channels)

    def claim(self, now: float) -> bool:
        """Claim what may be taken now; return whether anything came."""
        self._broker.keeper.alive_at = now
        if self._stale_pops:
            self._drop_pops()
        armed = False
        for pop in self._pops.values():
            try:
                pop.check(now)
            except ServerUnavailableError as exc:
                self._broker.wires.distrust(exc)
                raise
            armed = armed or pop.armed
        if armed:
            for source in self._sources():
                if source.dry and source.wake_at is not None and now >= source.wake_at:
                    source.dry = False
            if now >= self._look_at:
                self._look(now)
        got = False
        for channel in list(self.channels):
            if channel.sources and channel.claim(now, armed=armed):
                got = True
        if got and armed:
            # A claim ended our own pop, lest it take a ring while its message is worked on.
            for pop in self._pops.values():
                if pop.armed and not self._own_ended(pop):
                    self._drop_pop(pop)  # of queues on another node, which no claim has ended
        return got

    def _own_ended(self, pop: Pop) -> bool:
        """Read the answer of a pop that a claim of ours has ended; False if the claim was of another pop's queues."""
        took = [source for source in self._sources() if source.buffer and source.own_bell in pop.keys]
        if took:
            self._heard(self._read(pop))
        return bool(took)

    def _read(self, pop: Pop) -> str | None:
        try:
            return pop.read()
        except ServerUnavailableError as exc:
            self._broker.wires.distrust(exc)
            raise

    def has_outstanding(self) -> bool:
        """Return whether something was delivered that has not ended."""
        return any(channel.sources and channel.qos.delivered for channel in self.channels)

    def start_claims(self, now: float) -> list[Any]:
        """Send claims for the channels that can do without their answers; return those whose claim is on its way."""
        if any(pop.armed for pop in self._pops.values()):
            return []  # who waits for a ring claims with care
        self._broker.keeper.alive_at = now
        return [channel for channel in self.channels if channel.sources and channel.start_claim(now)]

    def start_ahead(self, now: float) -> list[Any]:
        """Send the next claims while the last ones are being delivered; return the channels whose claim was sent."""
        return [channel for channel in self.channels if channel.sources and channel.start_ahead(now)]

    def arm(self) -> None:
        """Wait for a ring on all queues from which something may be taken, if all of them are known to be empty."""
        if self._stale_pops:
            self._drop_pops()
        groups: dict[str, list[Source]] = {}
        for channel in self.channels:
            if channel.sources and channel.qos.can_consume():
                for source in channel.sources.values():
                    if not source.dry:
                        return
                    groups.setdefault(self._group(source), []).append(source)
        for name, sources in groups.items():
            pop = self._pops.get(name)
            if pop is None:
                pop = self._pops[name] = Pop(self._broker.server)
            keys = tuple([source.bell for source in sources] + [source.own_bell for source in sources])
            if pop.armed and pop.keys != keys:
                self._drop_pops()  # other queues than before have credit
                return
            if not pop.armed:
                lives = [source.lives_s / 3 for source in sources if source.lives_s is not None]
                pop.arm(keys, min([self._broker.settings.max_block * LOOKS_PER_POP, *lives]))
                self._plan_look(time.monotonic())
                if self._loop is not None:
                    self._loop.watch(pop)

    def heard(self, pop: Pop) -> None:
        """Take in the end of a pop: its queue is worth a claim."""
        key = self._read(pop)
        if key is not None:
            self._guard_s = GUARD_S
            self._heard(key)
            return
        for source in self._sources():
            if source.bell in pop.keys and source.lives_s is not None:
                source.dry = False  # a claim also tells such a queue to live on

    def _look(self, now: float) -> None:
        """Find what nobody would wake us for (see :mod:`~celery_zsched.transport.standby`)."""
        self._guard_s = EMPTY_GUARD_S
        for pop in self.armed_pops():
            dry = [one for one in self._sources() if one.bell in pop.keys and one.dry]
            self._guard_s = min(self._guard_s, look(self._broker.wires, [one for one in dry if one.wake_at is None]))
            for source in dry:
                # One that watches is not looked after by others, should its link have fallen silent.
                if source.wake_at is not None and now - source.asked_at >= self._broker.settings.max_block:
                    source.dry = False
        self._plan_look(now)

    def _plan_look(self, now: float) -> None:
        self._look_at = now + min(self._guard_s, self._broker.settings.max_block)

    def waits_for(self, source: Source) -> bool:
        """Return whether a pop is outstanding on the bell of a queue."""
        return any(pop.armed and source.bell in pop.keys for pop in self._pops.values())

    def _heard(self, key: str | None) -> None:
        for source in self._sources():
            if key is None or source.bell == key:
                source.dry = False
                source.rung = key is not None

    def _drop_pops(self) -> None:
        self._stale_pops = False
        for pop in self._pops.values():
            if pop.armed:
                self._drop_pop(pop)

    def _drop_pop(self, pop: Pop) -> None:
        pop.close()
        self._heard(None)  # it may have taken a ring with it

    def _group(self, source: Source) -> str:
        # Bells in different slots cannot be waited for in one command.
        return source.queue if self._broker.server.address.kind == "cluster" else ""

    def _sources(self) -> list[Source]:
        return [source for channel in self.channels for source in channel.sources.values()]

    def armed_pops(self) -> list[Pop]:
        """Return the pops that are outstanding."""
        return [pop for pop in self._pops.values() if pop.armed]

    def wakes_in(self, now: float) -> float | None:
        """Return in how many seconds there is something to do without a ring, or None."""
        soonest = max(0.0, self._look_at - now) if self.armed_pops() else None
        for channel in self.channels:
            if channel.sources and channel.qos.can_consume():
                wait = wakes_in(list(channel.sources.values()), now)
                if wait is not None:
                    wait = max(wait, channel.resumes_at() - now)
                    soonest = wait if soonest is None else min(soonest, wait)
        return soonest

    # -- Without an event loop

    def drain(self, timeout: float | None) -> None:
        """Deliver one message; raise ``TimeoutError`` if there is none within ``timeout`` seconds (None: wait)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self.deliver_next():
                return
            now = time.monotonic()
            self.listener.keep_up(now)
            self.wake_sources(now)
            if self.claim(now) or self.listener.waiting:
                continue
            self.arm()
            now = time.monotonic()
            left = None if deadline is None else deadline - now
            if left is not None and left <= 0 and timeout:
                raise TimeoutError("timed out")
            self._wait(left, now)
            if timeout == 0 and not self.has_buffered() and not self._may_claim():
                raise TimeoutError("timed out")

    def _may_claim(self) -> bool:
        """Return whether there is a queue that may have something for which there is credit."""
        return any(
            not source.dry
            for channel in self.channels
            if channel.sources and channel.qos.can_consume()
            for source in channel.sources.values()
        )

    def wake_sources(self, now: float) -> None:
        """Note the queues whose next moment has come, as far as no pop is outstanding (see :meth:`claim`)."""
        if not self.armed_pops():
            for source in self._sources():
                if source.wake_at is not None and now >= source.wake_at:
                    source.dry = False

    def _wait(self, left: float | None, now: float) -> None:
        waits = [wait for wait in (left, self.wakes_in(now), self.listener.wakes_in(now)) if wait is not None]
        ends: dict[int, Callable[[], None]] = {}
        for pop in self.armed_pops():
            ends[pop.fileno()] = partial(self.heard, pop)
        listening = self.listener.fileno()
        if listening is not None:
            ends[listening] = self.listen
        busy = [channel for channel in self.channels if channel.sources]
        if busy and not (self.armed_pops() and all(channel.qos.can_consume() for channel in busy)):
            # No credit, or a moment of courtesy: acks of other threads change that, so it is looked at often.
            waits.append(0.01)
        patience = max(0.0, min([*waits, self._broker.settings.max_block]))
        if not ends:
            time.sleep(patience)
            return
        poller = make_poll()
        try:
            for fd in ends:
                poller.register(fd, READ | ERR)
            for fd, _ in poller.poll(patience) or ():
                ends[fd]()
        finally:
            poller.close()

    def listen(self) -> None:
        """Take in broadcasts that have come."""
        self.listener.read(time.monotonic())

    # -- In an event loop

    def join(self, loop: Any) -> None:
        """Be driven by Celery's event loop."""
        self._loop = LoopSide(self, loop)
