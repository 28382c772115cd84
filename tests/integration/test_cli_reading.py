"""What people read and type in ``celery zsched …``: exit codes, zones, examples, completion."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from celery_zsched import Entry
from celery_zsched.cli import zsched
from celery_zsched.cli.output import fitting, plural, short
from celery_zsched.entry import OperatorState
from celery_zsched.operations import Site
from tests.programs import MODULE, Project
from tests.servers import RunningServer
from tests.shell import COMMANDS, parse

SOURCE = """
@app.task(name="add")
def add(x, y):
    return x + y
"""


class Shell:
    """A shell in this process, and the project that it works on.

    Tests that send use a queue of their own: the process takes one that it has declared for there, though the server is
    emptied between tests.
    """

    def __init__(self, project: Project) -> None:
        self.project = project

        @project.app.task(name="add", shared=False)
        def add(x: int, y: int) -> int:
            return x + y

    def __call__(self, line: str) -> Result:
        """Run ``celery -A project zsched LINE``."""
        return CliRunner().invoke(zsched, shlex.split(line), obj=SimpleNamespace(app=self.project.app))

    def says(self, line: str) -> str:
        """Run a line that works; return what it says."""
        done = self(line)
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture
def shell(valkey: RunningServer, start_project: Callable[..., Project]) -> Shell:
    """A shell on our own broker, whose app is in Paris; there are an entry of New York and one without a zone."""
    project = start_project(valkey, SOURCE, ours=True, timezone="Europe/Paris")
    made = Shell(project)
    Entry("here", "add", 3600, (1, 2), app=project.app).save()
    made.says("add there add --cron '0 9 1 1 *' --zone America/New_York --args '[1, 2]'")
    return made


@pytest.mark.parametrize(
    "line",
    [
        "run here --args '[1]'",
        "run here --args '[1, 2, 3]'",
        "run task:add",
        "run task:add --args '[1, 2]' --kwargs '{\"x\": 1}'",
        "add x add",
        "add x add --every 5m --cron '* * * * *'",
        "add x add --cron bad",
        "add x add --every soon",
        "add x add --every 0",
        "add x add --every 5m --count 0",
        "add x add --every 5m --misfire-limit -3",
        "add x add --every 5m --expires never",
        "add x add --rrule FREQ=SOMETIMES",
        "add x add --at yesterday",
        "edit here",
        "edit here --every 5m --cron '* * * * *'",
        "pause here --for 5m --until 18:00",
        "pause here --for soon",
        "pause here --until 2020-01-01",
        "pause here --for 1000000000000d",
        "pause here --for 3652000d",
        "pause queue:celery --for 1000000000000d",
        "pause task:add --until '+99999999999d'",
        "pause here --until 9999-12-31T23:59:59-12:00",
        "add x add --every 1000000000000d",
        "add x add --every 5m --grace 1000000000000d",
        "add x add --every 5m --jitter 1000000000000d",
        "add x add --every 5m --expires 1000000000000d",
        "add x add --at '+99999999999d'",
        "backfill here '99999999999d ago' now",
        "backfill here '3h ago' now --pace 1000000000000d",
        "explain here '99999999999d ago'",
        "explain here '+99999999999d'",
        "explain here 0001-01-01T00:00+09:00",
        "queues --rate 100000d",
        "health --max-lag 1000000000000d",
        "backfill here yesterday now",
        "backfill here now '2h ago'",
        "backfill here '20h ago' now --limit 5",
        "backfill here '2h ago' now --pace slowly",
        "next",
        "next here --cron '* * * * *'",
        "next --cron bad",
        "explain here someday",
        "dead requeue",
        "dead purge x --all",
        "queues --rate x",
        "health --max-lag x",
        "blackout set b",
        "blackout set b someday",
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(shell: Shell, line: str) -> None:
    """What can never work is told from what cannot be done now; there is no traceback."""
    done = shell(line)
    assert done.exit_code == 2, (done.output, done.exception)
    assert done.output.startswith("Error: ") and done.output.count("\n") == 1, done.output


def test_a_stored_moment_that_no_calendar_has_takes_no_listing_down(shell: Shell) -> None:
    """It is shown as the last one that can be told, in any zone, and all else beside it."""
    site = Site.of(shell.project.app)
    far = OperatorState(paused=True, by="ann", since_us=-(10**20), until_us=10**23)
    for target in ("queue:celery", "task:add", "id:t-1"):
        site.queues.note(target, far)
    site.schedules.remind("task:add", far.until_us)
    site.schedules.pause("here", far)
    lines = (
        "list", "show here", "paused", "paused --zone Asia/Tokyo", "timeline", "queues", "explain here",
        "explain there", "next here", "history here", "doctor", "health", "beats", "plan", "export",
    )  # fmt: skip
    for line in lines:
        done = shell(line)
        assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
    assert "9999-12-31T23:59:59" in shell.says("paused --zone Asia/Tokyo")
    assert shell.says("resume here") and shell.says("resume queue:celery") and shell.says("resume task:add")


@pytest.mark.parametrize(
    "line",
    [
        "run here --args 1",
        "run here --args '{'",
        "add x add --every 5m --zone Nowhere",
        "list --state odd",
        "next -n 0",
    ],
)
def test_a_wrong_option_is_named_with_the_commands_usage(shell: Shell, line: str) -> None:
    """As by click everywhere."""
    done = shell(line)
    assert done.exit_code == 2
    assert "Invalid value for" in done.output


@pytest.mark.parametrize(
    "line",
    [
        "add here add --every 5m",
        "show nobody",
        "pause nobody",
        "cancel nobody",
        "run nobody",
        "task nobody",
        "dead requeue nobody",
        "blackout show nobody",
        "import-shelve nowhere",
    ],
)
def test_what_cannot_be_done_now_is_one_line_and_exit_code_1(shell: Shell, line: str) -> None:
    """Asking is right, and what is there says no."""
    done = shell(line)
    assert done.exit_code == 1, (done.output, done.exception)
    assert done.output.startswith("Error: ") and done.output.count("\n") == 1, done.output


def test_a_server_that_is_away_is_named_in_one_line(start_project: Callable[..., Project]) -> None:
    """With what was being done, in words."""
    project = start_project(SimpleNamespace(url="redis://127.0.0.1:1"), SOURCE, ours=True)
    for line in ("list", "task t-1", "queues"):
        done = Shell(project)(line)
        assert done.exit_code == 1, (done.output, done.exception)
        assert re.match(r"Error: \w+ing .*failed at \S*redis://127\.0\.0\.1:1", done.output) or re.match(
            r"Error: the script \w+ failed at \S*redis://127\.0\.0\.1:1", done.output
        ), done.output


def test_moments_are_shown_in_the_entrys_zone_or_else_the_apps_and_in_json_in_utc(shell: Shell) -> None:
    """By every command that speaks of the entry; tables of many things are in the app's zone; --zone says another."""
    there = "01-01T09:00:00-05:00"
    for line in (
        "list there", "show there", "next there", "explain there", "resume there",
        "edit there --expires 1h", "edit there --expires 2h --reason x",
    ):  # fmt: skip
        assert there in shell.says(line), line
    assert "01-01T15:00:00+01:00" in shell.says("timeline")
    for command in ("list there", "show there", "next there", "explain there", "timeline"):
        assert "01-01T14:00:00Z" in shell.says(f"{command} --zone UTC"), command
    assert "01-01T14:00:00+00:00" in json.loads(shell.says("list there --json"))["next"]
    assert "+01:00" in shell.says("list here") or "+02:00" in shell.says("list here")
    assert "T09:00:00-05:00" in shell.says("next --cron '0 9 1 1 *' --zone America/New_York")
    assert "T09:00:00+01:00" in shell.says("next --cron '0 9 1 1 *'")


