"""The roll of beats, with records that other versions of this package have left on it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_zsched.engine import Engine, Options
from celery_zsched.keys import ScheduleKeys
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.roll import Roll, beats_of
from celery_zsched.schedules import Schedules
from celery_zsched.settings import Settings
from celery_zsched.types import SECOND_US
from tests.entries import entry
from tests.servers import RunningServer

SETTLE_S = 600.0


class Office:
    """A beat's roll, and what others have written on it."""

    def __init__(self, url: str, schedules: Schedules) -> None:
        self.schedules = schedules
        self._keys = ScheduleKeys(schedules.prefix)
        self._app = Celery("roll", broker=f"zsched+{url}", set_as_current=False)
        publisher = CeleryPublisher(self._app, prefix="zsched", declared=dict)
        self._engine = Engine(schedules, publisher, Options())
        self.roll = Roll(schedules, self._engine, Settings(settle_time=SETTLE_S), also=lambda now_us: None)
        self._client = schedules.server.client

    def release(self, name: str, *entries: str) -> None:
        """Store static entries, declared by a release."""
        self.schedules.save_many([dataclasses.replace(entry(each, 3600.0), owner="static") for each in entries])
        self._client.sadd(self._keys.release(name), *entries)

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
