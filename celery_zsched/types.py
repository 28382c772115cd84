"""Values shared by all layers: no I/O, no Redis, no Celery.

Instants are ``int`` microseconds since the Unix epoch on the *server's* clock (``…_us``). They fit a sorted set's score
exactly until the year 2255. Seconds appear only at the user's edge (``…_s``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

#: What every key begins with when the user names nothing else.
DEFAULT_PREFIX = "zsched"

#: The name of the message header that carries an occurrence to its task.
HEADER = "zsched"

#: One second in the unit that is used inside.
SECOND_US = 1_000_000

#: So many copies of one id are told apart by names that a look-up finds (``lua/put.lua``).
COPIES = 9

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)

#: The first and the last instant that a datetime in UTC can tell: the years 1 to 9999.
EARLIEST_US = (datetime.min.replace(tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND
LATEST_US = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND

#: The longest duration that is taken, in seconds: what is longer leads out of the years 1 to 9999 from anywhere.
LONGEST_S = (LATEST_US - EARLIEST_US) / SECOND_US


def to_us(moment: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch; a naive one is refused, for it names no instant."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone, so it names no instant; give it a tzinfo")
    return (moment - _EPOCH) // _MICROSECOND


def from_us(instant_us: int) -> datetime:
    """Return microseconds since the epoch as an aware datetime in UTC.

    What is outside the years 1 to 9999 is told as their first or last moment: a nonsensical stored one keeps nobody
    from seeing what else there is.
    """
    return _EPOCH + min(max(instant_us, EARLIEST_US), LATEST_US) * _MICROSECOND


def names_of(id_: str) -> list[str]:
    """Return the names under which messages of one task's id may stand: a retry is sent while its task still runs."""
    return [id_, *(f"{id_}~{copy}" for copy in range(1, COPIES + 1))]


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


class Put(enum.Enum):
    """What a put does when its id is known already."""

    #: Leave the known one alone.
    NEW = "new"
    #: Put under another id, the first of :func:`names_of` that is free.
    ALIAS = "alias"
    #: Like ALIAS, for a put that may have been done before: if one of these ids has this very body, it is left alone.
    AGAIN = "again"
    #: Take the new body and due wherever it stands; a lease ends, what is parked stays parked.
    REPLACE = "replace"
    #: Take the new body; place and due stay as they are.
    REBODY = "rebody"


class Outcome(enum.Enum):
    """What became of a put."""

    PUT = "put"
    REPLACED = "replaced"
    REBODIED = "rebodied"
    #: The id is known and was left alone.
    EXISTS = "exists"
    #: The occurrence is not above the high-water mark: it was put before.
    REFUSED = "refused"
    #: The high-water mark is of a later life of the entry than the occurrence.
    OUTDATED = "outdated"
    #: The stored body is not the expected one.
    CHANGED = "changed"
    #: The server's clock has passed the moment up to which the put was wanted.
    LATE = "late"
    #: The queue was never declared, or is gone, and the put was for a declared one only.
    UNKNOWN = "unknown"


class Cancel(enum.Enum):
    """What became of an id that was cancelled."""

    REMOVED = "removed"
    #: It is under a lease that goes on: it is deleted when that ends without a settle, or when it is given back.
    HELD = "held"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Item:
    """Something to put on a timeline.

    Due at ``due_us`` (an instant), or ``delay_us`` after the server's now, or at once if both are None. ``expect``
    makes the put conditional: ``""`` for an unknown id only, otherwise the SHA-1 hex digest of the body that must be
    stored.
    """

    id: str
    body: bytes
    due_us: int | None = None
    delay_us: int | None = None
    level: int = 0
    mode: Put = Put.NEW
    mark: Mark | None = None
    expect: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of one item, and the id it has now."""

    outcome: Outcome
    id: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """An id under a lease of ours: its body, the token that proves it, how often it was delivered, when it was due."""

    id: str
    body: bytes
    token: str
    count: int
    due_us: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The answer to a claim.

    ``wake_us`` is the server's moment at which this claimer should claim again without being rung for; None means that
    it need only wait for the bell, or for the longest block. ``lost`` ids had no body left and were dropped, ``buried``
    ones had reached the delivery limit, ``stale`` ones were to be settled with a token that is no longer current.
    ``left`` is how many ids at least were due and were not taken because the limit was reached.
    """

    now_us: int
    wake_us: int | None
    items: list[Claimed]
    lost: list[str]
    buried: list[str]
    stale: list[str]
    left: int = 0


@dataclass(frozen=True, slots=True)
class Located:
    """Where an id stands and what is known of it.

    ``moment_us`` is when it is due (waiting, parked), when its lease ends (leased) or when it died (dead). ``reason``
    is why it is parked or dead, or ``cancelled`` for what is leased for the last time. ``count`` is how often it was
    delivered, ``holder`` who had it last, ``claimed_us`` when its current holder took it.
    """

    id: str
    place: Place
    level: int
    moment_us: int
    count: int
    holder: str
    claimed_us: int | None
    due_us: int
    reason: str
    note: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """How many ids stand where at one moment; ``oldest_us`` is the earliest due moment that waits.

    ``ended`` of the ``leased`` are free for the next claim, since their leases have ended.
    """

    now_us: int
    ready: int
    delayed: int
    leased: int
    parked: int
    dead: int
    oldest_us: int | None
    ended: int = 0


@dataclass(frozen=True, slots=True)
class Overdue:
    """An id whose moment has passed and that has not moved on; ``holder`` has it, or had it last (empty: nobody yet).

    ``leased``: it is under a lease, which may have ended.
    """

    id: str
    due_us: int
    now_us: int
    holder: str
    leased: bool


@dataclass(frozen=True, slots=True)
class Upcoming:
    """One waiting id on a page of the timeline."""

    id: str
    due_us: int
    level: int
    body: bytes
