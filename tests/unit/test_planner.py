"""What a due entry sends and when it is due next: pure decisions, as tables and as properties."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_zsched.entry import EntrySpec, LastRun, build
from celery_zsched.planner import (
    Plan,
    Rules,
    acknowledge,
    due_of,
    first,
    has_run_out,
    next_nominal,
    nominals,
    pending,
    plan,
    plan_alone,
    release_buffered,
    resume,
)
from celery_zsched.types import SECOND_US, from_us, to_us

HOURLY = crontab(minute=0)
HOUR_US = 3_600 * SECOND_US


def at(text: str) -> int:
    """Return a moment of January 2026 (``day hour:minute[:second]``, UTC) as an instant."""
    form = "%Y-%m-%d %H:%M:%S" if text.count(":") == 2 else "%Y-%m-%d %H:%M"
    return to_us(datetime.strptime(f"2026-01-{text}", form).replace(tzinfo=timezone.utc))


def show(instant_us: int | None) -> str | None:
    """Return an instant as :func:`at` takes it."""
    return None if instant_us is None else from_us(instant_us).strftime("%d %H:%M:%S").removesuffix(":00")


def entry(schedule: Any = HOURLY, **rules: Any) -> EntrySpec:
    """Return an entry that was installed on the first of January."""
    return build("entry", "task", schedule, **rules).installed(at("01 00:00"))


def wake(spec: EntrySpec, due: str, now: str, last: LastRun | None = None, **given: Any) -> Plan:
    """Return the plan of an entry whose nominal time and due are the same, and have come."""
    last = dataclasses.replace(last or LastRun(), next_nominal_us=at(due))
    return plan(spec, last, at(due), at(now), **given)


def sent(made: Plan) -> list[tuple[str | None, str, int]]:
    """Return what a plan sends: nominal time, cause, missed count."""
    return [(show(send.nominal_us), send.cause, send.missed) for send in made.sends]


def test_an_entry_that_is_on_time_is_sent_once() -> None:
    """The plain case: one send, the next hour, and a record of it."""
    made = wake(entry(), "05 14:00", "05 14:00:01")
    assert sent(made) == [("05 14:00", "schedule", 0)]
    assert show(made.next_due_us) == show(made.next_nominal_us) == "05 15:00"
    assert made.last == LastRun(
        next_nominal_us=at("05 15:00"), nominal_us=at("05 14:00"), fired_us=at("05 14:00:01"), cause="schedule", fired=1
    )
    assert made.held is None
    assert not made.finished


@pytest.mark.parametrize(
    ("rules", "due", "now", "sends", "following"),
    [
        # C-14 a: down from 13:59 to 14:01.
        ({}, "05 14:00", "05 14:01:30", [("05 14:00", "catch-up", 0)], "05 15:00"),
        # C-14 c: down from 00:00 to 05:20.
        ({}, "05 01:00", "05 05:20", [("05 05:00", "catch-up", 4)], "05 06:00"),
        ({"misfire": "skip"}, "05 01:00", "05 05:20", [], "05 06:00"),
        (
            {"misfire": "all"}, "05 01:00", "05 05:20",
            [(f"05 0{hour}:00", "catch-up", 0) for hour in range(1, 6)], "05 06:00",
        ),
        (
            {"misfire": "all", "misfire_limit": 2}, "05 01:00", "05 05:20",
            [("05 04:00", "catch-up", 3), ("05 05:00", "catch-up", 0)], "05 06:00",
        ),
        (
            {"misfire": "all", "grace": timedelta(hours=2)}, "05 01:00", "05 05:20",
            [("05 04:00", "catch-up", 3), ("05 05:00", "catch-up", 0)], "05 06:00",
        ),
        # The newest is on time, the ones before it are not.
        ({}, "05 01:00", "05 05:00:02", [("05 05:00", "schedule", 4)], "05 06:00"),
        ({"misfire": "skip"}, "05 01:00", "05 05:00:02", [("05 05:00", "schedule", 4)], "05 06:00"),
        ({"misfire": "skip", "grace": 1800}, "05 01:00", "05 05:20", [("05 05:00", "catch-up", 4)], "05 06:00"),
        ({"grace": 600}, "05 01:00", "05 05:20", [], "05 06:00"),
        ({"grace": 0}, "05 01:00", "05 05:00", [("05 05:00", "schedule", 4)], "05 06:00"),
    ],
)  # fmt: skip
def test_missed_occurrences_follow_the_misfire_rule(
    rules: dict[str, Any], due: str, now: str, sends: list[tuple[str, str, int]], following: str
) -> None:
    """One run for all, none, or a run for each, within grace and limit; the next due is the same in each."""
    made = wake(entry(**rules), due, now)
    assert sent(made) == sends
    assert show(made.next_due_us) == following
    assert made.last.missed_total + made.last.fired == (at(now) - at(due)) // HOUR_US + 1


def test_a_weekly_entry_after_weeks() -> None:
    """C-14 b: nothing with a grace of an hour; without one, a run labelled with the Sunday it belongs to."""
    sunday = crontab(0, 0, "sun")
    last = LastRun(next_nominal_us=utc("2011-03-20T00:00"), nominal_us=utc("2011-03-13T00:00"), fired=1)
    for grace, expected in ((3600, []), (None, [utc("2011-03-27T00:00")])):
        spec = build("entry", "task", sunday, grace=grace).installed(utc("2011-01-01T00:00"))
        made = plan(spec, last, utc("2011-03-20T00:00"), utc("2011-04-01T10:17"))
        assert [send.nominal_us for send in made.sends] == expected
        assert made.next_due_us == utc("2011-04-03T00:00")


def utc(text: str) -> int:
    """Return an ISO moment without a zone as an instant."""
    return to_us(datetime.fromisoformat(text).replace(tzinfo=timezone.utc))


def test_the_apps_rules_hold_where_the_entry_has_none() -> None:
    """An entry's own rule goes over the app's."""
    rules = Rules(misfire="all", misfire_limit=3, grace_us=HOUR_US * 2)
    assert len(wake(entry(), "05 01:00", "05 05:20", rules=rules).sends) == 2
    assert len(wake(entry(misfire="once"), "05 01:00", "05 05:20", rules=rules).sends) == 1
    assert len(wake(entry(grace=float("inf")), "05 01:00", "05 05:20", rules=rules).sends) == 3


def test_a_long_absence_is_planned_at_once() -> None:
    """A year of missed seconds or minutes is leapt over; what is sent is the newest."""
    begun = datetime.now()
    due_us, now_us = at("01 00:01"), utc("2027-01-01T00:00")
    seconds = plan(entry(1, misfire="all"), LastRun(next_nominal_us=due_us), due_us, now_us)
    assert [send.nominal_us for send in seconds.sends] == [now_us - n * SECOND_US for n in range(99, -1, -1)]
    assert seconds.last.missed_total == (now_us - due_us) // SECOND_US + 1 - 100
    minutes = plan(entry(crontab()), LastRun(next_nominal_us=due_us), due_us, now_us)
    assert [send.nominal_us for send in minutes.sends] == [now_us]
    assert minutes.last.missed_total >= 1_000
    assert datetime.now() - begun < timedelta(seconds=1)


def test_start_end_and_count_bound_the_occurrences() -> None:
    """Start and end are inclusive; the count is of what was sent."""
    start, end = from_us(at("05 10:00")), from_us(at("05 12:00"))
    bounded = entry(start=start, end=end)
    assert [show(at_us) for at_us in nominals(bounded, at("01 00:00"))] == ["05 10:00", "05 11:00", "05 12:00"]
    assert wake(bounded, "05 12:00", "05 12:00").finished
    counted = entry(count=3)
    made = wake(counted, "05 01:00", "05 01:00", LastRun(fired=2))
    assert len(made.sends) == 1
    assert made.finished
    assert made.last.next_nominal_us is None
    assert len(wake(entry(count=3, misfire="all"), "05 01:00", "05 05:20", LastRun(fired=1)).sends) == 2
    assert first(counted, at("05 01:00"), last=LastRun(fired=3)).finished


def test_a_count_hides_no_occurrence_of_a_long_time_away() -> None:
    """Which occurrence is the newest does not depend on how many may be sent; a count that was lowered sends none."""
    counted = build("entry", "task", 1, count=1).installed(at("01 00:00"))
    made = wake(counted, "01 00:00:01", "01 01:00:00")
    assert sent(made) == [("01 01:00", "schedule", 3_599)]
    lowered = wake(entry(count=3, misfire="all"), "05 01:00", "05 05:20", LastRun(fired=5))
    assert (lowered.sends, lowered.finished) == ((), True)


def test_what_lies_beyond_the_count_is_not_missed() -> None:
    """Five are due and two may be sent: the first two, of which nothing was missed before, and then it is finished."""
    made = wake(entry(count=3, misfire="all"), "05 01:00", "05 05:20", LastRun(fired=1))
    assert sent(made) == [("05 01:00", "catch-up", 0), ("05 02:00", "catch-up", 0)]
    assert (made.last.fired, made.last.missed_total, made.held, made.finished) == (3, 0, None, True)
    capped = wake(entry(count=1, misfire="all", misfire_limit=2), "05 01:00", "05 05:20")
    assert (sent(capped), capped.last.missed_total) == ([("05 04:00", "catch-up", 3)], 3)


def test_a_count_below_what_was_sent_ends_an_entry() -> None:
    """Nothing of what was due, kept back or asked for by an operator is sent, nor was it missed."""
    last = LastRun(fired=5, missed_total=7, buffered_us=at("04 23:00"), asked_us=at("05 01:00"))
    spec = entry(count=3, misfire="all", overlap="buffer_one")
    for made in (
        wake(spec, "05 01:00", "05 05:20", last),
        plan_alone(spec, last, at("05 01:00"), at("05 05:20"), outstanding=(), id_of=str),
        plan_alone(spec, last, at("05 00:30"), at("05 00:30"), outstanding=("04 23:00",), id_of=str),
        resume(spec, last, at("05 01:00"), at("05 05:20"), catch_up=True),
    ):
        assert (made.sends, made.finished, made.held) == ((), True, None)
        assert (made.last.fired, made.last.missed_total, made.last.buffered_us) == (5, 7, None)


@pytest.mark.parametrize(
    ("rules", "last", "run_out"),
    [
        ({"count": 3}, LastRun(fired=2), False),
        ({"count": 3}, LastRun(fired=3), True),
        ({"count": 3}, LastRun(fired=5), True),
        ({"end": from_us(at("05 01:00"))}, LastRun(), False),
        ({"end": from_us(at("05 00:59"))}, LastRun(), True),
        ({"end": from_us(at("05 00:59"))}, LastRun(buffered_us=at("05 00:00")), False),
        ({"end": from_us(at("05 00:59")), "jitter": 600}, LastRun(), False),
        ({"end": from_us(at("05 00:50")), "jitter": 600}, LastRun(next_nominal_us=at("05 01:00")), False),
        ({"end": from_us(at("05 00:49")), "jitter": 600}, LastRun(next_nominal_us=at("05 01:00")), True),
        ({"end": from_us(at("05 00:59"))}, LastRun(next_nominal_us=at("05 00:59")), False),
    ],
)
def test_an_entry_whose_limits_were_lowered_has_run_out(rules: dict[str, Any], last: LastRun, run_out: bool) -> None:
    """It waits for 01:00, and it is told before that comes; where its jitter leaves doubt, it is not."""
    assert has_run_out(entry(**rules), last, at("05 01:00")) is run_out


def test_an_end_that_was_moved_before_the_pending_occurrence_finishes_the_entry() -> None:
    """What is on record is checked against the limits as they are now."""
    made = wake(entry(end=from_us(at("05 12:00"))), "05 14:00", "05 14:00")
    assert (made.sends, made.finished) == ((), True)
    made = wake(entry(start=from_us(at("05 16:30"))), "05 14:00", "05 14:00")
    assert (made.sends, show(made.next_due_us)) == ((), "05 17:00")


def test_an_interval_starts_at_its_start() -> None:
    """The start is an occurrence, and the grid stands on it; without one the first is an interval away."""
    started = build("entry", "task", 3600, start=from_us(at("05 10:10"))).installed(at("01 00:00"))
    assert show(first(started, at("01 00:00")).next_due_us) == "05 10:10"
    assert show(first(started, at("05 10:10")).next_due_us) == "05 11:10"
    assert show(first(entry(3600), at("01 00:00")).next_due_us) == "01 01:00"


def test_a_one_off_is_sent_once() -> None:
    """After it nothing is due, whenever it is asked again."""
    spec = entry(from_us(at("05 10:10")))
    coming = first(spec, at("01 00:00"))
    assert show(coming.next_due_us) == "05 10:10"
    made = wake(spec, "05 10:10", "05 10:10", coming.last)
    assert (len(made.sends), made.finished) == (1, True)
    assert first(spec, at("06 00:00")).finished


def test_jitter_is_below_the_distance_and_never_moves() -> None:
    """Each occurrence has its own delay, the same for everybody; order and identity stay."""
    spec = entry(60, jitter=3600)
    times = [nominal_us for nominal_us, _ in zip(nominals(spec, at("05 00:00")), range(200), strict=False)]
    dues = [due_of(spec, nominal_us) for nominal_us in times]
    assert dues == [due_of(spec, nominal_us) for nominal_us in times]
    assert all(0 <= due - nominal < 60 * SECOND_US for due, nominal in zip(dues, times, strict=True))
    assert dues == sorted(set(dues))
    assert len({due - nominal for due, nominal in zip(dues, times, strict=True)}) > 150
    for nominal_us, due_us in zip(times[:20], dues, strict=False):
        assert pending(spec, LastRun(), due_us) == nominal_us
        made = plan(spec, LastRun(next_nominal_us=nominal_us), due_us, due_us)
        assert [send.nominal_us for send in made.sends] == [nominal_us]
        assert made.next_due_us is not None and made.next_due_us > due_us


def test_crontabs_can_have_a_grace_of_their_own() -> None:
    """As Celery's beat_cron_starting_deadline has it: how late one may run; what the entry says itself comes first."""
    rules = Rules(grace_us=HOUR_US, crontab_grace_us=60 * SECOND_US)
    assert wake(entry(), "05 14:00", "05 14:01", rules=rules).sends
    late = wake(entry(), "05 14:00", "05 14:01:01", rules=rules)
    assert (late.sends, late.held) == ((), (at("05 14:00"), "misfire"))
    for other in (entry(3600), entry("0 * * * *"), entry(grace=90)):
        assert wake(other, "05 14:00", "05 14:01:01", rules=rules).sends
    assert not wake(entry(), "05 14:00", "05 15:00:30", rules=Rules(crontab_grace_us=0)).sends
    assert wake(entry(), "05 14:00", "05 14:50", rules=Rules(grace_us=HOUR_US)).sends


