"""Entries on a real server: what a save changes and what it leaves alone, whoever else writes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

import pytest
from celery.schedules import crontab, solar

from celery_zsched import planner
from celery_zsched.entry import EntrySpec, LastRun
from celery_zsched.errors import ConflictError, ScheduleError
from celery_zsched.schedules import Schedules
from celery_zsched.stored import FINISHED, Change, Move, State
from celery_zsched.types import SECOND_US, Place, Placed
from celery_zsched.upkeep import adopt_zone
from tests.entries import HOUR_US, LEASE_US, claimed, entry, move, paused, put_back

Open = Callable[..., Schedules]


# -- Saving


def test_a_new_entry_is_due_at_its_first_occurrence_and_an_unchanged_one_is_left_alone(schedules: Schedules) -> None:
    """The grid of an interval begins where the entry was first stored."""
    before_us = schedules.now_us()
    assert schedules.save(entry()) is Change.CREATED
    stored = schedules.get("report")
    assert stored.state is State.SCHEDULED and stored.due_us is not None
    assert before_us + HOUR_US <= stored.due_us <= schedules.now_us() + HOUR_US
    assert schedules.save(entry()) is Change.UNCHANGED
    assert schedules.get("report") == stored


def test_declaring_anew_with_other_arguments_neither_postpones_nor_ignores(schedules: Schedules) -> None:
    """An hour that has half passed goes on, and the newest arguments are sent at its end; the next comes after it."""
    due_us = put_back(schedules, entry("report", 3600, "a"), -HOUR_US // 2)
    for argument in ("b", "c"):
        assert schedules.save(entry("report", 3600, argument)) is Change.UPDATED
        stored = schedules.get("report")
        assert stored.due_us == due_us
        assert stored.spec is not None and stored.spec.arguments is not None
        assert stored.spec.arguments.arguments() == ([argument], {})
    assert stored.spec is not None
    assert planner.plan(stored.spec, stored.last, due_us, due_us).next_due_us == due_us + HOUR_US


def test_a_changed_schedule_is_computed_anew_and_keeps_what_happened_and_what_was_decided(schedules: Schedules) -> None:
    """Here of a paused entry, which stays paused."""
    put_back(schedules, entry(), 0)
    due = claimed(schedules)
    record = LastRun(nominal_us=due.due_us, fired=7, missed_total=2)
    move(schedules, [Move(due.hold, due.due_us + HOUR_US, record)])
    schedules.pause("report", paused())
    assert schedules.save(entry("report", 60)) is Change.UPDATED
    stored = schedules.get("report")
    assert (stored.state, stored.operator, stored.last) == (State.PAUSED, paused(), record)
    assert stored.due_us is not None and stored.due_us <= schedules.now_us() + 60 * SECOND_US


def test_rules_that_do_not_move_the_due_time_leave_it(schedules: Schedules) -> None:
    """End, count, jitter, misfire and overlap decide what is sent, not when it is due."""
    due_us = put_back(schedules, entry(), -1800 * SECOND_US)
    end = datetime.now(timezone.utc) + timedelta(days=1)
    for rules in ({"count": 3}, {"end": end}, {"misfire": "all", "overlap": "skip"}, {"jitter": 5}, {}):
        assert schedules.save(entry("report", 3600, **rules)) is Change.UPDATED
        assert schedules.get("report").due_us == due_us


def test_what_can_never_be_due_is_refused_and_the_others_are_stored(schedules: Schedules) -> None:
    """One call, one fault."""
    gone = entry("gone", datetime(2020, 1, 1, tzinfo=timezone.utc))
    changes, faults = schedules.save_many([entry("one"), gone, entry("two")])
    assert changes == {"one": Change.CREATED, "two": Change.CREATED}
    assert isinstance(faults["gone"], ScheduleError) and "'gone' has no occurrence to come" in str(faults["gone"])


@pytest.mark.parametrize(
    "schedule",
    [
        crontab(minute="*/5"), "15 4 * * 1-5", solar("sunrise", 69.65, 18.96), timedelta(minutes=7),
        "DTSTART;TZID=America/New_York:20260105T090000\nRRULE:FREQ=DAILY", datetime(2099, 5, 1, tzinfo=timezone.utc),
    ],
    ids=["crontab", "cron text", "solar", "interval", "recurrence", "at"],
)  # fmt: skip
def test_what_is_read_back_has_the_same_dues_as_what_was_stored(open_schedules: Open, schedule: Any) -> None:
    """The next fifty, in a process with another idea of the app's zone for all that has its own."""
    spec = entry("kind", schedule, zone=None if isinstance(schedule, (str, datetime)) else "Asia/Tokyo")
    schedules = open_schedules(zone="Europe/Paris")
    assert schedules.save(spec) is Change.CREATED
    stored = open_schedules(zone="Europe/Paris").get("kind")
    assert stored.spec is not None and stored.due_us is not None
    installed = spec.installed(stored.spec.epoch)
    assert stored.spec == installed

    def dues(of: EntrySpec) -> list[int]:
        return list(islice(planner.nominals(of, stored.spec.epoch, zone="Europe/Paris"), 50))  # type: ignore[union-attr]

    assert dues(stored.spec) == dues(installed)
    assert dues(installed)[0] == stored.due_us


def test_an_app_that_moves_to_another_zone_takes_its_entries_along(open_schedules: Open) -> None:
    """Nine o'clock of Berlin becomes nine o'clock of New York; an entry with a zone of its own stays."""
    berlin, new_york = open_schedules(zone="Europe/Berlin"), open_schedules(zone="America/New_York")
    adopt_zone(berlin)
    daily, own = entry("daily", crontab(hour=9, minute=0)), entry("own", crontab(hour=9, minute=0), zone="Asia/Tokyo")
    berlin.save_many([daily, own])
    before = {name: berlin.get(name).due_us for name in ("daily", "own")}
    assert adopt_zone(new_york) == 1
    after = {name: new_york.get(name).due_us for name in ("daily", "own")}
    assert after["own"] == before["own"]
    assert after["daily"] == planner.first(daily, new_york.now_us(), zone="America/New_York").next_due_us
    assert adopt_zone(new_york) == 0


