"""Clocks that are wrong: libfaketime tells a process another time, from its start on or when a test says so."""

from __future__ import annotations

from pathlib import Path

from tests.servers import missing


def faketime() -> dict[str, str]:
    """Return what makes a process's clock wrong, all but by how much (``FAKETIME``); the monotonic one stays right."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        missing("there is no libfaketime; install Debian's faketime")
    return {"LD_PRELOAD": str(library), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class Clock:
    """The clock of one process, which has ``env`` in its environment; right until it is moved."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "clock"
        self.move("+0")
        self.env = {**faketime(), "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1"}

    def move(self, offset: str) -> None:
        """Set the clock ahead or back, against the right time: ``+1d``, ``-30m``; ``+0`` is right."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(offset)
        fresh.replace(self._file)
