"""Publishing many messages in few round trips, for kombu's ``Producer.batch``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_zsched.errors import ServerError
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.transport.fanout import Publisher
from celery_zsched.transport.putting import PutAll, Row, told_outcome
from celery_zsched.transport.shared import Broker

if TYPE_CHECKING:

    class BatchPublishError(Exception):
        """A batch of messages may be published in part."""

else:
    try:
        from kombu.exceptions import BatchPublishError
    except ImportError:  # before kombu 5.7, which has no Producer.batch either
        from kombu.exceptions import KombuError

        class BatchPublishError(KombuError):
            """A batch of messages may be published in part."""


class PublishBatch:
    """Messages that wait to be put together.

    A flush puts each queue's messages in steps of up to 500, all or nothing each, so that of each message there is one
    copy or none. After a failure nobody can tell which, and the batch cannot be used any more.
    """

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self.max_size = max_size
        self._broker: Broker = channel.broker
        #: Queue, and the terms on which it takes them -> messages.
        self._rows: dict[tuple[str, str], list[Row]] = {}
        self._broadcasts: list[tuple[str, str, bytes]] = []
        #: What was sent and not answered yet, with its messages, and the broadcasts that go after them.
        self._under_way: tuple[PutAll, list[tuple[str, list[Row]]], list[tuple[str, str, bytes]]] | None = None
        self._size = 0
        self._ended: str | None = None
        self._failure: BaseException | None = None
        #: Mark fields of occurrences that were refused since the mark is of a later life of their entry; None where
        #: nobody asks, so that a line of the log tells.
        self.outdated: list[str] | None = None

    def publish(self, message: dict[str, Any], **kwargs: Any) -> Any:
        """Route one message and keep it for the next flush."""
        self._check()
        result = self.channel.basic_publish(message, _publish_batch=self, **kwargs)
        if self._size >= self.max_size:
            self.flush()
        return result

    def add(self, queue: str, row: Row, terms: str = "") -> None:
        """Keep one message for a queue that takes it on special ``terms``, if any (``lua/put.lua``)."""
        self._rows.setdefault((queue, terms), []).append(row)
        self._size += 1

    def add_broadcast(self, exchange: str, routing_key: str, payload: bytes) -> None:
        """Keep one broadcast."""
        self._broadcasts.append((exchange, routing_key, payload))
        self._size += 1

    def flush(self) -> None:
        """Put what was kept; raises kombu's ``BatchPublishError`` when it is not known to be put."""
        self.start()
        self.finish()

    def start(self) -> None:
        """Send what was kept without waiting for it to be put; raises what :meth:`flush` does."""
        self.finish()
        rows, self._rows = self._rows, {}
        broadcasts, self._broadcasts = self._broadcasts, []
        self._size = 0
        portions: list[tuple[str, list[Row]]] = []
        terms: list[str] = []
        for (queue, its), some in rows.items():
            for at in range(0, len(some), MAX_BATCH):
                portions.append((queue, some[at : at + MAX_BATCH]))
                terms.append(its)
        with self._fatal():
            self._under_way = PutAll(self._broker, portions, terms), portions, broadcasts

    def finish(self) -> None:
        """Return once what was started is put; raises what :meth:`flush` does."""
        self._check()
        if self._under_way is None:
            return
        (putting, portions, broadcasts), self._under_way = self._under_way, None
        with self._fatal():
            for (queue, some), outcome in zip(portions, putting.finish(), strict=True):
                for row, word in zip(some, outcome, strict=True):
                    if word == b"outdated" and self.outdated is not None:
                        self.outdated.append(str(row[6]))
                    else:
                        told_outcome(word, row, queue)
            for exchange, routing_key, payload in broadcasts:
                Publisher(self._broker).publish(exchange, routing_key, payload)

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """After a failure nobody can tell what was put, so that nothing goes on."""
        try:
            yield
        except ServerError as exc:
            self._failure = exc
            raise BatchPublishError(f"a batch of messages may be published in part: {exc}") from exc
        except BaseException as exc:
            self._failure = exc
            raise

    def discard(self) -> None:
        """Drop what was not flushed."""
        self._ended = "aborted"
        if self._under_way is not None:
            self._under_way[0].drop()
            self._under_way = None
        self._rows, self._broadcasts, self._size = {}, [], 0

    def close(self) -> None:
        """End the batch."""
        self._ended = self._ended or "closed"

    def _check(self) -> None:
        if self._failure is not None:
            raise BatchPublishError("a publish batch cannot be used any more after a failure") from self._failure
        if self._ended is not None:
            raise RuntimeError(f"the publish batch is {self._ended}")
