"""``celery zsched pause | resume``."""

from __future__ import annotations

from typing import Any

import click

from celery_zsched import operations
from celery_zsched.cli.base import dry_run_option, entry_argument, reason_option, verb
from celery_zsched.cli.output import Output
from celery_zsched.operations import Site
from celery_zsched.operations.standing import Standing, standing
from celery_zsched.operations.targets import find_entries, is_pattern


@verb("pause")
@entry_argument
@reason_option
@click.option("--until", help="End the pause by itself at this moment: 18:00, 2026-12-24T18:00, +2h.")
@click.option("--for", "lasting", help="End the pause by itself after so long: 90 (seconds), 15m, 2h30m.")
@dry_run_option
def pause(
    site: Site, out: Output, entry: str, reason: str | None, until: str | None, lasting: str | None, dry_run: bool
) -> None:
    """Pause a periodic task: nothing of it is sent until it is resumed.

    ENTRY may be a pattern with * and ? that selects many.
    """
    if dry_run:
        _say_dry(site, out, entry)
        return
    verb_: Any = operations.pause_tasks if is_pattern(entry) else operations.pause_task
    _say(out, verb_(site, entry, reason=reason, until=until, lasting=lasting))


@verb("resume")
@entry_argument
@click.option("--catch-up", is_flag=True, help="Also run once now for what the pause has swallowed.")
@dry_run_option
def resume(site: Site, out: Output, entry: str, catch_up: bool, dry_run: bool) -> None:
    """Resume a paused periodic task: it is due at its next time.

    ENTRY may be a pattern with * and ? that selects many.
    """
    if dry_run:
        _say_dry(site, out, entry)
        return
    verb_: Any = operations.resume_tasks if is_pattern(entry) else operations.resume_task
    _say(out, verb_(site, entry, catch_up=catch_up))


def _say_dry(site: Site, out: Output, entry: str) -> None:
    _say(out, [standing(stored) for stored in find_entries(site, entry)])


def _say(out: Output, done: Standing | list[Standing]) -> None:
    for each in done if isinstance(done, list) else [done]:
        out.one(each.to_dict() | {"fault": None}, sentence(each))


def sentence(each: Standing) -> str:
    """Return how an entry stands as a line."""
    by = f" by {each.by}" if each.by else ""
    until = f" until {each.until}" if each.until else ""
    coming = f", next {each.next}" if each.next else ""
    return f"{each.entry}: {each.state}{by}{until}{coming}{f' ({each.reason})' if each.reason else ''}"


COMMANDS = {"pause": pause, "resume": resume}
