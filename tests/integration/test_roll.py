"""The roll of beats, with records that other versions of this package have left on it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery

from celery_zsched.beat import Scheduler
from celery_zsched.engine import Engine, Options
from celery_zsched.keys import ScheduleKeys
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.roll import SILENT_S, Roll, beats_of
from celery_zsched.schedules import Schedules
from celery_zsched.settings import Settings
from celery_zsched.types import SECOND_US
from tests.entries import entry
from tests.servers import RunningServer, wait_until

SETTLE_S = 600.0


class Office:
    """A beat's roll, and what others have written on it."""

    def __init__(self, url: str, schedules: Schedules, **settings: Any) -> None:
        self.schedules = schedules
        self._keys = ScheduleKeys(schedules.prefix)
        self._app = Celery("roll", broker=f"zsched+{url}", set_as_current=False)
        publisher = CeleryPublisher(self._app, prefix="zsched", declared=dict)
        self._engine = Engine(schedules, publisher, Options())
        chosen = Settings(**{"settle_time": SETTLE_S, **settings})
        self.roll = Roll(schedules, self._engine, chosen, also=lambda now_us: None)
        self._client = schedules.server.client

    def release(self, name: str, *entries: str) -> None:
        """Store static entries, declared by a release."""
        self.schedules.save_many([dataclasses.replace(entry(each, 3600.0), owner="static") for each in entries])
        self._client.sadd(self._keys.release(name), *entries)

    def start(self, *entries: str) -> None:
        """Start as a beat does that has these static entries."""
        self.roll.declare(entries)
        self.schedules.save_many([dataclasses.replace(entry(each, 3600.0), owner="static") for each in entries])

    def silent_for(self, seconds: float, **ended: Any) -> None:
        """Let this beat have called so long ago, and perhaps have ended then."""
        (beat,) = [one for one in beats_of(self.schedules) if one.id == self.schedules.timeline.claimer]
        at_us = self.schedules.now_us() - round(seconds * SECOND_US)
        self.called(beat.id, dataclasses.replace(beat, at_us=at_us, **ended).to_json())

    def releases(self) -> set[str]:
        """Return the releases whose names are on the server."""
        return {key.decode().partition(":release:")[2] for key in self._client.keys("*:release:*")}

    def called(self, id_: str, record: bytes) -> None:
        """Let a beat have called."""
        self._client.hset(self._keys.beats, id_, record)

    def sweep(self) -> set[str]:
        """Sweep; return which entries are left."""
        self.roll._sweep(self.schedules.now_us())
        return set(self.schedules.names())

    def close(self) -> None:
        """Drop the connections."""
        self._engine.close()
        self._app.close()


@pytest.fixture
def office(valkey: RunningServer, schedules: Schedules) -> Iterator[Office]:
    """A roll on which a beat of release "old" has long been silent, which declared two entries."""
    one = Office(valkey.url, schedules)
    one.release("old", "only", "shared")
    silent_us = schedules.now_us() - round(2 * SETTLE_S * SECOND_US)
    one.called("gone", json.dumps({"v": 1, "id": "gone", "release": "old", "at_us": silent_us}).encode())
    yield one
    one.close()


def test_a_beat_of_a_later_version_keeps_what_it_declares(office: Office) -> None:
    """Its record has fields that are not known here, and lacks some that are."""
    office.release("new", "shared")
    later = {"v": 2, "id": "later", "release": "new", "at_us": office.schedules.now_us(), "zeal": [1]}
    office.called("later", json.dumps(later).encode())
    assert office.sweep() == {"shared"}
    (beat,) = beats_of(office.schedules)
    assert (beat.id, beat.release, beat.host) == ("later", "new", "?")


@pytest.mark.parametrize("record", [b"\xff", b"[]", b'{"v": 3}', b'{"id": 1, "release": "new", "at_us": 1}'])
def test_a_record_that_cannot_be_read_keeps_every_static_entry(
    office: Office, caplog: pytest.LogCaptureFixture, record: bytes
) -> None:
    """Nobody knows what such a beat declares; a line in the log says what to do."""
    office.called("foreign", record)
    assert office.sweep() == {"only", "shared"}
    assert "foreign" in caplog.text
    assert "HDEL" in caplog.text


def test_a_release_that_no_beat_has_run_for_long_is_swept(office: Office) -> None:
    """As it is where every record can be read."""
    assert office.sweep() == set()


