"""Which kombu connections are of our transport."""

from __future__ import annotations

from typing import Any


def is_ours(connection: Any) -> bool:
    """Return whether a kombu connection is of our transport; nothing is connected for that."""
    return str(getattr(connection.get_transport_cls(), "__module__", "")).startswith("celery_zsched.")
