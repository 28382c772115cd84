"""Outstanding runs on a real server: what counts, for how long, and who is woken when they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_zsched import blackouts
from celery_zsched.blackout_store import Blackouts
from celery_zsched.connection import Server
from celery_zsched.entry import build
from celery_zsched.runs import Mark, Runs
from celery_zsched.schedules import Schedules
from celery_zsched.types import SECOND_US
from tests.servers import RunningServer, wait_until
from tests.topologies import Cluster

HOUR_US = 3600 * SECOND_US


@pytest.fixture
def schedules(any_server: RunningServer, close_later: Callable[[Any], Any]) -> Iterator[Schedules]:
    """An empty schedule on each kind of server."""
    yield Schedules(close_later(Server.from_url(any_server.url)), holder="w1:7", claimer="c")


@pytest.fixture
def runs(schedules: Schedules) -> Runs:
    """The runs of that schedule."""
    return Runs(schedules)


def standing(runs: Runs, entry: str = "e") -> list[tuple[str, str]]:
    """Return id and state of an entry's outstanding runs."""
    return [(run.id, run.state) for run in runs.of([entry])[entry]]


def test_a_run_counts_from_its_sending_to_its_end(runs: Runs) -> None:
    """It is being sent, waits, runs, and is gone."""
    runs.mark([Mark("e", "1", "sending")])
    assert standing(runs) == [("1", "sending")]
    runs.mark([Mark("e", "1", "sent")])
    assert standing(runs) == [("1", "sent")]
    runs.mark([Mark("e", "1", "running")])
    assert standing(runs) == [("1", "running")]
    assert runs.of(["e"])["e"][0].holder == "w1:7"
    runs.end([("e", "1")])
    assert standing(runs) == []


def test_nothing_is_left_behind(runs: Runs, any_server: RunningServer) -> None:
    """Of runs that have ended the last of each entry is remembered for ten minutes, and then no key is left."""
    runs.mark([Mark("e", "1", "running"), Mark("f x", "2", "running"), Mark("e", "3", "sending")])
    runs.end([("e", "1"), ("f x", "2"), ("e", "3")])
    with any_server.client() as client:
        records = client.hgetall("zsched:{schedule}:runs")
        assert {name: len(text.splitlines()) for name, text in records.items()} == {b"e": 1, b"f x": 1}
        assert {key: 500_000 < client.pttl(key) <= 600_001 for key in client.keys("*")} == {
            b"zsched:{schedule}:runs": True,
            b"zsched:{schedule}:lapses": True,
        }


def test_a_repeated_sending_of_what_is_over_makes_no_run(runs: Runs) -> None:
    """Another scheduler that repeats what a dead one had sent, and a worker has done, finds nothing outstanding."""
    runs.mark([Mark("e", "1", "running")])
    runs.end([("e", "1")])
    runs.mark([Mark("e", "1", "sending")])
    runs.mark([Mark("e", "1", "sent")])
    assert standing(runs) == []
    runs.mark([Mark("e", "1", "running")])
    assert standing(runs) == [("1", "running")]


def test_a_late_word_of_the_sending_changes_nothing(runs: Runs) -> None:
    """A run that has begun or ended by the time the scheduler says that it was sent stays so."""
    runs.mark([Mark("e", "1", "sending"), Mark("e", "2", "sending")])
    runs.mark([Mark("e", "1", "running"), Mark("e", "2", "running")])
    runs.end([("e", "2")])
    runs.mark([Mark("e", "1", "sent"), Mark("e", "2", "sent"), Mark("e", "1", "sending")])
    assert standing(runs) == [("1", "running")]


def test_a_lease_lapses_unless_it_is_renewed(runs: Runs) -> None:
    """A worker that falls silent loses its run; a renewal of what is gone makes nothing, and says so."""
    runs.mark([Mark("e", "1", "running", for_us=1_000), Mark("e", "2", "running", for_us=1_000)])
    assert runs.mark([Mark("e", "2", "renewed")]) in ([], ["2"])
    wait_until(lambda: ("1", "running") not in standing(runs))
    assert runs.mark([Mark("e", "1", "renewed")]) == ["1"]


