"""``celery zsched add | edit | rm``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from celery_zsched import operations
from celery_zsched.cli.base import ZoneType, dry_run_option, entry_argument, reason_option, verb, zone_of
from celery_zsched.cli.output import Output
from celery_zsched.cli.pausing import sentence
from celery_zsched.cli.running import args_option, kwargs_option
from celery_zsched.entry import MISFIRES, OVERLAPS
from celery_zsched.errors import EntryError
from celery_zsched.operations import Site

_force_option = click.option(
    "--force", is_flag=True, help="Also an entry of beat_schedule, though the next start of a beat undoes it."
)

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = [
    click.option("--every", help="Due every so often: 30 (seconds), 15m, 2h."),
    click.option("--cron", help="Due by a crontab: '30 9 * * 1-5'."),
    click.option("--rrule", help="Due by an RFC 5545 rule: 'FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0'."),
    click.option("--at", help="Due once: 2026-12-24T18:00, 18:00, +2h."),
    click.option("--zone", type=ZoneType(), help="The zone of its wall times, Europe/Paris; the app's by default."),
    args_option,
    kwargs_option,
    click.option("--queue", help="The queue to send to."),
    click.option("--priority", type=int, help="The priority of its messages."),
    click.option(
        "--misfire",
        type=click.Choice(MISFIRES),
        help="What becomes of missed ones: one run for all (once, the default), none (skip), each its own (all).",
    ),
    click.option("--grace", help="How late one may still be sent: 90 (seconds), 15m."),
    click.option("--misfire-limit", type=int, help="The most that misfire=all makes up for."),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="While the last run goes on: send all the same (allow, the default), leave out (skip), keep one back.",
    ),
    click.option("--start", help="No occurrence before this moment: 2026-12-24T18:00, +2h."),
    click.option("--end", help="No occurrence after this moment: 2026-12-24T18:00, +2d."),
    click.option("--count", type=int, help="How many occurrences in all."),
    click.option("--jitter", help="Spread each up to so much after its time: 30, 5m."),
    click.option("--expires", help="How long a message is of use: 90, 15m, or 'next'."),
    click.option(
        "--blackout", "blackouts", multiple=True, help="The name of a blackout in which nothing is sent; '' for none."
    ),
]


def _fields(function: _F) -> _F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value not in (None, ())}
    options = {name: given.pop(name) for name in ("queue", "priority") if name in given}
    return given | ({"options": options} if options else {})


@verb(
    "add",
    examples=(
        "add report app.report --cron '0 9 * * 1-5' --zone Europe/Paris",
        "add poll app.poll --every 30 --misfire skip",
        "add greet app.greet --at 18:00 --args '[\"Ann\"]' --expires 1h",
    ),
)
@click.argument("entry")
@click.argument("task")
@_fields
@reason_option
def add(site: Site, out: Output, entry: str, task: str, reason: str | None, **fields: Any) -> None:
    """Add a periodic task named ENTRY that sends TASK; in force at once.

    It needs one of --every, --cron, --rrule and --at. Moments without an offset are in --zone, or the app's zone.
    """
    done = operations.add(site, entry, {"task": task, **_given(fields)}, reason=reason)
    out.speak_of(zone_of(site, entry))
    out.one(done.to_dict(), sentence(done))


@verb("edit", examples=("edit report --cron '30 9 * * 1-5'", "edit report --args '[2]' --reason 'one more region'"))
@entry_argument
@click.option("--task", help="The task to send.")
@_fields
@_force_option
@reason_option
def edit(site: Site, out: Output, entry: str, force: bool, reason: str | None, **fields: Any) -> None:
    """Change what is given of a periodic task; all else of it stays, a pause too."""
    if not _given(fields):
        raise EntryError("nothing is given to be changed; see `celery zsched edit --help`")
    done = operations.edit(site, entry, _given(fields), reason=reason, force=force)
    out.speak_of(zone_of(site, entry))
    out.one(done.to_dict(), sentence(done) + ("" if done.changed else " (nothing changed)"))


@verb("rm", examples=("rm report --reason 'nobody reads it'", "rm 'old-*' --dry-run"))
@entry_argument
@_force_option
@reason_option
@dry_run_option
def remove(site: Site, out: Output, entry: str, force: bool, reason: str | None, dry_run: bool) -> None:
    """Delete a periodic task with all that is known of it.

    ENTRY may be a pattern with * and ? that selects many. What it has sent already is not touched: see `cancel`.
    """
    for each in operations.remove(site, entry, reason=reason, force=force, dry_run=dry_run):
        would = "would be deleted" if dry_run else "deleted"
        out.one(each.to_dict(), f"{each.entry}: {would if each.notice is None else f'left: {each.notice}'}")


COMMANDS = {"add": add, "edit": edit, "rm": remove}
