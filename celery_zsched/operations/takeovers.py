"""As what entries were taken over from another scheduler, so that what was changed here since is told from the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_zsched.entry import EntrySpec, encode
from celery_zsched.keys import ScheduleKeys
from celery_zsched.placing import digest
from celery_zsched.schedules import Schedules

_PAUSED, _ACTIVE = "paused", "active"


@dataclass(frozen=True, slots=True)
class Taken:
    """As what an entry was taken over last: the digest of what it says, and whether it was to be paused."""

    digest: str
    paused: bool


def digest_of(spec: EntrySpec) -> str:
    """Return what two entries have in common that say the same, whatever lives and grids they were given here."""
    return digest(encode(dataclasses.replace(spec, anchor_us=None, epoch=0)))


def read(schedules: Schedules, names: Iterable[str]) -> dict[str, Taken]:
    """Return as what the named entries were taken over; those that never were are left out."""
    asked = list(names)
    if not asked:
        return {}
    with schedules.server.translated("reading what was taken over"):
        client: Any = schedules.server.client
        texts = client.hmget(ScheduleKeys(schedules.prefix).imports, asked)
    found = {}
    for name, text in zip(asked, texts, strict=True):
        if text is not None:
            what, _, how = text.decode().partition(" ")
            found[name] = Taken(what, how == _PAUSED)
    return found


def write(schedules: Schedules, taken: Mapping[str, Taken]) -> None:
    """Note as what entries were taken over; it goes with the entry."""
    if not taken:
        return
    rows = {name: f"{one.digest} {_PAUSED if one.paused else _ACTIVE}" for name, one in taken.items()}
    with schedules.server.translated("noting what was taken over"):
        client: Any = schedules.server.client
        client.hset(ScheduleKeys(schedules.prefix).imports, mapping=rows)
