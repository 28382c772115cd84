"""What an operator does with entries, by Python, by shell and by remote control: effects on a real server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from celery_zsched import ConflictError, EntryError, NotFoundError, operations
from celery_zsched.entry import LastRun
from celery_zsched.operations import Site
from celery_zsched.operations.carrying import Report, read_export, take_in
from celery_zsched.stored import State
from celery_zsched.types import to_us
from tests.programs import Project
from tests.servers import RunningServer, wait_until

SOURCE = """
    app.conf.beat_schedule = {"declared": {"task": "note", "schedule": 3600.0}}
"""


@pytest.fixture
def project(start_server: Callable[..., RunningServer], start_project: Callable[..., Project]) -> Project:
    """A project on a server of its own."""
    return start_project(start_server(tcp=True), SOURCE)


@pytest.fixture
def site(project: Project) -> Site:
    """The site of the project's app in this process."""
    return Site.of(project.app, by="ann@desk")


def add(site: Site, name: str, **fields: Any) -> Any:
    """Add an entry that sends ``note`` once an hour, unless other fields say otherwise."""
    schedule = {} if fields.keys() & {"cron", "every", "at", "rrule"} else {"every": "1h"}
    return operations.add(site, name, {"task": "note", **schedule, **fields})


def test_add_and_edit_keep_what_is_not_said(site: Site) -> None:
    """An edit changes the given fields; zone, rules and a pause stay, and the due time follows the schedule."""
    add(site, "report", cron="30 9 * * *", zone="Asia/Tokyo", misfire="skip", args=[1], kwargs={"a": 2})
    operations.pause_task(site, "report", reason="holiday")
    assert operations.edit(site, "report", {"cron": "45 9 * * *", "jitter": "5m"}).changed
    shown = operations.show(site, "report", arguments=True)
    assert shown["state"] == "paused"
    assert shown["reason"] == "holiday"
    assert shown["zone"] == "Asia/Tokyo"
    assert shown["rules"] == {"misfire": "skip", "jitter_s": 300.0}
    assert shown["arguments"] == {"args": [1], "kwargs": {"a": 2}}
    after = operations.resume_task(site, "report")
    assert after.next is not None
    due = datetime.fromisoformat(after.next)
    assert timedelta(0) <= due - due.replace(hour=0, minute=45, second=0, microsecond=0) < timedelta(minutes=5)
    assert not operations.edit(site, "report", {"cron": "45 9 * * *"}).changed
    operations.edit(site, "report", {"kwargs": {"b": 3}})
    assert operations.show(site, "report", arguments=True)["arguments"] == {"args": [1], "kwargs": {"b": 3}}
    operations.edit(site, "report", {"zone": "Europe/Paris"})
    assert operations.show(site, "report")["zone"] == "Europe/Paris"


def test_adding_twice_or_without_a_schedule_is_refused(site: Site) -> None:
    """A name is taken once, and every fault is said at once."""
    add(site, "report")
    with pytest.raises(ConflictError, match="already"):
        add(site, "report")
    with pytest.raises(EntryError, match="a task and a schedule"):
        operations.add(site, "other", {})
    with pytest.raises(EntryError, match=r"one schedule; give one of every, cron"):
        operations.add(site, "other", {"task": "note", "every": 5, "cron": "* * * * *"})


def test_arguments_are_hidden_unless_asked_for(site: Site) -> None:
    """Looking at an entry shows how many arguments it has and their names, not their values."""
    add(site, "report", args=["secret"], kwargs={"token": "secret"})
    assert "secret" not in json.dumps(operations.show(site, "report"))
    assert operations.show(site, "report")["arguments"] == {"args": 1, "kwargs": ["token"]}


def test_what_code_declares_is_not_edited_or_deleted_by_mistake(site: Site, project: Project) -> None:
    """An entry of beat_schedule comes back at the next start, so changing it by hand must be meant."""
    beat = project.beat()
    beat.terminate()
    with pytest.raises(ConflictError, match="beat_schedule"):
        operations.remove(site, "declared")
    with pytest.raises(ConflictError, match="beat_schedule"):
        operations.edit(site, "declared", {"every": 5})
    add(site, "own")
    left, gone = operations.remove(site, "*", dry_run=True)
    assert (left.entry, left.deleted, gone.entry, gone.notice) == ("declared", False, "own", None)
    assert left.notice is not None and "beat_schedule" in left.notice
    assert [(each.entry, each.deleted) for each in operations.remove(site, "*")] == [("declared", False), ("own", True)]
    with pytest.raises(ConflictError, match="beat_schedule"):
        operations.remove(site, "*")
    assert [each.deleted for each in operations.remove(site, "declared", force=True)] == [True]