def test_moments_without_an_offset_are_read_where_they_are_shown(shell: Shell) -> None:
    """In the entry's zone, or else the app's; --zone and an offset say another; what is shown can be typed again."""
    for line, until in (
        ("pause there --until 2099-01-01T12:00", "2099-01-01T12:00:00-05:00"),
        ("pause here --until 2099-01-01T12:00", "2099-01-01T12:00:00+01:00"),
        ("pause task:add --until 2099-01-01T12:00", "2099-01-01T12:00:00+01:00"),
        ("pause there --until 2099-01-01T12:00 --zone UTC", "2099-01-01T12:00:00Z"),
        ("pause here --until 2099-01-01T12:00Z", "2099-01-01T13:00:00+01:00"),
        ("pause here --until 2099-01-01T13:00:00+01:00", "2099-01-01T13:00:00+01:00"),
    ):
        assert until in shell.says(line), line
    assert "2020-01-01T09:00:00-05:00: not sent" in shell.says("explain there 2020-01-01T09:00")
    assert "2020-01-01T14:00:00Z: not sent" in shell.says("explain there 2020-01-01T14:00 --zone UTC")
    assert "1 occurrence would be sent" in shell.says("backfill there 2020-01-01T09:00 2020-01-01T09:00 --dry-run")
    said = shell.says("backfill there 2020-01-01T14:00 2020-01-01T14:00 --zone UTC --dry-run")
    assert "2020-01-01T14:00:00Z" in said and "1 occurrence would be sent" in said


