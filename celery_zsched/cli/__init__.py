"""``celery zsched …``, found by Celery through its entry point ``celery.commands``; works with no worker running.

Every ``celery`` command imports this module, which is also how the remote-control commands and the broker's URL schemes
become known without an import in the user's app, and how workers come to hold run leases. It imports nothing heavy that
Celery has not imported by then; what a command needs is imported when it is called.
"""

from __future__ import annotations

from importlib import import_module

import click
from click_didyoumean import DYMGroup

from celery_zsched import __version__, control, run_leases

__all__ = ["control", "run_leases", "zsched"]

#: Command -> the module beside this one that has it, in the order of ``--help``.
_HOMES = {
    "list": "entries",
    "show": "entries",
    "next": "entries",
    "history": "entries",
    "explain": "entries",
    "add": "editing",
    "edit": "editing",
    "rm": "editing",
    "pause": "pausing",
    "resume": "pausing",
    "run": "running",
    "backfill": "running",
    "cancel": "queues",
    "timeline": "queues",
    "task": "queues",
    "queues": "queues",
    "dead": "queues",
    "paused": "pausing",
    "beats": "watching",
    "health": "watching",
    "audit": "watching",
    "doctor": "doctoring",
    "blackout": "doctoring",
    "plan": "watching",
    "export": "carrying",
    "import": "carrying",
    "import-redbeat": "carrying",
    "import-django-celery-beat": "carrying",
    "import-shelve": "carrying",
}


class Verbs(DYMGroup):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the table."""
        return [*_HOMES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of that name."""
        home = _HOMES.get(cmd_name)
        if home is None:
            return None
        command: click.Command = import_module(f"celery_zsched.cli.{home}").COMMANDS[cmd_name]
        return command


@click.group(cls=Verbs, help=f"See and change what waits (celery-zsched {__version__}). Works with no worker running.")
def zsched() -> None:
    """Hold the commands."""
