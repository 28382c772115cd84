"""Beats that were away, or come and go: what they make up for, and what they leave as it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_zsched import ConfigurationError, Entry
from celery_zsched.apps import schedules_of
from celery_zsched.beat import Scheduler
from celery_zsched.entry import encode, from_beat_schedule
from celery_zsched.stored import Change, State, Stored
from celery_zsched.types import SECOND_US, Item, Place, Put, from_us, to_us
from tests.entries import HOUR_US, put_back
from tests.programs import Project, Sent, messages, sent_of
from tests.servers import RunningServer, wait_until

MINUTE_US = 60 * SECOND_US
WEEK_US = 7 * 24 * HOUR_US


@pytest.fixture
def project(start_server: Callable[..., RunningServer], start_project: Callable[..., Project]) -> Project:
    """A project on a server of its own."""
    return start_project(start_server(tcp=True), ours=True, zsched_lease_timeout=1)


RULES: dict[str, dict[str, Any]] = {
    "once": {},
    "once within half an hour": {"grace": 1800},
    "once within ten minutes": {"grace": 600},
    "skip": {"misfire": "skip"},
    "all": {"misfire": "all"},
    "the last two": {"misfire": "all", "misfire_limit": 2},
    "the first two": {"misfire": "all", "count": 2},
}


def test_each_entry_has_made_up_for_what_it_wants_when_a_beat_is_back(project: Project) -> None:
    """C-14: of five hourly occurrences, the last of them 20 minutes ago; the next is where it would have been."""
    late_us = 4 * HOUR_US + 20 * MINUTE_US
    first_us = {
        name: put_back(project.schedules, Entry(name, "note", 3600, app=project.app, **rules).spec, late_us)
        for name, rules in RULES.items()
    }

    def sent_or_not() -> bool:
        """Whether every entry was looked at."""
        stored = {name: Entry.get(name, app=project.app) for name in RULES}
        return all(
            each.located.place is not Place.LEASED and each.due_us != first_us[each.name] for each in stored.values()
        )

    project.beat()
    wait_until(sent_or_not, what="all to be looked at")
    sent = project.collect(11)
    told = {
        name: [
            ((one.nominal_us - first_us[name]) // HOUR_US, one.missed, one.cause) for one in sent if one.entry == name
        ]
        for name in RULES
    }
    late = "catch-up"
    assert told == {
        "once": [(4, 4, late)],
        "once within half an hour": [(4, 4, late)],
        "once within ten minutes": [],
        "skip": [],
        "all": [(number, 0, late) for number in range(5)],
        "the last two": [(3, 3, late), (4, 0, late)],
        "the first two": [(0, 0, late), (1, 0, late)],
    }
    stored = {name: Entry.get(name, app=project.app) for name in RULES}
    assert stored.pop("the first two").state is State.FINISHED
    assert {name: each.due_us for name, each in stored.items()} == {
        name: first_us[name] + 5 * HOUR_US for name in stored
    }


@pytest.mark.slow
def test_a_count_that_was_lowered_while_no_beat_ran_ends_an_entry_and_raised_it_goes_on(project: Project) -> None:
    """Though all that was missed would be made up for; what passed while it was finished is not."""

    def often(count: int | None) -> Entry:
        return Entry("often", "note", 0.5, misfire="all", count=count, app=project.app)

    def stands(state: State) -> Stored | None:
        stored = Entry.get("often", app=project.app)
        return stored if stored.state is state and stored.located.place in (Place.DEAD, Place.WAITING) else None

    often(None).save()
    beat = project.beat()
    sent = project.collect(3)
    assert beat.terminate() == 0
    sent += project.drain()
    stopped: Stored = Entry.get("often", app=project.app)
    assert stopped.last.fired == len(sent) and stopped.due_us is not None
    wait_until(lambda: project.schedules.now_us() > (stopped.due_us or 0) + SECOND_US, what="some to be missed")
    assert often(2).save() is Change.UPDATED
    assert stands(State.FINISHED)
    project.beat()
    wait_until(lambda: project.schedules.timeline.counts().dead == 1, what="it to be set aside")
    assert project.drain() == []
    assert (Entry.get("often", app=project.app).last.fired, project.schedules.history("often")[0].outcome) == (
        len(sent), "sent"
    )  # fmt: skip
    raised_us = project.schedules.now_us()
    assert often(len(sent) + 2).save() is Change.UPDATED
    more = project.collect(2)
    wait_until(lambda: stands(State.FINISHED), what="it to be finished again")
    more += project.collect_for(1.0)
    assert [one.missed for one in more] == [0, 0] and more[0].nominal_us > raised_us
    assert {(one.nominal_us - sent[0].nominal_us) % (SECOND_US // 2) for one in more} == {0}


def test_an_entry_that_is_added_is_on_time_though_another_is_long_in_coming(project: Project) -> None:
    """C-11: an hourly one that ran 29 minutes ago is due in 31; what comes sooner is not held up by it."""
    due_us = put_back(project.schedules, Entry("hourly", "note", 3600, app=project.app).spec, -31 * MINUTE_US)
    beat = project.beat()
    client = project.schedules.server.client
    wait_until(lambda: client.info("clients")["blocked_clients"] == 1, what="the beat to wait")
    Entry("soon", "note", 1.5, app=project.app).save()
    soon_us = Entry.get("soon", app=project.app).due_us
    (first, *_) = project.collect(1)
    assert first.nominal_us == soon_us
    assert 0 <= to_us(datetime.fromisoformat(first.fired)) - first.nominal_us < SECOND_US
    assert Entry.get("hourly", app=project.app).due_us == due_us
    assert beat.is_running


def test_celerys_deadline_for_crontabs_is_kept(start_server: Callable[..., RunningServer]) -> None:
    """beat_cron_starting_deadline: a crontab's occurrence that is later is not sent; intervals know nothing of it."""
    app = Celery("deadline", broker=f"zsched+{start_server().url}", set_as_current=False)
    app.conf.update(beat_cron_starting_deadline=600, result_expires=None, beat_max_loop_interval=0.02)
    schedules = schedules_of(app)
    late = from_us(schedules.now_us() - 20 * MINUTE_US).replace(second=0, microsecond=0)
    for name, schedule in (("cron", crontab(minute=late.minute)), ("interval", 3600)):
        put_back(schedules, Entry(name, "note", schedule, app=app).spec, schedules.now_us() - to_us(late))
    beat = Scheduler(app)

    def moved_on() -> bool:
        """Whether both entries wait for what is to come."""
        beat.tick()
        now_us = schedules.now_us()
        return all((stored.due_us or 0) > now_us and stored.state is State.SCHEDULED for stored in schedules.all())

    try:
        wait_until(moved_on, what="both to be looked at")
    finally:
        beat.close()
    assert {stored.name: stored.last.fired for stored in schedules.all()} == {"cron": 0, "interval": 1}
    for wrong in ("60", -1, True):
        app.conf.beat_cron_starting_deadline = wrong
        with pytest.raises(ConfigurationError, match="beat_cron_starting_deadline is"):
            Scheduler(app)


