"""The occurrences of an entry: its nominal times within its limits, when each is due, and which have passed."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator

from celery_zsched.entry import EntrySpec, LastRun
from celery_zsched.triggers import DEFAULT_ZONE, Interval, next_after

#: So many missed occurrences are walked through one by one; beyond, only the newest are looked for.
LONGEST_WALK = 1_000


def count_reached(spec: EntrySpec, last: LastRun) -> bool:
    """Return whether an entry has been sent as often as it may be; its count may have been lowered since."""
    return spec.count is not None and last.fired >= spec.count


def has_run_out(spec: EntrySpec, last: LastRun, due_us: int) -> bool:
    """Return whether an entry that waits for ``due_us`` has nothing to come: its count or its end was lowered since."""
    if count_reached(spec, last):
        return True
    waiting_us = last.next_nominal_us if last.next_nominal_us is not None else due_us - spec.jitter_us
    return spec.end_us is not None and min(waiting_us, due_us - spec.jitter_us) > spec.end_us and not last.buffered_us


def next_nominal(spec: EntrySpec, after_us: int, *, zone: str = DEFAULT_ZONE, fired: int = 0) -> int | None:
    """Return the entry's first nominal time after ``after_us`` within its start, end and count, or ``None``.

    ``zone`` is the app's; ``fired`` is how many occurrences have been sent.
    """
    if spec.count is not None and fired >= spec.count:
        return None
    if spec.start_us is not None:
        after_us = max(after_us, spec.start_us - 1)
    anchor_us = spec.anchor_us if spec.anchor_us is not None else spec.start_us
    nominal_us = next_after(spec.trigger, after_us, anchor_us=anchor_us, zone=spec.zone or zone)
    if nominal_us is None or (spec.end_us is not None and nominal_us > spec.end_us):
        return None
    return nominal_us


def nominals(spec: EntrySpec, after_us: int, *, zone: str = DEFAULT_ZONE, fired: int = 0) -> Iterator[int]:
    """Yield the entry's nominal times after ``after_us``, for as long as there are any."""
    nominal_us = next_nominal(spec, after_us, zone=zone, fired=fired)
    while nominal_us is not None:
        yield nominal_us
        fired += 1
        nominal_us = next_nominal(spec, nominal_us, zone=zone, fired=fired)


def _walk(spec: EntrySpec, after_us: int, zone: str) -> Iterator[int]:
    """Yield the nominal times after ``after_us``, whatever the entry's count says: of which occurrence is not known."""
    nominal_us = next_nominal(spec, after_us, zone=zone)
    while nominal_us is not None:
        yield nominal_us
        nominal_us = next_nominal(spec, nominal_us, zone=zone)


def due_of(spec: EntrySpec, nominal_us: int, *, zone: str = DEFAULT_ZONE) -> int:
    """Return when an occurrence is due: its nominal time and its jitter, which ends before the next nominal time."""
    if not spec.jitter_us:
        return nominal_us
    following_us = next_nominal(spec, nominal_us, zone=zone)
    room_us = spec.jitter_us if following_us is None else min(spec.jitter_us, following_us - nominal_us)
    digest = hashlib.blake2b(f"{spec.name}\0{nominal_us}".encode(), digest_size=8).digest()
    return nominal_us + int.from_bytes(digest, "big") % room_us


def expires_of(spec: EntrySpec, now_us: int, following_us: int | None, *, zone: str = DEFAULT_ZONE) -> int | None:
    """Return when the message of an occurrence that is sent now is of no more use; ``following_us`` is the next one.

    A moment that has passed is none: it was asked for all the same.
    """
    if spec.expires is None:
        return None
    if spec.expires == "next":
        return None if following_us is None else due_of(spec, following_us, zone=zone)
    if isinstance(spec.expires, int):
        return now_us + spec.expires
    at_us = spec.expires_at_us
    return at_us if at_us is not None and at_us > now_us else None


