"""What every command has: the site it works on, ``--json``, ``--zone``, examples, and errors in one sentence."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click
from celery.app.utils import find_app

from celery_zsched.cli.output import Output, short
from celery_zsched.errors import EntryError, ScheduleError, ZschedError
from celery_zsched.operations import Site
from celery_zsched.operations.moments import moment_us
from celery_zsched.types import from_us, to_us

_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


class WrongUsageError(click.ClickException):
    """What was asked for makes no sense, so that asking again is of no use."""

    exit_code = 2


class ZoneType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """The name of a time zone on the command line."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, if there is such a zone."""
        try:
            ZoneInfo(value)
        except (LookupError, ValueError, OSError):
            self.fail(f"there is no time zone {value!r}; write one like Europe/Paris, or UTC", param, ctx)
        return value


reason_option = click.option("--reason", help="Why, for whoever asks later.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")
zone_option = click.option(
    "--zone", type=ZoneType(), help="Read and show moments in this zone, like UTC, instead of the entry's or the app's."
)


def verb(
    name: str, *, examples: tuple[str, ...] = (), **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function of (site, output, the command's own arguments).

    ``examples`` are words after ``celery -A app zsched``. A command that takes a zone shows moments in it.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        def called(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
            out = Output(as_json)
            try:
                site = Site.of(ctx.obj.app)
                out = Output(as_json, site.schedules.zone, given.get("zone"))
                function(site, out, **given)
            except (EntryError, ScheduleError) as exc:
                raise WrongUsageError(short(str(exc), out.zone)) from exc
            except ZschedError as exc:
                raise click.ClickException(short(str(exc), out.zone)) from exc

        functools.update_wrapper(called, function)
        option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
        shaped: Any = option(click.pass_context(called))
        make_command: Any = click.command(name, epilog=shown(examples))
        command: click.Command = make_command(shaped)
        return command

    return make


def shown(examples: tuple[str, ...]) -> str | None:
    """Return examples as the end of a help text."""
    if not examples:
        return None
    return "\n".join(["\b", "Examples:", *(f"  celery -A app zsched {example}" for example in examples)])


def with_offset(site: Site, text: str, zone: str | None, *, last: bool = False) -> str:
    """Return a moment as the user meant it: read in the zone that he asked for, if any.

    A time of day is the next one, or with ``last`` the last one that was.
    """
    if zone is None:
        return text
    now_us = site.schedules.now_us()
    found_us = moment_us(text, now_us, zone)
    if last and found_us > now_us and _TIME_OF_DAY.fullmatch(text.strip()):
        found_us = to_us(from_us(found_us).astimezone(ZoneInfo(zone)) - timedelta(days=1))
    return from_us(found_us).isoformat()


def zone_of(site: Site, entry: str) -> str | None:
    """Return the zone of an entry, if there is one of that name and it has a zone."""
    for stored in site.schedules.get_many(dict.fromkeys([entry, entry.removeprefix("entry:")])):
        return stored.spec.zone if stored.spec is not None else None
    return None


def complete_entry(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the entries whose names begin with what is typed, for shell completion."""
    try:
        app = ctx.find_root().params.get("app")
        if app is None:
            return []
        if isinstance(app, str):
            sys.path.insert(0, str(Path.cwd()))
            app = find_app(app)
        schedules = Site.of(app).schedules
        return sorted(name for name in schedules.names() if name.startswith(incomplete))[:100]
    except Exception:
        return []  # a shell that completes has nowhere to say what is wrong


entry_argument = click.argument("entry", shell_complete=complete_entry)
