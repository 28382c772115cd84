"""Blackouts on a real server: the verbs, and a beat that keeps to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from celery_zsched import ConflictError, Entry, NotFoundError, ScheduleError, blackouts
from celery_zsched.connection import Server
from celery_zsched.entry import build
from celery_zsched.schedules import Schedules
from tests.programs import Project
from tests.servers import RunningServer, wait_until


@pytest.fixture
def schedules(valkey: RunningServer, close_later: Callable[[Any], Any]) -> Schedules:
    """An empty schedule of an app in Berlin."""
    return Schedules(close_later(Server.from_url(valkey.url)), zone="Europe/Berlin", claimer="c")


def test_a_blackout_is_stored_and_shown(schedules: Schedules) -> None:
    """What is defined is listed with what comes next, and shown as windows in UTC."""
    blackouts.define(schedules, "holidays", [date(2099, 12, 24)], note="closed")
    blackouts.define(schedules, "always", ["2000-01-01/2098-12-31"], zone="UTC")
    always, holidays = blackouts.listed(schedules)
    assert (always.name, always.open, always.zone) == ("always", True, "UTC")
    assert (holidays.name, holidays.windows, holidays.open, holidays.note) == ("holidays", 1, False, "closed")
    (opening,) = blackouts.preview(schedules, "holidays")
    assert (opening.start, opening.end) == ("2099-12-23T23:00:00+00:00", "2099-12-24T23:00:00+00:00")


def test_a_calendar_and_a_list_go_together(schedules: Schedules) -> None:
    """The content of an .ics file is taken beside days; a mistake in either stores nothing."""
    calendar = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\nDTSTART;VALUE=DATE:20991231\nEND:VEVENT\nEND:VCALENDAR\n"
    assert len(blackouts.define(schedules, "b", ["2099-01-01"], calendar=calendar).windows) == 2
    with pytest.raises(ScheduleError, match="2099-02-30"):
        blackouts.define(schedules, "b", ["2099-02-30"], calendar=calendar)
    assert len(blackouts.get(schedules, "b").windows) == 2


def test_an_unknown_blackout_is_told_with_likely_ones(schedules: Schedules) -> None:
    """Who mistypes a name is shown what there is."""
    with pytest.raises(NotFoundError, match="no blackouts at all"):
        blackouts.preview(schedules, "holiday")
    blackouts.define(schedules, "holidays", ["2099-01-01"])
    with pytest.raises(NotFoundError, match="'holidays'"):
        blackouts.remove(schedules, "holiday")


def test_a_blackout_in_use_is_removed_by_force_only(schedules: Schedules) -> None:
    """Who removes a blackout is told which entries it guards."""
    blackouts.define(schedules, "holidays", ["2099-01-01"])
    schedules.save(build("guarded", "app.t", 60, blackouts="holidays"))
    schedules.save(build("free", "app.t", 60))
    with pytest.raises(ConflictError, match="'guarded'"):
        blackouts.remove(schedules, "holidays")
    blackouts.remove(schedules, "holidays", force=True)
    assert blackouts.listed(schedules) == []


def test_what_cannot_be_read_is_listed_with_its_fault(schedules: Schedules) -> None:
    """A blackout of a newer release does not break the list."""
    blackouts.define(schedules, "good", ["2099-01-01"])
    schedules.server.client.hset("zsched:{schedule}:blackouts", "newer", '{"v":99}')
    good, newer = blackouts.listed(schedules)
    assert good.fault is None
    assert newer.fault is not None and "version 99" in newer.fault


def test_a_beat_keeps_to_blackouts(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """Nothing of a guarded entry is sent while a window is open; a change is in force within a second or so."""
    project = start_project(start_server(tcp=True))
    schedules = project.schedules
    today = datetime.now(timezone.utc).date()
    window = (today - timedelta(days=1), today + timedelta(days=2))
    blackouts.define(schedules, "freeze", [window])
    schedules.server.client.hset("zsched:{schedule}:blackouts", "newer", '{"v":99}')
    beat = project.beat()
    queue = {"options": {"queue": "guarded"}, "app": project.app}
    blackouts.define(schedules, "undefined", [window])
    Entry("guarded", "note", 0.2, blackouts=("freeze", "undefined"), **queue).save()
    blackouts.remove(schedules, "undefined", force=True)
    Entry("unreadable", "note", 0.2, blackouts="newer", **queue).save()
    Entry("free", "note", 0.2, options={"queue": "free"}, app=project.app).save()
    assert len(project.collect(8, queue="free")) >= 8
    assert project.drain("guarded") == []
    assert schedules.get("guarded").last.held == "blackout"
    assert "there is no blackout 'undefined'" in beat.output()

    blackouts.remove(schedules, "freeze", force=True)
    changed = time.monotonic()
    assert {sent.entry for sent in project.collect(3, queue="guarded", timeout_s=10)} == {"guarded"}
    assert time.monotonic() - changed < 4

    blackouts.define(schedules, "freeze", [window])
    project.collect_for(1.2, "guarded")
    assert project.collect_for(1.0, "guarded") == []
    wait_until(lambda: schedules.get("unreadable").state.value == "quarantined", what="quarantine")
    assert "version 99" in (schedules.get("unreadable").fault or "")