def test_who_asks_to_explain_a_task_is_told_where_to_look(shell: Shell) -> None:
    """An id of a task is no entry; the error knows it."""
    shell.project.app.send_task("add", (1, 2), task_id="t-1", countdown=3600, queue="explained")
    done = shell("explain t-1")
    assert done.exit_code == 1
    assert done.output == "Error: 't-1' is no entry but the id of a task; see `celery zsched task`\n"


def test_lines_of_a_table_end_where_their_text_ends(shell: Shell) -> None:
    """Nothing is in the way of who copies them or reads them by a program."""
    assert [line for line in shell.says("list").splitlines() if line != line.rstrip()] == []


PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def documented(command: str) -> set[str]:
    """Return the fields that the page gives for a row of its table of JSON."""
    found = re.search(rf"^\| {re.escape(command)} \| (.*) \|$", PAGE, re.MULTILINE)
    assert found, command
    return set(re.sub(r"\s*\([^()]*\)", "", found[1]).split(", "))


def test_json_has_the_fields_that_are_documented(shell: Shell) -> None:
    """Of every command that answers with a result; a field more or less would have to be told."""
    shell.project.app.send_task("add", (1, 2), task_id="t-1", countdown=3600, queue="told")

    def fields(line: str) -> set[str]:
        done = shell(f"{line} --json")
        assert done.stdout, (line, done.output, done.exception)
        return set(json.loads(done.stdout.splitlines()[0]))

    for command, line in (
        ("`list`", "list here"),
        ("`next`", "next here"),
        ("`pause`, `resume`, `add`, `edit`, `reanchor` of entries", "pause here --reason x"),
        ("`pause`, `resume` of messages", "pause id:t-1"),
        ("`paused`", "paused"),
        ("`run`, `backfill`", "run here"),
        ("`history`", "history here"),
        ("`explain`", "explain here 09:00"),
        ("`timeline`", "timeline"),
        ("`task`, `dead list`, `dead show`", "task t-1"),
        ("`cancel`", "cancel t-1"),
        ("`health`", "health"),
        ("`audit`", "audit"),
        ("`doctor`", "doctor"),
        ("`rm`", "rm there"),
    ):
        assert fields(line) == documented(command), command
    shell.says("blackout set b 2099-12-24")
    assert fields("blackout show b") == documented("`blackout show`")
    assert fields("blackout list") == documented("`blackout list`")
    assert fields("queues") == documented("`queues`")
    assert fields("show here") - documented("`show`") == documented("`list`")
    shell.project.app.conf.beat_schedule = {"new": {"task": "add", "schedule": 60}}
    assert fields("plan") == documented("`plan`")
    assert fields("dead requeue --all") == {"requeued", "dry_run"}
    assert fields("dead purge --all") == {"purged", "dry_run"}