def test_expiry_is_counted_from_the_sending_or_ends_with_the_next_occurrence() -> None:
    """``expires`` as in Celery, or ``"next"``."""
    assert wake(entry(), "05 14:00", "05 14:00").sends[0].expires_us is None
    made = wake(entry(expires=90), "05 14:00", "05 14:01:30")
    assert show(made.sends[0].expires_us) == "05 14:03"
    made = wake(entry(expires="next"), "05 14:00", "05 14:01:30")
    assert show(made.sends[0].expires_us) == "05 15:00"


def test_a_one_off_may_expire_at_a_moment() -> None:
    """Its message is of use until then, however late it is sent; later it is not sent, unless somebody asks for it."""
    spec = entry(from_us(at("05 14:00")), expires=from_us(at("05 15:00")))
    for now in ("05 14:00", "05 14:59"):
        assert show(wake(spec, "05 14:00", now).sends[0].expires_us) == "05 15:00"
    late = wake(spec, "05 14:00", "05 15:00")
    assert (late.sends, late.held, late.finished) == ((), (at("05 14:00"), "misfire"), True)
    asked = wake(spec, "05 14:00", "05 15:00", LastRun(asked_us=at("05 14:00")))
    assert [send.expires_us for send in asked.sends] == [None]


@pytest.mark.parametrize("number", range(20))
def test_a_message_that_expires_with_the_next_lives_until_that_is_due(number: int) -> None:
    """By the next occurrence's own jitter too, which may be as long as the interval."""
    spec = build(f"entry {number}", "task", 60, jitter=60, expires="next").installed(at("05 14:00"))
    made = first(spec, at("05 14:00"))
    for _ in range(5):
        assert made.next_due_us is not None
        made = plan(spec, made.last, made.next_due_us, made.next_due_us)
        (send,) = made.sends
        assert send.expires_us == made.next_due_us


