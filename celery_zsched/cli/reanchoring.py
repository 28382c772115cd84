"""``celery zsched reanchor``."""

from __future__ import annotations

import click

from celery_zsched import operations
from celery_zsched.cli.base import complete_entry, dry_run_option, reason_option, verb, zone_of, zone_option
from celery_zsched.cli.output import Output
from celery_zsched.cli.pausing import sentence
from celery_zsched.errors import EntryError
from celery_zsched.operations import Site


@verb(
    "reanchor",
    examples=(
        "reanchor --ahead --dry-run",
        "reanchor --ahead --reason 'the clock was a day ahead'",
        "reanchor report poll",
    ),
)
@click.argument("entries", nargs=-1, metavar="[ENTRY]...", shell_complete=complete_entry)
@click.option("--ahead", is_flag=True, help="Every periodic task that is ahead of the server's clock.")
@reason_option
@dry_run_option
@zone_option
def reanchor(
    site: Site, out: Output, entries: tuple[str, ...], ahead: bool, reason: str | None, dry_run: bool, zone: str | None
) -> None:
    """Let periodic tasks go on that wait for what is far off, since the server's clock was ahead for a while.

    Each is due at its next time by the clock as it is now, and sent then even if it was sent for that time before. One
    that is not ahead of the clock is left as it is. A pause stays, and so does what is known of it. `doctor` names
    those that are ahead. ENTRY may be a pattern with * and ?.
    """
    if bool(entries) == ahead:
        raise EntryError("name the periodic tasks, or give --ahead for every one that is ahead of the server's clock")
    if ahead:
        done = operations.reanchor_tasks(site, reason=reason, dry_run=dry_run)
    else:
        done = operations.reanchor_named(site, entries, reason=reason, dry_run=dry_run)
    for each in done:
        if not out.as_json:
            out.speak_of(zone_of(site, each.entry))
        out.one(each.to_dict(), sentence(each))
    if not done and not out.as_json:
        click.echo("No periodic task is ahead of the server's clock.")


COMMANDS = {"reanchor": reanchor}
