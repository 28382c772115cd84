"""The server's clock is set far ahead and back again: what was sent meanwhile, who is told, and how it goes on."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from celery.schedules import crontab

from celery_zsched import Entry, operations
from celery_zsched.connection import Server
from celery_zsched.engine import Engine, Options
from celery_zsched.entry import EntrySpec
from celery_zsched.lookout import Lookout
from celery_zsched.operations import Site
from celery_zsched.operations.reanchoring import _reanchor
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.roll import Roll, beats_of
from celery_zsched.schedules import Schedules
from celery_zsched.settings import Settings
from celery_zsched.stored import State, Stored
from celery_zsched.types import SECOND_US, from_us
from tests.clocks import Clock
from tests.entries import HOUR_US, entry, paused, put_back
from tests.programs import Project, Sent
from tests.servers import RunningServer, wait_until

DAY_US = 24 * HOUR_US
EVERY_US = 2 * SECOND_US

SOURCE = """
app.conf.beat_schedule = {
    "often": {"task": "note", "schedule": 2.0},
    "nightly": {"task": "note", "schedule": crontab(minute=0, hour=0)},
}
"""


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """The clock of the server."""
    return Clock(tmp_path)


@pytest.fixture
def server(start_server: Callable[..., RunningServer], clock: Clock) -> RunningServer:
    """A server whose clock can be moved."""
    return start_server(env=clock.env)


def midnight_after(at_us: int) -> int:
    """Return the next midnight, UTC."""
    return at_us - at_us % DAY_US + DAY_US


def findings(site: Site) -> dict[str, tuple[str, str]]:
    """Return what doctor says of entries that are ahead: verdict -> words and remedy."""
    return {each.verdict: (each.said, each.remedy) for each in operations.doctor(site) if each.check == "ahead"}


def test_entries_go_on_by_the_clock_as_it_is_once_they_are_reanchored(
    server: RunningServer, clock: Clock, start_project: Callable[..., Project]
) -> None:
    """Two days ahead and right again: beat and doctor tell; after `reanchor --ahead` each is sent at its time, once."""
    project = start_project(server, SOURCE, ours=True)
    site = Site.of(project.app)
    beat = project.beat()
    project.collect(1)
    now_us = project.schedules.now_us()
    clock.move("+2d")
    ahead: list[Sent] = []

    def both() -> bool:
        ahead.extend(one for one in project.drain() if one.nominal_us > now_us + HOUR_US)
        return {one.entry for one in ahead} == {"often", "nightly"}

    wait_until(both, what="both to be sent while the clock is ahead")
    clock.move("+0")
    said = beat.says("celery zsched reanchor --ahead")
    assert "2 entries are ahead of the server's clock ('nightly', 'often')" in said
    (line,) = [line for line in said.splitlines() if "was set back" in line]
    assert "ERROR" in line and ("2 days, 0:0" in line or "1 day, 23:5" in line)
    ((verdict, (words, remedy)),) = findings(site).items()
    assert (verdict, remedy) == ("bad", "celery zsched reanchor --ahead")
    assert "2 entries are ahead" in words
    assert any("celery zsched reanchor often" in each for each in operations.explain(site, "often").because)
    project.drain()
    assert project.collect_for(2.5) == []

    before = {each.name: each for each in project.schedules.all()}
    now_us = project.schedules.now_us()
    dry = project.celery("zsched", "reanchor", "--ahead", "--dry-run")
    assert [line.split(":")[0] for line in dry.stdout.splitlines()] == ["nightly", "often"]
    assert before == {each.name: each for each in project.schedules.all()}
    done = project.celery("zsched", "reanchor", "--ahead", "--reason", "a wrong clock", "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["changed"] for line in done.stdout.splitlines()] == [True, True]
    nightly = project.schedules.get("nightly")
    assert nightly.due_us in (midnight_after(now_us), midnight_after(project.schedules.now_us()))
    assert nightly.spec is not None and before["nightly"].spec is not None
    assert nightly.spec.epoch > before["nightly"].spec.epoch
    sent = project.collect(3)
    often = before["often"].spec
    assert often is not None and often.anchor_us is not None
    assert all((one.nominal_us - often.anchor_us) % EVERY_US == 0 for one in sent)
    # On a busy machine one may stand for others before it; each is sent once or stood for once, from then on.
    assert sent[0].nominal_us - sent[0].missed * EVERY_US > now_us
    steps = [later.nominal_us - one.nominal_us for one, later in pairwise(sent)]
    assert steps == [(one.missed + 1) * EVERY_US for one in sent[1:]]
    assert set(findings(site)) == {"good"}
    assert operations.reanchor_tasks(site) == []
    record = operations.audit(site, target="entry:often")[0]
    assert (record.verb, record.by, record.reason) == ("reanchor", operations.whoami(), "a wrong clock")
    again = project.celery("zsched", "reanchor", "often")
    assert "not ahead of the server's clock" in again.stdout


def test_a_beat_that_starts_after_the_clock_was_set_back_tells(
    server: RunningServer, clock: Clock, start_project: Callable[..., Project]
) -> None:
    """It knows by the roll; what is ahead is told once at its start, and not any more when nothing is."""
    project = start_project(server, SOURCE, ours=True)
    clock.move("+2d")
    beat = project.beat()
    project.collect(1)
    assert beat.terminate() == 0
    clock.move("+0")
    beat = project.beat()
    said = beat.says("reanchor --ahead")
    assert "or more behind what it was when" in said and "2 entries are ahead of the server's clock" in said
    assert said.count("reanchor --ahead") == 1
    beat.terminate()
    assert len(operations.reanchor_tasks(Site.of(project.app))) == 2
    project.drain()
    beat = project.beat()
    project.collect(1)
    assert "reanchor" not in beat.output()


def test_a_beat_that_has_nothing_to_do_hears_of_it_all_the_same(
    server: RunningServer, clock: Clock, start_project: Callable[..., Project]
) -> None:
    """It asks for the time as it calls the roll, long before it claims again."""
    conf = {"zsched_settle_time": 3.0, "zsched_max_block": 1.0}
    project = start_project(server, ours=True, **conf)
    Entry("nightly", "note", crontab(minute=0, hour=0), app=project.app).save()
    beat = project.beat()
    clock.move("+2d")
    project.collect(1)
    clock.move("+0")
    beat.says("1 entry is ahead of the server's clock ('nightly')")


def test_a_slow_answer_is_no_clock_that_was_set_back(schedules: Schedules) -> None:
    """Only a clock that is behind what it must have been when it was asked was set back; by seconds it is not told."""
    began_us, server_us = time.monotonic_ns() // 1000, schedules.now_us()

    def back_us(set_us: int, asked_us: int) -> int:
        lookout = Lookout(schedules.timeline)
        lookout.heard(server_us, began_us)
        lookout.heard(server_us + set_us, asked_us)
        return lookout.set_back_us

    assert back_us(0, began_us - 3600 * SECOND_US) == 0  # an answer that took an hour
    assert back_us(-4 * SECOND_US, began_us) == back_us(DAY_US, began_us) == 0
    assert back_us(-DAY_US, began_us) in range(DAY_US - SECOND_US * 5, DAY_US + SECOND_US * 5)
    week_us = 7 * DAY_US  # unheard of for so long, two clocks that differ by 50 seconds a week may both be right
    assert back_us(week_us - 50 * SECOND_US, began_us + week_us) == 0
    assert back_us(week_us - HOUR_US, began_us + week_us) > HOUR_US // 2


def test_beats_have_time_to_call_by_a_clock_that_was_set(desk: Desk) -> None:
    """The first that sees it does not take the others for silent, whose releases' entries would go."""
    settings, made_us = Settings(settle_time=60.0), desk.schedules.now_us()
    rolls: list[Roll] = []
    for release in ("old", "new"):
        engine = desk.another()
        rolls.append(Roll(engine.schedules, engine, dataclasses.replace(settings, release=release), also=id))
        assert engine.turn(0.0) == 0.0
        rolls[-1].declare([release])
        desk.schedules.save(dataclasses.replace(entry(release, 3600), owner="static"))
    desk.move("+2d")
    for roll in reversed(rolls):
        roll._called_at = 0.0  # as if a minute had passed
        assert roll.call()
    assert all(beat.at_us - made_us > DAY_US for beat in beats_of(desk.schedules))
    assert {stored.name for stored in desk.schedules.all()} == {"old", "new"}


