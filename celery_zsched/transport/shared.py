"""What all connections of a process to one broker share: its settings, its client, its wires, its leases."""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from celery_zsched import cautions, scripts
from celery_zsched.connection import Server
from celery_zsched.keys import pauses_key, queue_timeline
from celery_zsched.server_options import split_options
from celery_zsched.timeline import Timeline
from celery_zsched.transport.desk import Desk
from celery_zsched.transport.exchanges import Exchanges
from celery_zsched.transport.keeper import Keeper
from celery_zsched.transport_settings import TransportSettings
from celery_zsched.types import SECOND_US
from celery_zsched.wires import Call, Wires

logger = logging.getLogger("celery_zsched.transport")

#: Of so many queues it is kept how scripts are called; queues come and go, and what is used is soon back.
MOST_QUEUES = 1000

_brokers: weakref.WeakValueDictionary[tuple[str, str], Broker] = weakref.WeakValueDictionary()
_lock = threading.Lock()
_noticed: set[str] = set()


def _new_lock_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_after_fork)


class Broker:
    """One broker as this process sees it."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.settings, notices = TransportSettings.from_options(options)
        for notice in notices:
            if notice not in _noticed:  # once for each process
                _noticed.add(notice)
                logger.warning(notice)
        server_options, _ = split_options(options)
        self.server = Server.from_url(url, server_options)
        limits = self.server.address.options
        self.wires = Wires(self.server, limit=limits.max_connections, patience_s=limits.pool_timeout)
        self.keeper = Keeper(self.server, stall_s=self.settings.stall_timeout, beside=self.wires)
        #: Who holds what is leased, as others see it. A worker puts its node name here.
        self.holder = f"{socket.gethostname()}:{os.getpid()}"
        self.levels = len(self.settings.priority_steps)
        self.lease_us = int(self.settings.lease_timeout * SECOND_US)
        #: The key of what is paused.
        self.pauses = pauses_key(self.settings.key_prefix)
        self.exchanges = Exchanges(self.wires, self.settings.key_prefix)
        self.keeper.on_touched = self.exchanges.renew
        #: (exchange, queue) -> the numbers of the last broadcasts that the queue's consumer was given, oldest first; it
        #: outlives connections, so that none is given twice.
        self.broadcasts_seen: dict[tuple[str, str], dict[bytes, None]] = {}
        #: Ids of messages of which it is not known whether they were put -> since when, by our monotonic clock.
        self.unsure: dict[str, float] = {}
        #: Queue -> what it was declared with by this process.
        self.rules: dict[str, dict[str, int]] = {}
        #: Queue -> script -> how it is called there.
        self._calls: dict[str, dict[str, Call]] = {}
        self._users = 0

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any]) -> Broker:
        """Return the broker that a URL and options name, the same for all who ask in this process."""
        key = (url, repr(sorted((str(name), repr(value)) for name, value in options.items())))
        with _lock:
            found = _brokers.get(key)
            if found is None:
                found = _brokers[key] = cls(url, options)
            return found

    def look_at_clock(self) -> None:
        """Ask the server for its time, and warn, once in this process, if this host's clock tells another."""
        self.wires.look_at_clock()
        caution = cautions.clock(self.wires.now_us)
        if caution and "clock" not in _noticed:
            _noticed.add("clock")
            logger.warning("%s", caution)

    def opened(self) -> None:
        """Note one more connection."""
        with _lock:
            self._users += 1

    def closed(self) -> None:
        """Note one connection less; after the last one nothing idle is kept open."""
        with _lock:
            self._users -= 1
            last = self._users <= 0
        if last:
            self.wires.close()

    def timeline(self, queue: str, *, claimer: str = "") -> Timeline:
        """Return the timeline of a queue."""
        return Timeline(
            self.server,
            queue_timeline(queue),
            prefix=self.settings.key_prefix,
            levels=self.levels,
            holder=self.holder,
            claimer=claimer,
        )

    def call(self, name: str, queue: str) -> Call:
        """Return a script on the keys of a queue, ready to be called."""
        calls = self._calls_of(queue)
        found = calls.get(name)
        if found is None:
            found = calls[name] = self.timeline(queue).call(name)
        return found

    def publish_call(self, queue: str, level: int) -> Call:
        """Return ``lua/publish.lua`` on the keys of one level of a queue."""
        calls = self._calls_of(queue)
        name = f"publish {level}"
        found = calls.get(name)
        if found is None:
            keys = self.timeline(queue).keys
            names = [keys.bodies, keys.bell, keys.watch, keys.rules, keys.timelines[level]]
            found = calls[name] = Call(scripts.load("publish"), names)
        return found

    def _calls_of(self, queue: str) -> dict[str, Call]:
        calls = self._calls.get(queue)
        if calls is None:
            if len(self._calls) >= MOST_QUEUES:
                self._calls.clear()
            calls = self._calls[queue] = {}
        return calls

    def forget(self, queue: str) -> None:
        """Drop what is kept of a queue that goes with its last consumer, unless another one is in this process."""
        if self.keeper.forget(queue):
            self.rules.pop(queue, None)
            self._calls.pop(queue, None)

    def desk(self, queue: str) -> Desk:
        """Return what this process holds of a queue."""
        return self.keeper.desk(queue, lambda: self._new_desk(queue))

    def _new_desk(self, queue: str) -> Desk:
        return Desk(
            self.timeline(queue),
            lease_us=self.lease_us,
            delivery_limit=self.settings.delivery_limit or 0,
            dead_limit=self.settings.dead_limit,
        )

    def level(self, priority: Any) -> int:
        """Return the level of a priority, 0 to be served first."""
        steps = self.settings.priority_steps
        try:
            asked = int(priority or 0)
        except (TypeError, ValueError):
            asked = 0
        if not 0 <= asked <= 9:
            if "priority" not in _noticed:
                _noticed.add("priority")
                logger.warning("priority %d is outside 0 to 9 and is taken as the nearest of them", asked)
            asked = min(9, max(0, asked))
        at = 0
        for position, step in enumerate(steps):
            if step <= asked:
                at = position
        return at if self.settings.priority_order == "redis" else len(steps) - 1 - at
