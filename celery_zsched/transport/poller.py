"""What makes a connection's consumers go: claims while there is something to take, and one blocking pop when not.

The same steps serve ``drain_events`` and Celery's event loop. A pop is outstanding only while every consumer is idle,
so that nobody takes a ring and then keeps busy with something else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.utils.eventio import ERR, READ
from kombu.utils.eventio import poll as make_poll

from celery_zsched.bell import Pop
from celery_zsched.transport.fanout import Listener
from celery_zsched.transport.flight import Flight
from celery_zsched.transport.source import REST_S, Source, wakes_in

#: For so long the event loop is kept from its other duties by deliveries in a row, in seconds.
TURN_S = 0.005

#: A delivery that takes less than this does its work elsewhere, or has little of it, in seconds.
QUICK_S = 0.001


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
        armed = False
        for pop in self._pops.values():
            pop.check(now)
            armed = armed or pop.armed
        if armed:
            for source in self._sources():
                if source.dry and source.wake_at is not None and now >= source.wake_at:
                    source.dry = False
        got = False
        for channel in list(self.channels):
            if channel.sources and channel.claim(now, armed=armed):
                got = True
        if got and armed:
            # A claim ended our own pop, lest it take a ring while its message is worked on.
            for pop in self._pops.values():
                if pop.armed and not self._own_ended(pop):
                    pop.close()
        return got

    def _own_ended(self, pop: Pop) -> bool:
        """Read the answer of a pop that a claim of ours has ended; False if the claim was of another pop's queues."""
        took = [source for source in self._sources() if source.buffer and source.own_bell in pop.keys]
        if took:
            self._heard(pop.read())
        return True

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
                pop.arm(keys, min([self._broker.settings.max_block, *lives]))
                if self._loop is not None:
                    self._loop.watch(pop)

    def heard(self, pop: Pop) -> None:
        """Take in the end of a pop: its queue is worth a claim, or all of them after its time-out."""
        key = pop.read()
        if key is not None or self._holds_anything(pop):
            self._heard(key)

    def _holds_anything(self, pop: Pop) -> bool:
        """Return whether a claim is worth its while after a time-out: an idle worker asks one small question."""
        sources = [source for source in self._sources() if source.bell in pop.keys]
        if any(source.lives_s is not None for source in sources):
            return True  # a claim also tells such a queue to live on
        keys = [key for source in sources for key in (*source.timeline.keys.timelines, source.timeline.keys.leases)]
        return bool(keys) and bool(self._broker.wires.command("EXISTS", *keys, route=keys[0]))

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
                if self._loop is not None:
                    self._loop.unwatch(pop)
                pop.close()
                # It may have taken a ring with it.
                self._heard(None)

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
        soonest: float | None = None
        for channel in self.channels:
            if channel.sources and channel.qos.can_consume():
                wait = wakes_in(list(channel.sources.values()), now)
                if wait is not None:
                    wait = max(wait, channel.resumes_at(channel.qos.credit(1)) - now)
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
            if timeout == 0 and not self.has_buffered() and all(source.dry for source in self._sources()):
                raise TimeoutError("timed out")

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
        if not self.armed_pops() and any(channel.sources for channel in self.channels):
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