def test_overlap_rules() -> None:
    """While the last run goes on: send all the same, drop it, or keep one back."""
    assert len(wake(entry(), "05 14:00", "05 14:00", running=True).sends) == 1
    skipped = wake(entry(overlap="skip"), "05 14:00", "05 14:00", running=True)
    assert (skipped.sends, skipped.held, show(skipped.next_due_us)) == ((), (at("05 14:00"), "overlap"), "05 15:00")
    following = wake(entry(overlap="skip"), "05 15:00", "05 15:00", skipped.last)
    assert sent(following) == [("05 15:00", "schedule", 1)]
    assert len(wake(entry(overlap="skip", misfire="all"), "05 01:00", "05 05:20").sends) == 1


def test_buffer_one_keeps_the_newest_back() -> None:
    """One occurrence waits for the end of the run; a newer one takes its place; it goes when the run has ended."""
    spec = entry(overlap="buffer_one")
    one = wake(spec, "05 14:00", "05 14:00", running=True)
    assert (one.sends, one.held, one.last.buffered_us) == ((), (at("05 14:00"), "buffered"), at("05 14:00"))
    two = wake(spec, "05 15:00", "05 15:00", one.last, running=True)
    assert (two.sends, two.last.buffered_us, two.last.missed) == ((), at("05 15:00"), 1)
    ended = release_buffered(spec, two.last, first(spec, at("05 15:20"), last=two.last), at("05 15:20"))
    assert sent(ended) == [("05 15:00", "schedule", 1)]
    assert (show(ended.next_due_us), ended.last.buffered_us, ended.last.missed) == ("05 16:00", None, 0)
    assert release_buffered(spec, ended.last, ended, at("05 15:30")) is ended
    late = wake(spec, "05 16:00", "05 16:00", two.last)
    assert sent(late) == [("05 15:00", "schedule", 1)]
    assert late.last.buffered_us == at("05 16:00")


