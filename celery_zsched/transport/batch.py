"""Publishing many messages in few round trips, for kombu's ``Producer.batch``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_zsched import scripts
from celery_zsched.errors import ServerError
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.transport.fanout import Publisher
from celery_zsched.transport.putting import put_all, told_outcome
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
        self._rows: dict[str, list[list[scripts.Argument]]] = {}
        self._broadcasts: list[tuple[str, str, bytes]] = []
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

    def add(self, queue: str, row: list[scripts.Argument]) -> None:
        """Keep one message for a queue."""
        self._rows.setdefault(queue, []).append(row)
        self._size += 1

    def add_broadcast(self, exchange: str, routing_key: str, payload: bytes) -> None:
        """Keep one broadcast."""
        self._broadcasts.append((exchange, routing_key, payload))
        self._size += 1

    def flush(self) -> None:
        """Put what was kept; raises kombu's ``BatchPublishError`` when it is not known to be put."""
        self._check()
        rows, self._rows = self._rows, {}
        broadcasts, self._broadcasts = self._broadcasts, []
        self._size = 0
        try:
            portions = [
                (queue, some[at : at + MAX_BATCH])
                for queue, some in rows.items()
                for at in range(0, len(some), MAX_BATCH)
            ]
            outcomes = put_all(self._broker, portions)
            for (_, some), outcome in zip(portions, outcomes, strict=True):
                for row, word in zip(some, outcome, strict=True):
                    if word == b"outdated" and self.outdated is not None:
                        self.outdated.append(str(row[6]))
                    else:
                        told_outcome(word, row)
            for exchange, routing_key, payload in broadcasts:
                Publisher(self._broker).publish(exchange, routing_key, payload)
        except ServerError as exc:
            self._failure = exc
            raise BatchPublishError(f"a batch of messages may be published in part: {exc}") from exc
        except BaseException as exc:
            self._failure = exc
            raise

    def discard(self) -> None:
        """Drop what was not flushed."""
        self._ended = "aborted"
        self._rows, self._broadcasts, self._size = {}, [], 0

    def close(self) -> None:
        """End the batch."""
        self._ended = self._ended or "closed"

    def _check(self) -> None:
        if self._failure is not None:
            raise BatchPublishError("a publish batch cannot be used any more after a failure") from self._failure
        if self._ended is not None:
            raise RuntimeError(f"the publish batch is {self._ended}")
