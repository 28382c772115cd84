"""What saving an entry comes to: pure decisions, from the entry as declared and as it stands."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from celery_zsched import planner
from celery_zsched.entry import EntrySpec, decode, encode, is_declared_by
from celery_zsched.errors import EntryError, ScheduleError
from celery_zsched.stored import FINISHED, last_run_of
from celery_zsched.types import Item, Located, Place, Put


class NothingToComeError(ScheduleError):
    """An entry has no occurrence to come."""


def item_of(spec: EntrySpec, located: Located | None, now_us: int, birth_us: int, *, zone: str) -> Item | None:
    """Return what is to be put for an entry that is saved, or None when all is as it should be.

    ``located`` is where the stored one stands, if there is one. A life that begins, begins at ``birth_us``, which is
    now or soon; ``zone`` is the app's. Raises :class:`NothingToComeError`.
    """
    quarantined = located is not None and is_set_aside(located)
    if located is not None and not quarantined and is_declared_by(located.body, spec):
        return None
    stored = None
    if located is not None:
        try:
            stored = decode(located.body)
        except (EntryError, ScheduleError):
            pass  # what cannot be read, or is gone from the server, is replaced
    if located is None or stored is None:
        fresh = spec.installed(birth_us)
        coming = planner.first(fresh, _begins(fresh, now_us, birth_us), zone=zone)
        if coming.next_due_us is None:
            raise _nothing_to_come(spec)
        item = Item(spec.name, encode(fresh), coming.next_due_us, expect="")
        if located is None:
            return item
        # Of a document that was evicted, or deleted by hand, there is nothing to compare with.
        return replace(item, mode=Put.REPLACE, expect=digest(located.body) if located.body else None)
    merged = spec.succeeding(stored, birth_us)
    body = encode(merged)
    if body == located.body and not quarantined:
        return None
    expect = digest(located.body)
    last = last_run_of(located.note)
    # One that had run out and has something to come again goes on with that, as if it had been set aside.
    revived = located.place is Place.WAITING and planner.has_run_out(stored, last, located.due_us)
    revived = revived and not planner.has_run_out(merged, last, located.due_us)
    if merged.fingerprint == stored.fingerprint and located.place is not Place.DEAD and not revived:
        return Item(spec.name, body, mode=Put.REBODY, expect=expect)
    begins_us = _begins(merged, now_us, birth_us)
    coming = planner.first(merged, begins_us, zone=zone, last=last)
    if coming.next_due_us is None:
        if located.place is Place.DEAD or revived:
            return None  # finished, and nothing in the new document changes that
        if planner.has_run_out(merged, last, located.due_us):
            return Item(spec.name, body, mode=Put.REBODY, expect=expect)
        raise _nothing_to_come(spec)
    return Item(spec.name, body, coming.next_due_us, mode=Put.REPLACE, expect=expect)


def is_set_aside(located: Located) -> bool:
    """Return whether an entry is in quarantine."""
    return located.place is Place.DEAD and located.reason != FINISHED


def digest(body: bytes) -> str:
    """Return what the scripts compare a stored body by."""
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()


def _begins(spec: EntrySpec, now_us: int, birth_us: int) -> int:
    """Return after which moment an entry is due first: its birth, where its times count from there, or else now."""
    return birth_us if spec.anchor_us == birth_us and spec.trigger.kind in ("interval", "rrule") else now_us


def _nothing_to_come(spec: EntrySpec) -> NothingToComeError:
    return NothingToComeError(f"the entry {spec.name!r} has no occurrence to come; check its schedule, end and count")