def test_nothing_is_sent_in_a_blackout() -> None:
    """An occurrence that lies in a window, or would be sent in one, is not sent; it is named."""

    def night(instant_us: int) -> bool:
        return from_us(instant_us).hour < 4

    made = wake(entry(), "05 02:00", "05 02:00", blackout=night)
    assert (made.sends, made.held, show(made.next_due_us)) == ((), (at("05 02:00"), "blackout"), "05 03:00")
    made = wake(entry(misfire="all"), "05 02:00", "05 05:20", blackout=night)
    assert sent(made) == [("05 04:00", "catch-up", 2), ("05 05:00", "catch-up", 0)]
    assert wake(entry(), "04 23:00", "05 00:20", blackout=night).sends == ()


def test_resuming_waits_for_the_next_future_occurrence() -> None:
    """C-38: what the pause swallowed is not sent, unless it is asked to catch up, and then once."""
    daily = entry(crontab(0, 17))
    paused = LastRun(next_nominal_us=at("05 17:00"), nominal_us=at("04 17:00"), fired=4)
    made = resume(daily, paused, at("05 17:00"), at("05 20:00"))
    assert (made.sends, show(made.next_due_us), made.held) == ((), "06 17:00", (at("05 17:00"), "paused"))
    assert show(resume(daily, paused, at("05 17:00"), at("05 16:00")).next_due_us) == "05 17:00"
    made = resume(daily, paused, at("05 17:00"), at("09 20:00"), catch_up=True)
    assert sent(made) == [("09 17:00", "catch-up", 4)]
    assert show(made.next_due_us) == "10 17:00"
    assert resume(daily, paused, at("05 17:00"), at("05 16:00"), catch_up=True).sends == ()
    hourly = LastRun(next_nominal_us=at("05 01:00"))
    assert show(resume(entry(), hourly, at("05 01:00"), at("05 01:55")).next_due_us) == "05 02:00"


