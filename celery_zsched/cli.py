"""``celery zsched …``, found by Celery through its entry point ``celery.commands``; works with no worker running.

Every ``celery`` command imports this module, which is also how the remote-control commands and the broker's URL schemes
become known without an import in the user's app. It imports nothing heavy that Celery has not imported by then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from celery_zsched import __version__, control, operations
from celery_zsched.apps import schedules_of
from celery_zsched.errors import ZschedError
from celery_zsched.schedules import Schedules

__all__ = ["control", "zsched"]

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each entry.")


@click.group(help=f"See and change what waits (celery-zsched {__version__}). Works with no worker running.")
def zsched() -> None:
    """Hold the commands."""


@zsched.command("list")
@_as_json
@click.pass_context
def list_entries(ctx: click.Context, as_json: bool) -> None:
    """List the periodic tasks: state, next due time in UTC, and why one does not run."""
    stored = _do(ctx, lambda schedules: sorted(schedules.all(), key=lambda each: (each.due_us or 0, each.name)))
    for each in stored:
        _say(operations.standing(each), as_json, each.fault)


@zsched.command()
@click.argument("entry")
@click.option("--reason", help="Why, for whoever asks later.")
@_as_json
@click.pass_context
def pause(ctx: click.Context, entry: str, reason: str | None, as_json: bool) -> None:
    """Pause a periodic task: nothing of it is sent until it is resumed."""
    _say(_do(ctx, lambda schedules: operations.pause_task(schedules, entry, reason=reason)), as_json)


@zsched.command()
@click.argument("entry")
@click.option("--catch-up", is_flag=True, help="Also run once now for what the pause has swallowed.")
@_as_json
@click.pass_context
def resume(ctx: click.Context, entry: str, catch_up: bool, as_json: bool) -> None:
    """Resume a paused periodic task: it is due at its next time."""
    _say(_do(ctx, lambda schedules: operations.resume_task(schedules, entry, catch_up=catch_up)), as_json)


def _do(ctx: click.Context, operate: Callable[[Schedules], Any]) -> Any:
    try:
        return operate(schedules_of(ctx.obj.app))
    except ZschedError as exc:
        raise click.ClickException(str(exc)) from exc


def _say(standing: operations.Standing, as_json: bool, fault: str | None = None) -> None:
    if as_json:
        click.echo(json.dumps(standing.to_dict() | {"fault": fault}))
        return
    why = fault or standing.reason
    by = f" by {standing.by}" if standing.by else ""
    coming = f", next {standing.next}" if standing.next else ""
    click.echo(f"{standing.entry}: {standing.state}{by}{coming}{f' ({why})' if why else ''}")
