"""The record of who did what, when and why: a stream that keeps the last thousands, and the log."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from typing import Any

from celery_zsched.keys import ScheduleKeys
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment

logger = logging.getLogger("celery_zsched.operations")

#: About how many records are kept.
KEEP = 10_000

#: How many are read at once when records of one target are looked for.
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that was done: when (ISO 8601, the server's clock), what, to what, by whom and why."""

    at: str
    verb: str
    target: str
    by: str
    reason: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


def note(site: Site, verb: str, target: str, reason: str | None = None, **detail: Any) -> None:
    """Record that something was done, on the server and in the log. ``detail`` is JSON values."""
    logger.info("%s %s, by %s%s", verb, target, site.by, f": {reason}" if reason else "")
    fields = {"verb": verb, "target": target, "by": site.by}
    if reason is not None:
        fields["reason"] = reason
    if detail:
        fields["detail"] = json.dumps(detail, separators=(",", ":"))
    with site.schedules.server.translated("recording what was done"):
        client: Any = site.schedules.server.client
        client.xadd(ScheduleKeys(site.schedules.prefix).audit, fields, maxlen=KEEP, approximate=True)


def audit(site: Site, *, target: str | None = None, limit: int = 100) -> list[Record]:
    """Return what was done last, the newest first; with ``target`` only what was done to that."""
    key = ScheduleKeys(site.schedules.prefix).audit
    records: list[Record] = []
    end = "+"
    with site.schedules.server.translated("reading what was done"):
        client: Any = site.schedules.server.client
        while len(records) < limit:
            page = client.xrevrange(key, max=end, count=min(limit, _PAGE) if target is None else _PAGE)
            for id_, fields in page:
                record = _record(id_, fields)
                if target is None or record.target == target:
                    records.append(record)
            if not page or target is None:
                break
            end = f"({page[-1][0].decode()}"
    return records[:limit]


def _record(id_: bytes, fields: dict[bytes, bytes]) -> Record:
    text = {key.decode(): value.decode() for key, value in fields.items()}
    milliseconds = int(id_.partition(b"-")[0])
    return Record(
        at=moment(milliseconds * 1000) or "",
        verb=text.get("verb", ""),
        target=text.get("target", ""),
        by=text.get("by", ""),
        reason=text.get("reason"),
        detail=json.loads(text["detail"]) if "detail" in text else {},
    )