def is_due(spec: EntrySpec, due_us: int, *, zone: str = DEFAULT_ZONE) -> bool:
    """Return whether an occurrence of the entry is due at this very moment."""
    for nominal_us in _walk(spec, due_us - spec.jitter_us - 1, zone):
        if nominal_us > due_us:
            return False
        if due_of(spec, nominal_us, zone=zone) == due_us:
            return True
    return False


def pending(spec: EntrySpec, last: LastRun, due_us: int, *, zone: str = DEFAULT_ZONE) -> int:
    """Return the nominal time of the occurrence that the moment ``due_us`` on the timeline stands for.

    It is the occurrence whose due that moment is. Where there is none, the jitter was changed under an entry that
    waits: then it is the one on record, if its turn has come and its successor's has not; the record may be older than
    the schedule, so nothing else is taken from it. A moment that no occurrence explains (written by hand, or of a
    schedule that counts from its last run) stands for itself.
    """
    recorded_us = last.next_nominal_us
    if recorded_us == due_us and not spec.jitter_us:
        return due_us
    for nominal_us in _walk(spec, due_us - spec.jitter_us - 1, zone):
        if nominal_us > due_us:
            break
        if due_of(spec, nominal_us, zone=zone) == due_us:
            return nominal_us
    if recorded_us is None or recorded_us >= due_us or next_nominal(spec, recorded_us - 1, zone=zone) != recorded_us:
        return due_us
    following_us = next_nominal(spec, recorded_us, zone=zone)
    return recorded_us if following_us is None or following_us > due_us else due_us


def due_until(spec: EntrySpec, nominal_us: int, now_us: int, zone: str, keep: int) -> tuple[list[int], int, int | None]:
    """Return the newest ``keep`` occurrences from ``nominal_us`` on that are due by now, in order, and their number.

    The number is exact up to ``LONGEST_WALK``, and always for intervals; else it is the least that it can be. The first
    occurrence that is not due by now comes third; ``None`` if there is none, whatever the entry's count says.
    """
    newest: deque[int] = deque(maxlen=keep)
    total, at_us = 0, _within(spec, nominal_us, zone)
    while at_us is not None and due_of(spec, at_us, zone=zone) <= now_us:
        newest.append(at_us)
        total += 1
        if total == LONGEST_WALK:
            total += _leap(spec, newest, nominal_us, now_us, zone)
            at_us = next_nominal(spec, newest[-1], zone=zone)
            break
        at_us = next_nominal(spec, at_us, zone=zone)
    return list(newest), total, at_us


def _within(spec: EntrySpec, nominal_us: int, zone: str) -> int | None:
    """Return a recorded occurrence if it is within start and end, which may have changed since; else the next one."""
    if spec.start_us is not None and nominal_us < spec.start_us:
        return next_nominal(spec, nominal_us, zone=zone)
    return None if spec.end_us is not None and nominal_us > spec.end_us else nominal_us


def _leap(spec: EntrySpec, newest: deque[int], first_us: int, now_us: int, zone: str) -> int:
    """Go on from the newest occurrences found so far to those next to now; return how many more are due."""
    reached_us, walked = newest[-1], 0
    back_us = max((reached_us - first_us) // LONGEST_WALK, 1) * ((newest.maxlen or 1) + 2) + spec.jitter_us
    while True:
        # An occurrence is never skipped for good: looking back further and further ends where the walk has been.
        start_us = max(now_us - back_us, reached_us)
        for at_us in _walk(spec, start_us, zone):
            if due_of(spec, at_us, zone=zone) > now_us:
                break
            newest.append(at_us)
            walked += 1
        if walked >= (newest.maxlen or 1) or start_us == reached_us:
            break
        back_us, walked = back_us * 4, 0
    if isinstance(spec.trigger, Interval) and not spec.trigger.relative:
        return (newest[-1] - reached_us) // spec.trigger.every_us
    return walked
