"""Blackouts on the server, in the schedule's own slot, and what schedulers ask of them as they send."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from celery_zsched.errors import EntryError
from celery_zsched.keys import ScheduleKeys
from celery_zsched.schedules import Schedules
from celery_zsched.windows import Blackout, Openings

logger = logging.getLogger("celery.beat.zsched")

#: For how long a scheduler trusts what it has read of blackouts, in seconds: a change is in force everywhere by then.
FRESH_S = 0.5


class Blackouts:
    """The blackouts of a schedule. Errors of the server are :class:`~celery_zsched.errors.ServerError` and its kinds.

    ``predicates`` keeps what it reads for a moment; an object of this class is not for several threads at once.
    """

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules
        self._key = ScheduleKeys(schedules.prefix).blackouts
        self._read_at = float("-inf")
        #: Name -> stored form and what it says: None if it is not defined, an error if it cannot be read.
        self._known: dict[str, tuple[bytes | None, Openings | EntryError | None]] = {}
        self._warned: set[str] = set()

    def put(self, blackout: Blackout) -> None:
        """Store a blackout, in place of one of the same name; it is in force at once."""
        self._run(f"storing the blackout {blackout.name}", "HSET", blackout.name, blackout.to_json())

    def get(self, name: str) -> Blackout | None:
        """Return a blackout; None if there is none of that name, :class:`EntryError` if it cannot be read."""
        text = self._run(f"reading the blackout {name}", "HGET", name)
        return None if text is None else Blackout.from_json(text)

    def names(self) -> list[str]:
        """Return the names of all blackouts, in order."""
        return sorted(name.decode() for name in self._run("listing blackouts", "HKEYS"))

    def remove(self, name: str) -> bool:
        """Remove a blackout; return whether there was one."""
        return bool(self._run(f"removing the blackout {name}", "HDEL", name))

    def predicates(self, names_of: Mapping[str, Sequence[str]]) -> dict[str, Callable[[int], bool]]:
        """Return for each entry, given with the names of its blackouts, whether an instant lies in any of them.

        A blackout that is not defined closes nothing, which is logged. One that cannot be read makes the answer an
        :class:`EntryError`: its entries are not sent, rather than sent at a time that may be closed.
        """
        if not names_of:
            return {}
        self._refresh({name for names in names_of.values() for name in names})
        return {entry: self._predicate(entry, names) for entry, names in names_of.items()}

    # -- Inside

    def _predicate(self, entry: str, names: Iterable[str]) -> Callable[[int], bool]:
        known = {name: self._known[name][1] for name in names}
        for name, openings in known.items():
            if openings is None and name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "there is no blackout %r, which the entry %s names: it closes nothing until it is defined "
                    "(celery zsched blackout)",
                    name, entry,
                )  # fmt: skip

        def closed(instant_us: int) -> bool:
            for openings in known.values():
                if isinstance(openings, EntryError):
                    raise openings
            return any(openings.covers(instant_us) for openings in known.values() if isinstance(openings, Openings))

        return closed

    def _refresh(self, names: set[str]) -> None:
        now = time.monotonic()
        if now - self._read_at < FRESH_S and names <= self._known.keys():
            return
        wanted = sorted(names | self._known.keys())
        texts = self._run("reading blackouts", "HMGET", *wanted)
        for name, text in zip(wanted, texts, strict=True):
            if name not in self._known or self._known[name][0] != text:
                self._known[name] = text, self._read(text)
                self._warned.discard(name)
        self._read_at = now

    def _read(self, text: bytes | None) -> Openings | EntryError | None:
        if text is None:
            return None
        try:
            return Openings(Blackout.from_json(text), self._schedules.zone)
        except EntryError as exc:
            return exc

    def _run(self, doing: str, command: str, *arguments: str | bytes) -> Any:
        server = self._schedules.server
        with server.translated(doing):
            client: Any = server.client
            return client.execute_command(command, self._key, *arguments)
