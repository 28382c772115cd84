"""A kombu message as a body, and back."""

from __future__ import annotations

import copy
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_zsched import message
from celery_zsched.types import Mark

TASK_HEADERS: dict[str, Any] = {
    "lang": "py", "task": "shop.pay", "id": "1234", "shadow": None, "eta": None, "expires": None, "group": None,
    "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": "1234", "parent_id": None,
    "argsrepr": "(1, 2)", "kwargsrepr": "{}", "origin": "gen1@host", "ignore_result": False,
    "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
}  # fmt: skip


def task(body: bytes = b"[[1, 2], {}, {}]", **headers: Any) -> dict[str, Any]:
    """Return a task message as Celery makes it."""
    return {
        "body": body,
        "headers": {**TASK_HEADERS, **headers},
        "properties": {
            "correlation_id": "1234",
            "reply_to": "f00",
            "delivery_mode": 2,
            "priority": 0,
            "delivery_info": {"exchange": "", "routing_key": "celery"},
        },
        "content-type": "application/json",
        "content-encoding": "utf-8",
    }


@pytest.mark.parametrize(
    "made",
    [
        task(),
        task(eta="2030-01-01T00:00:00+00:00", retries=3, root_id="other", parent_id="p", timelimit=[10, 5]),
        task(body=b"\x00\n\n\xff" * 1000),
        task(task="odd\nname\\n", stamps={"a": 1}, stamped_headers=["a"], extra={"deep": [1, None]}),
        {**task(), "content-type": "application/x-python-serialize", "content-encoding": "binary"},
        {**task(), "headers": {}, "properties": {"delivery_info": {"exchange": "x", "routing_key": "y"}}},
        {**task(), "headers": {"task": "only.a.name"}, "body": b""},
        {**task(), "properties": {**task()["properties"], "priority": 7, "reply_to": "", "expiration": "1500"}},
    ],
    ids=["plain", "full", "binary", "names", "pickle", "bare", "header", "properties"],
)
def test_a_message_comes_back_as_it_was(made: dict[str, Any]) -> None:
    """What goes over the wire is what is published, to the byte, whatever is left out on the way."""
    assert message.decode(message.encode(made)) == made


def test_messages_share_nothing() -> None:
    """What one consumer changes in its headers is not seen by another."""
    body = message.encode(task())
    message.decode(body)["headers"]["stamps"]["x"] = 1
    assert message.decode(body)["headers"]["stamps"] == {}


def test_the_name_comes_first() -> None:
    """A script can read a task's name without parsing JSON."""
    assert message.encode(task()).startswith(b"shop.pay\n[")
    assert message.task_name(message.encode(task(task="a\nb\\"))) == "a\nb\\"
    assert message.task_name(b"no message") == ""


def test_the_time_to_live_comes_second() -> None:
    """A script can read how long a message is wanted, in microseconds."""
    made = task()
    made["properties"]["expiration"] = "1500"
    assert message.encode(made).split(b"\n")[1].startswith(b"1500000 [")


@pytest.mark.parametrize("data", [b"", b"\n", b"a\n", b"a\nb\nc", b"a\n{}\n", b"a\n[1]\n", b"\xff\n\xff\n", b"a\n5\n"])
def test_foreign_data_is_refused(data: bytes) -> None:
    """What is no message is told apart, so that it can be set aside."""
    with pytest.raises(ValueError, match="not a message"):
        message.decode(data)


@pytest.mark.parametrize(
    ("eta", "expected"),
    [
        ("2030-01-01T00:00:00+00:00", 1893456000_000000),
        ("2030-01-01T02:00:00.000001+02:00", 1893456000_000001),
        ("2030-01-01T00:00:00Z", 1893456000_000000),
        ("2030-01-01T00:00:00", 1893456000_000000 + 3600_000000),
        (datetime(2030, 1, 1, tzinfo=timezone.utc), 1893456000_000000),
        ("1960-01-01T00:00:00+00:00", 0),
        ("soon", None),
        (None, None),
    ],
)
def test_an_eta_is_an_instant(eta: Any, expected: int | None) -> None:
    """An ETA is read to the microsecond; one without an offset is in the app's zone."""
    assert message.eta_us(eta, lambda: timezone(timedelta(hours=-1))) == expected


