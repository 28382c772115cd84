"""Broadcasts: events, gossip and remote control, pushed by the server over Pub/Sub.

Channels are named exactly, one for each first word of the routing keys of an exchange; only a binding whose first word
is a wildcard listens to a pattern. Remote control also keeps its last commands for a minute, so that a worker that was
cut off for a moment misses none; each has a number, so that none is taken twice.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from celery_zsched import message as wire_format
from celery_zsched.connection import Dedicated
from celery_zsched.errors import ServerError, ServerUnavailableError
from celery_zsched.keys import TimelineKeys, broadcast_channel, exchange_timeline
from celery_zsched.transport.shared import Broker

logger = logging.getLogger("celery_zsched.transport")

#: How long the backlog of remote control is kept after its last command, and how many commands it keeps.
BACKLOG_MS, BACKLOG_MOST = 60_000, 200

#: A silent link is tried so often, and counts as dead if it does not answer in that time, in seconds.
PING_S, PONG_S = 30.0, 10.0

_numbers = count(1)


def has_backlog(exchange: str) -> bool:
    """Return whether an exchange's broadcasts are kept for a moment."""
    return exchange.endswith(".pidbox")


def first_word(routing_key: str) -> str:
    """Return the first word of a routing key as it stands in a channel's name, where a slash ends the exchange's."""
    return routing_key.split(".")[0].replace("/", "|")


def matcher(binding_key: str) -> Callable[[str], bool]:
    """Return whether routing keys match a binding key, as a topic exchange has it (``*`` a word, ``#`` any number)."""
    if "#" not in binding_key and "*" not in binding_key:
        return binding_key.__eq__
    text = ""
    for word in binding_key.split("."):
        if word == "#":
            text += r"(?:(?:^|\.)[^.]+)*"
        else:
            text += (r"\." if text else "") + r"[^.]*".join(re.escape(part) for part in word.split("*"))
    # A leading "#" may stand for nothing, and then the dot after it stands for nothing too.
    if text.startswith("(?:(?:^"):
        text = text.replace(r"(?:(?:^|\.)[^.]+)*\.", r"(?:[^.]+\.)*", 1)
    compiled = re.compile(text)
    return lambda routing_key: compiled.fullmatch(routing_key) is not None


@dataclass(frozen=True)
class Subscription:
    """One queue of one channel that listens to an exchange."""

    queue: str
    exchange: str
    binding_key: str
    matches: Callable[[str], bool]
    callback: Callable[[dict[str, Any]], Any]

    @property
    def word(self) -> str | None:
        """The first word of the routing keys that match; None if it may be any."""
        first = first_word(self.binding_key)
        return None if "#" in first or "*" in first else first


