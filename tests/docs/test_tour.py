"""The tour runs as written, and its page shows the same commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import examples.tour

RUN = Path(examples.tour.__file__).with_name("run.sh")
PAGE = RUN.parents[2] / "docs" / "tour.md"


def commands(text: str) -> list[str]:
    """Return the commands of a transcript."""
    return [line for line in text.splitlines() if line.startswith("$ ")]


@pytest.mark.slow
def test_every_command_of_the_tour_does_what_it_should() -> None:
    """Two workers and two beats on an embedded server; each command's output is checked by the script itself."""
    done = subprocess.run(
        ["bash", str(RUN)], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert commands(done.stdout) == commands(PAGE.read_text())
