"""``celery zsched list | show | next | history | explain``."""

from __future__ import annotations

from itertools import islice

import click

from celery_zsched import operations
from celery_zsched.cli.base import complete_entry, entry_argument, verb
from celery_zsched.cli.output import Output, say
from celery_zsched.errors import EntryError
from celery_zsched.operations import Site
from celery_zsched.operations.listing import Coming

_LIST = [
    ("ENTRY", "entry"), ("STATE", "state"), ("NEXT", "next"), ("LAST", "last"), ("SCHEDULE", "schedule"),
    ("ZONE", "zone"), ("TASK", "task"), ("WHY", "why"),
]  # fmt: skip

_HISTORY = [
    ("NOMINAL", "nominal"), ("OUTCOME", "outcome"), ("AT", "at"), ("LATE (s)", "lateness_s"), ("CAUSE", "cause"),
    ("MISSED", "missed"), ("TASK ID", "task_id"), ("BY", "by"),
]  # fmt: skip

_STATES = ["scheduled", "firing", "paused", "finished", "quarantined"]


@verb("list")
@click.argument("pattern", required=False, shell_complete=complete_entry)
@click.option("--state", type=click.Choice(_STATES), help="Only entries that stand so.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most entries.")
@click.option("--after", help="Go on after the entry of this name, the last of the page before.")
@click.option("--all", "everything", is_flag=True, help="All entries, however many.")
def list_entries(
    site: Site, out: Output, pattern: str | None, state: str | None, limit: int, after: str | None, everything: bool
) -> None:
    """List periodic tasks: state, next and last run in UTC, and why one does not run.

    PATTERN selects by name with * and ?.
    """
    if everything:
        rows = list(operations.all_entries(site, pattern=pattern, state=state))
        more = None
    else:
        page = operations.list_entries(site, pattern=pattern, state=state, limit=limit, after=after)
        rows, more = page.rows, page.after
    documents = [row.to_dict() for row in rows]
    if not out.as_json:
        for document in documents:
            by = f"by {document['by']}: " if document["by"] else ""
            document["why"] = document["fault"] or (f"{by}{document['reason'] or ''}".rstrip(": ") or None)
            if document["held"]:
                document["why"] = "; ".join(
                    [*filter(None, [document["why"]]), f"held by {', '.join(document['held'])}"]
                )
    out.rows(_LIST, documents, "There are no periodic tasks." if not pattern and not state else "None matches.")
    if more is not None and not out.as_json:
        click.echo(f"There are more: --after {more!r}, or --all.")


@verb("show")
@entry_argument
@click.option("--args", "arguments", is_flag=True, help="Also the values of its arguments.")
def show(site: Site, out: Output, entry: str, arguments: bool) -> None:
    """Show all that is known of a periodic task; the values of its arguments only with --args."""
    shown = operations.show(site, entry, arguments=arguments)
    if not out.as_json:
        shown["preview"] = [_coming(**each) for each in shown["preview"]]
    out.facts(shown)


@verb("next")
@click.argument("entry", required=False, shell_complete=complete_entry)
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@click.option("--cron", help="Preview a crontab instead of an entry, like '30 9 * * 1-5'.")
@click.option("--zone", help="The zone of --cron, like Europe/Paris.")
def next_dues(site: Site, out: Output, entry: str | None, count: int, cron: str | None, zone: str | None) -> None:
    """Preview when a periodic task, or a crontab, is due next; in UTC."""
    if (entry is None) == (cron is None):
        raise EntryError("give an entry, or a crontab with --cron")
    if entry is not None:
        found = operations.next_dues(site, entry, n=count)
    else:
        from celery_zsched import planner
        from celery_zsched.entry import build
        from celery_zsched.types import from_us

        spec = build("preview", "preview", cron, zone=zone, app_zone=site.schedules.zone)
        now_us = site.schedules.now_us()
        coming = planner.nominals(spec.installed(now_us), now_us, zone=site.schedules.zone)
        found = [Coming(from_us(at_us).isoformat()) for at_us in islice(coming, count)]
    if out.as_json:
        out.document({"entry": entry, "next": [each.to_dict() for each in found]})
    else:
        say("\n".join(_coming(**each.to_dict()) for each in found) or "Nothing is to come.")


def _coming(due: str, blackout: str | None) -> str:
    """Return an occurrence to come as a line."""
    return due if blackout is None else f"{due}  not sent, nor made up for: blackout {blackout!r}"


@verb("history")
@entry_argument
def history(site: Site, out: Output, entry: str) -> None:
    """Show what became of the last occurrences of a periodic task, the newest first."""
    out.rows(_HISTORY, operations.history(site, entry), "Nothing has happened yet.")


@verb("explain")
@entry_argument
@click.argument("at", required=False)
def explain(site: Site, out: Output, entry: str, at: str | None) -> None:
    """Explain how a periodic task stands, and why it did or did not run at a moment.

    AT is a time of day (09:00: the last one), or a moment (2026-12-24T18:00); without an offset it is in the zone of
    the entry.
    """
    told = operations.explain(site, entry, at)
    if out.as_json:
        out.document(told.to_dict())
        return
    if told.asked is not None:
        head = f"{told.entry} at {told.nominal or told.asked}: {told.outcome}"
    else:
        head = f"{told.entry}: {told.state}"
    say("\n".join([head, *(f"  {line}" for line in told.because)]))


COMMANDS = {"list": list_entries, "show": show, "next": next_dues, "history": history, "explain": explain}
