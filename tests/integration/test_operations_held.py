"""What holds an entry back though it is not paused: blackouts, and pauses of its task name or its queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from celery_zsched import ConflictError, Entry, EntryError, blackouts, operations
from celery_zsched.entry import OperatorState, build
from celery_zsched.operations import Site
from celery_zsched.operations.carrying import Coming, Report, take_in
from celery_zsched.operations.doctoring import LOOK
from celery_zsched.types import from_us
from tests.programs import Project
from tests.servers import RunningServer, wait_until

SOURCE = """
    app.conf.beat_schedule = {"declared": {"task": "note", "schedule": 3600.0, "blackouts": "hollidays"}}
"""


@pytest.fixture
def project(start_server: Callable[..., RunningServer], tmp_path: Path, close_later: Callable[[Any], Any]) -> Project:
    """A project on our own broker, which knows the task ``note``."""
    project: Project = close_later(Project(tmp_path, f"zsched+{start_server().url}", SOURCE))

    @project.app.task(name="note", shared=False)  # type: ignore[untyped-decorator,unused-ignore]
    def note(*args: Any) -> None:
        """Stand for the task of the programs."""

    return project


@pytest.fixture
def site(project: Project) -> Site:
    """The site of the project's app in this process."""
    return Site.of(project.app, by="ann@desk")


def define(site: Site, name: str, before_h: float, after_h: float) -> None:
    """Define a blackout from so many hours before now until so many after."""
    now = from_us(site.schedules.now_us())
    blackouts.define(site.schedules, name, [(now - timedelta(hours=before_h), now + timedelta(hours=after_h))])


def test_occurrences_in_a_blackout_are_marked(site: Site, project: Project) -> None:
    """The list, the preview and explain name the blackout, and say what is sent first."""
    define(site, "freeze", 1, 2.5)
    operations.add(site, "hourly", {"task": "note", "every": "1h"})
    edited = operations.edit(site, "hourly", {"blackouts": ["freeze"]})
    assert edited.notice is not None and "'freeze'" in edited.notice
    marks = [each.blackout for each in operations.next_dues(site, "hourly", n=4)]
    assert marks == ["freeze", "freeze", None, None]
    assert [each["blackout"] for each in operations.show(site, "hourly")["preview"]] == [*marks, None]
    (row,) = operations.list_entries(site).rows
    assert row.held == ["blackout:freeze"]
    first_open = operations.next_dues(site, "hourly", n=3)[2].due
    told = operations.explain(site, "hourly")
    (said,) = [line for line in told.because if "freeze" in line]
    assert "not made up for" in said or "nor made up for" in said
    assert said.endswith(first_open)
    coming = operations.explain(site, "hourly", operations.next_dues(site, "hourly", n=1)[0].due)
    assert (coming.outcome, "'freeze'" in coming.because[1]) == ("to come", True)
    sent = Entry("other", "note", 3600, blackouts="freeze", app=project.app).preview(2)
    assert sent[0] > datetime.now(timezone.utc) + timedelta(hours=2.4)
    assert sent[1] - sent[0] == timedelta(hours=1)


def test_what_a_blackout_held_back_is_explained_by_its_name(site: Site, project: Project) -> None:
    """An occurrence that was due in a window was not sent, and explain names the window's blackout."""
    define(site, "freeze", 1, 24)
    operations.add(site, "fast", {"task": "note", "every": 1, "blackouts": ["freeze"]})
    beat = project.beat()
    assert "'hollidays', which beat_schedule names for 'declared'" in beat.output()
    wait_until(lambda: operations.history(site, "fast"), what="a record")
    record = operations.history(site, "fast")[0]
    told = operations.explain(site, "fast", record["nominal"])
    assert (record["outcome"], told.outcome) == ("blackout", "not sent")
    assert "the blackout 'freeze' was on" in told.because[0]


def test_a_blackout_that_is_not_defined_is_refused(site: Site, project: Project) -> None:
    """Whoever names it by mistake is told what there is; one that was removed by force is told of, and stays."""
    define(site, "holidays", 1, 1)
    for name in ("hollidays", "freeze"):
        with pytest.raises(EntryError, match="'holidays'"):
            operations.add(site, "report", {"task": "note", "every": 60, "blackouts": [name]})
        with pytest.raises(EntryError, match="'holidays'"):
            Entry("report", "note", 60, blackouts=name, app=project.app).save()
    operations.add(site, "report", {"task": "note", "every": 60, "blackouts": ["holidays"]})
    with pytest.raises(EntryError, match="did you mean 'holidays'"):
        operations.edit(site, "report", {"blackouts": ["holiday"]})
    assert operations.edit(site, "report", {"blackouts": [""]}).changed
    assert "blackouts" not in operations.show(site, "report")["rules"]
    operations.edit(site, "report", {"blackouts": "holidays"})
    blackouts.remove(site.schedules, "holidays", force=True, reason="over")
    assert operations.edit(site, "report", {"every": 30}).changed
    assert "not defined" in (operations.edit(site, "report", {"every": 60}).notice or "")
    assert any("not defined" in line for line in operations.explain(site, "report").because)
    assert any("not defined" in line for line in operations.show(site, "report")["notices"])
    (finding,) = [each for each in operations.doctor(site) if each.check == "blackouts"]
    assert (finding.verdict, "'report'" in finding.said) == (LOOK, True)
    verbs = [(each.verb, each.reason) for each in operations.audit(site, target="blackout:holidays")]
    assert verbs == [("blackout rm", "over"), ("blackout set", None)]


