"""Triggers as JSON documents: ``{"kind": "crontab", "minute": "0", "hour": "9", "zone": "Asia/Tokyo"}``.

A field that is absent has its default. A kind that is not known here (written by a newer release, or by a program that
has registered a class of its own) is refused by name, so that the one entry can be set aside and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_zsched.errors import ScheduleError
from celery_zsched.guesses import likely
from celery_zsched.triggers.at import At
from celery_zsched.triggers.base import Trigger
from celery_zsched.triggers.crontab import Crontab
from celery_zsched.triggers.crontext import CronText
from celery_zsched.triggers.custom import Custom
from celery_zsched.triggers.interval import Interval
from celery_zsched.triggers.recurrence import Recurrence
from celery_zsched.triggers.solar import Solar

_KINDS: dict[str, type[Trigger]] = {
    cls.kind: cls for cls in (Interval, Crontab, CronText, At, Recurrence, Solar, Custom)
}


def to_json(trigger: Trigger) -> dict[str, Any]:
    """Return the trigger as a JSON object; :func:`from_json` makes an equal one of it."""
    return {"kind": trigger.kind, **trigger.to_fields()}


def from_json(document: object) -> Trigger:
    """Make a trigger from a JSON object; :class:`ScheduleError` says what is wrong with one that cannot be used."""
    if not isinstance(document, Mapping):
        raise ScheduleError(f"a schedule is stored as a JSON object with a 'kind', not as {document!r}")
    fields = dict(document)
    kind = fields.pop("kind", None)
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        near = likely(str(kind), _KINDS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ScheduleError(
            f"there is no schedule kind {kind!r}{hint}; this release knows {', '.join(_KINDS)}. "
            "If a newer release wrote it, upgrade this process"
        )
    return cls.from_fields(fields)
