"""What tests of the timeline say about claims."""

from __future__ import annotations

from celery_zsched.types import Claimed, Hold


def ids_of(items: list[Claimed]) -> list[str]:
    """Return the ids, in order."""
    return [item.id for item in items]


def holds_of(items: list[Claimed]) -> list[Hold]:
    """Return the proofs that the items are ours."""
    return [Hold(item.id, item.token) for item in items]