class Desk:
    """One scheduler in this process on a server whose clock can be moved, and the broker beside it."""

    def __init__(self, project: Project, server: RunningServer, clock: Clock) -> None:
        self.project = project
        self.clock = clock
        self._url = server.url
        self._others: list[Engine] = []
        self.site = Site.of(project.app)
        self.schedules = project.schedules
        self._publisher = CeleryPublisher(project.app, prefix="zsched", declared=dict)
        self.engine = Engine(Schedules(Server.from_url(server.url), claimer="desk"), self._publisher, Options())

    def move(self, offset: str) -> None:
        """Move the server's clock, and wait until it tells the time so."""
        was_us = self.schedules.now_us()
        self.clock.move(offset)
        wait_until(lambda: abs(self.schedules.now_us() - was_us) > HOUR_US, what="the clock to be moved")

    def another(self) -> Engine:
        """Return another scheduler, which only claims."""
        schedules = Schedules(Server.from_url(self._url), claimer=f"desk{len(self._others)}")
        self._others.append(Engine(schedules, self._publisher, Options()))
        return self._others[-1]

    def send_all(self) -> list[Sent]:
        """Let the scheduler do what is to be done; return what was sent."""
        self.engine.lookout.failed()
        assert self.engine.turn(0.1) == 0.0
        return self.project.drain()

    def get(self, name: str) -> Stored:
        """Return an entry."""
        return self.schedules.get(name)

    def close(self) -> None:
        """Drop the connections."""
        for engine in (self.engine, *self._others):
            engine.close()
        self._publisher.close()