@pytest.mark.parametrize(("rules", "now"), [({"misfire": "skip"}, "05 20:00"), ({"grace": 60}, "05 20:00")])
def test_what_an_operator_asked_for_stands_above_the_misfire_rule(rules: dict[str, Any], now: str) -> None:
    """It is sent once however late, if nothing newer goes in its place, and is not asked for any more then."""
    spec = entry(crontab(0, 17), **rules)
    asked = LastRun(asked_us=at("05 17:00"))
    made = wake(spec, "05 17:00", now, asked)
    assert (sent(made), made.last.asked_us) == ([("05 17:00", "catch-up", 0)], None)
    assert wake(spec, "05 17:00", now).sends == ()
    newer = wake(spec, "05 17:00", "06 17:00", asked)
    assert (sent(newer), newer.last.asked_us) == ([("06 17:00", "schedule", 1)], None)


def test_a_jitter_longer_than_the_interval_hides_no_occurrence() -> None:
    """What was nominal before the end of a run and is due after it comes next."""
    spec = entry(overlap="buffer_one", schedule=60, jitter=3600)
    nominal_us = next(each for each in nominals(spec, at("05 14:00")) if due_of(spec, each) - each > 2 * SECOND_US)
    last = LastRun(nominal_us=nominal_us - 60 * SECOND_US, buffered_us=nominal_us - 60 * SECOND_US)
    made = plan_alone(
        spec, last, nominal_us + SECOND_US, nominal_us + SECOND_US, outstanding=(), id_of=lambda each: str(each)
    )
    assert (len(made.sends), made.next_nominal_us) == (1, nominal_us)


