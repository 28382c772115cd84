"""A poller driven by Celery's event loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_zsched.bell import Pop
from celery_zsched.transport.fanout import Listener
from celery_zsched.transport.flight import Flight
from celery_zsched.transport.source import REST_S

if TYPE_CHECKING:
    from celery_zsched.transport.poller import Poller

#: For so long the event loop is kept from its other duties by deliveries in a row, in seconds.
TURN_S = 0.005

#: A delivery that takes less than this does its work elsewhere, or has little of it, in seconds.
QUICK_S = 0.001


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
        #: Descriptor -> the link for broadcasts.
        self._listening: dict[int, Listener] = {}
        loop.add_reader(self._ready_fd, self._on_ready)
        loop.on_tick.add(self._on_tick)
        # Without a timer the loop may sleep for ten seconds, and a worker that is told to stop should not.
        self._heartbeat = loop.call_repeatedly(1.0, _nothing)
        self._run_ready: Callable[[], None] | None = self._run_ready_callbacks if hasattr(loop, "_pop_ready") else None

    def watch(self, pop: Pop) -> None:
        """Have the loop tell when a pop ends, until its connection is dropped."""
        fd = pop.fileno()
        if self._watched.get(fd) is not pop:
            self._watched[fd] = pop
            pop.on_close = partial(self._let_go, self._watched, pop)
            self._hub.add_reader(fd, self._on_pop, pop, fd)

    def _let_go(self, watched: dict[int, Any], link: Any) -> None:
        # Before the descriptor is closed, since its number may be another's at once.
        for fd in [fd for fd, known in watched.items() if known is link]:
            del watched[fd]
            self._hub.remove(fd)

    def close(self) -> None:
        """Leave the loop."""
        self._hub.on_tick.discard(self._on_tick)
        for timer in (self._heartbeat, *self._timers.values()):
            timer.cancel()
        self._timers.clear()
        for fd in (self._ready_fd, *self._watched, *self._flights, *self._listening):
            self._hub.remove(fd)
        for watched in (self._watched, self._flights, self._listening):
            watched.clear()
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
                channel.flight.on_close = partial(self._let_go, self._flights, channel.flight)
                self._hub.add_reader(fd, self._on_claim, channel, fd)

    def _on_claim(self, channel: Any, fd: int) -> None:
        flight = channel.flight
        if flight is None or flight.fileno() != fd:
            return  # dropped in this very round
        if not flight.limit:
            flight.close()  # nothing was asked: the server has closed the connection
            return
        count = channel.finish_claim()
        if count:
            self._signal()
            self._on_ready()

    def _watch_listener(self) -> None:
        listener = self._poller.listener
        fd = listener.fileno()
        if fd is not None and fd not in self._listening:
            self._listening[fd] = listener
            listener.on_close = partial(self._let_go, self._listening, listener)
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
            self._poller.heard(pop)
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
