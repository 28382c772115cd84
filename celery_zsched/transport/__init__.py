"""The kombu transport: thin adapters from AMQP's verbs to queues on timelines."""

from __future__ import annotations

from celery_zsched.transport.channel import Channel
from celery_zsched.transport.transport import Transport
from celery_zsched.transport.worker import install

install()

__all__ = ["Channel", "Transport"]
