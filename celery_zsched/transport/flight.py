"""A claim on its way: sent by the event loop, which goes on with its work until the answer is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from redis.exceptions import NoScriptError

from celery_zsched import scripts
from celery_zsched.connection import Dedicated
from celery_zsched.errors import ServerUnavailableError, ZschedError
from celery_zsched.transport.shared import Broker
from celery_zsched.transport.source import Source

#: How long a channel that is being closed waits for an answer, in seconds.
LANDING_S = 0.5


class Flight:
    """Sends one claim at a time on a connection of its own, and takes in its answer later."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._wire: Dedicated | None = None
        self._source: Source | None = None
        self._args: list[scripts.Argument] = []
        self._sent_at = 0.0
        #: How many messages are asked for; 0 while nothing is on its way.
        self.limit = 0
        #: Called before the connection is dropped: who watches its descriptor must let go of it.
        self.on_close: Callable[[], object] | None = None

    def fileno(self) -> int | None:
        """Return the descriptor that becomes readable with the answer; None while there is no connection."""
        return self._wire.fileno() if self._wire is not None and self._wire.is_connected else None

    def send(self, source: Source, limit: int, now: float) -> None:
        """Send a claim."""
        self._args = source.arguments(limit, armed=False)
        try:
            with self._broker.server.translated("claiming"):
                if self._wire is not None and not self._wire.is_connected:
                    self.close()
                if self._wire is None:
                    self._wire = self._broker.server.blocking(source.call.route)
                self._wire.send_packed_command([source.call.pack(self._args, self._broker.server.script_flags)])
        except BaseException as exc:
            source.failed()
            self.close()
            self._broker.wires.distrust(exc)
            raise
        self._source, self.limit, self._sent_at = source, limit, now

    def take(self, timeout_s: float | None = None) -> int:
        """Take in the answer, waiting for it if need be; return how many messages it brought.

        The leases count from when the claim was sent: the answer may have lain here for a while.
        """
        source, limit = self._source, self.limit
        assert self._wire is not None and source is not None
        try:
            with self._broker.server.translated("claiming"):
                try:
                    answer: Any = self._wire.read_response(timeout_s)
                except NoScriptError:
                    answer = self._broker.wires.call(source.call, self._args)
        except BaseException as exc:
            source.failed()
            self.close()
            self._broker.wires.distrust(exc)
            raise
        self._source, self.limit = None, 0
        return source.answered(answer, limit, self._sent_at)

    def check(self, now: float) -> None:
        """Raise :class:`ServerUnavailableError` if the answer is overdue: the link is dead, and the claim uncertain."""
        patience = self._broker.server.address.options.socket_timeout
        if self.limit and now - self._sent_at > patience and self._source is not None and self._wire is not None:
            with contextlib.suppress(ZschedError, OSError):
                if self._wire.can_read(0):
                    return  # it is there, and only waits for its turn
            self._source.failed()
            self.close()
            overdue = ServerUnavailableError(
                f"{self._broker.server.masked} has not answered a claim within {patience:g} s; the link counts as dead "
                "and a new one is made"
            )
            self._broker.wires.distrust(overdue)
            raise overdue

    def land(self) -> int:
        """Take in an answer that is on its way, if it comes soon; what does not come is free again when it lapses."""
        if not self.limit:
            return 0
        with contextlib.suppress(ZschedError, OSError):
            return self.take(LANDING_S)
        return 0

    def close(self) -> None:
        """Drop the connection."""
        wire, self._wire = self._wire, None
        self._source, self.limit = None, 0
        if wire is not None:
            if self.on_close is not None:
                self.on_close()
            wire.close()