@pytest.fixture
def beat_of(valkey: RunningServer, open_schedules: Callable[..., Schedules]) -> Iterator[Callable[..., Office]]:
    """Make beats on one roll: ``beat_of(release=…, settle_time=…)``."""
    made: list[Office] = []

    def make(**settings: Any) -> Office:
        made.append(Office(valkey.url, open_schedules(), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_a_release_of_the_same_name_no_longer_declares_goes(beat_of: Callable[..., Office]) -> None:
    """C-41, with a name that never changes: once no beat that has it has lived for the settle time."""
    old, new = beat_of(release="prod"), beat_of(release="prod")
    old.start("keep", "legacy")
    new.start("keep", "new")
    assert new.sweep() == {"keep", "legacy", "new"}
    assert {beat.release.partition("/")[0] for beat in beats_of(new.schedules)} == {"prod"}
    old.silent_for(SETTLE_S / 2, ended_us=1)
    assert new.sweep() == {"keep", "legacy", "new"}
    old.silent_for(SETTLE_S + 1, ended_us=1)
    assert new.sweep() == {"keep", "new"}
    assert len(new.releases()) == 1


def test_a_beat_that_declares_anew_lets_go_of_what_it_had(beat_of: Callable[..., Office]) -> None:
    """After the settle time, as if another had ended; no names of an old set stay behind."""
    one = beat_of()
    one.start("keep", "legacy")
    one.start("keep", "new")
    assert one.sweep() == {"keep", "legacy", "new"}
    before = [beat for beat in beats_of(one.schedules) if beat.ended_us]
    past_us = one.schedules.now_us() - round(2 * SETTLE_S * SECOND_US)
    one.called(before[0].id, dataclasses.replace(before[0], at_us=past_us).to_json())
    assert one.sweep() == {"keep", "new"}
    assert len(one.releases()) == len(beats_of(one.schedules)) == 1


@pytest.mark.parametrize("own", ["mine", "legacy"])
def test_a_beat_that_comes_amid_a_sweep_is_told_of_what_that_deletes(beat_of: Callable[..., Office], own: str) -> None:
    """It found its entry there a moment before it went; it hears so at its next call, and stores it anew.

    Its release may be the one that is swept.
    """
    old, sweeper, late = beat_of(), beat_of(), beat_of()
    old.start("shared", "legacy")
    sweeper.start("theirs")
    old.silent_for(SETTLE_S + 1, ended_us=1)
    retire = sweeper.schedules.retire

    def retire_late(names: Any) -> list[str]:
        late.start("shared", own)
        return retire(names)

    sweeper.schedules.retire = retire_late  # type: ignore[method-assign]
    assert "shared" not in sweeper.sweep()
    assert late.schedules.timeline.claimer not in {beat.id for beat in beats_of(late.schedules)}
    late.start("shared", own)
    assert sweeper.sweep() == {"shared", own, "theirs"}
    assert len(beats_of(late.schedules)) == 2


@pytest.mark.parametrize(
    ("silent_s", "how", "goes"),
    [
        (10, {"ended_us": 1}, True),
        (10, {"client": "zsched-beat-gone"}, False),
        (20, {"client": "zsched-beat-gone"}, True),
        (20, {"client": ""}, False),
        (SILENT_S + 5, {"client": ""}, True),
    ],
)
def test_a_beat_that_may_only_be_held_up_keeps_its_entries(
    beat_of: Callable[..., Office], silent_s: float, how: dict[str, Any], goes: bool
) -> None:
    """However short the settle time: one that has not ended may be busy, or connect anew; one that is gone is gone."""
    late, other = beat_of(), beat_of(settle_time=2)
    late.start("mine")
    other.start("theirs")
    late.silent_for(silent_s, **how)
    assert other.sweep() == ({"theirs"} if goes else {"mine", "theirs"})


def test_beats_with_the_shortest_settle_time_do_not_delete_each_others_entries(
    valkey: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """They call three times in it, also when nothing is due."""
    beats = []
    for name in ("a", "b"):
        app = Celery(name, broker=f"zsched+{valkey.url}", set_as_current=False)
        app.conf.update(
            zsched_settle_time=1, result_expires=None, beat_schedule={name: {"task": "note", "schedule": 3600.0}}
        )
        beats.append(Scheduler(app))
    called: dict[str, set[int]] = {}

    def four_times() -> bool:
        for beat in beats:
            beat.tick()
        for one in beats_of(beats[0].schedules):
            called.setdefault(one.id, set()).add(one.at_us)
        return all(len(moments) >= 4 for moments in called.values())

    wait_until(four_times, what="both to call four times")
    assert set(beats[0].schedules.names()) == {"a", "b"}
    gaps = [after - before for moments in called.values() for before, after in pairwise(sorted(moments))]
    assert min(gaps) < SECOND_US
    for beat in beats:
        beat.close()
        beat.app.close()
    assert "deleted" not in caplog.text and "forgotten" not in caplog.text
