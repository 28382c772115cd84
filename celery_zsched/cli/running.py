"""``celery zsched run | backfill``."""

from __future__ import annotations

import json
import uuid
from typing import Any

import click

from celery_zsched import operations
from celery_zsched.cli.base import (
    dry_run_option,
    entry_argument,
    reason_option,
    verb,
    with_offset,
    zone_of,
    zone_option,
)
from celery_zsched.cli.output import Output, plural
from celery_zsched.operations import Site

_RUNS = [("NOMINAL", "nominal"), ("SENT", "changed"), ("TASK ID", "task_id")]


class JsonType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A JSON list or object on the command line."""

    def __init__(self, kind: type, name: str) -> None:
        self.kind = kind
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that a text holds."""
        if not isinstance(value, str):
            return value
        try:
            found = json.loads(value)
        except ValueError as exc:
            self.fail(f"{value!r} is no JSON: {exc}", param, ctx)
        if not isinstance(found, self.kind):
            self.fail(f"{value!r} is no JSON {self.name}", param, ctx)
        return found


args_option = click.option(
    "--args", type=JsonType(list, "list"), help="Positional arguments, a JSON list: '[1, \"a\"]'."
)
kwargs_option = click.option("--kwargs", type=JsonType(dict, "object"), help="Named arguments, a JSON object.")


@verb("run", examples=("run report", "run report --args '[7]' --reason 'for the board'", "run task:app.report"))
@entry_argument
@args_option
@kwargs_option
@click.option("--request", help="An id: the same request runs once, however often it is repeated.")
@reason_option
def run(
    site: Site,
    out: Output,
    entry: str,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    request: str | None,
    reason: str | None,
) -> None:
    """Run a periodic task once more, now; its schedule does not move.

    ENTRY may also be task:NAME, for a task that no entry is of. --args and --kwargs take the place of the entry's own
    arguments for this run.
    """
    done = operations.run_task(
        site, entry, request=request or uuid.uuid4().hex, args=args, kwargs=kwargs, reason=reason
    )
    said = "sent" if done.changed else "was sent before by this request"
    out.one(done.to_dict(), f"{done.entry or 'by name'}: {done.task} {said}, as {done.task_id}")


@verb(
    "backfill",
    examples=(
        "backfill report 2026-11-02 2026-11-06 --dry-run",
        "backfill report '6h ago' now --pace 30 --reason 'the server was down'",
    ),
)
@entry_argument
@click.argument("since")
@click.argument("until")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Refuse more occurrences.")
@click.option("--pace", default="0", help="Let them become due one by one, so far apart: 30, 5m.")
@zone_option
@click.option("--label", default="", help="A name for this backfill; another label sends the same times again.")
@reason_option
@dry_run_option
def backfill(
    site: Site,
    out: Output,
    entry: str,
    since: str,
    until: str,
    limit: int,
    pace: str,
    label: str,
    reason: str | None,
    dry_run: bool,
    zone: str | None,
) -> None:
    """Send the past occurrences of a periodic task from SINCE to UNTIL, each once.

    Moments are like 2026-12-24T18:00, '6h ago' or now, in the zone of the entry unless they have an offset or --zone
    says another. Each message says for which time it stands.
    """
    since, until = with_offset(site, since, zone), with_offset(site, until, zone)
    out.speak_of(zone_of(site, entry))
    with out.progress("sending", limit) as advance:
        done = operations.backfill(
            site, entry, since, until, limit=limit, pace=pace, label=label, reason=reason, dry_run=dry_run,
            progress=lambda _done, _all: advance(1),
        )  # fmt: skip
    out.rows(_RUNS, [each.to_dict() for each in done], "There are no occurrences in that range.")
    if done and not out.as_json:
        sent = sum(each.changed for each in done)
        click.echo(f"{plural(len(done), 'occurrence')}{' would be sent' if dry_run else f', {sent:,} sent now'}.")


COMMANDS = {"run": run, "backfill": backfill}
