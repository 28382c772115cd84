"""Once, at a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.base import Trigger, take
from celery_zsched.triggers.wallclock import wall_seconds, zone_table
from celery_zsched.types import SECOND_US, from_us, to_us


@dataclass(frozen=True, slots=True)
class At(Trigger):
    """Due once: at an instant (aware datetime), or when the wall clock in ``zone`` shows a naive datetime."""

    kind: ClassVar[str] = "at"

    moment: datetime
    zone: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.moment, datetime):
            raise ScheduleError(f"a one-off is due at a datetime, not at {self.moment!r}")
        if self.moment.tzinfo is not None:
            # Kept in UTC, so that equal instants are equal values.
            object.__setattr__(self, "moment", from_us(to_us(self.moment)))
            object.__setattr__(self, "zone", None)
        else:
            # A naive moment is a fixed time, and its fold says nothing: the first pass counts.
            object.__setattr__(self, "moment", self.moment.replace(fold=0))
            if self.zone is not None:
                zone_table(self.zone)

    @property
    def zoned(self) -> bool:
        return self.moment.tzinfo is None

    def in_zone(self, zone: str) -> At:
        return At(self.moment, zone) if self.zoned and self.zone is None else self

    def compute(self, instant_us: int, *, anchor_us: int | None, zone: str) -> int | None:
        if self.moment.tzinfo is not None:
            due_us = to_us(self.moment)
        else:
            due_us = zone_table(zone).instant(wall_seconds(self.moment)) * SECOND_US + self.moment.microsecond
        return due_us if due_us > instant_us else None

    def to_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"moment": self.moment.isoformat()}
        if self.zone is not None:
            fields["zone"] = self.zone
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> At:
        take(fields, cls.kind, {"moment": str}, {"zone": str})
        try:
            # Python 3.10 does not read the Z of RFC 3339.
            moment = datetime.fromisoformat(fields["moment"].replace("Z", "+00:00"))
        except ValueError as exc:
            raise ScheduleError(f"the moment {fields['moment']!r} is not an ISO 8601 date and time: {exc}") from None
        return cls(moment, fields.get("zone"))

    def __str__(self) -> str:
        return f"once at {self.moment.isoformat()}{f' {self.zone}' if self.zone else ''}"
