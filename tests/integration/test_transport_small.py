"""Small things that apps of kombu's Redis transport count on."""

from __future__ import annotations

import logging

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched.transport import shared
from tests.servers import RunningServer


def test_a_priority_out_of_range_is_warned_about_once(
    valkey: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process says once that a priority is taken as the nearest one, however many messages have such."""
    monkeypatch.setattr(shared, "_noticed", set())
    caplog.set_level(logging.WARNING, "celery_zsched.transport")
    with kombu.Connection(f"zsched+{valkey.url}") as connection:
        producer = kombu.Producer(connection.default_channel)
        for priority in (50, -1, 10):
            producer.publish("x", routing_key="q", priority=priority)
    assert caplog.text.count("outside 0 to 9") == 1