def test_the_eta_of_protocol_1_is_in_the_body() -> None:
    """Tasks of Celery's first protocol wait in the broker as well."""
    made = {**task(), "headers": {}, "body": '{"task": "t", "id": "1", "eta": "2030-01-01T00:00:00+00:00"}'}
    assert message.due_us(made) == 1893456000_000000
    assert message.due_us({**made, "body": '{"eta": "2030-01-01T00:00:00+00:00"}'}) is None


def test_a_countdown_is_told_as_a_span() -> None:
    """Where the ETA was computed from a countdown, that is what counts, also in a copy; for others it is text."""
    eta = message.Countdown("2030-01-01T00:00:00+00:00")
    assert message.due_text({"headers": {"task": "t", "eta": eta}}) == "1893456000000000"
    eta.delay_us = 1500000
    assert message.due_text({"headers": {"task": "t", "eta": copy.deepcopy(eta)}}) == "+1500000"
    assert message.due_text({"headers": {"task": "t", "eta": None}}) == ""
    assert json.dumps(eta) == '"2030-01-01T00:00:00+00:00"'


NOW_US = 1893452400_000000  # 2029-12-31T23:00:00 UTC
EXPIRES = "2030-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("eta", "expected"),
    [
        ("2030-01-01T00:00:00+00:00", "2029-12-31T23:00:00+00:00"),
        ("2029-12-31T22:30:00", "2029-12-31T23:00:00+00:00"),
        ("2029-12-31T22:59:59+00:00", "2029-12-31T22:59:59+00:00"),
        ("soon", "soon"),
    ],
)
def test_the_eta_of_what_is_delivered_has_come(eta: str, expected: str) -> None:
    """The server has decided that: where this machine's clock is behind, the ETA is now; a past one stays as it is."""
    made = {**task(), "headers": {"task": "t", "eta": eta}}
    message.localize(made, NOW_US + 9, NOW_US, lambda: timezone(timedelta(hours=-1)))
    assert made["headers"] == {"task": "t", "eta": expected}


@pytest.mark.parametrize(
    ("ahead_us", "expected"),
    [(-60_000_000, "2029-12-31T23:59:00+00:00"), (60_000_000, "2030-01-01T00:01:00+00:00"), (999_999, EXPIRES)],
)
def test_an_expiry_is_told_by_this_machines_clock(ahead_us: int, expected: str) -> None:
    """As long as the server has it, a task expires in as much time as is left by the server's clock."""
    made = {**task(), "headers": {"task": "t", "expires": EXPIRES}}
    message.localize(made, NOW_US, NOW_US + ahead_us)
    assert made["headers"]["expires"] == expected


def test_only_scheduled_firings_are_marked() -> None:
    """The high-water mark guards what the schedule fires, not manual runs and backfills."""
    told = {"entry": "e", "epoch": 2, "nominal_us": 5, "cause": "schedule"}
    assert message.mark_of({"task": "t", "zsched": told}) == Mark("zsched:e", 2, 5)
    assert message.mark_of({"task": "t", "zsched": {**told, "schedule": "mine"}}) == Mark("mine:e", 2, 5)
    assert message.mark_of({"task": "t", "zsched": {**told, "cause": "catch-up"}}) == Mark("zsched:e", 2, 5)
    assert message.mark_of({"task": "t", "zsched": {**told, "cause": "manual"}}) is None
    assert message.mark_of({"task": "t", "retries": 1, "zsched": told}) is None
    assert message.mark_of({"zsched": told}, '{"task": "t", "retries": 0}') == Mark("zsched:e", 2, 5)
    assert message.mark_of({"zsched": told}, b'{"task": "t", "retries": 1}') is None
    assert message.mark_of({"zsched": {"cause": "schedule"}}) is None
    assert message.mark_of({}) is None
