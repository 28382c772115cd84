"""What a mistyped name is taken for: its like, and never just any name."""

from __future__ import annotations

import pytest

from celery_zsched.guesses import asked_of, likely

NAMES = ["report", "repair", "nightly-report", "app.tasks.cleanup", "Backup"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("repot", ["report"]),
        ("nightly-repotr", ["nightly-report"]),
        ("backup", ["Backup"]),
        ("cleanup", ["app.tasks.cleanup"]),
        ("app.task.cleanup", ["app.tasks.cleanup"]),
        ("invoice", []),
        ("", []),
    ],
)
def test_likely_names_are_alike(written: str, meant: list[str]) -> None:
    """A slip is recognized, whatever the case, and so is the last part of a dotted name; another word is not."""
    assert likely(written, NAMES) == meant


def test_what_is_like_nothing_is_answered_with_what_there_is() -> None:
    """Nobody is asked whether he meant something unrelated: a few of the names there are listed as such."""
    assert asked_of("repot", NAMES, "entries") == "; did you mean 'report'?"
    assert asked_of("invoice", ["b", "a"], "entries") == "; the entries are 'a', 'b'"
    assert asked_of("invoice", [f"e{number}" for number in range(9)], "entries").endswith("'e4' and 4 more")
    assert asked_of("invoice", [], "entries") == "; there are no entries at all"
