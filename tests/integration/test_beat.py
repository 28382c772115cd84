"""One ``celery beat`` at work, with entries that other processes add, change, pause, break and delete meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from celery.schedules import BaseSchedule

from celery_zsched import Entry, NotFoundError
from celery_zsched.entry import OperatorState
from celery_zsched.stored import Change, State, Stored
from celery_zsched.triggers import register_trigger
from celery_zsched.types import to_us
from tests.entries import put_at
from tests.programs import Program, Project, Sent
from tests.servers import RunningServer, wait_until

SOURCE = """
    from celery.schedules import BaseSchedule
    from celery_zsched.triggers import register_trigger

    class Breaks(BaseSchedule):
        def is_due(self, last_run_at):
            raise RuntimeError("the moon is not full")

    class Never(BaseSchedule):
        def is_due(self, last_run_at):
            return False, 5

    register_trigger("beats-breaks", Breaks)
    register_trigger("beats-never", Never)
    app.conf.beat_schedule = {
        "never comes": {"task": "note", "schedule": "0 0 31 4 *"},
        "mistyped": {"task": "note", "shedule": 1.0},
        "no task": {"schedule": 1.0},
        "no entry": None,
        "unstorable": {"task": "note", "schedule": 1.0, "args": (object(),)},
        "breaks at once": {"task": "note", "schedule": Breaks()},
        "steady": {"task": "note", "schedule": 1.0, "args": ("static",), "options": {"queue": "steady"}},
    }
