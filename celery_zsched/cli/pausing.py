"""``celery zsched pause | resume | paused``."""

from __future__ import annotations

import click

from celery_zsched import operations
from celery_zsched.cli.base import (
    complete_entry,
    dry_run_option,
    reason_option,
    verb,
    with_offset,
    zone_of,
    zone_option,
)
from celery_zsched.cli.output import Output, plural
from celery_zsched.operations import Site
from celery_zsched.operations.holding import Holding
from celery_zsched.operations.standing import Standing
from celery_zsched.operations.targets import is_pattern

_PAUSED = [("TARGET", "target"), ("BY", "by"), ("WHY", "reason"), ("UNTIL", "until"), ("STATE", "state")]

_target = click.argument("target", shell_complete=complete_entry)


@verb(
    "pause",
    examples=(
        "pause report --reason 'numbers are wrong'",
        "pause 'report-*' --for 2h",
        "pause task:app.mail --until 18:00 --reason 'mail server is down'",
        "pause queue:slow --dry-run",
    ),
)
@_target
@reason_option
@click.option("--until", help="End the pause by itself at this moment: 18:00, 2026-12-24T18:00, +2h.")
@click.option("--for", "lasting", help="End the pause by itself after so long: 90 (seconds), 15m, 2h30m.")
@dry_run_option
@zone_option
def pause(
    site: Site,
    out: Output,
    target: str,
    reason: str | None,
    until: str | None,
    lasting: str | None,
    dry_run: bool,
    zone: str | None,
) -> None:
    """Pause a periodic task: nothing of it is sent until it is resumed.

    TARGET may also be a pattern with * and ? that selects many periodic tasks, or, with our broker, a task name (its
    messages are held back, whatever queue they are in), a queue, or the id of one task; entry:, task:, queue: and id:
    in front say which it is. What runs already is not touched.
    """
    end = None if until is None else with_offset(site, until, zone)
    if is_pattern(target):
        rows = operations.pause_tasks(site, target, reason=reason, until=end, lasting=lasting, dry_run=dry_run)
        _say(site, out, *rows)
    else:
        with out.progress("parking") as advance:
            done = operations.pause_task(
                site, target, reason=reason, until=end, lasting=lasting, progress=advance, sweep_s=None, dry_run=dry_run
            )
        _say(site, out, done)


@verb("resume", examples=("resume report", "resume 'report-*' --catch-up", "resume task:app.mail"))
@_target
@click.option("--catch-up", is_flag=True, help="Also run once now for what the pause has swallowed.")
@reason_option
@dry_run_option
@zone_option
def resume(
    site: Site, out: Output, target: str, catch_up: bool, reason: str | None, dry_run: bool, zone: str | None
) -> None:
    """Resume what is paused: a periodic task is due at its next time, messages go on in their old order.

    A periodic task in quarantine is tried anew at once.

    TARGET is as for pause.
    """
    if is_pattern(target):
        rows = operations.resume_tasks(site, target, catch_up=catch_up, reason=reason, dry_run=dry_run)
        _say(site, out, *rows)
    else:
        with out.progress("putting back") as advance:
            done = operations.resume_task(
                site, target, catch_up=catch_up, reason=reason, progress=advance, dry_run=dry_run
            )
        _say(site, out, done, resumed=True)


@verb("paused", examples=("paused", "paused --json"))
@zone_option
def paused(site: Site, out: Output, zone: str | None) -> None:
    """List all that is paused: periodic tasks, task names, queues and single tasks; by whom, why, until when."""
    rows = [
        {"target": f"entry:{row.entry}", "by": row.by, "reason": row.reason, "until": row.until, "state": row.state}
        for row in operations.all_entries(site, state="paused")
    ]
    rows += [
        {"target": each.target, "by": each.by, "reason": each.reason, "until": each.until, "state": each.state}
        for each in operations.paused(site)
    ]
    out.rows(_PAUSED, rows, "Nothing is paused.")


def _say(site: Site, out: Output, *done: Standing | Holding, resumed: bool = False) -> None:
    for each in done:
        if isinstance(each, Holding):
            out.one(each.to_dict(), _held(each, resumed))
        else:
            if not out.as_json:
                out.speak_of(zone_of(site, each.entry))
            out.one(each.to_dict(), sentence(each, _unchanged(each)))


def _held(each: Holding, resumed: bool) -> str:
    by = f" by {each.by}" if each.by else ""
    until = f" until {each.until}" if each.until else ""
    done = "put back" if resumed else "parked"
    remark = " still" if resumed and each.state == "paused" else _unchanged(each)
    count = f", {plural(each.messages, 'message')} {done}" if each.messages else ""
    said = f"{each.target}: {_would(each)}{each.state}{remark}{by}{until}{count}"
    return f"{said}{f' ({each.reason})' if each.reason else ''}{_notice(each)}"


def sentence(each: Standing, remark: str = "") -> str:
    """Return how an entry stands as a line, with a remark on its state."""
    by = f" by {each.by}" if each.by else ""
    until = f" until {each.until}" if each.until else ""
    coming = f", next {each.next}" if each.next else ""
    said = f"{each.entry}: {_would(each)}{each.state}{remark}{by}{until}{coming}"
    return f"{said}{f' ({each.reason})' if each.reason else ''}{_notice(each)}"


def _unchanged(each: Standing | Holding) -> str:
    """Return what is to be said where a pause or a resume found nothing to do."""
    if each.changed:
        return ""
    return " already" if each.state == "paused" else " (was not paused)"


def _would(each: Standing | Holding) -> str:
    return "would be " if each.dry_run and each.changed else ""


def _notice(each: Standing | Holding) -> str:
    return f"\n  {each.notice}" if each.notice else ""


COMMANDS = {"pause": pause, "resume": resume, "paused": paused}
