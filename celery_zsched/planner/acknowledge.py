"""What was sent by a scheduler that did not come to move the entry on: how the entry stands as if it had."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from celery_zsched.entry import EntrySpec, LastRun
from celery_zsched.planner.decide import Rules
from celery_zsched.planner.occurrences import due_of, due_until, is_due, next_nominal, pending
from celery_zsched.triggers import DEFAULT_ZONE


@dataclass(frozen=True, slots=True)
class Found:
    """Occurrences that were sent and not on record, the record with them, and the moment the entry is due next."""

    nominals_us: tuple[int, ...]
    last: LastRun
    #: None when no occurrence is to come.
    due_us: int | None


def acknowledge(
    spec: EntrySpec, last: LastRun, due_us: int, sent_us: int, now_us: int, *, zone: str = DEFAULT_ZONE,
    rules: Rules | None = None,
) -> Found | None:  # fmt: skip
    """Return how an entry stands whose moment ``due_us`` has come, when ``sent_us`` is the newest occurrence sent.

    None if that is on record, or is none that the entry could have sent since.
    """
    if last.nominal_us is not None and sent_us <= last.nominal_us:
        return None
    rules = rules or Rules()
    waiting_us = pending(spec, last, due_us, zone=zone)
    sent, total, coming_us = [sent_us], 1, None
    if sent_us >= waiting_us:
        # With any other policy than "all", one was sent and stood for those before it.
        keep = (spec.misfire_limit or rules.misfire_limit) if (spec.misfire or rules.misfire) == "all" else 1
        due, total, _ = due_until(spec, waiting_us, due_of(spec, sent_us, zone=zone), zone, keep)
        if sent_us not in due:
            return None
        sent = due if spec.count is None else due[-max(1, spec.count - last.fired) :]
        coming_us = next_nominal(spec, sent_us, zone=zone, fired=last.fired + len(sent))
    elif sent_us != last.buffered_us:
        return None
    elif spec.count is None or last.fired + 1 < spec.count:
        # What was kept back went as a run ended, which is a moment of its own, or when the next was due.
        coming_us = waiting_us if is_due(spec, due_us, zone=zone) else next_nominal(spec, due_us, zone=zone)
    record = dataclasses.replace(
        last,
        next_nominal_us=coming_us,
        nominal_us=sent_us,
        fired_us=now_us,
        cause="schedule",
        task_id=None,
        fired=last.fired + len(sent),
        missed=0,
        missed_total=last.missed_total + total - len(sent),
        buffered_us=last.buffered_us if last.buffered_us is not None and last.buffered_us > sent_us else None,
        asked_us=None,
        failures=0,
        error=None,
    )
    return Found(tuple(sent), record, None if coming_us is None else due_of(spec, coming_us, zone=zone))
