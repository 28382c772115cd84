"""Celery events of what becomes of occurrences and messages: for ``celery events``, Flower, and whoever else listens.

They travel as Celery's own do, by the broker's exchange for events, and are of the group ``zsched``: ``zsched-fired``,
``zsched-skipped`` and ``zsched-missed`` from schedulers, ``zsched-buried`` from workers that send events. One that does
not arrive is lost: what stays is the history.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

from celery_zsched.entry import Past
from celery_zsched.types import SECOND_US, from_us

logger = logging.getLogger("celery.beat.zsched")

#: For how long nothing is sent after a failure, in seconds, so that a broker that is away is not waited for each time.
REST_S = 5.0


class Announcer:
    """Sends the events of one scheduler, by a connection of its own. Never raises; not for several threads at once."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self._dispatcher: Any = None
        self._rests_until = 0.0

    def occurrence(self, entry: str, past: Past) -> None:
        """Tell of an occurrence that is over: skipped, or fired, and then how many were missed since the one before."""
        about: dict[str, Any] = {"entry": entry, "nominal": _iso(past.nominal_us), "by": past.by}
        if past.outcome == "sent":
            lateness_s = round(past.lateness_us / SECOND_US, 6)
            fired = {"uuid": past.task_id, "fired": _iso(past.at_us), "lateness_s": lateness_s, "cause": past.cause}
            self._send("zsched-fired", {**about, **fired, "missed": past.missed})
            if past.missed:
                self._send("zsched-missed", {**about, "missed": past.missed})
        else:
            self._send("zsched-skipped", {**about, "reason": past.outcome})

    def close(self) -> None:
        """Drop the connection; the next event makes a new one."""
        connection, self._connection, self._dispatcher = self._connection, None, None
        if connection is not None:
            try:
                connection.release()
            except Exception as exc:  # a connection that is broken already cannot be closed better
                logger.debug("the connection for events could not be closed: %s", exc)

    def _send(self, kind: str, fields: dict[str, Any]) -> None:
        if time.monotonic() < self._rests_until:
            return
        try:
            self._ready().send(kind, **fields)
        except Exception as exc:  # whatever a broker raises: the occurrence itself has been dealt with
            self.close()
            self._rests_until = time.monotonic() + REST_S
            logger.warning("events are not sent for %g s, occurrences are: %s", REST_S, str(exc) or type(exc).__name__)

    def _ready(self) -> Any:
        if self._dispatcher is None:
            self._connection = self._app.connection_for_write()
            self._connection.ensure_connection(max_retries=1)
            self._dispatcher = self._app.events.Dispatcher(
                channel=self._connection.channel(), hostname=f"beat@{socket.gethostname()}", buffer_while_offline=False
            )
        return self._dispatcher


def buried(dispatcher: Any, queue: str, id_: str, reason: str) -> None:
    """Tell by a worker's own dispatcher, if it sends events, of a message that was set aside as dead. Never raises."""
    if dispatcher is None or not dispatcher.enabled:
        return
    try:
        dispatcher.send("zsched-buried", queue=queue, uuid=id_, reason=reason)
    except Exception as exc:
        logger.warning("the event of the dead message %s could not be sent: %s", id_, exc)


def _iso(instant_us: int) -> str:
    return from_us(instant_us).isoformat()