def test_a_pattern_selects_many_and_dry_run_changes_nothing(site: Site) -> None:
    """Pause, resume and rm take patterns; what would be deleted can be asked for first."""
    for name in ("daily a", "daily b", "weekly"):
        add(site, name)
    paused = operations.pause_tasks(site, "daily*", reason="audit")
    assert [(each.entry, each.state, each.changed) for each in paused] == [
        ("daily a", "paused", True), ("daily b", "paused", True)
    ]  # fmt: skip
    would = operations.remove(site, "daily*", dry_run=True)
    assert [(each.entry, each.deleted, each.dry_run) for each in would] == [
        ("daily a", False, True), ("daily b", False, True)
    ]  # fmt: skip
    assert [row.entry for row in operations.all_entries(site, state="paused")] == ["daily a", "daily b"]
    assert [each.changed for each in operations.resume_tasks(site, "*")] == [True, True, False]
    assert [(each.entry, each.deleted) for each in operations.remove(site, "daily ?")] == [
        ("daily a", True), ("daily b", True)
    ]  # fmt: skip
    with pytest.raises(NotFoundError, match="matches"):
        operations.pause_tasks(site, "daily*")


def test_an_entry_whose_name_looks_like_a_pattern_is_listed_by_it(site: Site) -> None:
    """As for the other verbs, a pattern that is the very name of an entry is that entry, whatever else it matches."""
    for name in ("q?[1]", "qa1", "q*"):
        add(site, name)

    def listed(pattern: str) -> list[str]:
        return [row.entry for row in operations.list_entries(site, pattern=pattern).rows]

    assert {pattern: listed(pattern) for pattern in ("q?[1]", "q*", "q?1", "?*", "q[?]*")} == {
        "q?[1]": ["q?[1]"], "q*": ["q*"], "q?1": ["qa1"], "?*": ["q*", "q?[1]", "qa1"], "q[?]*": ["q?[1]"]
    }  # fmt: skip
    assert [row.entry for row in operations.all_entries(site, pattern="q?[1]", state="scheduled")] == ["q?[1]"]
    assert [each.entry for each in operations.remove(site, "entry:q?[1]", dry_run=True)] == ["q?[1]"]


def test_an_unknown_entry_lists_likely_ones(site: Site) -> None:
    """A mistyped name is answered with the names that were probably meant."""
    add(site, "nightly-report")
    with pytest.raises(NotFoundError, match="did you mean 'nightly-report'"):
        operations.pause_task(site, "nightly-repotr")


def test_listing_goes_page_by_page(site: Site) -> None:
    """Pages are in the order of names, and together they are everything, once each."""
    names = [f"entry {number:03}" for number in range(25)]
    for name in names:
        add(site, name)
    found: list[str] = []
    after = None
    pages = 0
    while True:
        page = operations.list_entries(site, limit=10, after=after)
        found += [row.entry for row in page.rows]
        pages += 1
        after = page.after
        if after is None:
            break
    assert found == names
    assert pages == 3


def test_of_several_entries_all_are_looked_for_first(site: Site) -> None:
    """Where some are not there or cannot be read, nothing is done, and all of those are named."""
    for name in ("a1", "a2", "a3"):
        add(site, name)
    for names in (["a1", "nope", "a2", "gone"], ["a*", "nope", "gone*"]):
        with pytest.raises(NotFoundError, match=r"'nope'.*'gone"):
            operations.reanchor_named(site, names)
    assert [each.entry for each in operations.reanchor_named(site, ["a2", "a1"])] == ["a2", "a1"]
    operations.pause_tasks(site, "a*")
    client: Any = site.schedules.server.client
    for name in ("a2", "a3"):
        client.hset(site.schedules.timeline.keys.bodies, name, '{"v": 99}')
    with pytest.raises(EntryError, match=r"none was resumed.*'a2'.*'a3'"):
        operations.resume_tasks(site, "a*")
    assert {row.state for row in operations.list_entries(site).rows} == {"paused"}


