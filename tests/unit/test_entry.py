"""Entries: what is declared and refused, what is stored, and what stays when an entry is declared anew."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery, chain, chord, group
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu import Queue
from kombu.serialization import register, unregister

from celery_zsched.entry import (
    EntrySpec,
    LastRun,
    OperatorState,
    Payload,
    build,
    decode,
    encode,
    from_beat_schedule,
    occurrence_header,
    occurrence_id,
)
from celery_zsched.errors import EntryError
from celery_zsched.triggers import Crontab, Interval
from celery_zsched.types import SECOND_US, to_us

NOON = to_us(datetime(2026, 1, 9, 12, tzinfo=timezone.utc))

NAMES = [
    ":lock",
    ":schedule",
    "a{b}c",
    "with spaces and\nnew lines",
    "x" * 300,
    "🦒 Ünïcode",
    "0",
    "a\0b",
    "{}",
    "*?[a]",
]


def full(**changed: Any) -> EntrySpec:
    """Return an entry with every field set."""
    fields: dict[str, Any] = {
        "options": {"queue": "q", "priority": 3, "headers": {"k": ["v", None]}, "countdown": 5},
        "zone": "Asia/Tokyo",
        "misfire": "all",
        "grace": 60,
        "misfire_limit": 7,
        "overlap": "skip",
        "start": datetime(2026, 1, 1, 9),
        "end": datetime(2027, 1, 1, 9, tzinfo=timezone.utc),
        "count": 100,
        "jitter": 2.5,
        "expires": "next",
        "blackouts": ["nights", "holidays"],
        "owner": "static",
    }
    return build("report", "tasks.report", crontab(minute=0), (1, "é"), {"k": {"n": None}}, **{**fields, **changed})


def test_an_entry_survives_storage() -> None:
    """Every field comes back equal; the document is plain JSON with a version."""
    spec = full().installed(NOON)
    document = json.loads(encode(spec))
    assert decode(encode(spec)) == spec
    assert document["v"] == 1
    assert document["schedule"] == {"kind": "crontab", "minute": "0", "zone": "Asia/Tokyo"}
    assert set(document) == {
        "v", "name", "task", "schedule", "arguments", "options", "misfire", "grace_us", "misfire_limit", "overlap",
        "start_us", "end_us", "count", "jitter_us", "expires", "blackouts", "owner", "anchor_us", "epoch",
    }  # fmt: skip


def test_what_is_default_is_not_stored() -> None:
    """A million entries should not carry their defaults around."""
    spec = build("report", "tasks.report", 60)
    assert json.loads(encode(spec)) == {
        "v": 1,
        "name": "report",
        "task": "tasks.report",
        "schedule": {"kind": "interval", "every_us": 60_000_000},
    }
    assert decode(encode(spec)) == spec


@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_a_name(name: str) -> None:
    """C-44: colons, braces, spaces, emoji and length are no trouble."""
    assert decode(encode(build(name, "t", 1))).name == name


@settings(deadline=None)
@given(st.text(min_size=1, max_size=300).filter(lambda name: not name.startswith("\0")), st.text(min_size=1))
def test_any_text_that_can_be_stored_is_a_name(name: str, task: str) -> None:
    """Whatever Unicode allows."""
    spec = decode(encode(build(name, task, 1)))
    assert (spec.name, spec.task) == (name, task)


def test_times_are_given_in_seconds_and_datetimes() -> None:
    """A naive start is wall time in the entry's zone, else the app's."""
    spec = full()
    assert spec.start_us == to_us(datetime(2026, 1, 1, 0, tzinfo=timezone.utc))
    assert (spec.grace_us, spec.jitter_us) == (60 * SECOND_US, 2_500_000)
    in_app = build("e", "t", 60, start=datetime(2026, 1, 1, 9), app_zone="America/New_York")
    assert in_app.start_us == to_us(datetime(2026, 1, 1, 14, tzinfo=timezone.utc))
    assert build("e", "t", 60, expires=timedelta(minutes=1)).expires == 60 * SECOND_US
    assert build("e", "t", 60, options={"expires": 60}).expires == 60 * SECOND_US


def test_all_faults_are_raised_together() -> None:
    """One declaration shows everything that has to be mended, by name and value."""
    with pytest.raises(EntryError) as caught:
        build(
            "", None, "61 * * * *", (object(),), options={"task_id": "x", "headers": {"k": object()}}, zone="Mars",
            misfire="twice", grace=-1, misfire_limit=0, overlap="maybe", start=5, count=0, jitter="1", expires=0,
        )  # type: ignore[arg-type]  # fmt: skip
    message = str(caught.value)
    for part in (
        "named by text", "task", "cron text", "serialized", "task_id", "headers", "Mars", "twice", "grace is -1",
        "misfire_limit is 0", "maybe", "start is 5", "count is 0", "jitter is '1'", "expires is 0",
    ):  # fmt: skip
        assert part in message, part


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"start": datetime(2027, 1, 2), "end": datetime(2027, 1, 1)}, "ends before it starts"),
        ({"expires": datetime(2027, 1, 1)}, "use 'end'"),
        ({"expires": "later"}, "expires is 'later'"),
        ({"options": {"eta": 1}}, "eta"),
        ({"options": {"args": [1]}}, "'args' cannot be given: give the entry its args"),
        ({"options": {"kwargs": {}}}, "'kwargs' cannot be given: give the entry its kwargs"),
        ({"options": {"name": "t"}}, "name the task by the entry's 'task'"),
        ({"options": {"producer": None}}, "choose where the message goes by 'queue'"),
        ({"options": {"headers": ["k"]}}, r"'headers' is .*, not a mapping from names; give {'name': value}"),
        ({"options": [1]}, "not a mapping"),
        ({"options": {"priority": float("nan")}}, "priority"),
        ({"options": {"queue": "\ud800"}}, "queue"),
        ({"serializer": "pickle"}, "pickle"),
        ({"serializer": "nosuch"}, "nosuch"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(changed: dict[str, Any], reason: str) -> None:
    """The message says which and what to do."""
    with pytest.raises(EntryError, match=reason):
        full(**changed)


@pytest.mark.parametrize("name", ["", None, 5, "x" * 1025, "\ud800", "\0notes"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    """Empty, too long, not storable, or kept for the scheduler itself."""
    with pytest.raises(EntryError):
        build(name, "t", 1)


def test_two_zones_for_one_entry_are_refused() -> None:
    """The entry and its schedule are in one zone."""
    with pytest.raises(EntryError, match=r"Asia/Tokyo.*Europe/Paris"):
        build("e", "t", Crontab(zone="Asia/Tokyo"), zone="Europe/Paris")
    assert build("e", "t", Crontab(zone="Asia/Tokyo")).zone == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("{", "no JSON"),
        ("[]", "JSON object"),
        ('{"v":2,"name":"x"}', "version 2.*Upgrade"),
        ('{"name":"x"}', "version None"),
        ('{"v":1,"name":"x","task":"t"}', "'x'.*lacks 'schedule'"),
        ('{"v":1,"name":"x","task":"t","schedule":{"kind":"lunar"}}', "'x'.*kind 'lunar'"),
        (
            '{"v":1,"name":"x","task":"t","schedule":{"kind":"interval","every_us":1000000},"missfire":"all"}',
            "'misfire'",
        ),
        ('{"v":1,"name":"x","task":"t","schedule":{"kind":"interval","every_us":1000000},"count":"3"}', "count is '3'"),
        ('{"v":1,"name":"x","task":7,"schedule":{"kind":"interval","every_us":1000000}}', "task"),
        ('{"v":1,"name":"x","task":"t","schedule":{"kind":"interval","every_us":1000000},"arguments":[]}', "arguments"),
        (
            '{"v":1,"name":"x","task":"t","schedule":{"kind":"interval","every_us":1000000},"blackouts":"n"}',
            "blackouts",
        ),
    ],
)
def test_a_stored_entry_that_cannot_be_used_says_why(document: str, reason: str) -> None:
    """C-34: one entry is refused, with its name, the field and the remedy."""
    with pytest.raises(EntryError, match=reason):
        decode(document)


def test_arguments_keep_their_types() -> None:
    """Celery's serializer writes and reads them; the schedule never looks inside."""
    args = [date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=timezone.utc), Decimal("1.10"), uuid4(), {"__type__": "x"}]
    spec = decode(encode(build("e", "t", 60, args, {"deep": {"a": [None, 1.5]}})))
    assert spec.arguments is not None
    assert spec.arguments.arguments() == (args, {"deep": {"a": [None, 1.5]}})
    assert build("e", "t", 60).arguments is None


