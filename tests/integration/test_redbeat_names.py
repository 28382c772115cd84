"""Programs written for redbeat, with nothing but the import changed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from celery_zsched import Entry
from celery_zsched.apps import schedules_of
from celery_zsched.redbeat import RedBeatSchedulerEntry, rrule
from celery_zsched.stored import State
from tests.programs import Project
from tests.servers import RunningServer

PAGE = Path(__file__).parents[2] / "docs" / "from-redbeat.md"


@pytest.fixture
def app(valkey: RunningServer, close_later: Callable[[Any], Any]) -> Any:
    """An app whose schedule is empty."""
    app = close_later(Celery("redbeat", broker="memory://", set_as_current=False))
    app.conf.zsched_url = valkey.url
    close_later(schedules_of(app).server)
    return app


def make(app: Any, every: float = 60, **kwargs: Any) -> RedBeatSchedulerEntry:
    """Return an entry that is not stored yet."""
    return RedBeatSchedulerEntry("report", "app.report", schedule(run_every=every), args=["a", 2], app=app, **kwargs)


def test_the_page_runs_as_written(app: Any) -> None:
    """The example of the page does what it says."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    kept, deleted = code.split("entry.delete()")
    exec(kept, {"app": app})
    stored = Entry.get("report", app=app)
    assert (stored.state, stored.operator.reason) == (State.PAUSED, "enabled = False")
    assert stored.spec is not None and str(stored.spec.trigger).startswith("crontab")
    exec(f"{kept}entry.delete(){deleted}", {"app": app})
    assert list(Entry.all(app=app)) == []


def test_an_entry_is_fetched_by_its_key_as_it_was_saved(app: Any) -> None:
    """Name, task, schedule, arguments, options and key come back, and an unknown key is a KeyError."""
    saved = make(app, kwargs={"b": (1, 2)}, options={"queue": "q", "expires": 30}).save()
    assert saved.key == RedBeatSchedulerEntry.generate_key(app, "report") == "redbeat:report"
    entry = RedBeatSchedulerEntry.from_key(saved.key, app=app)
    assert (entry.name, entry.task, entry.args, entry.kwargs) == ("report", "app.report", ["a", 2], {"b": [1, 2]})
    assert (entry.schedule, entry.options, entry.enabled) == (schedule(60), {"queue": "q", "expires": 30.0}, True)
    assert (entry.last_run_at, entry.total_run_count) == (None, 0)
    assert RedBeatSchedulerEntry.load_definition(saved.key, app=app)["task"] == "app.report"
    assert RedBeatSchedulerEntry.load_meta("redbeat:none", app=app) == {"last_run_at": None}
    with pytest.raises(KeyError):
        RedBeatSchedulerEntry.from_key("redbeat:none", app=app)


def test_a_prefix_of_ones_own_stays_in_the_keys(app: Any) -> None:
    """Keys that a program has kept from redbeat go on working."""
    app.conf.redbeat_key_prefix = "mine:"
    assert make(app).save().key == "mine:report"
    assert RedBeatSchedulerEntry.from_key("mine:report", app=app).name == "report"


def test_a_declaration_at_each_start_leaves_a_pause_alone(app: Any) -> None:
    """Only who says enabled=True resumes."""
    make(app).save()
    paused = RedBeatSchedulerEntry.from_key("redbeat:report", app=app)
    paused.enabled = False
    paused.save()
    assert not make(app).save().enabled
    assert RedBeatSchedulerEntry.from_key("redbeat:report", app=app).is_due() == (False, 5.0)
    assert make(app, enabled=True).save().enabled
    assert Entry.get("report", app=app).state is State.SCHEDULED


def test_what_was_fetched_keeps_its_rules(app: Any) -> None:
    """Rules that redbeat does not know survive a change by its names."""
    Entry("report", "app.report", 60, overlap="skip", jitter=5, zone="Asia/Tokyo", app=app).save()
    entry = RedBeatSchedulerEntry.from_key("redbeat:report", app=app)
    entry.schedule = crontab(minute=5, hour=9)
    entry.save()
    spec = Entry.get("report", app=app).spec
    assert spec is not None
    assert (spec.overlap, spec.jitter_us, spec.zone) == ("skip", 5_000_000, "Asia/Tokyo")


def test_due_times_are_told(app: Any) -> None:
    """due_at, score and is_due agree, before and after the entry is stored."""
    entry = make(app, every=3600)
    now = datetime.now(timezone.utc)
    for each in (entry, entry.save()):
        assert each.due_at is not None
        assert timedelta(minutes=59) < each.due_at - now < timedelta(minutes=61)
        assert each.score == pytest.approx(each.due_at.timestamp(), abs=1)
        due, left_s = each.is_due()
        assert not due and 3540 < left_s < 3660


def test_reschedule_counts_an_interval_anew(app: Any) -> None:
    """From the moment that is given, or from now; a crontab stays as it is."""
    entry = make(app, every=3600).save()
    entry.reschedule(datetime.now(timezone.utc) - timedelta(minutes=50))
    assert entry.due_at is not None
    assert timedelta(minutes=9) < entry.due_at - datetime.now(timezone.utc) < timedelta(minutes=11)
    entry.reschedule()
    assert entry.due_at - datetime.now(timezone.utc) > timedelta(minutes=59)
    entry.save()
    assert entry.due_at - datetime.now(timezone.utc) > timedelta(minutes=59)
    daily = RedBeatSchedulerEntry("daily", "app.report", crontab(minute=0, hour=9), app=app).save()
    before = daily.due_at
    daily.reschedule()
    assert daily.due_at == before


def test_rules_keep_their_zone(app: Any) -> None:
    """A daily rule of New York that was stored in winter is at nine o'clock in summer too."""
    start = datetime(2026, 1, 5, 9, tzinfo=ZoneInfo("America/New_York"))
    RedBeatSchedulerEntry("rule", "app.report", rrule("DAILY", dtstart=start), app=app).save()
    entry = RedBeatSchedulerEntry.from_key("redbeat:rule", app=app)
    assert entry.due_at is not None
    assert entry.due_at.astimezone(ZoneInfo("America/New_York")).hour == 9
    RedBeatSchedulerEntry("free", "app.report", rrule("hourly", interval=2, byminute=[0]), app=app).save()


def test_redbeats_settings_are_not_read_in_silence(
    valkey: RunningServer, close_later: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Who sets redbeat_redis_url alone is told once where the schedule is."""
    app = close_later(Celery("old", broker=valkey.url, set_as_current=False))
    app.conf.redbeat_redis_url = "redis://elsewhere/1"
    with caplog.at_level(logging.WARNING):
        RedBeatSchedulerEntry("a", "t", 60, app=app)
        RedBeatSchedulerEntry("b", "t", 60, app=app)
    assert [record.message.split()[0] for record in caplog.records] == ["redbeat_redis_url"]


def test_a_beat_starts_by_redbeats_name(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """The scheduler of that name sends what was saved by these names."""
    project = start_project(start_server(tcp=True))
    program = project.start(
        "beat", "-S", "celery_zsched.redbeat.RedBeatScheduler", "--pidfile=", "--loglevel=INFO", name="beat"
    )
    RedBeatSchedulerEntry("r", "note", schedule(run_every=0.5), args=[1], app=project.app).save()
    assert [sent.entry for sent in project.collect(2)][:2] == ["r", "r"]
    assert program.is_running