@pytest.fixture
def desk(
    server: RunningServer,
    clock: Clock,
    start_project: Callable[..., Project],
    close_later: Callable[[Any], Any],
) -> Desk:
    """A scheduler in this process."""
    made: Desk = close_later(Desk(start_project(server, ours=True), server, clock))
    return made


def test_what_an_operator_decided_and_what_was_sent_stays(desk: Desk) -> None:
    """A pause, the history and the count of what was sent are kept; resumed, it is due at its next time."""
    desk.schedules.save(entry("paused", 3600))
    desk.move("+1d")
    assert [one.entry for one in desk.send_all()] == ["paused"]
    desk.schedules.pause("paused", paused())
    desk.move("+0")
    before, history = desk.get("paused"), desk.schedules.history("paused")
    done = operations.reanchor_task(desk.site, "paused")
    assert (done.changed, done.state, done.reason) == (True, "paused", "maintenance")
    after = desk.get("paused")
    assert after.operator == before.operator
    assert desk.schedules.history("paused") == history != []
    assert (after.last.fired, after.last.task_id, after.last.nominal_us) == (1, before.last.task_id, None)
    operations.resume_task(desk.site, "paused")
    due_us = desk.get("paused").due_us
    assert due_us is not None and 0 < due_us - desk.schedules.now_us() <= HOUR_US


def test_what_is_made_while_the_clock_is_ahead_gets_its_grid_anew(desk: Desk) -> None:
    """It was never sent, and would begin when the clock has caught up; reanchored, it begins now."""
    desk.move("+1d")
    desk.schedules.save(entry("young", 3600))
    desk.move("+0")
    now_us = desk.schedules.now_us()
    assert operations.reanchor_task(desk.site, "young").changed
    after = desk.get("young")
    assert after.spec is not None and after.spec.anchor_us is not None and after.due_us is not None
    assert abs(after.spec.anchor_us - now_us) < 60 * SECOND_US
    assert after.due_us == after.spec.anchor_us + HOUR_US
    assert not operations.reanchor_task(desk.site, "young").changed


def test_a_claim_that_was_made_while_the_clock_was_ahead_holds_nothing_up(desk: Desk) -> None:
    """Its scheduler died, and the lease would end in a day; so would the pause before another try."""
    desk.schedules.save(entry("held", 3600))
    put_back(desk.schedules, entry("tried"), SECOND_US)  # due before the clock was set ahead
    desk.move("+1d")
    due, tried = sorted(desk.schedules.claim(2, 5 * SECOND_US).due, key=lambda each: each.name)
    desk.schedules.timeline.release([tried.hold], delay_us=SECOND_US)
    desk.move("+0")
    dry = operations.reanchor_tasks(desk.site, dry_run=True)
    assert [(each.entry, each.state) for each in dry] == [("held", "scheduled"), ("tried", "scheduled")]
    assert [each.next for each in operations.reanchor_tasks(desk.site)] == [each.next for each in dry]
    assert all(desk.get(name).located.claimed_us is None for name in ("held", "tried"))
    assert desk.schedules.timeline.settle([due.hold]) == ["held"]  # the dead one's token is void
    assert operations.reanchor_tasks(desk.site) == []