def test_arguments_may_be_bytes() -> None:
    """A binary serializer's data is carried as base64."""
    register("reversed", lambda value: json.dumps(value).encode()[::-1], lambda data: json.loads(data[::-1]),
             "application/x-reversed", "binary")  # fmt: skip
    try:
        spec = decode(encode(build("e", "t", 60, (1, 2), serializer="reversed")))
        assert spec.arguments is not None
        assert isinstance(spec.arguments.data, bytes)
        assert spec.arguments.arguments() == ([1, 2], {})
    finally:
        unregister("reversed")


def test_pickle_is_refused_when_stored_too() -> None:
    """A document that was written by hand cannot bring pickle in."""
    with pytest.raises(EntryError, match="pickle"):
        Payload.from_json({"type": "application/x-python-serialize", "encoding": "binary", "base64": "gASVBAAA"})
    with pytest.raises(EntryError, match="base64"):
        Payload.from_json({"type": "application/json", "encoding": "binary", "base64": "%"})
    with pytest.raises(EntryError, match="cannot be read"):
        Payload("application/x-unknown", "utf-8", "x").arguments()


def test_a_beat_schedule_mapping_becomes_a_static_entry() -> None:
    """Celery's keys and ours; expires as a timedelta and a Queue object are understood."""
    spec = from_beat_schedule(
        "report",
        {
            "task": "tasks.report",
            "schedule": crontab(minute=0, hour=9),
            "args": (1,),
            "kwargs": {},
            "options": {"queue": Queue("q1"), "expires": timedelta(hours=1), "headers": {"k": "v"}},
            "misfire": "skip",
            "zone": "Asia/Tokyo",
        },
        "UTC",
    )
    assert (spec.owner, spec.misfire, spec.zone) == ("static", "skip", "Asia/Tokyo")
    assert (spec.options, spec.expires) == ({"queue": "q1", "headers": {"k": "v"}}, 3_600 * SECOND_US)
    relative = from_beat_schedule("r", {"task": "t", "schedule": 30, "relative": True})
    assert relative.trigger == Interval(30 * SECOND_US, relative=True)