"""


class Soon(BaseSchedule):
    """A schedule of this process, under names by which the beat has another class, or none."""

    def next_after(self, instant: datetime) -> datetime:
        """Return a moment soon after."""
        return instant + timedelta(seconds=0.2)


class Living:
    """A project whose beat runs, and entries with a queue for each."""

    def __init__(self, project: Project, beat: Program) -> None:
        self.project = project
        self.beat = beat

    def entry(self, name: str, schedule: Any, *args: Any, **rules: Any) -> Entry:
        """Make an entry with arguments whose messages go to the queue of its name."""
        options = {"queue": name, **rules.pop("options", {})}
        return Entry(name, "note", schedule, args, options=options, app=self.project.app, **rules)

    def get(self, name: str) -> Stored:
        """Return how an entry stands."""
        return Entry.get(name, app=self.project.app)

    def collect(self, queue: str, enough: int = 1) -> list[Sent]:
        """Wait for messages on a queue."""
        return self.project.collect(enough, queue=queue)

    def wait_for(self, name: str, state: State) -> Stored:
        """Wait until an entry stands so."""

        def there() -> Stored | None:
            stored = self.get(name)
            return stored if stored.state is state else None

        stored: Stored = wait_until(there, what=f"{name} to be {state.value}, not {self.get(name)}")
        return stored


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    """One beat for all tests of this module."""
    directory: Path = tmp_path_factory.mktemp("living")
    with RunningServer(tcp=True) as server:
        project = Project(directory, server.url, SOURCE)
        yield Living(project, project.beat())
        project.close()


def test_static_entries_are_sent_on_their_grid_with_their_occurrence(living: Living) -> None:
    """Each message says which entry it is of, for when, and that nothing was missed."""
    sent = living.collect("steady", 3)
    distances = {b.nominal_us - a.nominal_us for a, b in pairwise(sent)}
    assert distances == {1_000_000}
    assert {(one.entry, one.missed, one.cause) for one in sent} == {("steady", 0, "schedule")}
    assert sent[0].body[0] == ["static"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("never comes", "never"),
        ("mistyped", "did you mean 'schedule'?"),
        ("no task", "it lacks 'task'"),
        ("no entry", "not a mapping"),
        ("unstorable", "cannot be serialized"),
        ("breaks at once", "the moon is not full"),
    ],
)
def test_a_broken_static_entry_is_left_out_with_its_reason(living: Living, name: str, why: str) -> None:
    """One clear line names it; the others go on (the steady one is sent meanwhile)."""
    (line,) = [line for line in living.beat.output().splitlines() if f"the static entry {name!r} is left out" in line]
    assert why in line
    with pytest.raises(NotFoundError):
        living.get(name)
    assert living.collect("steady")


def test_a_new_entry_fires_in_time_while_the_beat_waits_for_something_later(living: Living) -> None:
    """Saved by another process, due in three seconds: sent by half a second after that at the latest."""
    due = datetime.now(timezone.utc) + timedelta(seconds=3)
    assert living.entry("new", due).save() is Change.CREATED
    (sent,) = living.collect("new")
    assert sent.nominal_us == round(due.timestamp() * 1e6)
    assert timedelta(0) <= datetime.fromisoformat(sent.fired) - due < timedelta(seconds=0.5)


def test_a_changed_entry_sends_the_new_from_then_on_and_a_deleted_one_nothing(living: Living) -> None:
    """Hourly becomes every second, its arguments change in between, and then it goes."""
    living.entry("changing", 3600, "old").save()
    assert living.entry("changing", 1, "new").save() is Change.UPDATED
    assert living.collect("changing")[0].body[0] == ["new"]
    assert living.entry("changing", 1, "newer").save() is Change.UPDATED
    living.project.settled("changing")
    assert living.collect("changing")[0].body[0] == ["newer"]
    Entry.delete("changing", app=living.project.app)
    living.project.settled("changing")
    assert living.project.collect_for(1.2, "changing") == []


def test_a_one_off_is_sent_once_and_stands_as_finished(living: Living) -> None:
    """Two at the very same moment are both sent."""
    due = datetime.now(timezone.utc) + timedelta(seconds=0.5)
    both = [living.entry(name, due).spec for name in ("once-p", "once-q")]
    put_at(living.project.schedules, both, to_us(due))
    for name in ("once-p", "once-q"):
        (sent,) = living.collect(name)
        stored = living.wait_for(name, State.FINISHED)
        assert (stored.due_us, stored.last.nominal_us, stored.last.fired) == (None, sent.nominal_us, 1)
    assert living.project.collect_for(0.6, "once-p") == []


def test_counted_entries_end_after_so_many(living: Living) -> None:
    """Three are sent, and it is finished."""
    living.entry("three", 0.3, count=3).save()
    assert living.collect("three", 3)
    assert living.wait_for("three", State.FINISHED).last.fired == 3
    assert living.project.collect_for(0.7, "three") == []


def test_a_paused_entry_sends_nothing_and_a_resumed_one_only_what_is_to_come(living: Living) -> None:
    """What the pause swallowed is not made up for."""
    living.entry("pausing", 1).save()
    living.collect("pausing")
    living.project.schedules.pause("pausing", OperatorState(paused=True, reason="a test"))
    living.project.settled("pausing")
    assert living.project.collect_for(1.5, "pausing") == []
    before = time.time()
    living.beat.freeze()  # what is due this very moment is not sent before it is looked at
    try:
        living.project.schedules.resume("pausing")
        stored = living.get("pausing")
    finally:
        living.beat.thaw()
    assert stored.due_us is not None and before < stored.due_us / 1e6 <= time.time() + 1
    (sent, *_) = living.collect("pausing")
    assert sent.nominal_us == stored.due_us


def test_any_text_will_do_as_a_name(living: Living) -> None:
    """Each fires, is listed unchanged, and is deleted."""
    names = {
        *(":lock", ":schedule", "a{b}c", "}{", "with  spaces and\ttab", "x" * 300, "⏰ día 日", "-", "0", "null"),
        *("zsched:{schedule}:timeline", '"quoted"', "back\\slash", "percent %s %(x)s {0}", "line\nbreak"),
    }
    for name in names:
        assert living.entry(name, 0.3, count=1, options={"queue": "names"}).save() is Change.CREATED
    assert {sent.entry for sent in living.collect("names", len(names))} == names
    assert {stored.name for stored in Entry.all(app=living.project.app)} >= names
    for name in names:
        Entry.delete(name, app=living.project.app)
    assert names.isdisjoint(living.project.schedules.names())


def test_options_go_with_the_message_beside_our_own_header(living: Living) -> None:
    """Queue, priority, expiry and headers are as with apply_async."""
    moment = datetime.now(timezone.utc)
    options = {"priority": 3, "expires": 60, "headers": {"k": "v"}}
    living.entry("options", 0.2, count=1, options=options).save()
    (sent,) = living.collect("options")
    assert (sent.headers["k"], sent.properties["priority"]) == ("v", 3)
    assert timedelta(0) < datetime.fromisoformat(sent.headers["expires"]) - moment - timedelta(seconds=60)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("beats-unknown", "no schedule class is registered here as 'beats-unknown'"),
        ("beats-breaks", "the moon is not full"),
        ("beats-never", "is never due"),
    ],
)
def test_an_entry_that_this_beat_cannot_compute_is_set_aside_until_it_is_mended(
    living: Living, name: str, why: str
) -> None:
    """It is in quarantine with the reason, the steady one goes on, and saved anew it is sent again."""
    odd = type(name, (Soon,), {})
    register_trigger(name, odd)
    living.project.drain("steady")
    living.entry(name, odd()).save()
    stored = living.wait_for(name, State.QUARANTINED)
    assert stored.fault is not None and why in stored.fault
    steady = living.collect("steady", 2)
    assert {b.nominal_us - a.nominal_us for a, b in pairwise(steady)} == {1_000_000}
    assert living.entry(name, 0.5).save() is Change.UPDATED
    assert living.collect(name)[0].entry == name


def test_a_flush_of_scripts_goes_unnoticed(living: Living) -> None:
    """Occurrences follow each other as before."""
    living.collect("steady")
    living.project.schedules.server.client.script_flush()
    sent = living.collect("steady", 2)
    assert sum(one.missed for one in sent) == 0


def test_an_entry_whose_document_is_gone_is_reported_by_name_and_the_others_go_on(living: Living) -> None:
    """Evicted or deleted by hand, it cannot be sent; somebody must save it anew."""
    living.entry("evicted", 1).save()
    schedules = living.project.schedules
    schedules.server.client.hdel(schedules.timeline.keys.bodies, "evicted")
    living.beat.says("the entry 'evicted' is lost")
    assert living.collect("steady")