def found(spec: EntrySpec, due: str, sent_: str, last: LastRun | None = None) -> Any:
    """Return what is found of an occurrence that was sent: (nominal times, fired, missed in all, next due)."""
    what = acknowledge(spec, last or LastRun(), at(due), at(sent_), at("05 18:30"))
    if what is None:
        return None
    return [show(each) for each in what.nominals_us], what.last.fired, what.last.missed_total, show(what.due_us)


def test_what_was_sent_and_not_moved_on_is_neither_missed_nor_sent_again() -> None:
    """By the policy, one stood for those before it or each was sent; what is on record is left as it is."""
    assert found(entry(), "05 14:00", "05 14:00") == (["05 14:00"], 1, 0, "05 15:00")
    assert found(entry(), "05 14:00", "05 16:00") == (["05 16:00"], 1, 2, "05 17:00")
    each = entry(misfire="all")
    assert found(each, "05 14:00", "05 16:00") == (["05 14:00", "05 15:00", "05 16:00"], 3, 0, "05 17:00")
    assert found(entry(count=1), "05 14:00", "05 14:00") == (["05 14:00"], 1, 0, None)
    few = entry(misfire="all", misfire_limit=3, count=3)
    assert len(wake(few, "05 12:00", "05 16:00", LastRun(fired=1)).sends) == 2
    assert found(few, "05 12:00", "05 15:00", LastRun(fired=1)) == (["05 14:00", "05 15:00"], 3, 2, None)
    assert found(entry(), "05 14:00", "05 13:00", LastRun(nominal_us=at("05 13:00"))) is None
    assert found(entry(), "05 14:00", "05 13:00") is None
    assert found(entry(), "05 14:00", "05 14:30") is None
    kept = LastRun(nominal_us=at("05 12:00"), fired=1, buffered_us=at("05 13:00"))
    assert found(entry(overlap="buffer_one"), "05 14:00", "05 13:00", kept) == (["05 13:00"], 2, 0, "05 14:00")
    assert found(entry(overlap="buffer_one"), "05 13:20", "05 13:00", kept) == (["05 13:00"], 2, 0, "05 14:00")


