"""Putting messages on queues: in one round trip, bounded in time, and never twice for one call."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from itertools import chain

from celery_zsched import scripts
from celery_zsched.errors import ServerUnavailableError
from celery_zsched.transport.shared import Broker
from celery_zsched.types import SECOND_US
from celery_zsched.wires import Call, UnderWay, Wires

logger = logging.getLogger("celery_zsched.transport")

#: A message as ``lua/put.lua`` wants it: id, body, due, level, mode, expect, mark field, mark.
Row = list[scripts.Argument]

#: For so long a publisher that tries again is asked whether its first try went through, in seconds; and of how many
#: messages that is remembered.
UNSURE_S, UNSURE_MOST = 600.0, 1000


def put(broker: Broker, queue: str, row: Row, *, patience_s: float | None = None, terms: str = "") -> bytes:
    """Put one message on a queue's timeline; return what became of it.

    Nothing is put once ``patience_s`` seconds have passed on the server's clock (the socket's time-out by default), so
    that a publisher who gave up and tries again never finds its first try done late. If the answer to a try did not
    come, the next try with the same id looks whether the message is there. ``terms`` on which the queue takes it, where
    they are special, stand behind the limit in time as ``lua/put.lua`` wants them.
    """
    wires = broker.wires
    patience_s = patience_s or broker.server.address.options.socket_timeout
    id_ = str(row[0])
    if broker.unsure and id_ in broker.unsure:
        row = [*row[:4], "again", *row[5:]]
    try:
        for _ in range(2):
            limit = wires.now_us() + int(patience_s * SECOND_US)
            outcome = b"other"
            if not terms and not row[6] and row[4] == "alias":
                outcome = wires.call(broker.publish_call(queue, int(row[3])), [limit, row[0], row[1], row[2]])
            if outcome == b"other":
                args: Row = [f"{limit}{terms}" if terms else limit, *row]
                outcome = wires.call(broker.call("put", queue), args)[0]
            if outcome != b"late":
                if broker.unsure:
                    broker.unsure.pop(id_, None)
                return outcome
            wires.look_at_clock()  # the server's clock was set forward; if it was not, the second try says so too
    except ServerUnavailableError:
        now = time.monotonic()
        broker.unsure[id_] = now
        if len(broker.unsure) > UNSURE_MOST:
            for old in [old for old, since in list(broker.unsure.items()) if now - since > UNSURE_S]:
                broker.unsure.pop(old, None)
        raise
    raise _too_slow(broker, queue, patience_s)


class PutAll:
    """Portions of messages on their way, each put in one step on its queue, in one round trip for each node.

    It is to be finished or dropped. ``terms`` are those of each portion, as of :func:`put`.
    """

    def __init__(
        self, broker: Broker, portions: Sequence[tuple[str, Sequence[Row]]], terms: Sequence[str] = ()
    ) -> None:
        self._broker = broker
        self._portions = portions
        self._terms = terms or [""] * len(portions)
        self._patience_s: float = broker.server.address.options.socket_timeout
        self._outcomes: list[list[bytes]] = [[] for _ in portions]
        #: Calls under way, and which portions they are for.
        self._sent: list[tuple[list[int], UnderWay]] = []
        self._send(range(len(portions)))

    def finish(self) -> list[list[bytes]]:
        """Return what became of each message, once that is known."""
        late = self._fetch()
        if late:
            self._broker.wires.look_at_clock()
            self._send(late)
            late = self._fetch()
        if late:
            raise _too_slow(self._broker, self._portions[late[0]][0], self._patience_s)
        return self._outcomes

    def drop(self) -> None:
        """Give up; whether the messages were put is not known."""
        sent, self._sent = self._sent, []
        for _, under_way in sent:
            under_way.drop()

    def _send(self, which: Iterable[int]) -> None:
        broker, wires = self._broker, self._broker.wires
        limit = wires.now_us() + int(self._patience_s * SECOND_US)
        by_node: dict[str, list[tuple[int, Call]]] = {}
        for at in which:
            call = broker.call("put", self._portions[at][0])
            by_node.setdefault(wires.node_of(call.route), []).append((at, call))
        try:
            for some in by_node.values():
                calls = []
                for at, call in some:
                    head: Row = [f"{limit}{self._terms[at]}"]
                    calls.append((call, [*head, *chain.from_iterable(self._portions[at][1])]))
                self._sent.append(([at for at, _ in some], wires.begin(calls)))
        except BaseException:
            self.drop()
            raise

    def _fetch(self) -> list[int]:
        """Take the answers in; return which portions came too late."""
        late = []
        try:
            while self._sent:
                positions, under_way = self._sent.pop()
                for at, answer in zip(positions, Wires.raised(under_way.answers()), strict=True):
                    self._outcomes[at] = list(answer[::2])
                    if self._outcomes[at][0] == b"late":
                        late.append(at)
        except BaseException:
            self.drop()
            raise
        return late


def told_outcome(outcome: bytes, row: Row, queue: str) -> None:
    """Log what is worth a line."""
    if outcome == b"refused":
        logger.info("occurrence %s of entry %s was enqueued before and is not repeated", row[7], row[6])
    elif outcome == b"outdated":
        logger.error(
            "occurrence %s of entry %s was refused: the queue has had a later life of an entry of that name. If the "
            "server's clock was set back before the entry was made anew, let a scheduler send it, or save it anew once "
            "the clock has caught up",
            row[7], row[6],
        )  # fmt: skip
    elif outcome == b"unknown" and queue.endswith(".pidbox"):
        logger.debug("a reply came after its asker had gone; it is dropped")
    elif outcome == b"unknown":
        logger.warning(
            "queue %s had a life of its own and has gone, so that message %s is not put on it; consume from it, or "
            "declare it, before it is published to",
            queue, row[0],
        )  # fmt: skip


def _too_slow(broker: Broker, queue: str, patience_s: float) -> ServerUnavailableError:
    return ServerUnavailableError(
        f"publishing to queue {queue} took longer than {patience_s:g} s on the way to {broker.server.masked}; nothing "
        "was put"
    )