class Restarts:
    """Beats of this process, one after the other, of an app with a weekly static entry."""

    def __init__(self, url: str) -> None:
        self.app = Celery("weekly", broker=f"zsched+{url}", set_as_current=False)
        weekly = {"task": "note", "schedule": timedelta(days=7)}
        self.app.conf.update(beat_schedule={"weekly": weekly}, result_expires=None, beat_max_loop_interval=0.02)
        self.schedules = schedules_of(self.app)
        self.spec = from_beat_schedule("weekly", weekly, self.schedules.zone, serializer=self.app.conf.task_serializer)

    def wait_for(self, *, in_us: int) -> int:
        """Let the entry have been stored so long ago that it is due soon, for the first time; return that moment."""
        due_us = self.schedules.now_us() + in_us
        self.schedules.timeline.put(
            [Item("weekly", encode(self.spec.installed(due_us - WEEK_US)), due_us, mode=Put.REPLACE)]
        )
        return due_us

    def run(self) -> int | None:
        """Let a beat begin, look once and end; return when the entry is due next."""
        beat = Scheduler(self.app)
        beat.tick()
        beat.close()
        return self.schedules.get("weekly").due_us

    def sent(self) -> list[Sent]:
        """Take what was sent."""
        with self.app.connection_for_read() as connection:
            return [sent for message in messages(connection, "celery") if (sent := sent_of(message)) is not None]

    def close(self) -> None:
        """Drop the connections."""
        self.schedules.server.close()
        self.app.close()


@pytest.fixture
def restarts(start_server: Callable[..., RunningServer], close_later: Callable[[Any], Any]) -> Iterator[Restarts]:
    """A weekly entry on a server of its own."""
    yield close_later(Restarts(start_server(tcp=True).url))


def test_a_long_interval_survives_many_restarts(restarts: Restarts) -> None:
    """C-15: forty starts move nothing, and when its moment has come it is sent once, however many more there are."""
    due_us = restarts.wait_for(in_us=HOUR_US)
    assert [restarts.run() for _ in range(40)] == [due_us] * 40
    assert restarts.sent() == []
    due_us = restarts.wait_for(in_us=0)
    assert [restarts.run() for _ in range(5)] == [due_us + WEEK_US] * 5
    (sent,) = restarts.sent()
    assert (sent.nominal_us, sent.missed) == (due_us, 0)