def test_a_dry_run_says_what_would_be_and_does_nothing(shell: Shell) -> None:
    """Pause and resume, of entries and of others; an unknown name is minded."""
    assert "here: would be paused" in shell.says("pause here --reason flood --dry-run")
    assert "task:add: would be paused" in shell.says("pause task:add --dry-run")
    assert shell.says("paused") == "Nothing is paused.\n"
    shell.says("pause here --reason flood")
    assert "here: would be scheduled, next " in shell.says("resume here --dry-run")
    assert "flood" in shell.says("paused")
    assert len(shell.says("pause task:nobody --dry-run").splitlines()) == 2


@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_help_is_whole_and_its_examples_are_commands(
    path: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command says what it does, each option what it is for; an example's options exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "entries.jsonl").touch()
    (tmp_path / "holidays.ics").touch()
    command = COMMANDS[path]
    assert command.help
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))
    examples = [
        line.strip().removeprefix("celery -A app zsched ")
        for line in (command.epilog or "").splitlines()
        if line.startswith("  celery -A app zsched ")
    ]
    assert examples or len(path) > 1, "a command has an example"
    for example in examples:
        parse(shlex.split(example.partition(" > ")[0]))


def test_the_help_of_the_group_names_every_command_once() -> None:
    """In sections, with a whole sentence each."""
    said = CliRunner().invoke(zsched, ["--help"]).output
    assert "..." not in said.partition("\n")[2]
    first_words = [line.split()[0] for line in said.splitlines() if line.startswith("  ") and line[2] not in " -"]
    for path in COMMANDS:
        if len(path) == 1:
            assert first_words.count(path[0]) == 1, path


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["zs"], "zsched"),
        (["zsched", "expl"], "explain"),
        (["zsched", "pause", "the"], "there"),
        (["zsched", "pause", "--rea"], "--reason"),
        (["zsched", "list", "--state", "qua"], "quarantined"),
    ],
)
def test_the_shell_completes_commands_options_and_entries(shell: Shell, words: list[str], wanted: str) -> None:
    """As bash asks for it."""
    line = ["celery", "-A", MODULE, *words]
    env = {"_CELERY_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['celery']; from celery.__main__ import main; main()"],
        cwd=shell.project.directory, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [f"plain,{wanted}"], done.stderr


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (0, "message", "0 messages"),
        (1, "message", "1 message"),
        (1, "entry", "1 entry"),
        (2000, "entry", "2,000 entries"),
    ],
)
def test_one_is_not_many(count: int, noun: str, said: str) -> None:
    """Numbers agree with their nouns."""
    assert plural(count, noun) == said


@pytest.mark.parametrize(("width", "kept"), [(20, "abc"), (13, "abc"), (12, "ac"), (8, "ac"), (7, "a"), (1, "a")])
def test_a_narrow_terminal_goes_without_what_can_be_spared(width: int, kept: str) -> None:
    """The least needed column first, and none that is needed."""
    columns = [("A", "a"), ("B", "b"), ("C", "c")]
    rows = [{"a": "111", "b": "222", "c": "333"}, {"a": "1", "b": "2", "c": "3"}]
    assert "".join(field for _, field in fitting(columns, rows, width, ("b", "c"))) == kept


@pytest.mark.parametrize(
    ("text", "zone", "said"),
    [
        ("at 2026-01-01T12:00:00+00:00", "UTC", "at 2026-01-01T12:00:00Z"),
        ("2026-01-01T12:00:00.123456+00:00 on", "Europe/Paris", "2026-01-01T13:00:00.123+01:00 on"),
        ("2026-07-01T12:00:00+00:00", "Europe/London", "2026-07-01T13:00:00+01:00"),
        ("2026-01-01T12:00:00+00:00", "Europe/London", "2026-01-01T12:00:00Z"),
        ("2026-01-01T12:00:00+02:00", "UTC", "2026-01-01T12:00:00+02:00"),
    ],
)
def test_moments_in_a_text_are_put_into_a_zone(text: str, zone: str, said: str) -> None:
    """To the millisecond, with the offset."""
    assert short(text, zone) == said
