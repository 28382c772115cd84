"""The difference between ``beat_schedule`` in the code and what is live: what a start of a beat would change."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from celery_zsched.apps import static_entries
from celery_zsched.entry import EntrySpec, from_beat_schedule
from celery_zsched.errors import ZschedError
from celery_zsched.operations.site import Site
from celery_zsched.stored import State
from celery_zsched.triggers import to_json

#: What a live entry has that code cannot say.
_LIVE_ONLY = ("anchor_us", "epoch", "owner")


@dataclass(frozen=True, slots=True)
class Difference:
    """What would become of one entry: ``create``, ``update``, ``delete``, ``return`` or ``fault``; which fields change.

    ``return``: it is as declared, and in quarantine, out of which a start takes it.
    """

    entry: str
    action: str
    fields: list[str] = field(default_factory=list)
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        return asdict(self)


def plan(site: Site) -> list[Difference]:
    """Return how the live static entries differ from ``beat_schedule``; nothing when they are the same.

    ``delete`` is what no longer stands in the code: it goes a settle time after the last beat of a release that
    declares it has ended.
    """
    declared: dict[str, EntrySpec] = {}
    found: list[Difference] = []
    for name, entry in static_entries(site.app).items():
        try:
            declared[name] = from_beat_schedule(
                name, entry, site.schedules.zone, serializer=site.app.conf.task_serializer
            )
        except ZschedError as exc:
            found.append(Difference(name, "fault", detail=str(exc)))
    live: dict[str, EntrySpec | None] = {}
    aside: dict[str, str] = {}
    for stored in site.schedules.all():
        if stored.name in declared or (stored.spec is not None and stored.spec.owner == "static"):
            live[stored.name] = stored.spec
            if stored.state is State.QUARANTINED:
                aside[stored.name] = f"it is in quarantine: {stored.fault}"
    for name, spec in declared.items():
        if name not in live:
            found.append(Difference(name, "create", detail=f"{spec.task}, {spec.trigger}"))
        elif changes := changes_of(live[name], spec):
            old = live[name]
            added = old is not None and old.owner != "static"
            said = "; it replaces an entry that was added at run time: rename one of them to keep both" if added else ""
            said += f"; {aside[name]}" if name in aside else ""
            found.append(Difference(name, "update", changes, f"{spec.task}, {spec.trigger}{said}"))
        elif name in aside:
            found.append(Difference(name, "return", detail=aside[name]))
    faulty = {difference.entry for difference in found if difference.action == "fault"}
    gone = [name for name in live if name not in declared and name not in faulty]
    found += [Difference(name, "delete", detail=aside.get(name, "")) for name in gone]
    return sorted(found, key=lambda difference: difference.entry)


def changes_of(old: EntrySpec | None, new: EntrySpec) -> list[str]:
    """Return the names of the fields in which an entry differs from the one that stands."""
    if old is None:
        return ["document"]
    changed = []
    for name in new.__dataclass_fields__:
        if name in _LIVE_ONLY:
            continue
        before, after = getattr(old, name), getattr(new, name)
        if name == "trigger":
            before, after = to_json(before), to_json(after)
        if before != after:
            changed.append("schedule" if name == "trigger" else name)
    if old.owner != new.owner:
        changed.append("owner")
    return changed
