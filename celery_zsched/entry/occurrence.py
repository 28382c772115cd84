"""One occurrence of an entry: its identity, and what the task is told about it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from celery_zsched.types import DEFAULT_PREFIX, EARLIEST_US, LATEST_US, from_us, to_us
from celery_zsched.types import HEADER as HEADER

#: Why an occurrence was sent.
Cause = Literal["schedule", "manual", "backfill", "catch-up"]

#: The version that the header is written in.
VERSION = 1

_NAMESPACE = uuid.UUID("5b0bd0d2-6b0f-5c8e-9d63-6a1c3f1e7a52")


def occurrence_id(namespace: str, name: str, epoch: int, nominal_us: int) -> str:
    """Return the task id of an occurrence: the same in every process, so that a repeat can be told from a new one.

    ``namespace`` keeps apps with equal entry names apart (the key prefix); ``epoch`` lets an entry that was deleted and
    made anew start over.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{namespace}\0{name}\0{epoch}\0{nominal_us}"))


def occurrence_header(
    name: str, nominal_us: int, fired_us: int, *, epoch: int = 0, missed: int = 0, cause: Cause = "schedule",
    overlap: str = "allow", schedule: str = DEFAULT_PREFIX,
) -> dict[str, Any]:  # fmt: skip
    """Return the ``zsched`` header: the entry, its nominal due and its sending (ISO 8601, UTC), missed count, cause.

    ``epoch`` and ``nominal_us`` are what a broker of ours compares with its high-water mark, which it keeps for each
    entry of each ``schedule`` (the key prefix). ``overlap`` other than ``allow`` makes the worker hold a run lease
    while the task runs.
    """
    header: dict[str, Any] = {
        "v": VERSION,
        "schedule": schedule,
        "entry": name,
        "epoch": epoch,
        "nominal_us": nominal_us,
        "nominal": from_us(nominal_us).isoformat(),
        "fired": from_us(fired_us).isoformat(),
        "missed": missed,
        "cause": cause,
    }
    if overlap != "allow":
        header["overlap"] = overlap
    return header


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What a task is told about the occurrence it runs for; moments are aware datetimes in UTC."""

    #: The name of the entry.
    entry: str
    #: When the occurrence was due, by its schedule: the hour that a data job is for.
    nominal: datetime
    #: When it was sent.
    fired: datetime
    #: How many occurrences since the run before were due and not sent; this run stands for them too.
    missed: int = 0
    #: Why it was sent: ``schedule``, ``manual``, ``backfill``, or ``catch-up`` (sent late, for a time that had passed).
    cause: Cause = "schedule"

    @property
    def nominal_us(self) -> int:
        """The nominal time in microseconds since the epoch."""
        return to_us(self.nominal)

    @classmethod
    def from_header(cls, header: object) -> Occurrence | None:
        """Return the occurrence that a message's ``zsched`` header names; None where there is none that can be read."""
        if not isinstance(header, Mapping):
            return None
        try:
            nominal_us = int(header["nominal_us"])
            if not EARLIEST_US <= nominal_us <= LATEST_US:
                return None
            return cls(
                entry=str(header["entry"]),
                nominal=from_us(nominal_us),
                fired=datetime.fromisoformat(header["fired"]),
                missed=int(header.get("missed", 0)),
                cause=header.get("cause", "schedule"),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