class Publisher:
    """Sends broadcasts."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._prefix = broker.settings.key_prefix
        self._db = broker.server.address.db

    def publish(self, exchange: str, routing_key: str, payload: bytes) -> None:
        """Send one broadcast to who listens now, and keep it if the exchange has a backlog."""
        channel = broadcast_channel(self._prefix, self._db, exchange, first_word(routing_key))
        if has_backlog(exchange):
            call = self._broker.exchanges.call("broadcast", exchange)
            self._broker.wires.call(call, [channel, BACKLOG_MS, BACKLOG_MOST, payload])
        else:
            self._broker.wires.command("PUBLISH", channel, payload)


class Listener:
    """One connection's subscriptions, on a link of its own."""

    def __init__(self, broker: Broker, loads: Callable[[str], Any]) -> None:
        self._broker = broker
        self._loads = loads
        self._db = broker.server.address.db
        self._prefix = broker.settings.key_prefix
        self._subscriptions: dict[tuple[int, str], Subscription] = {}
        self._wire: Dedicated | None = None
        self._listening: set[str] = set()
        self._changed = False
        self._heard_at = 0.0
        self._pinged_at: float | None = None
        #: Called before the link is dropped: who watches its descriptor must let go of it.
        self.on_close: Callable[[], object] | None = None
        #: Broadcasts that wait for their turn.
        self.waiting: deque[tuple[Subscription, dict[str, Any]]] = deque()

    def add(self, owner: object, subscription: Subscription) -> None:
        """Listen for one queue of a channel."""
        self._subscriptions[id(owner), subscription.queue] = subscription
        self._changed = True

    def discard(self, owner: object, queue: str) -> None:
        """Listen no longer for it."""
        gone = self._subscriptions.pop((id(owner), queue), None)
        if gone is not None:
            self._changed = True
            self.waiting = deque(row for row in self.waiting if row[0] is not gone)

    @property
    def wanted(self) -> bool:
        """Whether anything is to be listened for."""
        return bool(self._subscriptions)

    def fileno(self) -> int | None:
        """Return the descriptor that becomes readable when something comes; None while there is no link."""
        return self._wire.fileno() if self._wire is not None and self._wire.is_connected else None

    def close(self) -> None:
        """Drop the link."""
        wire, self._wire = self._wire, None
        self._listening = set()
        if wire is not None:
            if self.on_close is not None:
                self.on_close()
            with contextlib.suppress(OSError, ServerError):
                wire.close()

    def deliver_next(self) -> bool:
        """Hand one broadcast to its consumer; return False if none waits."""
        if not self.waiting:
            return False
        subscription, payload = self.waiting.popleft()
        subscription.callback(payload)
        return True

    # -- The link

    def keep_up(self, now: float) -> None:
        """Connect, subscribe and look after the link as needed; a dead one is made anew.

        Raises :class:`~celery_zsched.errors.ServerUnavailableError` when that cannot be done.
        """
        if self._changed or (self._wire is None and self._subscriptions):
            self._subscribe(now)
        if self._wire is None:
            return
        if self._pinged_at is not None:
            if now - self._pinged_at > PONG_S:
                self.close()
                logger.warning(
                    "%s has not answered on the link for broadcasts for %g s; the link counts as dead and a new one is "
                    "made",
                    self._broker.server.masked, PONG_S,
                )  # fmt: skip
                self._subscribe(now)
        elif now - self._heard_at > PING_S:
            self._send("PING")
            self._pinged_at = now

    def wakes_in(self, now: float) -> float | None:
        """Return in how many seconds the link is to be looked after, or None."""
        if self._wire is None:
            return 0.0 if self._subscriptions else None
        if self._pinged_at is not None:
            return max(0.0, self._pinged_at + PONG_S - now) + 0.001
        return max(0.0, self._heard_at + PING_S - now) + 0.001

    def read(self, now: float) -> None:
        """Take in what has come."""
        assert self._wire is not None
        try:
            with self._broker.server.translated("listening for broadcasts"):
                while self._wire.can_read(0):
                    self._take(self._wire.read_response())
        except ServerUnavailableError as exc:
            # Nothing else is the matter: remote control catches up with what it missed once there is a new link.
            self.close()
            logger.info("the link for broadcasts was lost, and a new one is made: %s", exc)
        except BaseException:
            self.close()
            raise
        self._heard_at = now
        self._pinged_at = None

    def _subscribe(self, now: float) -> None:
        self._changed = False
        wanted = self._channels()
        if not wanted and self._wire is None:
            return
        backlogs = {one.exchange for one in self._subscriptions.values() if has_backlog(one.exchange)}
        for exchange in backlogs:
            self._pass_over(exchange)
        if self._wire is None:
            self._wire = self._broker.server.blocking()
            self._heard_at, self._pinged_at = now, None
        for new, names in ((True, wanted - self._listening), (False, self._listening - wanted)):
            for kind in ("", "P"):
                some = sorted(name[1:] for name in names if name[0] == (kind or " "))
                if some:
                    self._send(f"{kind}{'SUBSCRIBE' if new else 'UNSUBSCRIBE'}", *some)
        changes, self._listening = len(wanted ^ self._listening), wanted
        self._await(changes)
        for exchange in backlogs:
            self._catch_up(exchange)

    def _channels(self) -> set[str]:
        """Return what to subscribe to: names behind a blank, patterns behind a P."""
        names: set[str] = set()
        for one in self._subscriptions.values():
            word = one.word
            if word is None:
                # A user whose rights end at the prefix may listen to exactly this pattern (&prefix*), and no other.
                whole = self._broker.settings.global_keyprefix or f"{self._prefix}:"
                return {f"P{whole}*"}
            names.add(" " + broadcast_channel(self._prefix, self._db, one.exchange, word))
        return names

    def _await(self, changes: int) -> None:
        """Wait until the server has made changes: what is broadcast from then on, by whomever, comes."""
        assert self._wire is not None
        try:
            with self._broker.server.translated("subscribing to broadcasts"):
                while changes:
                    answer = self._wire.read_response()
                    self._take(answer)
                    changes -= isinstance(answer, list) and answer[0].endswith(b"subscribe")
        except BaseException:
            self.close()
            raise

    def _send(self, *parts: str) -> None:
        assert self._wire is not None
        try:
            with self._broker.server.translated("subscribing to broadcasts"):
                self._wire.send_command(*parts)
        except BaseException:
            self.close()
            raise

    def _pass_over(self, exchange: str) -> None:
        """Take what is in an exchange's backlog for old, where a queue of ours begins to listen."""
        seen = self._broker.broadcasts_seen
        queues = [one.queue for one in self._subscriptions.values() if one.exchange == exchange]
        new = [queue for queue in queues if (exchange, queue) not in seen]
        if new:
            old = [number for number, _ in self._backlog(exchange)]
            seen.update({(exchange, queue): dict.fromkeys(old) for queue in new})

    def _catch_up(self, exchange: str) -> None:
        """Take in what an exchange's backlog has that some queue of ours was not given, the link being up."""
        for number, fields in self._backlog(exchange):
            self._accept(exchange, number, fields[1])

    def _backlog(self, exchange: str) -> list[Any]:
        backlog = TimelineKeys(exchange_timeline(exchange), prefix=self._prefix).backlog
        rows: list[Any] = self._broker.wires.command("XRANGE", backlog, "-", "+", route=backlog)
        return rows

    # -- What comes

    def _take(self, answer: Any) -> None:
        if not isinstance(answer, list) or answer[0] not in (b"message", b"pmessage"):
            return
        channel, data = answer[-2].decode(), answer[-1]
        start = broadcast_channel(self._prefix, self._db, "", "")[:-1]
        if not channel.startswith(start):
            return
        exchange = channel[len(start) :].rpartition("/")[0]
        if has_backlog(exchange):
            number, _, data = data.partition(b" ")
            self._accept(exchange, number, data)
        else:
            self._accept(exchange, None, data)

    def _accept(self, exchange: str, number: bytes | None, data: bytes) -> None:
        takers = [one for one in self._subscriptions.values() if one.exchange == exchange]
        if not takers:
            return
        try:
            routing_key = wire_format.decode(data, loads=self._loads)["properties"]["delivery_info"]["routing_key"]
        except ValueError as exc:
            logger.error("a broadcast on exchange %s cannot be read and is left out: %s", exchange, exc)
            return
        for one in takers:
            if number is not None and not self._is_new(exchange, one.queue, number):
                continue
            if one.matches(routing_key):
                payload = wire_format.decode(data, loads=self._loads)
                payload["properties"]["delivery_tag"] = f"broadcast-{next(_numbers)}"
                self.waiting.append((one, payload))

    def _is_new(self, exchange: str, queue: str, number: bytes) -> bool:
        # Told by each number, and not by which is higher: the server's clock, of which they are, may be set back.
        given = self._broker.broadcasts_seen.setdefault((exchange, queue), {})
        if number in given:
            return False
        given[number] = None
        while len(given) > 2 * BACKLOG_MOST:  # so that what is in the backlog still is always among them
            del given[next(iter(given))]
        return True
