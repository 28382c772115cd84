"""``celery zsched beats | health | audit | plan``."""

from __future__ import annotations

import click

from celery_zsched import operations
from celery_zsched.cli.base import complete_entry, verb, zone_option
from celery_zsched.cli.output import Output, plural
from celery_zsched.operations import Site
from celery_zsched.operations.moments import duration_us
from celery_zsched.types import SECOND_US

_BEATS = [
    ("HOST", "host"), ("PID", "pid"), ("ALIVE", "alive"), ("CALLED", "called"), ("AGO (s)", "called_ago_s"),
    ("LAG (s)", "lag_s"), ("CLOCK OFF (s)", "clock_offset_s"), ("SINCE", "started"), ("RELEASE", "release"),
]  # fmt: skip
_AUDIT = [("WHEN", "at"), ("WHAT", "verb"), ("TARGET", "target"), ("BY", "by"), ("WHY", "reason"), ("MORE", "detail")]
_PLAN = [("ENTRY", "entry"), ("WOULD", "action"), ("FIELDS", "fields"), ("DETAIL", "detail")]


@verb("beats", examples=("beats", "beats --json"))
@zone_option
def beats(site: Site, out: Output, zone: str | None) -> None:
    """List the schedulers: where they run, when they last called, how late they sent last."""
    rows = [beat.to_dict() for beat in operations.beats(site)]
    columns = [*_BEATS, ("FAILS", "fault")] if any(row["fault"] for row in rows) else _BEATS
    out.rows(columns, rows, "No beat has called.", spare=("release", "called", "clock_offset_s"))


@verb("health", examples=("health", "health --max-lag 5m"))
@click.option("--max-lag", default="60", show_default=True, help="How late an entry may be: 60 (seconds), 5m.")
def health(site: Site, out: Output, max_lag: str) -> None:
    """Say whether what is due is sent; the exit code is 0 if so, else 1.

    Overdue is what has not been sent and moved on since its moment, also while a beat has it.
    """
    told = operations.health(site, max_lag_s=duration_us(max_lag) / SECOND_US)
    claimed = f", {told.claimed} with a beat" if told.claimed else ""
    figures = (
        f"{plural(told.beats, 'beat')}, {plural(told.waiting, 'entry')} waiting{claimed}, "
        f"overdue {told.overdue_s:g} s, {told.quarantined} in quarantine"
    )
    out.one(told.to_dict(), "\n".join([f"{'healthy' if told.ok else 'not healthy'}: {figures}", *told.problems]))
    if not told.ok:
        raise click.exceptions.Exit(1)


@verb("audit", examples=("audit", "audit report --limit 5", "audit queue:celery"))
@click.argument("target", required=False, shell_complete=complete_entry)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The most records.")
@zone_option
def audit(site: Site, out: Output, target: str | None, limit: int, zone: str | None) -> None:
    """Show who did what, when and why, the newest first.

    TARGET is a periodic task, or as it stands in the records: task:NAME, queue:NAME, id:ID.
    """
    wanted = target if target is None or ":" in target else f"entry:{target}"
    rows = [each.to_dict() for each in operations.audit(site, target=wanted, limit=limit)]
    if not out.as_json:
        for row in rows:
            row["detail"] = ", ".join(f"{name} {value}" for name, value in row["detail"].items()) or None
    out.rows(_AUDIT, rows, "No records.", spare=("detail",))


@verb("plan", examples=("plan", "plan --json"))
def plan(site: Site, out: Output) -> None:
    """Compare beat_schedule with what is live; the exit code is 0 if they are the same, else 2."""
    found = operations.plan(site)
    out.rows(_PLAN, [each.to_dict() for each in found], "beat_schedule and what is live are the same.")
    if found:
        raise click.exceptions.Exit(2)


COMMANDS = {"beats": beats, "health": health, "audit": audit, "plan": plan}