def test_what_lapsed_is_swept_by_others(runs: Runs, any_server: RunningServer) -> None:
    """The record of an entry that nobody looks at any more goes with the next word about any other."""
    runs.mark([Mark("gone", "1", "running", for_us=1)])
    runs.mark([Mark("e", "2", "sending")])
    with any_server.client() as client:
        assert client.hkeys("zsched:{schedule}:runs") == [b"e"]


def test_what_lapses_amid_the_writing_of_it_is_swept_too(runs: Runs, any_server: RunningServer) -> None:
    """Servers before 7.2 delete a key at once whose end passes amid the script that sets it: here at a millisecond."""
    with any_server.client() as client:
        for step in range(1000):
            while time.time_ns() % 1_000_000 < 800_000 + step % 20 * 10_000:
                pass
            runs.mark([Mark("gone", "1", "running", for_us=1)])
            runs.mark([Mark("e", "2", "sending")])
            assert client.hkeys("zsched:{schedule}:runs") == [b"e"]
            client.flushall()


def test_the_end_of_the_last_run_calls_the_entry_that_waits(runs: Runs, schedules: Schedules) -> None:
    """An entry that awaits two runs is due at once when the second of them ends, and not before."""
    schedules.save(build("e", "app.t", 24 * 3600))
    runs.mark([Mark("e", "1", "running", for_us=HOUR_US), Mark("e", "2", "running", for_us=HOUR_US)])
    runs.wait(["e"])
    runs.end([("e", "1")])
    assert schedules.get("e").due_us > schedules.now_us() + HOUR_US // 2
    runs.end([("e", "2")])
    assert schedules.get("e").due_us <= schedules.now_us()


def test_who_awaits_what_is_over_is_due_at_once(runs: Runs, schedules: Schedules, any_server: RunningServer) -> None:
    """No run that ended in between is waited for in vain."""
    schedules.save(build("e", "app.t", 24 * 3600))
    runs.wait(["e", "unknown"])
    assert schedules.get("e").due_us <= schedules.now_us()
    with any_server.client() as client:
        assert not client.exists("zsched:{schedule}:runs", "zsched:{schedule}:lapses")


def test_who_awaits_a_run_that_lapses_is_due_by_then(runs: Runs, schedules: Schedules) -> None:
    """A worker that died keeps an entry waiting no longer than its lease."""
    schedules.save(build("e", "app.t", 24 * 3600))
    runs.mark([Mark("e", "1", "running", for_us=HOUR_US)])
    runs.wait(["e"])
    assert schedules.get("e").due_us == runs.of(["e"])["e"][0].until_us


def test_an_entry_nobody_awaits_stays(runs: Runs, schedules: Schedules) -> None:
    """The end of a run moves nothing by itself."""
    schedules.save(build("e", "app.t", 24 * 3600))
    before = schedules.get("e").due_us
    runs.mark([Mark("e", "1", "running")])
    runs.end([("e", "1")])
    assert schedules.get("e").due_us == before


def test_runs_and_blackouts_live_on_a_cluster(cluster: Cluster, close_later: Callable[[Any], Any]) -> None:
    """All that a schedule has lies in one slot, so a cluster takes it as one server does."""
    schedules = Schedules(close_later(Server.from_url(cluster.url)), claimer="c")
    runs = Runs(schedules)
    schedules.save(build("e", "app.t", 24 * 3600, blackouts="b"))
    runs.mark([Mark("e", "1", "running")])
    runs.wait(["e"])
    assert standing(runs) == [("1", "running")]
    runs.end([("e", "1")])
    assert schedules.get("e").due_us <= schedules.now_us()
    blackouts.define(schedules, "b", ["2099-12-24"])
    assert [each.name for each in blackouts.listed(schedules)] == ["b"]
    assert not Blackouts(schedules).predicates({"e": ("b",)})["e"](schedules.now_us())
