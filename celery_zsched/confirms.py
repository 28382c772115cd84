"""Publisher confirms: a RabbitMQ-style broker says of each message whether it has it, before an entry is moved on.

Messages go out one after the other, and a flush waits for the word on all of them, so that many cost few round trips.
"""

from __future__ import annotations

import time
from typing import Any

from amqp import Channel
from amqp.exceptions import ChannelError

#: How long the broker may take to confirm what was sent, in seconds.
PATIENCE_S = 10.0

#: How long a message may take to leave, in seconds: a link that swallows everything fills up some time.
WRITE_TIMEOUT_S = 10.0


class UnconfirmedError(Exception):
    """The broker has not said that it has what was sent; ``blocked`` if it has said that it takes nothing for now."""

    def __init__(self, message: str, *, blocked: bool = False) -> None:
        super().__init__(message)
        self.blocked = blocked


def offered(connection: Any, channel: object) -> bool:
    """Return whether the broker of a connected kombu connection confirms what is published on this channel."""
    capabilities = getattr(connection.connection, "server_capabilities", None) or {}
    return isinstance(channel, Channel) and bool(capabilities.get("publisher_confirms"))


class Confirms:
    """The confirms of one channel of py-amqp, which is to send for nobody else."""

    def __init__(self, connection: Any, channel: Any) -> None:
        #: Whom the next messages are for.
        self.sender = ""
        self._connection = connection
        self._waiting: dict[int, str] = {}
        #: Who was refused a message since the last flush, and why.
        self.refused: dict[str, str] = {}
        self._sent = 0
        self._blocked = False
        # Confirming each message by itself, as a channel with "confirm_publish" does, would cost a round trip for each.
        self._send = type(channel)._basic_publish.__get__(channel)
        channel.confirm_select()
        channel.events["basic_ack"].add(self._acked)
        channel.events["basic_nack"].add(self._nacked)
        channel.basic_publish = self._publish
        connection.connection.on_blocked = self._block
        connection.connection.on_unblocked = self._unblock

    @property
    def waits_for(self) -> set[str]:
        """Whose messages are out and not confirmed."""
        return set(self._waiting.values())

    def flush(self) -> dict[str, str]:
        """Wait until the broker has had its say; return who was refused a message, and why.

        Raises :class:`UnconfirmedError`, or what the connection raises when it breaks.
        """
        deadline = time.monotonic() + PATIENCE_S
        while self._waiting:
            left_s = deadline - time.monotonic()
            try:
                if left_s <= 0:
                    raise TimeoutError
                self._connection.drain_events(timeout=left_s)
            except TimeoutError:
                count, self._waiting = len(self._waiting), {}
                self._check_blocked()
                raise UnconfirmedError(
                    f"the broker has not confirmed {count} messages within {PATIENCE_S:g} s"
                ) from None
        refused, self.refused = self.refused, {}
        return refused

    def _publish(self, *args: Any, confirm_timeout: float | None = None, **options: Any) -> None:
        if self._blocked:
            try:
                self._connection.drain_events(timeout=0.001)
            except TimeoutError:
                pass
            self._check_blocked()  # what was sent now would only wait in the server's buffers, and come twice
        self._send(*args, **options)
        self._sent += 1
        self._waiting[self._sent] = self.sender

    def _check_blocked(self) -> None:
        if self._blocked:
            raise UnconfirmedError(
                "the broker takes no messages for now: it is short of memory or disk, see its log", blocked=True
            )

    def _acked(self, tag: int, multiple: bool) -> None:
        self._take(tag, multiple)

    def _nacked(self, tag: int, multiple: bool) -> None:
        for name in self._take(tag, multiple):
            self.refused[name] = "the broker refused the message (a full queue, or a fault of its own)"

    def _take(self, tag: int, multiple: bool) -> list[str]:
        tags = [each for each in self._waiting if each <= tag] if multiple else [tag]
        return [self._waiting.pop(each) for each in tags if each in self._waiting]

    def _block(self, _reason: object) -> None:
        self._blocked = True

    def _unblock(self) -> None:
        self._blocked = False


def channel_error(exc: BaseException | None) -> ChannelError | None:
    """Return the error by which the broker has closed a channel, if that is what another error comes from."""
    while exc is not None and not isinstance(exc, ChannelError):
        exc = exc.__cause__
    return exc