def test_a_pause_ends_by_itself(site: Site, project: Project) -> None:
    """A pause with a time limit ends at its moment, by whichever beat runs, and a longer one takes its place."""
    add(site, "quick", every=0.5)
    add(site, "long", every=0.5)
    project.beat()
    first = operations.pause_task(site, "quick", lasting="1s", reason="short")
    operations.pause_task(site, "long", lasting="1s")
    assert operations.pause_task(site, "long", lasting="1h").changed is False
    assert first.until is not None
    wait_until(lambda: site.schedules.get("quick").state.value != "paused", what="the pause to end")
    assert site.schedules.now_us() >= to_us(datetime.fromisoformat(first.until))
    assert site.schedules.get("long").state.value == "paused"
    assert sorted(site.schedules.names()) == ["declared", "long", "quick"]


def test_a_pause_by_hand_has_no_end(site: Site) -> None:
    """Resuming or pausing anew takes the old time limit away."""
    add(site, "report")
    operations.pause_task(site, "report", lasting="1h")
    assert operations.resume_task(site, "report").until is None
    assert operations.pause_task(site, "report").until is None
    assert site.schedules.timeline.counts().delayed == 0


def test_run_sends_once_a_request(site: Site, project: Project) -> None:
    """One request is one run, whoever repeats it; the schedule does not move and the task is told the cause."""
    add(site, "report", args=["own"])
    due = site.schedules.get("report").due_us
    first = operations.run_task(site, "report", request="r1")
    again = operations.run_task(site, "report", request="r1")
    other = operations.run_task(site, "report", request="r2", args=["other"], reason="asked for")
    assert (first.changed, again.changed, other.changed) == (True, False, True)
    assert first.task_id == again.task_id != other.task_id
    sent = project.collect(2)
    assert [(each.task_id, each.cause, each.body[0]) for each in sent] == [
        (first.task_id, "manual", ["own"]), (other.task_id, "manual", ["other"])
    ]  # fmt: skip
    assert project.drain() == []
    assert site.schedules.get("report").due_us == due
    outcomes = [(one["outcome"], one["cause"], one["task_id"]) for one in operations.history(site, "report")]
    assert outcomes == [("sent", "manual", other.task_id), ("sent", "manual", first.task_id)]


def test_backfill_sends_each_nominal_time_once(site: Site, project: Project) -> None:
    """A range of past occurrences is sent in order, once each; a label sends them again, too many are refused."""
    add(site, "hourly", cron="0 * * * *")
    range_ = ("2026-11-01T00:00Z", "2026-11-01T05:00Z")
    assert [run.changed for run in operations.backfill(site, "hourly", *range_, dry_run=True)] == [False] * 6
    done = operations.backfill(site, "hourly", *range_)
    assert [run.nominal for run in done] == [f"2026-11-01T0{hour}:00:00+00:00" for hour in range(6)]
    sent = project.collect(6)
    assert [(each.cause, each.nominal_us) for each in sent] == [
        ("backfill", to_us(datetime(2026, 11, 1, hour, tzinfo=timezone.utc))) for hour in range(6)
    ]
    assert [run.changed for run in operations.backfill(site, "hourly", "2026-11-01T04:00Z", "2026-11-01T06:00Z")] == [
        False, False, True,
    ]  # fmt: skip
    assert all(run.changed for run in operations.backfill(site, "hourly", *range_, label="again"))
    with pytest.raises(EntryError, match="more than 3 occurrences"):
        operations.backfill(site, "hourly", *range_, limit=3)
    with pytest.raises(EntryError, match="still to come"):
        operations.backfill(site, "hourly", "2026-11-01T00:00Z", "+1h")


def test_a_paced_backfill_becomes_due_one_by_one(site: Site, project: Project) -> None:
    """With a pace each message is due so much later than the one before."""
    add(site, "hourly", cron="0 * * * *")
    runs = operations.backfill(site, "hourly", "2026-11-01T00:00Z", "2026-11-01T02:00Z", pace="1s")
    ended_us = site.schedules.now_us()
    sent = {each.task_id: each.headers["eta"] for each in project.collect(3)}
    etas = [sent[run.task_id] for run in runs]
    assert etas[0] is None
    for position in (1, 2):
        fired_us = to_us(datetime.fromisoformat(runs[position].fired))
        due_us = to_us(datetime.fromisoformat(etas[position]))
        assert fired_us <= due_us - position * 1_000_000 <= ended_us  # by its own sending, however slow that is