def test_which_occurrence_a_due_stands_for() -> None:
    """The one on record; the one whose due it is after a new declaration; the record again when it was put off."""
    spec = entry()
    assert pending(spec, LastRun(next_nominal_us=at("05 14:00")), at("05 14:00")) == at("05 14:00")
    assert pending(spec, LastRun(next_nominal_us=at("05 13:30")), at("05 14:00")) == at("05 14:00")
    assert pending(spec, LastRun(next_nominal_us=at("05 14:00")), at("05 14:00:07")) == at("05 14:00")
    assert pending(spec, LastRun(next_nominal_us=at("05 14:00")), at("05 13:20")) == at("05 13:20")
    assert pending(spec, LastRun(), at("05 13:20")) == at("05 13:20")


def test_an_entry_that_is_claimed_too_early_waits() -> None:
    """A clock that was set back sends nothing early."""
    made = wake(entry(), "05 14:00", "05 13:59")
    assert (made.sends, show(made.next_due_us)) == ((), "05 14:00")


schedules = st.sampled_from(
    [
        1,
        7,
        3600,
        timedelta(days=7),
        crontab(),
        HOURLY,
        crontab(minute="*/7"),
        crontab(30, 2),
        crontab(0, "1,2,3"),
        "0 0 * * 1",
    ]
)
options = st.fixed_dictionaries(
    {},
    optional={
        "misfire": st.sampled_from(["once", "skip", "all"]),
        "grace": st.sampled_from([0, 60, 7200]),
        "misfire_limit": st.integers(1, 20),
        "overlap": st.sampled_from(["allow", "skip", "buffer_one"]),
        "count": st.integers(1, 5),
        "jitter": st.sampled_from([0.5, 60, 100_000]),
        "zone": st.sampled_from(["Europe/Paris", "Australia/Lord_Howe", "America/New_York"]),
        "expires": st.just("next") | st.integers(1, 100),
    },
)


@given(
    schedules, options, st.integers(0, 10**8), st.lists(st.tuples(st.integers(0, 10**5), st.booleans()), max_size=12)
)
@settings(max_examples=200, deadline=None)
def test_whatever_happens_each_occurrence_is_sent_at_most_once_and_time_goes_forward(
    schedule: Any, rules: dict[str, Any], begin_s: int, delays: list[tuple[int, bool]]
) -> None:
    """The next due is later than the last and than now; nominal times rise; nothing is sent before it is due."""
    now_us = utc("2024-01-01T00:00") + begin_s * SECOND_US
    spec = build("entry", "task", schedule, **rules).installed(now_us)
    made = first(spec, now_us)
    seen: list[int] = []
    for late_s, running in delays:
        if made.next_due_us is None:
            break
        due_us = made.next_due_us
        now_us = due_us + late_s * SECOND_US
        assert pending(spec, made.last, due_us) == made.next_nominal_us
        again = plan(spec, made.last, due_us, now_us, running=running)
        assert again == plan(spec, made.last, due_us, now_us, running=running)
        made = again
        seen += [send.nominal_us for send in made.sends]
        assert made.next_due_us is None or made.next_due_us > max(due_us, now_us)
        assert made.next_nominal_us == made.last.next_nominal_us
        assert all(due_of(spec, nominal_us) <= now_us for nominal_us in seen)
    assert seen == sorted(set(seen))
    assert made.last.fired == len(seen) <= (spec.count or len(seen))
    if made.next_nominal_us is not None:
        assert next_nominal(spec, made.next_nominal_us - 1) == made.next_nominal_us
