"""Commands that pages show exist, have the options that are shown, and are run by the tour or by the README's test."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from celery.worker.control import Panel

import celery_zsched.control as remote
import examples.tour
from tests.shell import COMMANDS, parse, path_of

ROOT = Path(examples.tour.__file__).parents[2]
TOUR = ROOT / "docs" / "tour.md"
OPERATIONS = ROOT / "docs" / "operations.md"
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != TOUR)]

_COMMAND = re.compile(r"celery (?:-A \S+ )?(zsched|control|inspect)\b([^`|\n]*)")

#: What stands for something that a reader puts in.
_PLACEHOLDER = re.compile(r"…|\b[A-Z]{2,}\b")


def shown(page: Path) -> list[tuple[str, list[str]]]:
    """Return the commands that a page shows: ``zsched``, ``control`` or ``inspect``, and the words after it."""
    found = []
    for family, rest in _COMMAND.findall(page.read_text(encoding="utf-8")):
        words = shlex.split(rest, comments=True)
        if words and not _PLACEHOLDER.search(rest):
            found.append((family, words))
    return found


def name_of(family: str, words: list[str]) -> tuple[str, ...]:
    """Return what identifies a command."""
    return (family, *(path_of(words) if family == "zsched" else words[:1]))


RUN = {name_of(*each) for page in (TOUR, ROOT / "README.md") for each in shown(page)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_that_a_page_shows_is_run_by_a_test(page: Path, tmp_path: Path) -> None:
    """Nothing is shown that was not tried, and its options are known."""
    for family, words in shown(page):
        if words[0].startswith("-"):
            continue  # of the group itself
        if family == "zsched" and isinstance(COMMANDS[path_of(words)], click.Group):
            continue  # each of its commands is run
        assert name_of(family, words) in RUN, (page.name, words)
        if family == "zsched" and len(words) > len(path_of(words)):
            parse(words)


@pytest.mark.parametrize(
    "path", [path for path, command in COMMANDS.items() if not isinstance(command, click.Group)], ids="-".join
)
def test_every_command_is_run_by_the_tour_and_told_of(path: tuple[str, ...]) -> None:
    """With its output on the tour's page, and by name on that of operations."""
    assert ("zsched", *path) in RUN
    assert re.search(rf"`{re.escape(path[0])}\b", OPERATIONS.read_text(encoding="utf-8"))


def test_every_command_of_remote_control_is_run_by_the_tour() -> None:
    """All that workers know of us, but what they tell each other."""
    ours = {
        ("control" if Panel.meta[name].type == "control" else "inspect", name)
        for name, function in Panel.data.items()
        if function.__module__ == remote.__name__ and Panel.meta[name].visible
    }
    assert ours
    assert ours <= RUN
