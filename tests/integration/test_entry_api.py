"""``Entry`` as programs use it: what a preview promises, what is stored or already so, and pages of all there is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_zsched import Entry, EntryError, operations
from celery_zsched.apps import schedules_of
from celery_zsched.entry import OperatorState
from celery_zsched.operations import Site
from celery_zsched.stored import Change, State
from celery_zsched.types import SECOND_US, from_us
from tests.entries import put_back
from tests.servers import RunningServer

MINUTE_US = 60 * SECOND_US

#: How far apart two looks at the server's clock may be, on a busy machine.
MOMENT = timedelta(seconds=30)


@pytest.fixture
def app(start_server: Callable[..., RunningServer]) -> Celery:
    """An app whose schedule is on a server of the test's own."""
    return Celery(broker=f"zsched+{start_server().url}", set_as_current=False)


def test_a_preview_of_a_stored_entry_stays_on_its_grid(app: Celery) -> None:
    """As save does, which finds it unchanged: the moment for which it waits, and those that follow on its grid."""
    put_back(schedules_of(app), Entry("poll", "note", 3600, app=app).spec, -20 * MINUTE_US)
    entry = Entry("poll", "note", 3600, app=app)
    due = Entry.get("poll", app=app).due
    assert due is not None
    for changed in (entry, Entry("poll", "other", 3600, misfire="all", app=app)):
        assert changed.preview(3) == [due + n * timedelta(hours=1) for n in range(3)]
    assert entry.preview(0) == []
    entry.save()
    assert Entry.get("poll", app=app).due == due
    fresh = Entry("fresh", "note", 3600, app=app).preview(1)[0]
    assert abs(fresh - due) > MOMENT


@pytest.mark.parametrize(
    ("schedule", "rules"),
    [
        (3600, {}),
        (3600, {"jitter": 3000}),
        (3600, {"start": datetime(2040, 1, 1, tzinfo=timezone.utc)}),
        (7200, {}),
        (crontab(minute=0, hour=9), {"zone": "Asia/Tokyo", "jitter": 600}),
        (3600, {"count": 1}),
        (3600, {"end": datetime(2000, 1, 1, tzinfo=timezone.utc)}),
        ("30 9 * * 1-5", {"blackouts": ()}),
    ],
)
@pytest.mark.parametrize("paused", [False, True])
def test_a_preview_begins_with_what_saving_makes_it_wait_for(
    app: Celery, schedule: Any, rules: dict[str, Any], paused: bool
) -> None:
    """Whatever changes of an entry that is stored, and also where nothing is."""
    stored = put_back(schedules_of(app), Entry("poll", "note", 3600, app=app).spec, -20 * MINUTE_US)
    if paused:
        schedules_of(app).pause("poll", OperatorState(paused=True))
    entry = Entry("poll", "note", schedule, app=app, **rules)
    coming = entry.preview(2)
    entry.save()
    due = Entry.get("poll", app=app).due
    if rules.get("end"):
        assert coming == []
        assert paused or due is None
    else:
        assert due is not None and abs(due - coming[0]) < MOMENT
        assert (schedule == 3600) is (due == from_us(stored)) or "start" in rules
    assert len(coming) == (1 if rules.get("count") else 0 if rules.get("end") else 2)


def test_a_preview_leaves_out_what_is_overdue_or_never_comes(app: Celery) -> None:
    """Nothing that it lists has passed; of an entry that has nothing to come, it lists nothing."""
    schedules = schedules_of(app)
    put_back(schedules, Entry("late", "note", 3600, app=app).spec, 5 * MINUTE_US)
    coming = Entry("late", "note", 3600, app=app).preview(2)
    assert coming[0] > from_us(schedules.now_us())
    past = datetime(2000, 1, 1, tzinfo=timezone.utc)
    assert Entry("never", "note", past, app=app).preview() == []
    assert Entry("late", "note", past, app=app).preview() == []


def test_upsert_tells_what_it_did(app: Celery) -> None:
    """Created, updated, or already so; with the arguments of the entry and of its saving."""
    declared: dict[str, Any] = {"kwargs": {"kind": "daily"}, "zone": "Europe/Paris", "app": app}
    schedule = crontab(minute=0, hour=9)
    done = [
        Entry.upsert("report", "note", schedule, **declared, reason="first"),
        Entry.upsert("report", "note", schedule, **declared),
        Entry.upsert("report", "note", schedule, **declared, overlap="skip"),
    ]
    assert done == [Change.CREATED, Change.UNCHANGED, Change.UPDATED]
    spec = Entry.get("report", app=app).spec
    assert spec is not None and spec.arguments is not None
    assert (spec.arguments.arguments(), spec.zone, spec.overlap) == (([], {"kind": "daily"}), "Europe/Paris", "skip")
    assert operations.audit(Site.of(app), target="entry:report")[-1].reason == "first"
    with pytest.raises(EntryError, match="did you mean 'misfire'"):
        Entry.upsert("report", "note", 60, misfir="skip", app=app)


def test_entries_are_listed_by_pages(app: Celery) -> None:
    """In the order of their names, each once; all of a state or of a pattern where that is asked for."""
    names = [*(f"entry {n}" for n in range(7)), "other"]
    schedules_of(app).save_many([Entry(name, "note", 3600, app=app).spec for name in reversed(names)])
    seen: list[str] = []
    page = Entry.list(limit=3, app=app)
    assert len(page) == 3
    while True:
        seen += [stored.name for stored in page]
        if page.after is None:
            break
        page = Entry.list(limit=3, after=page.after, app=app)
    assert seen == names
    assert [stored.name for stored in Entry.list(pattern="o*", app=app)] == ["other"]
    schedules_of(app).pause("entry 4", OperatorState(paused=True))
    for state in ("paused", State.PAUSED):
        assert [(each.name, each.state) for each in Entry.list(state=state, app=app)] == [("entry 4", State.PAUSED)]
    assert {stored.name for stored in Entry.all(app=app)} == set(names)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": "9"}, {"limit": True}, {"state": "pausd"}])
def test_a_page_that_cannot_be_is_refused(app: Celery, wrong: dict[str, Any]) -> None:
    """The message names the value and what would do."""
    with pytest.raises(EntryError, match=r"whole number|did you mean 'paused'"):
        Entry.list(**wrong, app=app)
