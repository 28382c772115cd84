"""Two releases of an app with different static entries, live at once during a deploy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from celery_zsched import Entry, operations
from celery_zsched.operations import Site
from tests.programs import Project
from tests.servers import RunningServer, wait_until

SOURCE = """
    app.conf.beat_schedule = {name: {"task": "note", "schedule": 1.0} for name in %r}
"""


@pytest.mark.slow
def test_an_entry_goes_when_no_live_release_declares_it_any_more(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """While both are live all is sent; the old one's goes after the settle time, and what both have never stumbles."""
    project = start_project(start_server(tcp=True), SOURCE % ["keep", "legacy"], zsched_settle_time=2)
    added = Entry("added", "note", 3600, app=project.app)
    added.save()
    old = project.beat()
    sent = project.collect(2)
    project.write(SOURCE % ["keep", "new"])
    new = project.beat()

    def have_come(*names: str) -> bool:
        fresh = project.drain()
        sent.extend(fresh)
        return {one.entry for one in sent[begun:]} >= set(names)

    begun = len(sent)
    wait_until(lambda: have_come("keep", "legacy", "new"), what="the entries of both releases")
    assert old.terminate() == 0
    wait_until(lambda: set(project.schedules.names()) == {"keep", "new", "added"}, what="legacy to go", timeout_s=15)
    begun = len(sent)
    wait_until(lambda: have_come("keep", "new"), what="what is left")
    assert "legacy" in new.output()
    kept = sorted(one.nominal_us for one in sent if one.entry == "keep")
    assert {after - before for before, after in pairwise(kept)} == {1_000_000}


def test_an_old_release_that_comes_back_by_mistake_takes_nothing_away(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """Its entry returns with it; the new release's stays."""
    project = start_project(start_server(tcp=True), SOURCE % ["keep", "new"], zsched_settle_time=60)
    project.beat()
    project.write(SOURCE % ["keep", "legacy"])
    project.beat()
    assert set(project.schedules.names()) == {"keep", "legacy", "new"}


def test_an_entry_of_a_program_is_not_replaced_in_silence(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """The one of beat_schedule is in force, as with Celery's own; `plan` foretells it, the log and the audit tell."""
    project = start_project(start_server(tcp=True), SOURCE % ["report", "other"])
    for name, task in (("report", "mine"), ("added", "note")):
        Entry(name, task, 7200, app=project.app).save()
    project.app.conf.beat_schedule = {"report": {"task": "note", "schedule": 1.0}}
    site = Site.of(project.app)
    foretold = {each.entry: each.detail for each in operations.plan(site)}
    assert "replaces an entry that was added at run time" in foretold["report"]
    said = project.beat().output()
    (warning,) = [line for line in said.splitlines() if "'report'" in line]
    assert "WARNING" in warning and "(mine, every 2:00:00)" in warning and "rename one" in warning
    (record,) = [each for each in operations.audit(site, target="entry:report") if each.verb == "replace"]
    assert record.by.startswith("beat ") and record.detail["was_task"] == "mine"
    assert project.schedules.get("report").spec.task == "note"  # type: ignore[union-attr]
    again = project.beat().output()
    assert "replaced" not in again and "'added'" not in said + again
