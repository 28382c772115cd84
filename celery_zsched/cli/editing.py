"""``celery zsched add | edit | rm``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from celery_zsched import operations
from celery_zsched.cli.base import dry_run_option, entry_argument, force_option, reason_option, verb
from celery_zsched.cli.output import Output
from celery_zsched.cli.pausing import sentence
from celery_zsched.cli.running import args_option, kwargs_option
from celery_zsched.entry import MISFIRES, OVERLAPS
from celery_zsched.operations import Site

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = [
    click.option("--every", help="Due every so often: 30 (seconds), 15m, 2h."),
    click.option("--cron", help="Due by a crontab: '30 9 * * 1-5'."),
    click.option("--rrule", help="Due by an RFC 5545 rule: 'FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0'."),
    click.option("--at", help="Due once: 2026-12-24T18:00, 18:00, +2h."),
    click.option("--zone", help="The zone of its wall times, like Europe/Paris; the app's by default."),
    args_option,
    kwargs_option,
    click.option("--queue", help="The queue to send to."),
    click.option("--priority", type=int, help="The priority of its messages."),
    click.option("--misfire", type=click.Choice(MISFIRES), help="What becomes of missed occurrences."),
    click.option("--grace", help="How late one may still run: 90, 15m."),
    click.option("--misfire-limit", type=int, help="The most that misfire=all makes up for."),
    click.option("--overlap", type=click.Choice(OVERLAPS), help="What to do while the last run goes on."),
    click.option("--start", help="No occurrence before this moment."),
    click.option("--end", help="No occurrence after this moment."),
    click.option("--count", type=int, help="How many occurrences in all."),
    click.option("--jitter", help="Spread each up to so much after its time."),
    click.option("--expires", help="How long a message is of use: 90, 15m, or 'next'."),
    click.option("--blackout", "blackouts", multiple=True, help="The name of a window in which nothing is sent."),
]


def _fields(function: _F) -> _F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value not in (None, ())}
    options = {name: given.pop(name) for name in ("queue", "priority") if name in given}
    return given | ({"options": options} if options else {})


@verb("add")
@click.argument("entry")
@click.argument("task")
@_fields
@reason_option
def add(site: Site, out: Output, entry: str, task: str, reason: str | None, **fields: Any) -> None:
    """Add a periodic task named ENTRY that sends TASK; in force at once.

    celery zsched add report app.report --cron '0 9 * * 1-5' --zone Europe/Paris
    """
    done = operations.add(site, entry, {"task": task, **_given(fields)}, reason=reason)
    out.one(done.to_dict(), sentence(done))


@verb("edit")
@entry_argument
@click.option("--task", help="The task to send.")
@_fields
@force_option
@reason_option
def edit(site: Site, out: Output, entry: str, force: bool, reason: str | None, **fields: Any) -> None:
    """Change what is given of a periodic task; all else of it stays, a pause too."""
    done = operations.edit(site, entry, _given(fields), reason=reason, force=force)
    out.one(done.to_dict(), sentence(done) + ("" if done.changed else " (nothing changed)"))


@verb("rm")
@entry_argument
@force_option
@reason_option
@dry_run_option
def remove(site: Site, out: Output, entry: str, force: bool, reason: str | None, dry_run: bool) -> None:
    """Delete a periodic task with all that is known of it.

    ENTRY may be a pattern with * and ? that selects many.
    """
    for each in operations.remove(site, entry, reason=reason, force=force, dry_run=dry_run):
        would = "would be deleted" if dry_run else "deleted"
        out.one(each.to_dict(), f"{each.entry}: {would if each.notice is None else f'left: {each.notice}'}")


COMMANDS = {"add": add, "edit": edit, "rm": remove}
