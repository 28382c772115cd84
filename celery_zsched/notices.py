"""Celery signals of what becomes of occurrences and messages: connect to them as to any of ``celery.signals``.

The sender is the app. Receivers run where it happens, in a beat or a worker, amid its work: be quick. What they raise
is logged and stops nothing.
"""

from __future__ import annotations

from typing import Any

from celery.utils.dispatch import Signal

from celery_zsched.entry import Past

#: An occurrence was sent: ``entry`` (name) and ``past`` (:class:`~celery_zsched.entry.Past`: nominal, lateness, …).
occurrence_sent = Signal(name="occurrence_sent", providing_args={"entry", "past"})

#: An occurrence was due and was not sent, for ``past.outcome``: misfire, overlap, blackout, buffered.
occurrence_skipped = Signal(name="occurrence_skipped", providing_args={"entry", "past"})

#: ``past.missed`` occurrences before this one, which was sent, were due and were not: all since the last that was sent.
occurrences_missed = Signal(name="occurrences_missed", providing_args={"entry", "past"})

#: A message was set aside as dead: ``queue``, ``id`` and ``reason``.
message_buried = Signal(name="message_buried", providing_args={"queue", "id", "reason"})


def tell(app: Any, entry: str, past: Past) -> None:
    """Send the signals of one occurrence that is over."""
    signal = occurrence_sent if past.outcome == "sent" else occurrence_skipped
    signal.send(sender=app, entry=entry, past=past)
    if past.missed and past.outcome == "sent":
        occurrences_missed.send(sender=app, entry=entry, past=past)
