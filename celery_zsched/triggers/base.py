"""What every kind of trigger has in common, and the one function that all writers of due times call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, TypeAlias

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.wallclock import LAST_US
from celery_zsched.types import from_us

#: The zone of a trigger that names none, where the app names none either.
DEFAULT_ZONE = "UTC"


class Trigger(ABC):
    """When an entry is due: a frozen value that is checked as it is made.

    A trigger that speaks of wall time has a ``zone`` (IANA name). ``None`` there means "the app's zone", which is given
    at each computation and never stored: when the app moves, such an entry moves with it.
    """

    __slots__ = ()

    #: The name of the kind in stored documents.
    kind: ClassVar[str]

    #: The trigger's own zone; ``None`` when it follows the app's, or has no use for one.
    zone: str | None = None

    @property
    def zoned(self) -> bool:
        """Whether the answer depends on a zone at all."""
        return False

    @abstractmethod
    def compute(self, instant_us: int, *, anchor_us: int | None, zone: str) -> int | None:
        """Return the first due instant after ``instant_us``; call :func:`next_after`, which checks the answer."""

    @abstractmethod
    def to_fields(self) -> dict[str, Any]:
        """Return the trigger's fields as JSON values, without ``kind``; absent means default."""

    @classmethod
    @abstractmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Trigger:
        """Make the trigger from what :meth:`to_fields` gave; anything else is a :class:`ScheduleError`."""

    def in_zone(self, zone: str) -> Trigger:
        """Return the trigger with this zone if it can have one and has none yet, else itself."""
        return self

    def notices(self) -> list[str]:
        """Return what a person should know about this trigger although it is valid."""
        return []


def next_after(
    trigger: Trigger, instant_us: int, *, anchor_us: int | None = None, zone: str = DEFAULT_ZONE
) -> int | None:
    """Return the trigger's first due instant after ``instant_us``, or ``None`` when there is none any more.

    ``anchor_us`` is where an interval's grid stands (the epoch when not given); ``zone`` is the app's zone, for
    triggers that have none of their own. The answer is always later than ``instant_us``: a trigger that answers
    otherwise (a custom class may) is a :class:`ScheduleError`, for it would be due for ever.
    """
    due = trigger.compute(instant_us, anchor_us=anchor_us, zone=trigger.zone or zone)
    if due is None or due > LAST_US:
        return None
    if due <= instant_us:
        raise ScheduleError(
            f"{trigger} says that its next due after {from_us(instant_us).isoformat()} is "
            f"{from_us(due).isoformat()}, which is not later; mend its next_after or is_due"
        )
    return due


def occurrences(
    trigger: Trigger, after_us: int, *, anchor_us: int | None = None, zone: str = DEFAULT_ZONE
) -> Iterator[int]:
    """Yield the trigger's due instants after ``after_us``, in order, for as long as there are any."""
    due = next_after(trigger, after_us, anchor_us=anchor_us, zone=zone)
    while due is not None:
        yield due
        due = next_after(trigger, due, anchor_us=anchor_us, zone=zone)


def preview(
    trigger: Trigger, n: int, after_us: int, *, anchor_us: int | None = None, zone: str = DEFAULT_ZONE
) -> list[int]:
    """Return the next ``n`` due instants after ``after_us``; fewer when the trigger ends."""
    return list(islice(occurrences(trigger, after_us, anchor_us=anchor_us, zone=zone), n))


#: The type, or the types, that a stored field may have.
FieldType: TypeAlias = type | tuple[type, ...]


def take(
    fields: Mapping[str, Any], kind: str, required: Mapping[str, FieldType], optional: Mapping[str, FieldType]
) -> None:
    """Check the fields of a stored trigger: none missing, none unknown, each of its type."""
    known: dict[str, FieldType] = {**required, **optional}
    faults = [f"it lacks {name!r}" for name in required if name not in fields]
    for name, value in fields.items():
        if name not in known:
            faults.append(f"it has the unknown field {name!r} (known: {', '.join(known)})")
        elif not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            each = known[name]
            wanted = each if isinstance(each, tuple) else (each,)
            faults.append(f"its {name!r} is {value!r}, not {' or '.join(one.__name__ for one in wanted)}")
    if faults:
        raise ScheduleError(f"a schedule of kind {kind!r} cannot be read: {'; '.join(faults)}")
