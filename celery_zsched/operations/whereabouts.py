"""Where a task is: waiting, paused by whom, with which worker, dead and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from celery_zsched import message as wire_format
from celery_zsched.entry import HEADER, OperatorState
from celery_zsched.errors import NotFoundError
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment, paused_by
from celery_zsched.types import Located, Place

#: Why something is leased for the last time (see :class:`~celery_zsched.types.Located`).
CANCELLED = "cancelled"

#: What the state of an id is called for people.
WORDS = {Place.WAITING: "waiting", Place.LEASED: "leased", Place.PARKED: "paused", Place.DEAD: "dead"}


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a message is. ``at`` is when it is due, its lease ends, or it died; ``deliveries`` counts its starts.

    ``state`` is ``waiting``, ``leased`` (a worker has it), ``ended`` (a worker had it, whose lease has ended: the next
    claim delivers it again), ``paused`` or ``dead``; ``reason`` says why.
    """

    id: str
    queue: str
    state: str
    task: str
    at: str
    due: str
    deliveries: int
    holder: str | None
    claimed: str | None
    reason: str | None
    entry: str | None
    nominal: str | None
    retries: int
    arguments: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the whereabouts as JSON values."""
        return asdict(self)


def where_is(site: Site, id_: str, *, arguments: bool = False) -> list[Whereabouts]:
    """Return where a task is, by its id; argument values only with ``arguments``.

    Raises :class:`~celery_zsched.errors.NotFoundError` if no queue has it: it has ended, or was never sent.
    """
    found = site.queues.locate(id_.removeprefix("id:"))
    if not found:
        raise NotFoundError(
            f"no queue has the message {id_!r}: its task has ended, or it was removed, or never sent. What became of a "
            "task that has ended is known to the result backend"
        )
    pauses = site.queues.pauses()
    rows = []
    for queue, located in found:
        now_us = site.queues.timeline(queue).look([])[0]
        where = whereabouts_of(queue, located, arguments)
        state, reason = _standing_of(where, located, pauses, now_us)
        rows.append(dataclasses.replace(where, state=state, reason=reason))
    return rows


def _standing_of(
    where: Whereabouts, located: Located, pauses: Mapping[str, OperatorState], now_us: int
) -> tuple[str, str | None]:
    """Return the state of a message and why it is in that, in words."""
    if located.place is Place.LEASED:
        cancelled = located.reason == CANCELLED
        if located.moment_us <= now_us:
            then = "removes it, since it was cancelled" if cancelled else "delivers it again"
            return "ended", f"its lease has ended without an ack; the next claim {then}"
        return (
            "leased",
            "cancelled: it is revoked, and does not come again should its worker die" if cancelled else None,
        )
    held = {Place.PARKED: located.reason, Place.WAITING: f"task:{where.task}"}.get(located.place, "")
    if held in pauses and (located.place is Place.PARKED or not pauses[held].resuming):
        return "paused", f"{held} is {paused_by(pauses[held])}"
    if located.place is Place.WAITING and f"queue:{where.queue}" in pauses:
        return where.state, f"queue:{where.queue} is {paused_by(pauses[f'queue:{where.queue}'])}"
    return where.state, where.reason


def whereabouts_of(queue: str, located: Located, arguments: bool = False) -> Whereabouts:
    """Return what is known of a message that stands in a queue."""
    headers = headers_of(located.body)
    told = headers.get(HEADER)
    told = told if isinstance(told, dict) else {}
    values: Any = None
    if arguments:
        values = {"args": headers.get("argsrepr"), "kwargs": headers.get("kwargsrepr")}
    return Whereabouts(
        id=located.id,
        queue=queue,
        state=WORDS[located.place],
        task=wire_format.task_name(located.body),
        at=moment(located.moment_us) or "",
        due=moment(located.due_us) or "",
        deliveries=located.count,
        holder=located.holder or None,
        claimed=moment(located.claimed_us),
        reason=located.reason or None,
        entry=told.get("entry"),
        nominal=told.get("nominal"),
        retries=int(headers.get("retries") or 0),
        arguments=values,
    )


def headers_of(body: bytes) -> dict[str, Any]:
    """Return the headers of a message; none of what is no message."""
    try:
        headers: dict[str, Any] = wire_format.decode(body)["headers"]
    except ValueError:
        return {}
    return headers