def test_a_queue_takes_what_it_has_had_a_later_occurrence_of(desk: Desk) -> None:
    """The new life is above the mark also where that is of a higher epoch than the schedule knows."""
    queues = desk.site.queues
    desk.schedules.save(entry("each", 1))
    desk.move("+1d")
    assert desk.send_all()
    desk.move("+0")
    ((epoch, nominal_us),) = queues.marks("zsched", ["each"])["each"]
    marks = queues.timeline("celery").keys.marks
    (field,) = queues.server.client.hkeys(marks)
    queues.server.client.hset(marks, field, f"{epoch + 7} {nominal_us}")
    assert operations.reanchor_task(desk.site, "each").changed
    spec = desk.get("each").spec
    assert spec is not None and spec.epoch == epoch + 8
    sent: list[Sent] = []

    def come() -> bool:
        desk.engine.turn(0.1)
        sent.extend(desk.project.drain())
        return len(sent) >= 2

    wait_until(come, what="two occurrences")
    assert len({one.nominal_us for one in sent}) == len(sent)


@pytest.mark.parametrize(
    ("spec", "comes_again"),
    [
        (lambda now_us: entry("done", from_us(now_us + 2 * HOUR_US)), True),
        (lambda now_us: entry("done", 3600, count=1), False),
        (lambda now_us: entry("done", 3600, end=from_us(now_us + 2 * HOUR_US)), True),
    ],
    ids=["one moment", "count", "end"],
)
def test_one_that_has_run_out_is_reanchored_by_its_name_alone(
    desk: Desk, spec: Callable[[int], EntrySpec], comes_again: bool
) -> None:
    """What was sent for moments to come is sent again only where somebody asks for it, and never beyond its count."""
    desk.schedules.save(spec(desk.schedules.now_us()))
    desk.move("+1d")
    desk.send_all()
    assert desk.get("done").state is State.FINISHED
    desk.move("+0")
    assert operations.reanchor_tasks(desk.site) == []
    assert set(findings(desk.site)) == ({"look"} if comes_again else {"good"})
    done = operations.reanchor_task(desk.site, "done")
    assert (done.changed, done.state) == (comes_again, "scheduled" if comes_again else "finished")
    assert set(findings(desk.site)) == {"good"}
    if comes_again:
        due_us = desk.get("done").due_us
        assert due_us is not None and 0 < due_us - desk.schedules.now_us() <= 2 * HOUR_US


def test_one_in_quarantine_stays_there_and_is_due_in_time_once_it_is_mended(desk: Desk) -> None:
    """Reanchoring mends no fault; saved anew, it is due by the clock as it is."""
    desk.schedules.save(entry("ill", 3600))
    desk.move("+1d")
    desk.send_all()
    desk.schedules.timeline.bury([("ill", "", "its schedule cannot answer", b"")])
    desk.move("+0")
    (done,) = operations.reanchor_tasks(desk.site)
    assert (done.changed, done.state) == (True, "quarantined")
    desk.schedules.save(entry("ill", 3600))
    due_us = desk.get("ill").due_us
    assert due_us is not None and 0 < due_us - desk.schedules.now_us() <= HOUR_US
    assert operations.reanchor_tasks(desk.site) == []


def test_many_who_ask_at_once_change_it_once(desk: Desk) -> None:
    """Of two operators with the same picture one begins the new life, and the other finds nothing to do."""
    desk.schedules.save(entry("each", 3600))
    desk.move("+1d")
    desk.send_all()
    desk.move("+0")
    stale = desk.get("each")
    assert operations.reanchor_task(desk.site, "each").changed
    after = desk.get("each")
    assert not _reanchor(desk.site, stale, {}, None, False).changed
    assert desk.get("each") == after