def test_a_paused_task_or_queue_of_an_entry_is_told(site: Site, project: Project) -> None:
    """List and explain say by whom, why and until when an entry's messages are held back, and find what was sent."""
    operations.add(site, "report", {"task": "note", "every": 1, "options": {"queue": "slow"}})
    operations.add(site, "other", {"task": "note2", "every": "1h"})
    project.app.conf.task_routes = {"note3": {"queue": "slow"}}
    operations.add(site, "routed", {"task": "note3", "every": "1h"})
    operations.pause_task(site, "task:note", reason="flood", lasting="2h")
    operations.pause_task(site, "queue:slow", reason="disk")
    held = {row.entry: row.held for row in operations.list_entries(site).rows}
    assert held == {"other": [], "report": ["task:note", "queue:slow"], "routed": ["queue:slow"]}
    for dry_run in (True, False):
        told = operations.resume_task(site, "report", dry_run=dry_run).notice or ""
        assert "task:note is paused by ann@desk" in told and "queue:slow is paused by" in told
    assert [each.notice is None for each in operations.resume_tasks(site, "*e*")] == [True, False, False]
    because = operations.explain(site, "report").because
    (task,) = [line for line in because if "task:note" in line]
    assert "sent in time" in task and "ann@desk" in task and "flood" in task and "ends by itself at" in task
    (queue,) = [line for line in because if "queue:slow" in line]
    assert "disk" in queue
    project.beat()
    sent = wait_until(lambda: operations.history(site, "report"), what="a record")[0]

    def told() -> str:
        found = operations.explain(site, "report", sent["nominal"])
        assert found.outcome == "sent"
        return found.because[1]

    assert "its message is parked, queue 'slow'" in told() and "flood" in told()
    operations.resume_task(site, "task:note", reason="dry again")
    assert "its message waits, queue 'slow'" in told() and "disk" in told()
    assert operations.audit(site, target="task:note")[0].reason == "dry again"


def test_what_a_program_does_is_on_record(site: Site, project: Project) -> None:
    """Saving and deleting name who did it and why; an unchanged save leaves no record."""
    entry = Entry("report", "note", 60, app=project.app)
    entry.save(reason="first")
    entry.save(reason="again")
    Entry("report", "note", 30, app=project.app).save()
    Entry.delete("report", app=project.app, reason="over")
    records = operations.audit(site, target="entry:report")
    assert [(each.verb, each.reason, each.detail.get("change")) for each in reversed(records)] == [
        ("save", "first", "created"), ("save", None, "updated"), ("delete", "over", None)
    ]  # fmt: skip
    assert {each.by for each in records} == {operations.whoami()}


def test_a_program_leaves_static_entries_alone_unless_forced(site: Site, project: Project) -> None:
    """As in the shell: what beat_schedule declares is changed or deleted only when that is meant."""
    project.beat().terminate()
    changed = Entry("declared", "note", 60, app=project.app)
    for act in (changed.save, lambda: Entry.delete("declared", app=project.app)):
        with pytest.raises(ConflictError, match="beat_schedule declares 'declared'"):
            act()
    assert changed.save(force=True).value == "updated"
    project.beat().terminate()
    Entry.delete("declared", app=project.app, force=True)
    assert list(site.schedules.names()) == []


def test_a_mistyped_argument_of_an_entry_is_told_with_the_rest(project: Project) -> None:
    """Every fault at once, with the name that was probably meant."""
    with pytest.raises(EntryError) as caught:
        Entry("report", "note", 60, misfir="skip", overlap="never", app=project.app)
    assert "unknown argument 'misfir' (did you mean 'misfire'?)" in str(caught.value)
    assert "its overlap is 'never'" in str(caught.value)
    with pytest.raises(EntryError, match="unknown field 'tsk'"):
        operations.add(Site.of(project.app), "report", {"task": "note", "every": 5, "tsk": 1})


def test_an_import_leaves_static_entries_and_tells_of_blackouts(site: Site, project: Project) -> None:
    """What code declares is left as it is, with a pause at most; a blackout that is not here is told of."""
    project.beat().terminate()
    coming = [
        Coming(build("declared", "note", 60), OperatorState(paused=True, by="bob", reason="flood")),
        Coming(build("other", "note", 60, blackouts="freeze")),
    ]
    report = take_in(site, coming, Report(), source="test")
    assert (report.created, report.unchanged, report.paused) == (["other"], ["declared"], ["declared"])
    assert "beat_schedule declares it" in report.notices["declared"][0]
    assert "no blackout 'freeze'" in report.notices["other"][0]
    stored = site.schedules.get("declared")
    assert (stored.state.value, stored.spec is not None and stored.spec.owner) == ("paused", "static")
