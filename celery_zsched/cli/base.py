"""What every command has: the site it works on, ``--json``, and errors in one sentence."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from celery.app.utils import find_app

from celery_zsched.cli.output import Output
from celery_zsched.errors import ZschedError
from celery_zsched.operations import Site

reason_option = click.option("--reason", help="Why, for whoever asks later.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")
force_option = click.option("--force", is_flag=True, help="Also when beat_schedule declares it.")


def verb(name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function of (site, output, the command's own arguments)."""

    def make(function: Callable[..., Any]) -> click.Command:
        def called(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
            try:
                function(Site.of(ctx.obj.app), Output(as_json), **given)
            except ZschedError as exc:
                raise click.ClickException(str(exc)) from exc

        functools.update_wrapper(called, function)
        option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
        shaped: Any = option(click.pass_context(called))
        make_command: Any = click.command(name, **settings)
        command: click.Command = make_command(shaped)
        return command

    return make


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
