"""The page of the data model says what the code does, and what it tells other languages to do works."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_zsched import blackouts
from celery_zsched.entry import EntrySpec, LastRun, Occurrence, OperatorState, decode, occurrence_header, occurrence_id
from celery_zsched.keys import ScheduleKeys, TimelineKeys
from celery_zsched.operations.carrying import Report, read_export
from celery_zsched.stored import State
from celery_zsched.triggers import codec, from_json
from celery_zsched.windows import Blackout
from tests.programs import Project
from tests.servers import RunningServer, wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "data-model.md").read_text()

#: How a class's field is called in its document.
NAMES = {"trigger": "schedule"}

#: What the table says of a field that has no default.
REQUIRED = "required"


def section(heading: str) -> str:
    """Return what stands under a heading."""
    found = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section {heading!r}"
    return found[1]


def table(heading: str) -> dict[str, tuple[str, ...]]:
    """Return the first table under a heading, by its first column."""
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in section(heading).splitlines()
        if line[:3] == "| `"
    ]
    return {cells[0].strip("`"): tuple(cells[1:]) for cells in rows}


def examples(kind: str) -> list[str]:
    """Return the examples of a kind."""
    return re.findall(rf"^```json {kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def defaults_of(cls: Any) -> dict[str, str]:
    """Return the fields of a class as a document names them, with their defaults as JSON."""
    defaults = {}
    for field in dataclasses.fields(cls):
        if field.name == "rest":
            continue  # what a newer release wrote
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        text = REQUIRED if value is dataclasses.MISSING else f"`{json.dumps(value)}`"
        defaults[NAMES.get(field.name, field.name)] = text.replace('`"dynamic"`', "`dynamic`")
    return defaults


@pytest.mark.parametrize(
    ("heading", "cls"),
    [
        ("The entry", EntrySpec),
        ("The last run", LastRun),
        ("The operator's state", OperatorState),
        ("The blackout", Blackout),
    ],
)
def test_tables_have_every_field_with_its_default(heading: str, cls: Any) -> None:
    """A field that is added, renamed or given another default is told on the page."""
    assert {name: cells[1] for name, cells in table(heading).items()} == defaults_of(cls)


def test_the_header_is_told_in_full() -> None:
    """The table has every field that a message's header can have."""
    header = occurrence_header("e", 1_000_000, 2_000_000, overlap="skip")
    assert set(table("The header `zsched` of a message")) == set(header)
    assert "overlap" not in occurrence_header("e", 1_000_000, 2_000_000)


def test_kinds_of_schedules_are_told_in_full() -> None:
    """The table has every kind, and but for the custom one there is an example of each."""
    kinds = set(codec._KINDS)
    assert set(table("Schedules")) == kinds
    assert {json.loads(text)["kind"] for text in examples("schedule")} == kinds - {"custom"}


def test_keys_are_those_of_the_package() -> None:
    """The page names no key that the package does not have."""
    beside = ScheduleKeys("P")
    known = {*TimelineKeys("schedule", prefix="P").all(), beside.blackouts, beside.audit, beside.request("R")}
    known.add(beside.imports)
    assert set(table("Keys of the schedule")) <= known


def test_examples_are_read() -> None:
    """Every document on the page is taken as it stands."""
    readers: dict[str, Callable[[str], Any]] = {
        "entry": decode,
        "schedule": lambda text: from_json(json.loads(text)),
        "last": LastRun.from_json,
        "operator": OperatorState.from_json,
        "export": lambda text: next(read_export([text], Report())),
        "blackout": Blackout.from_json,
        "header": lambda text: Occurrence.from_header(json.loads(text)),
    }
    assert set(re.findall(r"^```json (\w+)$", PAGE, re.MULTILINE)) == set(readers)
    for kind, read in readers.items():
        for text in examples(kind):
            assert read(text), text


def test_the_id_of_a_task_is_as_told() -> None:
    """Who follows the page computes the same task id."""
    import uuid

    (namespace,) = re.findall(r"namespace `([0-9a-f-]+)`", PAGE)
    assert occurrence_id("zsched", "report", 7, 1_767_258_000_000_000) == str(
        uuid.uuid5(uuid.UUID(namespace), "zsched\0report\0007\0001767258000000000")
    )


def run(client: redis.Redis, kind: str, **change: str) -> None:
    """Send the commands of an example, with NOW from the server's clock."""
    (text,) = re.findall(rf"^```redis {kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    seconds, microseconds = client.time()
    now = int(seconds) * 1_000_000 + int(microseconds)
    text = text.replace("NOW+1", str(now + 1)).replace("NOW", str(now))
    for old, new in change.items():
        text = text.replace(old, new)
    with client.pipeline() as pipe:
        for line in text.splitlines():
            if line not in ("MULTI", "EXEC"):
                pipe.execute_command(*shlex.split(line))
        pipe.execute()


def test_an_entry_that_was_written_by_hand_is_fired(
    start_server: Callable[..., RunningServer], tmp_path: Path, close_later: Callable[[Any], Any]
) -> None:
    """The commands of the page add an entry that a waiting beat takes up at once, and delete it without a trace."""
    server = start_server(tcp=True)
    project = close_later(Project(tmp_path, server.url))
    project.beat()
    with server.client() as client:
        run(client, "add", **{"app.report": "note"})
        wait_until(lambda: project.schedules.get("report").last.next_nominal_us, what="the beat to take the entry up")
        stored = project.schedules.get("report")
        assert stored.state is State.SCHEDULED
        assert stored.due_us is not None and stored.due_us % 86_400_000_000 == 9 * 3_600_000_000
        assert stored.last.fired == 0

        often = '"kind":"interval","every_us":300000'
        run(
            client,
            "add",
            **{"app.report": "note", "report": "ticks", '"kind":"crontab","minute":"0","hour":"9"': often},
        )
        sent = project.collect(3)
        assert {each.entry for each in sent} == {"ticks"}
        assert len({each.nominal_us for each in sent}) == len(sent)

        run(client, "blackout")
        assert blackouts.listed(project.schedules)[0].fault is None

        run(client, "delete")

        def gone() -> bool:
            # What the beat was sending at the very moment may note its outcome a moment later.
            run(client, "delete", report="ticks")
            return not left(client)

        wait_until(gone, what="no trace of the entries")


def left(client: redis.Redis) -> list[bytes]:
    """Return the keys that still hold something of an entry."""
    names = ("bodies", "timeline", "leases", "parked", "dead", "claims", "notes", "reasons", "history")
    return [key for key in (f"zsched:{{schedule}}:{name}" for name in names) if client.exists(key)]  # type: ignore[misc]
