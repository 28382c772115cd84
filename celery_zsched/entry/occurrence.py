"""One occurrence of an entry: its identity, and what the task is told about it."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from celery_zsched.types import from_us

#: Why an occurrence was sent.
Cause = Literal["schedule", "manual", "backfill", "catch-up"]

#: The name of the message header that carries an occurrence to the task.
HEADER = "zsched"

_NAMESPACE = uuid.UUID("5b0bd0d2-6b0f-5c8e-9d63-6a1c3f1e7a52")


def occurrence_id(namespace: str, name: str, epoch: int, nominal_us: int) -> str:
    """Return the task id of an occurrence: the same in every process, so that a repeat can be told from a new one.

    ``namespace`` keeps apps with equal entry names apart (the key prefix); ``epoch`` lets an entry that was deleted and
    made anew start over.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{namespace}\0{name}\0{epoch}\0{nominal_us}"))


def occurrence_header(
    name: str, nominal_us: int, fired_us: int, *, epoch: int = 0, missed: int = 0, cause: Cause = "schedule"
) -> dict[str, Any]:
    """Return the ``zsched`` header: the entry, its nominal due and its sending (ISO 8601, UTC), missed count, cause.

    ``epoch`` and ``nominal_us`` are what a broker of ours compares with its high-water mark.
    """
    return {
        "entry": name,
        "epoch": epoch,
        "nominal_us": nominal_us,
        "nominal": from_us(nominal_us).isoformat(),
        "fired": from_us(fired_us).isoformat(),
        "missed": missed,
        "cause": cause,
    }