class LoopSide:
    """A poller's side towards Celery's event loop."""

    def __init__(self, poller: Poller, loop: Any) -> None:
        self._poller = poller
        self._hub = loop
        # A pipe that is readable while there is something to deliver, so that the loop comes back at once.
        self._ready_fd, self._signal_fd = os.pipe()
        os.set_blocking(self._ready_fd, False)
        self._signalled = False
        #: When the loop comes back by a timer of ours, by our monotonic clock.
        self._timers: dict[float, Any] = {}
        self._watched: dict[int, Pop] = {}
        #: By when the links are looked after, though there is nothing to claim.
        self._look_after = 0.0
        #: Descriptor -> the flight that the loop watches there.
        self._flights: dict[int, Flight] = {}
        self._listening: int | None = None
        self._links = 0
        loop.add_reader(self._ready_fd, self._on_ready)
        loop.on_tick.add(self._on_tick)
        # Without a timer the loop may sleep for ten seconds, and a worker that is told to stop should not.
        self._heartbeat = loop.call_repeatedly(1.0, _nothing)
        self._run_ready: Callable[[], None] | None = self._run_ready_callbacks if hasattr(loop, "_pop_ready") else None

    def watch(self, pop: Pop) -> None:
        """Have the loop tell when a pop ends."""
        fd = pop.fileno()
        if self._watched.get(fd) is not pop:
            self._watched[fd] = pop
            self._hub.add_reader(fd, self._on_pop, pop, fd)

    def unwatch(self, pop: Pop) -> None:
        """Stop that."""
        for fd, watched in list(self._watched.items()):
            if watched is pop:
                del self._watched[fd]
                self._hub.remove(fd)

    def close(self) -> None:
        """Leave the loop."""
        self._hub.on_tick.discard(self._on_tick)
        for timer in (self._heartbeat, *self._timers.values()):
            timer.cancel()
        self._timers.clear()
        for fd in {
            self._ready_fd,
            *self._watched,
            *self._flights,
            *([] if self._listening is None else [self._listening]),
        }:
            self._hub.remove(fd)
        self._watched.clear()
        os.close(self._ready_fd)
        os.close(self._signal_fd)

    def _on_tick(self) -> None:
        poller = self._poller
        if not poller.has_buffered():
            now = time.monotonic()
            if now < self._look_after and (until := poller.rests_until(now)):
                self._come_back(now, until)
                return
            self._look_after = now + REST_S
            poller.listener.keep_up(now)
            self._watch_listener()
            poller.wake_sources(now)
            if not poller.listener.waiting and (flying := self._start_claims(now)):
                self._await(flying)
                return
            if not poller.claim(now) and not poller.listener.waiting:
                poller.arm()
                self._set_timer(time.monotonic())
                return
        self._signal()

    def _start_claims(self, now: float) -> list[Any]:
        poller = self._poller
        for channel in poller.channels:
            if channel.sources and channel.flight is None:
                channel.flight = Flight(channel.broker)
        return poller.start_claims(now)

    def _await(self, flying: list[Any]) -> None:
        """Have the loop tell when claims that were sent are answered."""
        for channel in flying:
            fd = channel.flight.fileno()
            if fd is not None and self._flights.get(fd) is not channel.flight:
                self._flights[fd] = channel.flight
                self._hub.add_reader(fd, self._on_claim, channel, fd)

    def _on_claim(self, channel: Any, fd: int) -> None:
        flight = channel.flight
        if flight is None or flight.fileno() != fd or not flight.limit:
            # Nothing was asked: the server has closed the connection, or a channel that is no more had it.
            self._flights.pop(fd, None)
            self._hub.remove(fd)
            if flight is not None and flight.fileno() == fd:
                flight.close()
            return
        try:
            count = channel.finish_claim()
        except BaseException:
            self._flights.pop(fd, None)
            self._hub.remove(fd)
            raise
        if count:
            self._signal()
            self._on_ready()

    def _watch_listener(self) -> None:
        listener = self._poller.listener
        fd = listener.fileno()
        # A new link may have the descriptor of the one before.
        if fd != self._listening or listener.links != self._links:
            if self._listening is not None and self._listening not in self._watched:
                self._hub.remove(self._listening)
            self._listening, self._links = fd, listener.links
            if fd is not None:
                self._hub.add_reader(fd, self._on_broadcast)

    def _on_broadcast(self) -> None:
        self._poller.listen()
        self._watch_listener()
        self._look_after = 0.0
        self._on_ready()

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            os.write(self._signal_fd, b"\0")

    def _on_ready(self) -> None:
        poller = self._poller
        begin = time.monotonic()
        delivered = 0
        while True:
            if not poller.deliver_next():
                now = time.monotonic()
                poller.wake_sources(now)
                # While work goes on elsewhere the next claim is the loop's, which need not wait for its answer.
                if (delivered and poller.has_outstanding()) or not poller.claim(now):
                    break
                continue
            delivered += 1
            now = time.monotonic()
            if now - begin < QUICK_S * delivered:
                self._await(poller.start_ahead(now))
            if now - begin >= TURN_S:
                return  # readable still: the loop comes back once it has done its other duties
            if self._run_ready is None:
                return
            # As at the start of each of the loop's rounds: acks are known before the next message is started.
            self._run_ready()
        if self._signalled:
            self._signalled = False
            os.read(self._ready_fd, 16)

    def _run_ready_callbacks(self) -> None:
        for item in self._hub._pop_ready():
            if item:
                item()

    def _on_pop(self, pop: Pop, fd: int) -> None:
        if pop.armed and pop.fileno() == fd:
            try:
                self._poller.heard(pop)
            except BaseException:
                self.unwatch(pop)
                raise
            self._on_ready()

    def _set_timer(self, now: float) -> None:
        waits = [self._poller.wakes_in(now), self._poller.listener.wakes_in(now)]
        wait = min((one for one in waits if one is not None), default=None)
        if wait is None:
            return
        self._come_back(now, now + wait)

    def _come_back(self, now: float, at: float) -> None:
        # One that goes off before serves too: the next is set then. None is cancelled, since the loop keeps those.
        if not any(pending <= at for pending in self._timers):
            self._timers[at] = self._hub.call_later(max(0.0, at - now), self._on_timer, at)
            # The loop has settled before this how long it will sleep, so it is called back at once to see the timer.
            self._signal()

    def _on_timer(self, at: float) -> None:
        """Do nothing more: the round that comes claims what is due."""
        self._timers.pop(at, None)


def _nothing() -> None:
    """Do nothing: that the loop came round is enough."""
