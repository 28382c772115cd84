"""A named set of windows, its stored form, and the answer whether an instant lies in it."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Any, cast

from celery_zsched.entry.records import VERSION, load_object
from celery_zsched.errors import EntryError, ScheduleError
from celery_zsched.triggers import check_zone
from celery_zsched.windows.window import Repeat, Span, Window, window_of

#: More windows than this in one blackout are a mistake.
MOST_WINDOWS = 10_000

#: A longer name is a mistake.
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Blackout:
    """Windows under a name; ``zone`` (IANA name) is that of days and moments without an offset, the app's if None.

    Raises :class:`~celery_zsched.errors.ScheduleError` with every fault when a value cannot be used.
    """

    name: str
    windows: tuple[Window, ...]
    zone: str | None = None
    #: What it is for, for whoever asks.
    note: str | None = None

    def __post_init__(self) -> None:
        faults = []
        name, note = cast("tuple[object, object]", (self.name, self.note))
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
            faults.append(f"it is named by a text of 1 to {LONGEST_NAME} characters")
        if not self.windows:
            faults.append("it has no windows; give days, ranges or a calendar, or remove it")
        if len(self.windows) > MOST_WINDOWS:
            faults.append(f"it has {len(self.windows)} windows; at most {MOST_WINDOWS} are taken")
        try:
            check_zone(self.zone)
        except ScheduleError as exc:
            faults.append(str(exc))
        if note is not None and not isinstance(note, str):
            faults.append(f"its note is {note!r:.100}, not text")
        if faults:
            raise ScheduleError(f"the blackout {self.name!r:.200} cannot be used: {'; '.join(faults)}")

    @classmethod
    def of(cls, name: str, windows: Iterable[Any], *, zone: str | None = None, note: str | None = None) -> Blackout:
        """Make a blackout of what a user writes; see :func:`~celery_zsched.windows.window_of`."""
        made: list[Window] = []
        faults: list[str] = []
        for given in windows:
            try:
                made.append(window_of(given))
            except ScheduleError as exc:
                faults.append(str(exc))
        if faults:
            raise ScheduleError(f"the blackout {name!r} cannot be used: {'; '.join(faults)}")
        return cls(name, tuple(dict.fromkeys(made)), zone, note)

    def to_json(self) -> bytes:
        """Return the stored form."""
        document: dict[str, Any] = {"v": VERSION, "name": self.name}
        document.update({key: getattr(self, key) for key in ("zone", "note") if getattr(self, key) is not None})
        document["windows"] = [window.to_json() for window in self.windows]
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Blackout:
        """Read the stored form; :class:`~celery_zsched.errors.EntryError` says why it cannot be used."""
        document = load_object(text, "blackout")
        unknown = [key for key in document if key not in ("name", "zone", "note", "windows")]
        windows = document.get("windows")
        if unknown or not isinstance(windows, list):
            what = f"unknown fields {', '.join(map(repr, unknown))}" if unknown else "no list of 'windows'"
            raise EntryError(
                f"the stored blackout {document.get('name')!r} has {what}. Mend it, or upgrade this process"
            )
        try:
            return cls.of(document.get("name", ""), windows, zone=document.get("zone"), note=document.get("note"))
        except ScheduleError as exc:
            raise EntryError(f"{exc}. Mend it, or upgrade this process") from None


class Openings:
    """A blackout as instants, in its own zone or the app's: quick to ask, however many windows it has."""

    def __init__(self, blackout: Blackout, app_zone: str) -> None:
        self._zone = blackout.zone or app_zone
        self._repeats = [window for window in blackout.windows if isinstance(window, Repeat)]
        spans = sorted(window.instants(self._zone) for window in blackout.windows if isinstance(window, Span))
        self._spans: list[tuple[int, int]] = []
        for start_us, end_us in spans:
            if self._spans and start_us <= self._spans[-1][1]:
                start_us, end_us = self._spans[-1][0], max(end_us, self._spans.pop()[1])
            self._spans.append((start_us, end_us))
        self._starts = [start_us for start_us, _ in self._spans]

    def covers(self, instant_us: int) -> bool:
        """Return whether an instant lies in one of the windows."""
        at = bisect_right(self._starts, instant_us) - 1
        if at >= 0 and instant_us < self._spans[at][1]:
            return True
        return any(window.covers(instant_us, self._zone) for window in self._repeats)

    def coming(self, after_us: int) -> Iterator[tuple[int, int]]:
        """Yield the windows that end later than ``after_us``, as instants, in the order of their beginnings."""
        fixed = ((start_us, end_us) for start_us, end_us in self._spans if end_us > after_us)
        yield from merge(fixed, *(window.spans(after_us, self._zone) for window in self._repeats))