def test_history_tells_what_became_of_occurrences(site: Site, project: Project) -> None:
    """Each occurrence that a beat sends is remembered with its lateness, its task and the beat, bounded in number."""
    add(site, "fast", every=0.2)
    beat = project.beat()
    wait_until(lambda: len(operations.history(site, "fast")) >= 20, what="twenty records")
    beat.terminate()
    records = operations.history(site, "fast")
    assert len(records) == 20
    assert [each["nominal"] for each in records] == sorted((each["nominal"] for each in records), reverse=True)
    assert {each["outcome"] for each in records} == {"sent"}
    assert all(0 <= each["lateness_s"] < 5 for each in records)
    ids = {each.task_id for each in project.drain()}
    assert {each["task_id"] for each in records} <= ids
    site.schedules.delete("fast")
    add(site, "fast")
    assert operations.history(site, "fast") == []


def test_explain_answers_why_not(site: Site, project: Project) -> None:
    """An entry is explained as it stands, and an occurrence by who paused it, when it came to be, or its record."""
    add(site, "steady", every=1)
    project.beat()
    wait_until(lambda: operations.history(site, "steady"), what="a record")
    record = operations.history(site, "steady")[0]
    told = operations.explain(site, "steady", record["nominal"])
    assert (told.outcome, told.nominal) == ("sent", record["nominal"])
    assert record["task_id"] in told.because[0]
    operations.pause_task(site, "steady", reason="flood")
    paused_us = site.schedules.now_us()  # not the record's moment: more may have been sent since
    later = wait_until(lambda: (now := site.schedules.now_us()) > paused_us + 3_000_000 and now)
    told = operations.explain(site, "steady", datetime.fromtimestamp(later / 1e6 - 1, tz=timezone.utc).isoformat())
    assert told.outcome == "not sent"
    assert "ann@desk" in told.because[0]
    assert "flood" in told.because[0]
    add(site, "young", cron="0 9 * * *")
    told = operations.explain(site, "young", "2026-01-05T09:00Z")
    assert (told.outcome, "added only later" in told.because[0]) == ("not sent", True)
    told = operations.explain(site, "young", "2026-01-05T10:30Z")
    assert told.outcome == "none"


def test_an_entry_whose_end_or_count_was_lowered_is_finished_by_every_verb(site: Site, project: Project) -> None:
    """At once, whether a beat runs or not; there is nothing to come of it, and nothing to pause."""
    add(site, "ended", every=3600)
    add(site, "counted", every=0.3)
    beat = project.beat()
    wait_until(lambda: len(operations.history(site, "counted")) >= 2, what="two to be sent")
    assert beat.terminate() == 0
    for name, fields in (("ended", {"end": "now"}), ("counted", {"count": 1})):
        told = operations.edit(site, name, fields)
        assert (told.state, told.next, told.changed) == ("finished", None, True)
        assert operations.next_dues(site, name) == []
        assert "has run out" in operations.explain(site, name).because[0]
        for dry_run in (True, False):
            with pytest.raises(ConflictError, match=f"'{name}' is finished"):
                operations.pause_task(site, name, dry_run=dry_run)
    assert {row.entry: row.state for row in operations.all_entries(site)} == {
        "counted": "finished", "ended": "finished", "declared": "scheduled"
    }  # fmt: skip
    assert [row.id for row in operations.timeline(site)] == ["declared"]
    sent = operations.show(site, "counted")["fired"]
    assert operations.edit(site, "counted", {"count": sent + 1}).state == "scheduled"
    project.beat()
    wait_until(lambda: site.schedules.get("counted").state is State.FINISHED, what="the last one")
    assert operations.show(site, "counted")["fired"] == sent + 1


def test_every_change_is_on_record(site: Site) -> None:
    """Who did what, when and why is kept for each verb that changes something, and only then."""
    add(site, "report")
    operations.pause_task(site, "report", reason="flood")
    operations.pause_task(site, "report")
    operations.resume_task(site, "report")
    operations.resume_task(site, "report")
    operations.edit(site, "report", {"every": 5}, reason="faster")
    operations.remove(site, "report")
    records = operations.audit(site, target="entry:report")
    assert [(each.verb, each.reason) for each in reversed(records)] == [
        ("add", None), ("pause", "flood"), ("resume", None), ("edit", "faster"), ("rm", None)
    ]  # fmt: skip
    assert {each.by for each in records} == {"ann@desk"}


