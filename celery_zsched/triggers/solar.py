"""Sunrise, noon, dusk: Celery's ``solar``, with the same events and the same horizons. Needs ``celery[solar]``.

The search is our own, on ephem: Celery before 5.7 fails where the sun does not rise, and has the wrong horizon for
``dusk_astronomical``. An event is always computed from the midnight (UTC) before it, so that asking from two instants
gives the same microsecond, and an event cannot be due twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ClassVar

from celery_zsched.errors import ScheduleError
from celery_zsched.triggers.base import Trigger, take
from celery_zsched.triggers.wallclock import DAY_S
from celery_zsched.types import SECOND_US, from_us, to_us

#: Event -> what ephem looks for, the horizon in degrees and minutes, whether the sun's centre counts (else its rim).
EVENTS = {
    "dawn_astronomical": ("next_rising", "-18", True),
    "dawn_nautical": ("next_rising", "-12", True),
    "dawn_civil": ("next_rising", "-6", True),
    "sunrise": ("next_rising", "-0:34", False),
    "solar_noon": ("next_transit", "0", False),
    "sunset": ("next_setting", "-0:34", False),
    "dusk_civil": ("next_setting", "-6", True),
    "dusk_nautical": ("next_setting", "-12", True),
    "dusk_astronomical": ("next_setting", "-18", True),
}

#: Within so many days every event that goes on happening at a place has happened: near a pole, not every year.
_SEARCH_DAYS = 1_100

_DAY_US = DAY_S * SECOND_US


def _ephem() -> Any:
    try:
        import ephem
    except ImportError:
        raise ScheduleError("solar schedules need the ephem library; pip install 'celery[solar]'") from None
    return ephem


@dataclass(frozen=True, slots=True)
class Solar(Trigger):
    """Due at an event of the sun at a place: latitude and longitude in degrees, north and east positive."""

    kind: ClassVar[str] = "solar"

    event: str
    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        faults = []
        if self.event not in EVENTS:
            faults.append(f"the event {self.event!r} is none of {', '.join(sorted(EVENTS))}")
        for name, most in (("latitude", 90), ("longitude", 180)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not -most <= value <= most:
                faults.append(f"the {name} {value!r} is not between -{most} and {most}")
            else:
                object.__setattr__(self, name, float(value))
        if faults:
            raise ScheduleError("this solar schedule cannot be used: " + "; ".join(faults))
        if self._first_after(to_us(datetime(2026, 1, 1, tzinfo=timezone.utc))) is None:
            raise ScheduleError(f"{self} never happens: the sun does not reach that height there")

    def _first_after(self, instant_us: int) -> int | None:
        ephem = _ephem()
        method, horizon, centre = EVENTS[self.event]
        observer = ephem.Observer()
        observer.lat, observer.lon = str(self.latitude), str(self.longitude)
        observer.elev = observer.pressure = 0
        observer.horizon = horizon
        options = {"use_center": True} if centre else {}
        day_us = instant_us - instant_us % _DAY_US
        last_us = day_us + _SEARCH_DAYS * _DAY_US
        while day_us < last_us:
            start = ephem.Date(from_us(day_us).replace(tzinfo=None))
            try:
                event = getattr(observer, method)(ephem.Sun(), start=start, **options)
            except ephem.CircumpolarError:
                day_us += _DAY_US
                continue
            event_us = to_us(event.datetime().replace(tzinfo=timezone.utc))
            if event_us >= day_us + _DAY_US:
                day_us = event_us - event_us % _DAY_US
            elif event_us > instant_us:
                return event_us
            else:
                day_us += _DAY_US
        return None

    def compute(self, instant_us: int, *, anchor_us: int | None, zone: str) -> int | None:
        return self._first_after(instant_us)

    def to_fields(self) -> dict[str, Any]:
        return {"event": self.event, "latitude": self.latitude, "longitude": self.longitude}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Solar:
        take(fields, cls.kind, {"event": str, "latitude": (int, float), "longitude": (int, float)}, {})
        return cls(fields["event"], fields["latitude"], fields["longitude"])

    def __str__(self) -> str:
        return f"{self.event} at latitude {self.latitude}, longitude {self.longitude}"
