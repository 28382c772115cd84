"""What an operator can do, one function each: called alike by shell, remote control, Python and tests.

Effects are on the server, so they hold for every process, survive restarts and reach what starts later. What is done
twice is done once: the answer says how things stand, whether or not this call changed them.
"""

from __future__ import annotations

import difflib
import getpass
import socket
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched.entry import OperatorState
from celery_zsched.errors import NotFoundError
from celery_zsched.schedules import Schedules, State, Stored
from celery_zsched.types import from_us

#: How many likely names an error shows.
CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class Standing:
    """How an entry stands after an operation. ``changed`` says whether this call made it so; ``next`` is ISO 8601."""

    entry: str
    state: str
    changed: bool
    next: str | None
    reason: str | None
    by: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the standing as JSON values."""
        return asdict(self)


def pause_task(schedules: Schedules, target: str, *, reason: str | None = None, by: str | None = None) -> Standing:
    """Take an entry off the timeline until it is resumed. ``by`` says who wants it, this user if not given.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely entries.
    """
    stored = _find(schedules, target)
    changed = stored.state is not State.PAUSED
    if changed:
        operator = OperatorState(paused=True, by=by or whoami(), reason=reason, since_us=schedules.now_us())
        schedules.pause(stored.name, operator)
    return standing(schedules.get(stored.name), changed)


def resume_task(schedules: Schedules, target: str, *, catch_up: bool = False) -> Standing:
    """Put a paused entry back: it is due at its next future occurrence.

    With ``catch_up`` it also runs at once for the newest occurrence that the pause has swallowed. Raises
    :class:`~celery_zsched.errors.NotFoundError`, which names likely entries.
    """
    stored = _find(schedules, target)
    changed = stored.state is State.PAUSED
    return standing(schedules.resume(stored.name, catch_up=catch_up), changed)


def whoami() -> str:
    """Return who runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container's user id without a name
    return f"{user}@{socket.gethostname()}"


def _find(schedules: Schedules, target: str) -> Stored:
    for stored in schedules.get_many(dict.fromkeys([target, target.removeprefix("entry:")])):
        return stored
    names = list(schedules.names())
    near = difflib.get_close_matches(target, names, n=CANDIDATES) or sorted(names)[:CANDIDATES]
    hint = f"; did you mean {', '.join(map(repr, near))}?" if near else "; there are no entries at all"
    raise NotFoundError(f"there is no entry {target!r}{hint}")


def standing(stored: Stored, changed: bool = False) -> Standing:
    """Return how an entry stands, for people and as JSON."""
    coming = None
    if stored.due_us is not None and stored.state is not State.PAUSED:
        coming = from_us(stored.due_us).isoformat()
    return Standing(stored.name, stored.state.value, changed, coming, stored.operator.reason, stored.operator.by)