def test_plan_tells_what_a_start_would_change(site: Site, project: Project) -> None:
    """The code is compared with what is live; after a start they are the same."""
    project.app.conf.beat_schedule = {
        "declared": {"task": "note", "schedule": 3600.0},
        "broken": {"task": "note", "shedule": 1.0},
    }
    assert [(each.entry, each.action) for each in operations.plan(site)] == [
        ("broken", "fault"), ("declared", "create")
    ]  # fmt: skip
    project.beat().terminate()
    project.app.conf.beat_schedule = {"declared": {"task": "note", "schedule": 3600.0}}
    assert operations.plan(site) == []
    project.app.conf.beat_schedule = {"declared": {"task": "note", "schedule": 60.0, "args": (1,)}}
    (difference,) = operations.plan(site)
    assert (difference.action, difference.fields) == ("update", ["schedule", "arguments"])


def test_health_says_what_is_wrong(site: Site, project: Project) -> None:
    """Without a beat, or with an entry overdue, the schedule is not healthy."""
    (problem,) = operations.health(site).problems
    assert "no beat is running" in problem
    add(site, "report", every=0.5)
    told = wait_until(lambda: (found := operations.health(site, max_lag_s=1)).overdue_s > 1 and found)
    assert not told.ok
    assert len(told.problems) == 2
    project.beat()
    wait_until(lambda: operations.health(site, max_lag_s=1).ok, what="the beat to catch up")
    assert [beat.alive for beat in operations.beats(site)] == [True]


def test_export_and_import_carry_everything(site: Site) -> None:
    """What is exported and imported elsewhere is due at the same moments, is paused where it was, and stays so."""
    add(site, "grid", every="7m", args=[1])
    add(site, "paused", cron="0 9 * * *", zone="Asia/Tokyo", misfire="all")
    operations.pause_task(site, "paused", reason="holiday")
    lines = list(operations.export(site))
    before = {name: operations.next_dues(site, name, n=10) for name in ("grid", "paused")}
    for name in before:
        site.schedules.delete(name)
    report = take_in(site, read_export(lines, Report(dry_run=True)), Report(dry_run=True), source="test")
    assert (sorted(report.created), list(site.schedules.names())) == (["grid", "paused"], [])
    report = Report()
    take_in(site, read_export([*lines, "{}"], report), report, source="test")
    assert sorted(report.created) == ["grid", "paused"]
    assert report.paused == ["paused"]
    assert list(report.faults) == ["line 3"]
    assert {name: operations.next_dues(site, name, n=10) for name in before} == before
    report = Report()
    take_in(site, read_export(lines, report), report, source="test")
    assert (sorted(report.unchanged), report.paused) == (["grid", "paused"], [])


def test_an_import_goes_on_with_a_count_where_it_was(site: Site) -> None:
    """What was sent elsewhere counts here; a line that does not tell begins anew, and what stands keeps its count."""
    client: Any = site.schedules.server.client
    notes = site.schedules.timeline.keys.notes
    fired = {"none": 0, "some": 2, "all": 3}
    for name, count in fired.items():
        add(site, name, every="7m", count=3)
        client.hset(notes, name, LastRun(fired=count).to_json())
    lines = list(operations.export(site))
    for name in fired:
        site.schedules.delete(name)
    report = Report()
    take_in(site, read_export(lines, report), report, source="test")
    assert (sorted(report.created), report.faults) == (sorted(fired), {})
    assert {row.entry: row.fired for row in operations.list_entries(site).rows} == fired
    assert {name: len(operations.next_dues(site, name)) for name in fired} == {"none": 3, "some": 1, "all": 0}
    assert site.schedules.get("all").state is State.FINISHED
    client.hset(notes, "some", LastRun(fired=1).to_json())
    take_in(site, read_export(lines, Report()), Report(), source="test")
    assert site.schedules.get("some").last.fired == 1
    site.schedules.delete("some")
    document = {key: value for key, value in json.loads(lines[2]).items() if key != "fired"}
    take_in(site, read_export([json.dumps(document)], Report()), Report(), source="test")
    assert len(operations.next_dues(site, "some")) == 3
    for wrong in (-1, True, "2", None):
        report = Report()
        assert list(read_export([json.dumps(document | {"fired": wrong})], report)) == []
        assert "how often" in report.faults["line 1"]


