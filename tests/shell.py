"""The commands of ``celery zsched``, for tests of what is written about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from celery_zsched.cli import zsched


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with the words that lead to it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


#: The words that lead to a command -> the command; groups too.
COMMANDS = dict(commands(zsched))


def path_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words that lead to a command, of those that stand after ``celery zsched``."""
    return tuple(words[:2]) if tuple(words[:2]) in COMMANDS else tuple(words[:1])


def parse(words: Sequence[str]) -> None:
    """See that words after ``celery zsched`` are a command with arguments and options that it has; nothing is run."""
    path = path_of(words)
    with COMMANDS[path].make_context(" ".join(path), list(words[len(path) :])):
        pass