# -- Two at once


def interrupted(schedules: Schedules, deed: Callable[[], Any], times: int) -> None:
    """Let ``deed`` happen between the reading and the writing of a save, so many times."""
    put = schedules.timeline.put

    def later(items: Any, **how: Any) -> list[Placed]:
        nonlocal times
        if times:
            times -= 1
            deed()
        return put(items, **how)

    schedules.timeline.put = later  # type: ignore[method-assign]


def test_of_two_writers_the_later_wins_whole(open_schedules: Open) -> None:
    """Who was overtaken reads again and writes again; nothing of the two is mixed."""
    mine, theirs = open_schedules(), open_schedules()
    theirs.save(entry("report", 3600, "theirs"))
    interrupted(mine, lambda: theirs.save(entry("report", 1800, "newer")), 1)
    assert mine.save(entry("report", 3600, "mine")) is Change.UPDATED
    stored = theirs.get("report")
    assert stored.spec is not None and stored.spec.arguments is not None
    assert (stored.spec.trigger, stored.spec.arguments.arguments()) == (entry().trigger, (["mine"], {}))


def test_two_who_create_the_same_entry_make_one_life(open_schedules: Open) -> None:
    """The one who came second finds it unchanged, on the grid of the first."""
    mine, theirs = open_schedules(), open_schedules()
    interrupted(mine, lambda: theirs.save(entry()), 1)
    assert mine.save(entry()) is Change.UNCHANGED
    assert len(list(mine.names())) == 1


def test_a_writer_who_is_overtaken_again_and_again_gives_up_with_a_clear_error(open_schedules: Open) -> None:
    """It is told to retry; what the others wrote stands."""
    mine, theirs = open_schedules(), open_schedules()
    numbers = iter(range(100))
    theirs.save(entry())
    interrupted(mine, lambda: theirs.save(entry("report", 3600, next(numbers))), 100)
    with pytest.raises(ConflictError, match=r"'report' is being written by others; retry"):
        mine.save(entry("report", 60))
    assert mine.get("report").state is State.SCHEDULED


@pytest.mark.parametrize("place", [Place.WAITING, Place.LEASED, Place.PARKED, Place.DEAD])
def test_one_whose_document_is_gone_from_the_server_can_be_saved_anew(schedules: Schedules, place: Place) -> None:
    """Evicted or deleted by hand, wherever it stands; a pause stays, as with any save."""
    put_back(schedules, entry(), 0)
    if place is Place.LEASED:
        claimed(schedules)
    elif place is Place.PARKED:
        schedules.pause("report", paused())
    elif place is Place.DEAD:
        schedules.timeline.bury([("report", "", FINISHED, b"")])
    assert schedules.get("report").located.place is place
    client: Any = schedules.server.client
    client.hdel(schedules.timeline.keys.bodies, "report")
    assert schedules.save(entry("report", 60)) is Change.UPDATED
    stored = schedules.get("report")
    assert stored.spec is not None and stored.spec.trigger == entry("report", 60).trigger
    assert stored.state is (State.PAUSED if place is Place.PARKED else State.SCHEDULED)
    assert schedules.save(entry("report", 60)) is Change.UNCHANGED


# -- Many


def test_all_entries_are_listed_once_however_many(schedules: Schedules) -> None:
    """Read in batches; one deleted meanwhile is left out."""
    names = {f"entry-{number}" for number in range(1200)}
    schedules.save_many([entry(name) for name in names])
    listing = schedules.all()
    first = next(listing)
    schedules.delete(first.name)
    found = [first.name, *(stored.name for stored in listing)]
    assert sorted(found) == sorted(names)
    assert len(list(schedules.names())) == 1199


def test_ten_thousand_entries_are_stored_in_few_round_trips(schedules: Schedules) -> None:
    """Two scripts for 500 of them, one where nothing has changed, and as many where all of them have."""
    specs = [entry(f"entry-{number}") for number in range(10_000)]
    client = schedules.server.client

    def commands(specs: list[EntrySpec], change: Change) -> int:
        client.config_resetstat()
        changes, faults = schedules.save_many(specs)
        assert (set(changes.values()), len(changes), faults) == ({change}, 10_000, {})
        stats = client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))

    assert commands(specs, Change.CREATED) <= 42
    assert commands(specs, Change.UNCHANGED) == 20
    assert commands([entry(spec.name, 3600, "new") for spec in specs], Change.UPDATED) == 40


def test_nothing_is_left_of_deleted_entries(schedules: Schedules) -> None:
    """Waiting, paused, in quarantine, finished, with all that is known of them; no key outside the prefix before."""
    for name in ("waiting", "paused", "quarantined", "finished"):
        put_back(schedules, entry(name), 0)
    for due in schedules.claim(10, LEASE_US).due:
        last = LastRun(fired=1)
        if due.name == "quarantined":
            schedules.quarantine(due, "why", last)
        else:
            move(schedules, [Move(due.hold, None if due.name == "finished" else due.due_us + HOUR_US, last)])
    schedules.pause("paused", paused())
    assert all(key.startswith(b"zsched:{schedule}:") for key in schedules.server.client.scan_iter())
    for name in list(schedules.names()):
        schedules.delete(name)
    left = {key.decode() for key in schedules.server.client.scan_iter()}
    assert left <= {schedules.timeline.keys.bell, schedules.timeline.keys.watch}
