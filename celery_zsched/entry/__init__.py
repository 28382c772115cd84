"""Entries: what is declared, what happened, what the operator wants, and their stored forms. Values without I/O."""

from celery_zsched.entry.codec import decode, encode, is_declared_by
from celery_zsched.entry.declare import OWN_KEYS, build, from_beat_schedule
from celery_zsched.entry.occurrence import HEADER, Cause, Occurrence, occurrence_header, occurrence_id
from celery_zsched.entry.past import Past
from celery_zsched.entry.payload import Payload
from celery_zsched.entry.records import VERSION, LastRun, OperatorState
from celery_zsched.entry.spec import MISFIRES, OVERLAPS, OWNERS, EntrySpec

__all__ = [
    "HEADER",
    "MISFIRES",
    "OVERLAPS",
    "OWNERS",
    "OWN_KEYS",
    "VERSION",
    "Cause",
    "EntrySpec",
    "LastRun",
    "Occurrence",
    "OperatorState",
    "Past",
    "Payload",
    "build",
    "decode",
    "encode",
    "from_beat_schedule",
    "is_declared_by",
    "occurrence_header",
    "occurrence_id",
]