def test_shell_and_remote_control_answer_alike(site: Site, project: Project) -> None:
    """Each verb gives the same result by shell, by remote control and in Python."""
    add(site, "report")
    project.worker()
    shell = json.loads(project.celery("zsched", "pause", "report", "--reason", "x", "--json").stdout)
    (reply,) = project.app.control.broadcast("pause_task", arguments={"target": "report"}, reply=True, timeout=5)
    python = operations.pause_task(site, "report").to_dict()
    (remote,) = reply.values()
    assert remote == {"ok": python}
    assert {name: shell[name] for name in python} == python | {"changed": True}
    (reply,) = project.app.control.broadcast("task_state", arguments={"target": "report"}, reply=True, timeout=5)
    assert next(iter(reply.values())) == operations.explain(site, "report").to_dict()
    (reply,) = project.app.control.broadcast("schedule", reply=True, timeout=5)
    rows = [row.to_dict() for row in operations.all_entries(site)]
    assert next(iter(reply.values())) == rows
    listed = project.celery("zsched", "list", "--json").stdout.splitlines()
    assert [json.loads(line) for line in listed] == rows


WORKERS = 5


def ask(project: Project, command: str, target: Any, *, limit: int = WORKERS, **how: Any) -> list[dict[str, Any]]:
    """Broadcast a command and return the answers, of as many workers as are asked."""
    arguments = {"target": target, **how.pop("arguments", {})}
    replies = project.app.control.broadcast(
        command, arguments=arguments, reply=True, timeout=10, limit=limit, **how
    )  # fmt: skip
    answers = [answer["ok"] for reply in replies for answer in reply.values()]
    assert len(answers) == limit
    return answers


@pytest.mark.slow
def test_five_workers_hear_a_command_and_it_happens_once(site: Site, project: Project) -> None:
    """Whether all, one or the same again are asked, and whether the reply was lost: one run, one pause, one record."""
    add(site, "report", options={"queue": "elsewhere"})
    project.workers(WORKERS)
    control = project.app.control
    # Without an id of the request, and with one; the same answer from all, and one of them did it.
    for target in ("report", {"target": "report", "by": "bob@desk", "request": "q1"}):
        answers = ask(project, "run_task", target)
        assert sum(answer["changed"] for answer in answers) == 1
        assert len({answer["task_id"] for answer in answers}) == 1
    # Repeated to one of them, and the reply of another lost: nothing more is sent.
    (one, *_) = control.ping(timeout=5, limit=WORKERS)  # all of them: a late reply would be taken for the next
    (again,) = ask(project, "run_task", target, destination=[*one], limit=1)
    assert again["changed"] is False
    control.broadcast("run_task", arguments={"target": target}, reply=False)
    assert len(project.collect(2, queue="elsewhere")) == 2
    paused = ask(project, "pause_task", {"target": "report", "by": "bob@desk", "request": "q2"},
                 arguments={"reason": "flood", "lasting": "1h"})  # fmt: skip
    assert sum(answer["changed"] for answer in paused) == 1
    assert {(answer["state"], answer["by"], answer["reason"]) for answer in paused} == {("paused", "bob@desk", "flood")}
    assert len({answer["until"] for answer in paused}) == 1
    assert sum(answer["changed"] for answer in ask(project, "resume_task", "report")) == 1
    assert project.drain("elsewhere") == []
    verbs = [record.verb for record in operations.audit(site, target="entry:report")]
    assert sorted(verbs) == ["add", "pause", "resume", "run", "run"]


def test_shells_complete_commands_and_entries(site: Site, project: Project) -> None:
    """Tab completes the names of commands and of entries."""
    add(site, "nightly")

    def complete(*words: str) -> list[str]:
        line = ["celery", "-A", "project", "zsched", *words]
        env = {"COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1), "_CELERY_COMPLETE": "bash_complete"}
        program = shutil.which("celery", path=str(Path(sys.executable).parent))
        assert program is not None
        done = subprocess.run(
            [program],
            cwd=project.directory, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("expl") == ["explain"]
    assert complete("explain", "ni") == ["nightly"]


def test_signals_tell_of_occurrences(project: Project, site: Site) -> None:
    """A receiver in the beat's app hears of what is sent, and of what was missed before it."""
    project.write(
        """
        from celery_zsched.notices import occurrence_sent, occurrences_missed

        @occurrence_sent.connect(weak=False)
        def sent(sender, entry, past, **_):
            print(f"heard {entry} {past.outcome}", flush=True)

        @occurrences_missed.connect(weak=False)
        def missed(sender, entry, past, **_):
            print(f"missed {entry} {past.missed > 0}", flush=True)
        """
    )
    add(site, "fast", every=0.5)
    wait_until(lambda: operations.health(site).overdue_s > 1.5)
    beat = project.beat()
    beat.says("heard fast sent")
    beat.says("missed fast True")