def test_a_schedule_entry_object_becomes_a_static_entry() -> None:
    """Celery's own entry objects are taken as well."""
    entry = ScheduleEntry("n", "t", schedule=crontab(minute=0), args=(1,), kwargs={"a": 2}, options={"queue": "q"})
    spec = from_beat_schedule("n", entry)
    assert spec == dataclasses.replace(
        build("n", "t", crontab(minute=0), (1,), {"a": 2}, {"queue": "q"}, owner="static"), zone=None
    )


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"task": "t", "schedule": 1, "missfire": "all"}, "unknown key 'missfire'.*'misfire'"),
        ({"task": "t", "schedule": 1, "ars": ()}, "'args'"),
        ({"task": "t", "schedule": 1, "qqqq": 1}, "known are task"),
        ({"task": "t"}, "lacks 'schedule'"),
        ({"schedule": 1}, "lacks 'task'"),
        ({"task": "t", "schedule": "61 * * * *"}, "cron text"),
        ({"task": "t", "schedule": 1, "args": 5}, "args are 5"),
        ({"task": "t", "schedule": 1, "args": "ab"}, "args are 'ab'"),
        ({"task": "t", "schedule": 1, "kwargs": {1: 2}}, "kwargs are {1: 2}"),
        (5, "not a mapping"),
    ],
)
def test_a_fault_in_beat_schedule_names_the_entry(entry: Any, reason: str) -> None:
    """The entry, the key, and what was probably meant."""
    with pytest.raises(EntryError, match=f"'broken'.*{reason}"):
        from_beat_schedule("broken", entry)


def test_lazy_arguments_are_left_to_each_beat() -> None:
    """BeatLazyFunc is computed when it is sent, so nothing is stored for it."""
    spec = from_beat_schedule("l", {"task": "t", "schedule": 1, "kwargs": {"now": BeatLazyFunc(datetime.now)}})
    assert (spec.lazy, spec.arguments) == (True, None)
    assert decode(encode(spec)).lazy


