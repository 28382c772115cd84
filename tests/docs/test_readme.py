"""The README does what it says: its Python, its commands, its URLs, its links, and the demo."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import examples.quickstart
from celery_zsched.urls import parse
from tests.programs import PATIENCE_S, Project
from tests.servers import wait_until

#: The examples stand beside the README, whichever copy of the package is tested.
ROOT = Path(examples.quickstart.__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def shell_commands() -> list[list[str]]:
    """Return the commands, as words."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An app that is set up by the README's own lines, on an embedded server, with the tasks that it names."""
    (set_scheduler,) = [block for block in blocks("python") if "beat_scheduler" in block]
    (use_current,) = [block for block in blocks("python") if "current()" in block]
    source = f"""
import celery_zsched
{set_scheduler}
app.conf.beat_schedule = {{"each": {{"task": "app.tell", "schedule": 1.0}}}}

@app.task(name="app.report")
def report(kind): pass

@app.task(name="app.poll")
def poll(): pass

@app.task(name="app.tell")
def tell():
{textwrap.indent(use_current, "    ")}
    open("told", "a").write(f"{{occurrence.entry}} {{occurrence.nominal.isoformat()}}\\n")
"""
    made = Project(tmp_path, f"zsched+embedded://{tmp_path}/server", source)
    yield made
    made.close()


def run_snippet(project: Project, snippet: str) -> None:
    """Run Python of the README in a process of its own, with the app at hand."""
    done = subprocess.run(
        [sys.executable, "-c", f"from project import app\n{snippet}"],
        cwd=project.directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_periodic_tasks_are_set_up_added_paused_and_listed_as_written(project: Project) -> None:
    """Each line of Python and each celery command of the README works, in the order in which they stand."""
    worker = project.worker("-B")
    told = project.directory / "told"
    wait_until(lambda: told.exists() and "each " in told.read_text(), what="a task that knows its occurrence")
    (add,) = [block for block in blocks("python") if "Entry(" in block]
    run_snippet(project, add)
    assert {stored.name for stored in project.schedules.all()} == {"each", "report"}
    commands = [words[3:] for words in shell_commands() if words[:3] == ["celery", "-A", "app"]]
    assert len(commands) == 9
    for words in commands:
        done = project.celery(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        paused = {"pause_task": True, "pause": True, "resume_task": False, "resume": False}
        for word in words:
            if word in paused:
                assert (project.schedules.get("report").state.value == "paused") is paused[word]
    assert worker.terminate() == 0


def test_the_broker_line_names_a_broker_of_ours() -> None:
    """The URL of the README, and each in its table, leads to the kind of server that it says."""
    (line,) = [block for block in blocks("python") if "broker_url" in block]
    url = re.findall(r'"(zsched\+[^"]+)"', line)
    assert [parse(each).kind for each in url] == ["tcp"]
    table = re.findall(r"^\| `(zsched\+[^`]+)`", README, re.MULTILINE)
    kinds = [parse(each.replace("…", "host/0")).kind for each in table]
    assert kinds == ["tcp", "tls", "unix", "sentinel", "cluster", "embedded"]


def test_every_other_command_is_known() -> None:
    """Apart from celery's, there are make targets that exist, and pip installs of extras that exist."""
    makefile = (ROOT / "Makefile").read_text()
    setup = (ROOT / "setup.cfg").read_text()
    for words in shell_commands():
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
        elif words[:2] == ["pip", "install"]:
            extra = re.fullmatch(r"celery-zsched(?:\[(\w+)\])?", words[2])
            assert extra and (extra[1] is None or re.search(rf"^{extra[1]} =", setup, re.MULTILINE)), words
        else:
            assert words[:3] == ["celery", "-A", "app"], words


def test_the_readme_reads_right_where_there_is_no_source_beside_it() -> None:
    """A package index shows it by itself, so it links to nothing beside it, and the pages that it names exist."""
    assert re.findall(r"\]\((?!https?:)", README) == []
    pages = re.findall(r"`(?:docs/)?([a-z-]+\.md)`", README)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(pages)
    assert [page for page in pages if not (ROOT / "docs" / page).exists()] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the project names one that exists."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.slow
def test_the_demo_shows_the_main_job() -> None:
    """`make demo` fires, adds, pauses and resumes, and ends by itself with exit code 0."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.quickstart", "--seconds", "8"],
        cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "0 of them twice" in done.stdout
