"""``celery zsched …``, found by Celery through its entry point ``celery.commands``; works with no worker running.

Every ``celery`` command imports this module, which is also how the remote-control commands and the broker's URL schemes
become known without an import in the user's app, and how workers come to hold run leases and to refuse a faulty beat.
It imports nothing heavy that Celery has not imported by then; what a command needs is imported when it is called.
"""

from __future__ import annotations

from importlib import import_module

import click
from click_didyoumean import DYMGroup

from celery_zsched import __version__, control, embedding, run_leases

__all__ = ["control", "embedding", "run_leases", "zsched"]

#: What is said above commands in ``--help`` -> command -> the module beside this one that has it.
_SECTIONS = {
    "Look at periodic tasks": {
        "list": "entries",
        "show": "entries",
        "next": "entries",
        "history": "entries",
        "explain": "entries",
        "plan": "watching",
    },
    "Change periodic tasks": {
        "add": "editing",
        "edit": "editing",
        "rm": "editing",
        "run": "running",
        "backfill": "running",
        "blackout": "doctoring",
        "reanchor": "reanchoring",
    },
    "Hold back and cancel: periodic tasks, task names, queues, single tasks": {
        "pause": "pausing",
        "resume": "pausing",
        "paused": "pausing",
        "cancel": "queues",
    },
    "Look at what waits": {"timeline": "queues", "task": "queues", "queues": "queues", "dead": "queues"},
    "Watch over it all": {
        "beats": "watching",
        "health": "watching",
        "doctor": "doctoring",
        "audit": "watching",
    },
    "Move in and out": {
        "export": "carrying",
        "import": "carrying",
        "import-redbeat": "carrying",
        "import-django-celery-beat": "carrying",
        "import-shelve": "carrying",
    },
}
_HOMES = {command: home for section in _SECTIONS.values() for command, home in section.items()}

_EXAMPLES = """\b
Examples:
  celery -A app zsched list
  celery -A app zsched pause report --reason 'numbers are wrong' --for 2h
  celery -A app zsched explain report 09:00

Each command has its own --help. Where a command takes a periodic task, it is named as in beat_schedule or by `add`.
"""


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by what they are for, each with its first sentence."""
        width = max(map(len, _HOMES))
        for head, section in _SECTIONS.items():
            with formatter.section(head):
                rows = []
                for name in section:
                    command = self.get_command(ctx, name)
                    help_text = " ".join((command.help if command and command.help else "").split("\n\n")[0].split())
                    rows.append((name.ljust(width), help_text.removesuffix(".")))
                formatter.write_dl(rows)


@click.group(
    cls=Verbs,
    epilog=_EXAMPLES,
    help=f"See and change what waits (celery-zsched {__version__}). Works with no worker running.",
)
def zsched() -> None:
    """Hold the commands."""
