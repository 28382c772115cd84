"""How an entry stands, for people and as JSON: what most verbs answer with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched.entry import OperatorState
from celery_zsched.stored import State, Stored
from celery_zsched.types import from_us


@dataclass(frozen=True, slots=True)
class Standing:
    """How an entry stands after an operation. ``changed`` says whether this call made it so.

    ``next`` and ``until`` (when a pause ends by itself) are ISO 8601; ``by`` is who paused it. ``notice`` is what is to
    be minded. With ``dry_run`` nothing was done: it would stand so.
    """

    entry: str
    state: str
    changed: bool
    next: str | None
    reason: str | None
    by: str | None
    until: str | None = None
    notice: str | None = None
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the standing as JSON values."""
        return asdict(self)


def standing(stored: Stored, changed: bool = False) -> Standing:
    """Return how an entry stands."""
    coming = None
    if stored.due_us is not None and stored.state is not State.PAUSED:
        coming = moment(stored.due_us)
    operator = stored.operator
    return Standing(
        stored.name, stored.state.value, changed, coming, operator.reason, operator.by, moment(operator.until_us)
    )


def paused_by(operator: OperatorState) -> str:
    """Return "paused by …" with since when, why and until when."""
    since = f" since {moment(operator.since_us)}" if operator.since_us else ""
    why = f": {operator.reason}" if operator.reason else ", no reason given"
    end = f"; it ends by itself at {moment(operator.until_us)}" if operator.until_us else ""
    done = "; it is being resumed" if operator.resuming else ""
    return f"paused by {operator.by or 'somebody'}{since}{why}{end}{done}"


def moment(instant_us: int | None) -> str | None:
    """Return an instant as ISO 8601 in UTC."""
    return None if instant_us is None else from_us(instant_us).isoformat()
