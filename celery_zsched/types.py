"""Values shared by all layers: no I/O, no Redis, no Celery.

Instants are ``int`` microseconds since the Unix epoch on the *server's* clock (``…_us``). They fit a sorted set's score
exactly until the year 2255. Seconds appear only at the user's edge (``…_s``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

#: One second in the unit that is used inside.
SECOND_US = 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch; a naive one is refused, for it names no instant."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone, so it names no instant; give it a tzinfo")
    return (moment - _EPOCH) // _MICROSECOND


def from_us(instant_us: int) -> datetime:
    """Return microseconds since the epoch as an aware datetime in UTC."""
    return _EPOCH + instant_us * _MICROSECOND


class Place(enum.Enum):
    """Where an id stands. It stands in exactly one place, or it is unknown."""

    WAITING = "waiting"
    LEASED = "leased"
    PARKED = "parked"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Hold:
    """Proof that a holder was given an id: the id, and the token of that claim."""

    id: str
    token: str


@dataclass(frozen=True, slots=True)
class Mark:
    """The high-water mark that makes a put idempotent.

    ``nominal_us`` must rise within one ``epoch`` of ``field``; a higher epoch (the entry was deleted and made anew, or
    re-anchored on purpose) starts over, a lower one is refused.
    """

    field: str
    epoch: int
    nominal_us: int
