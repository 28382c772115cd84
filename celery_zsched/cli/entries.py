"""``celery zsched list | show | next | history | explain``."""

from __future__ import annotations

from itertools import islice

import click

from celery_zsched import operations
from celery_zsched.cli.base import ZoneType, complete_entry, entry_argument, verb, with_offset, zone_of, zone_option
from celery_zsched.cli.output import Output
from celery_zsched.errors import EntryError, NotFoundError
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


@verb("list", examples=("list", "list 'report-*' --state paused", "list --zone UTC --json --all"))
@click.argument("pattern", required=False, shell_complete=complete_entry)
@click.option("--state", type=click.Choice(_STATES), help="Only entries that stand so.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most entries.")
@click.option("--after", help="Go on after the entry of this name, the last of the page before.")
@click.option("--all", "everything", is_flag=True, help="All entries, however many.")
@zone_option
def list_entries(
    site: Site,
    out: Output,
    pattern: str | None,
    state: str | None,
    limit: int,
    after: str | None,
    everything: bool,
    zone: str | None,
) -> None:
    """List periodic tasks: their state, when they run next and ran last, and what keeps one from running.

    PATTERN selects by name with * and ?; where it is the very name of one, that one alone. Each line is in the zone of
    its entry.
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
    nothing = "None matches." if pattern or state or after else "There are no periodic tasks."
    out.rows(_LIST, documents, nothing, zone="zone", spare=("zone", "task", "last"))
    if more is not None and not out.as_json:
        click.echo(f"There are more: --after {more!r}, or --all.")


@verb("show", examples=("show report", "show report --args"))
@entry_argument
@click.option("--args", "arguments", is_flag=True, help="Also the values of its arguments.")
@zone_option
def show(site: Site, out: Output, entry: str, arguments: bool, zone: str | None) -> None:
    """Show all that is known of a periodic task; the values of its arguments only with --args."""
    shown = operations.show(site, entry, arguments=arguments)
    if not out.as_json:
        out.speak_of(shown["zone"])
        shown["preview"] = [_coming(**each) for each in shown["preview"]]
    out.facts(shown)


@verb("next", examples=("next report -n 10", "next --cron '30 9 * * 1-5' --zone Europe/Paris"))
@click.argument("entry", required=False, shell_complete=complete_entry)
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@click.option("--cron", help="Preview a crontab instead of an entry, like '30 9 * * 1-5'.")
@click.option("--zone", type=ZoneType(), help="The zone of --cron, like Europe/Paris, and of what is shown.")
def next_dues(site: Site, out: Output, entry: str | None, count: int, cron: str | None, zone: str | None) -> None:
    """Preview when a periodic task, or a crontab, is due next."""
    if (entry is None) == (cron is None):
        raise EntryError("give an entry, or else a crontab with --cron")
    if entry is not None:
        found = operations.next_dues(site, entry, n=count)
        out.speak_of(zone_of(site, entry))
    else:
        from celery_zsched import planner
        from celery_zsched.entry import build
        from celery_zsched.types import from_us

        try:
            spec = build("preview", "preview", cron, zone=zone, app_zone=site.schedules.zone)
        except EntryError as exc:
            raise EntryError(str(exc).removeprefix("the entry 'preview' cannot be used: ")) from None
        now_us = site.schedules.now_us()
        coming = planner.nominals(spec.installed(now_us), now_us, zone=site.schedules.zone)
        found = [Coming(from_us(at_us).isoformat()) for at_us in islice(coming, count)]
    if out.as_json:
        out.document({"entry": entry, "next": [each.to_dict() for each in found]})
    else:
        out.say("\n".join(_coming(**each.to_dict()) for each in found) or "Nothing is to come.")


def _coming(due: str, blackout: str | None) -> str:
    """Return an occurrence to come as a line."""
    return due if blackout is None else f"{due}  not sent, nor made up for: blackout {blackout!r}"


@verb("history", examples=("history report",))
@entry_argument
@zone_option
def history(site: Site, out: Output, entry: str, zone: str | None) -> None:
    """Show what became of the last occurrences of a periodic task, the newest first."""
    out.speak_of(zone_of(site, entry))
    out.rows(_HISTORY, operations.history(site, entry), "Nothing has happened yet.", spare=("by", "missed", "task_id"))


@verb("explain", examples=("explain report", "explain report 09:00", "explain report 2026-12-24T18:00"))
@entry_argument
@click.argument("at", required=False)
@zone_option
def explain(site: Site, out: Output, entry: str, at: str | None, zone: str | None) -> None:
    """Explain how a periodic task stands, and why it did or did not run at a moment.

    AT is a time of day (09:00: the last one), or a moment (2026-12-24T18:00), in the zone of the entry unless it has an
    offset or --zone says another. For a task by its id see `task`.
    """
    try:
        told = operations.explain(site, entry, None if at is None else with_offset(site, at, zone, last=True))
    except NotFoundError:
        if site.own_queues is not None and site.own_queues.locate(entry):
            raise NotFoundError(f"{entry!r} is no entry but the id of a task; see `celery zsched task`") from None
        raise
    if out.as_json:
        out.document(told.to_dict())
        return
    out.speak_of(zone_of(site, entry))
    if told.asked is not None:
        head = f"{told.entry} at {told.nominal or told.asked}: {told.outcome}"
    else:
        head = f"{told.entry}: {told.state}"
    out.say("\n".join([head, *(f"  {line}" for line in told.because)]))


COMMANDS = {"list": list_entries, "show": show, "next": next_dues, "history": history, "explain": explain}