def test_declaring_anew_keeps_the_grid_unless_the_schedule_changed() -> None:
    """C-12: other arguments do not move an interval, another interval starts here."""
    stored = build("e", "t", 3600, ["a"]).installed(NOON)
    other_args = build("e", "t", 3600, ["b"], misfire="all", count=3)
    assert other_args.fingerprint == stored.fingerprint
    later = NOON + 45 * 60 * SECOND_US
    assert other_args.succeeding(stored, later).anchor_us == NOON
    assert other_args.succeeding(stored, later).epoch == stored.epoch == NOON
    started = build("e", "t", 3600, start=datetime(2026, 1, 1))
    for changed in (build("e", "t", 1800), build("e", "t", crontab()), started):
        assert changed.fingerprint != stored.fingerprint
        expected = changed.start_us if changed.start_us is not None else later
        assert changed.succeeding(stored, later).anchor_us == expected
    zoned = build("e", "t", crontab(), zone="Asia/Tokyo")
    assert zoned.fingerprint != build("e", "t", crontab()).fingerprint


def test_an_entry_with_a_start_stands_on_it() -> None:
    """The anchor is the start, not the installation."""
    spec = build("e", "t", 3600, start=datetime(2026, 1, 1, tzinfo=timezone.utc)).installed(NOON)
    assert (spec.anchor_us, spec.epoch) == (spec.start_us, NOON)


records = st.builds(
    LastRun,
    next_nominal_us=st.none() | st.integers(0, 2**53),
    nominal_us=st.none() | st.integers(0, 2**53),
    cause=st.none() | st.sampled_from(["schedule", "catch-up"]),
    fired=st.integers(0, 10**9),
    missed=st.integers(0, 10**9),
    error=st.none() | st.text(),
)


@settings(deadline=None)
@given(records)
def test_what_happened_last_survives_storage(record: LastRun) -> None:
    """And nothing stored means that nothing has happened."""
    assert LastRun.from_json(record.to_json()) == record
    assert LastRun.from_json(None) == LastRun.from_json(b"") == LastRun()


def test_what_the_operator_wants_survives_storage() -> None:
    """Who, why, since when, until when."""
    state = OperatorState(paused=True, by="ana", reason="déploiement", since_us=1, until_us=2)
    assert OperatorState.from_json(state.to_json()) == state
    assert json.loads(OperatorState().to_json()) == {"v": 1}


def test_what_a_newer_release_wrote_is_kept() -> None:
    """Two releases can share a schedule during a rollout: what one does not know it hands back."""
    record = LastRun.from_json('{"v":1,"fired":3,"cost":{"eur":1}}')
    assert json.loads(dataclasses.replace(record, fired=4).to_json()) == {"v": 1, "fired": 4, "cost": {"eur": 1}}


def test_a_record_takes_any_error_text() -> None:
    """Bytes that were no UTF-8 come as lone surrogates."""
    record = LastRun(error="bad \udcff byte")
    assert LastRun.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"v":1,"fired":"3"}', "'fired' is '3', not int"),
        ('{"v":9}', "version 9.*Upgrade"),
        ("x", "no JSON"),
        ('{"v":1,"fired":null}', "'fired' is None"),
    ],
)
def test_a_stored_record_that_cannot_be_used_says_why(text: str, reason: str) -> None:
    """The record's kind, the field and the value."""
    with pytest.raises(EntryError, match=f"LastRun.*{reason}"):
        LastRun.from_json(text)


def test_an_occurrence_has_one_id_everywhere() -> None:
    """It is made of the prefix, the entry's name and life, and the nominal time, and of nothing else."""
    one = occurrence_id("zsched", "report", 1, NOON)
    assert UUID(one).version == 5
    assert one == occurrence_id("zsched", "report", 1, NOON) == "4b977c07-6e3b-57d4-a967-e3da0bfb12e5"
    others = [("z", "report", 1, NOON), ("zsched", "report1", 1, NOON), ("zsched", "report", 11, NOON),
              ("zsched", "report", 1, NOON + 1)]  # fmt: skip
    assert len({occurrence_id(*other) for other in others} | {one}) == 5


def test_the_header_says_which_occurrence_it_is() -> None:
    """Times are ISO 8601 in UTC."""
    header = occurrence_header("report", NOON, NOON + 1_500_000, epoch=7, missed=2, cause="catch-up")
    assert (
        header.items()
        >= {
            "entry": "report",
            "epoch": 7,
            "nominal_us": NOON,
            "nominal": "2026-01-09T12:00:00+00:00",
            "fired": "2026-01-09T12:00:01.500000+00:00",
            "missed": 2,
            "cause": "catch-up",
        }.items()
    )


def _app_with_task() -> Any:
    app = Celery(set_as_current=False)

    @app.task(name="app.log", shared=False)  # type: ignore[untyped-decorator,unused-ignore]
    def log(*args: Any, **kwargs: Any) -> None:
        """Stand for a task."""

    return log


def test_a_signature_brings_its_arguments_and_options() -> None:
    """What the entry says itself goes on top, as what is given to apply_async does."""
    log = _app_with_task()
    spec = build("sig", log.s(1, k=2).set(queue="qq", expires=60), 3600)
    assert spec.arguments is not None
    assert (spec.task, spec.arguments.arguments()) == ("app.log", ([1], {"k": 2}))
    assert (dict(spec.options), spec.expires) == ({"queue": "qq"}, 60 * SECOND_US)
    more = build(
        "sig", log.s(1, k=2, j=3).set(queue="qq", priority=3), 3600, (0,), {"k": 4}, {"priority": 5}, expires=9
    )
    assert more.arguments is not None
    assert more.arguments.arguments() == ([0, 1], {"k": 4, "j": 3})
    assert (dict(more.options), more.expires) == ({"queue": "qq", "priority": 5}, 9 * SECOND_US)
    fixed = build("sig", log.si(1), 3600)
    assert fixed == decode(encode(build("sig", "app.log", 3600, (1,))))
    assert from_beat_schedule("sig", {"task": log.si(1), "schedule": 3600}).arguments == fixed.arguments
    assert build("sig", log.map([1, 2]), 3600).task == "celery.map"


def test_a_signature_that_is_no_single_task_is_refused() -> None:
    """Canvas is several tasks; a signature that takes no more arguments is given none."""
    log = _app_with_task()
    for canvas, kind in (
        (chain(log.s(1), log.s(2)), "chain"),
        (group(log.s(1), log.s(2)), "group"),
        (chord([log.s(1), log.s(2)], log.s()), "chord"),
    ):
        with pytest.raises(EntryError, match=rf"its task is a {kind}, .*a task that calls apply_async.*its overlap is"):
            build("sig", canvas, 3600, overlap="never")
    with pytest.raises(EntryError, match=r"immutable signature .* is given \(2,\) besides"):
        build("sig", log.si(1), 3600, (2,))
    with pytest.raises(EntryError, match="signature with a BeatLazyFunc"):
        build("sig", log.s(BeatLazyFunc(int)), 3600)


def test_a_moment_of_expiry_is_for_what_is_sent_once() -> None:
    """A datetime, in the entry's zone if it has none; of an entry that goes on, every later message would be stale."""
    due, tokyo = datetime(2027, 1, 1, 12), {"zone": "Asia/Tokyo"}
    spec = decode(encode(build("e", "t", due, expires=datetime(2027, 1, 1, 13), **tokyo)))  # type: ignore[arg-type]
    assert spec.expires == "2027-01-01T04:00:00+00:00"
    assert spec.expires_at_us == to_us(datetime(2027, 1, 1, 4, tzinfo=timezone.utc))
    assert build("e", "t", due, options={"expires": datetime(2027, 1, 1, 13)}, **tokyo) == spec  # type: ignore[arg-type]
    written = dataclasses.replace(spec, expires="2027-01-01T04:00:00Z")
    assert written.expires_at_us == spec.expires_at_us
    for schedule, expires, reason in (
        (60, datetime(2027, 1, 1, 13), "every message would be stale"),
        (due, datetime(2027, 1, 1, 12), "would not even be sent"),
    ):
        with pytest.raises(EntryError, match=reason):
            build("e", "t", schedule, expires=expires)
    with pytest.raises(EntryError, match="every message would be stale"):
        dataclasses.replace(spec, trigger=Interval(60 * SECOND_US), zone=None)
    with pytest.raises(EntryError, match="nor a moment with its offset"):
        dataclasses.replace(spec, expires="2027-01-01T04:00:00")


@pytest.mark.parametrize("field", ["grace", "jitter", "expires"])
def test_a_time_that_leads_out_of_the_calendar_is_refused(field: str) -> None:
    """Rather than taken for a shorter one; an endless grace is however late, and one of centuries is as good."""
    with pytest.raises(EntryError, match=f"{field} is .* more than 9,999 years"):
        build("e", "t", 60, **{field: 1e17})
    assert build("e", "t", 60, grace=math.inf) == build("e", "t", 60, grace=1e11)
