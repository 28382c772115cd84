"""Moving in: real redbeat's keys, django-celery-beat's rows and Celery's own file are taken over."""

from __future__ import annotations

import json
import shelve
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule

from benchmarks.systems import REDBEAT
from celery_zsched import operations
from celery_zsched.operations import Site
from celery_zsched.operations.carrying import Report, take_in
from celery_zsched.operations.otherbeats import import_shelve, read_rows
from celery_zsched.operations.redbeat import import_redbeat
from celery_zsched.types import from_us
from tests.programs import Project
from tests.servers import RunningServer, wait_until

WRITER = Path(__file__).with_name("redbeat_writer.py")

#: When the intervals that real redbeat writes last ran, before a count of seconds; see redbeat_writer.py.
LAST = datetime(2026, 11, 1, tzinfo=timezone.utc)

MINUTE = timedelta(minutes=1)


@pytest.fixture
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server of the test's own."""
    return start_server(tcp=True)


@pytest.fixture
def site(server: RunningServer) -> Iterator[Site]:
    """The site of an app that sends to that server."""
    app = Celery("moving", broker=server.url, set_as_current=False)
    site = Site.of(app, by="ann@desk")
    yield site
    site.schedules.server.close()
    app.close()


def write(server: RunningServer, count: int, *more: str) -> None:
    """Let real redbeat store entries."""
    command = [REDBEAT.python(), "-W", "ignore", str(WRITER), server.url, str(count), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def search(now: datetime, matches: Callable[[datetime], bool]) -> datetime:
    """Return the first whole minute after ``now`` that matches, by trying each."""
    at = now.replace(second=0, microsecond=0) + MINUTE
    while not matches(at):
        at += MINUTE
    return at


def expected(number: int, now: datetime) -> datetime:
    """Return when the entry of that number in redbeat_writer.py is due next, computed in another way."""
    kind = number % 4
    if kind == 0:
        every = timedelta(seconds=60 + number % 977)
        last = LAST + timedelta(seconds=number)
        return last + ((now - last) // every + 1) * every
    if kind == 1:
        wanted = (number % 60, number % 24, number % 7)
        return search(now, lambda at: (at.minute, at.hour, at.isoweekday() % 7) == wanted)
    if kind == 2:
        return search(now, lambda at: at.minute % (1 + number % 30) == 0)
    return search(now, lambda at: (at.minute, at.hour) == (30, number % 24))


@pytest.mark.slow
def test_ten_thousand_entries_of_real_redbeat(server: RunningServer, site: Site) -> None:
    """Their next dues are those of an independent computation, what was disabled is paused, twice changes nothing."""
    write(server, 10_000)
    assert len(import_redbeat(site, dry_run=True).created) == 10_000
    assert list(site.schedules.names()) == []
    before = from_us(site.schedules.now_us())
    report = import_redbeat(site)
    after = from_us(site.schedules.now_us())
    assert (len(report.created), report.faults, report.notices) == (10_000, {}, {})
    assert len(report.paused) == len(range(0, 10_000, 7))
    wrong = []
    for stored in site.schedules.all():
        number = int(stored.name.split()[1])
        assert (stored.state.value == "paused") == (number % 7 == 0)
        right = {expected(number, before), expected(number, after)}
        if stored.due_us is None or from_us(stored.due_us) not in right:
            wrong.append((stored.name, stored.due_us and from_us(stored.due_us), right))
    assert wrong == []
    stood = {stored.name: (stored.due_us, stored.located.body) for stored in site.schedules.all()}
    again = import_redbeat(site)
    assert (len(again.unchanged), again.created, again.updated, again.paused) == (10_000, [], [], [])
    assert {stored.name: (stored.due_us, stored.located.body) for stored in site.schedules.all()} == stood
    shown = operations.show(site, "entry 1", arguments=True)
    assert shown["arguments"] == {"args": [1], "kwargs": {"n": 1}}
    assert shown["options"] == {"queue": "elsewhere"}


def test_redbeat_sends_nothing_that_was_taken_over(server: RunningServer, site: Site) -> None:
    """Taken over, entries are disabled in redbeat, whose own decoder still reads them; a copy leaves them enabled."""
    write(server, 8)
    client = server.client()

    def enabled() -> list[bool]:
        return [
            json.loads(client.hget(f"redbeat:entry {number}", "definition") or "{}")["enabled"] for number in range(8)
        ]

    import_redbeat(site, copy=True)
    assert enabled() == [number % 7 != 0 for number in range(8)]
    import_redbeat(site)
    assert enabled() == [False] * 8
    assert {row.entry for row in operations.all_entries(site, state="paused")} == {"entry 0", "entry 7"}
    ask = """
import sys, celery, redbeat
app = celery.Celery(broker=sys.argv[1])
app.conf.redbeat_redis_url = sys.argv[1]
print(redbeat.RedBeatSchedulerEntry.from_key("redbeat:entry 1", app=app).is_due())
"""
    command = [REDBEAT.python(), "-W", "ignore", "-c", ask, server.url]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "False" in said
    client.close()


@pytest.mark.slow
def test_both_run_side_by_side_and_nothing_is_sent_twice(
    server: RunningServer, start_project: Callable[..., Project], tmp_path: Path
) -> None:
    """A real redbeat beat goes on while its entries are taken over; none is sent by both, and none misses a beat."""
    project = start_project(server)
    names = [f"second {number}" for number in range(5)]
    module = f"""
import sys
from celery import Celery
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry

app = Celery("old", broker={server.url!r})
app.conf.redbeat_redis_url = {server.url!r}
app.conf.beat_max_loop_interval = 1
if "save" in sys.argv:
    for name in {names!r}:
        RedBeatSchedulerEntry(name, "note", schedule(1.0), args=[name], app=app).save()
"""
    (tmp_path / "old.py").write_text(module)
    python = REDBEAT.python()
    subprocess.run([python, "-W", "ignore", "old.py", "save"], cwd=tmp_path, check=True, timeout=60)
    arrived: list[tuple[float, str, bool]] = []

    def collect(until: Callable[[], bool]) -> None:
        with project.app.connection_for_read() as connection:
            queue = kombu.Queue("celery")(connection.default_channel)
            queue.declare()

            def take() -> bool:
                while (message := queue.get(no_ack=True)) is not None:
                    (name,), _, _ = message.payload
                    arrived.append((time.monotonic(), name, "zsched" in message.headers))
                return until()

            wait_until(take, timeout_s=60, what="messages")

    with (tmp_path / "old.log").open("w") as log:
        command = [python, "-W", "ignore", "-m", "celery", "-A", "old", "beat", "-S", "redbeat.RedBeatScheduler"]
        old = subprocess.Popen([*command, "--pidfile="], cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        project.beat()
        collect(lambda: len(arrived) >= 3 * len(names))
        assert not any(ours for _, _, ours in arrived)
        assert len(import_redbeat(Site.of(project.app)).created) == len(names)
        taken = time.monotonic()
        collect(lambda: sum(ours for _, _, ours in arrived) >= 5 * len(names))
        assert old.poll() is None
    finally:
        old.kill()
        old.wait()
    assert [at - taken for at, _, ours in arrived if not ours and at > taken + 0.5] == []
    for name in names:
        mine = [(at, ours) for at, sent, ours in arrived if sent == name]
        owners = [ours for _, ours in mine]
        assert owners == sorted(owners)  # first all of redbeat's, then all of ours
        gaps = [round(later - earlier, 2) for (earlier, _), (later, _) in pairwise(mine)]
        switch = gaps[owners.index(True) - 1]
        assert 0.3 < switch < 5, (name, gaps)


def test_what_cannot_be_carried_is_listed(server: RunningServer, site: Site) -> None:
    """A broken entry of redbeat is reported by name with the reason; the others come."""
    write(server, 3)
    client = server.client()
    client.hset("redbeat:broken", "definition", '{"name": "broken", "task": "note", "schedule": {"__type__": "moon"}}')
    client.zadd("redbeat::schedule", {"redbeat:broken": 1, "redbeat:gone": 2})
    client.close()
    report = import_redbeat(site)
    assert len(report.created) == 3
    assert "moon" in report.faults["broken"]
    assert "no definition" in report.faults["gone"]


def row(name: str, **fields: Any) -> SimpleNamespace:
    """Return a row as django-celery-beat has it."""
    plain = dict.fromkeys(
        ("interval", "crontab", "solar", "clocked", "queue", "exchange", "routing_key", "priority", "headers",
         "expires", "expire_seconds", "start_time", "last_run_at"),
    )  # fmt: skip
    given = {"task": "note", "args": "[]", "kwargs": "{}", "enabled": True, "one_off": False, "description": ""}
    return SimpleNamespace(name=name, **plain | given | fields)


def test_rows_of_django_celery_beat(site: Site) -> None:
    """Intervals keep their grid, crontabs their zone, one-offs their moment, and what was disabled is paused."""
    last = datetime(2026, 11, 1, 0, 0, 7, tzinfo=timezone.utc)
    tokyo = SimpleNamespace(
        minute="30", hour="9", day_of_week="*", day_of_month="*", month_of_year="*", timezone="Asia/Tokyo"
    )
    moment = datetime.now(timezone.utc) + timedelta(days=3)
    rows = [
        row("every", interval=SimpleNamespace(every=5, period="minutes"), last_run_at=last, args='["a"]'),
        row("cron", crontab=tokyo, enabled=False, queue="q", headers='{"h": 1}', priority=3),
        row("once", clocked=SimpleNamespace(clocked_time=moment), one_off=True),
        row("ends", interval=SimpleNamespace(every=1, period="hours"), expires=moment, expire_seconds=None),
        row("nothing"),
    ]
    report = Report()
    take_in(site, read_rows(site, rows, report), report, source="test")
    assert (sorted(report.created), report.paused, list(report.faults)) == (
        ["cron", "ends", "every", "once"], ["cron"], ["nothing"]
    )  # fmt: skip
    assert list(report.notices) == ["ends"]
    due = site.schedules.get("every").due_us
    assert due is not None
    assert (from_us(due) - last) % timedelta(minutes=5) == timedelta(0)
    assert operations.next_dues(site, "cron", n=1)[0].due.endswith("T00:30:00+00:00")
    assert operations.show(site, "cron")["options"] == {"queue": "q", "priority": 3, "headers": {"h": 1}}
    assert [each.due for each in operations.next_dues(site, "once")] == [moment.isoformat()]
    report = Report()
    take_in(site, read_rows(site, rows, report), report, source="test")
    assert (len(report.unchanged), report.paused) == (4, [])


def test_what_was_changed_since_is_left_by_the_next_import(site: Site) -> None:
    """An operator's schedule, arguments and resume stay, and are listed, until they are to be overwritten."""
    every = SimpleNamespace(every=5, period="minutes")
    rows = [row(name, interval=every, args="[1]") for name in ("args", "schedule", "same", "paused", "newer")]
    rows += [row(name, interval=every, enabled=False) for name in ("resumed", "still")]

    def again(*, dry_run: bool = False, overwrite: bool = False) -> Report:
        report = Report(dry_run=dry_run)
        coming = read_rows(site, rows, report)
        return take_in(site, coming, report, source="test", taking_over=True, overwrite=overwrite)

    assert (len(again().created), again().kept) == (7, [])
    operations.edit(site, "args", {"args": [2]})
    operations.edit(site, "schedule", {"every": "9m"})
    operations.pause_task(site, "paused", reason="flood")
    operations.resume_task(site, "resumed")
    operations.pause_task(site, "still", reason="mine")
    rows[4] = row("newer", interval=every, args="[7]")
    stood = {stored.name: stored.located.body for stored in site.schedules.all()}
    rehearsed = again(dry_run=True)
    report = again()
    for each in (rehearsed, report):
        assert (sorted(each.kept), each.updated) == (["args", "resumed", "schedule"], ["newer"])
        assert (each.paused, each.created, each.faults) == ([], [], {})
        assert {"args": "arguments", "schedule": "schedule"}.items() <= {
            name: said[0].partition("has another ")[2].partition(";")[0] for name, said in each.notices.items()
        }.items()
    assert "resumed here" in report.notices["resumed"][0]
    assert {stored.name for stored in site.schedules.all() if stored.located.body != stood[stored.name]} == {"newer"}
    states = {row.entry: (row.state, row.reason) for row in operations.all_entries(site)}
    assert (states["paused"], states["still"]) == (("paused", "flood"), ("paused", "mine"))
    assert states["resumed"] == ("scheduled", None)
    assert sorted(again().kept) == ["args", "resumed", "schedule"]
    forced = again(overwrite=True)
    assert (sorted(forced.updated), forced.paused, forced.kept) == (["args", "schedule"], ["resumed"], [])
    assert (len(again().unchanged), again().kept) == (7, [])
    operations.remove(site, "args")
    assert again().created == ["args"]


def test_the_file_of_celerys_own_scheduler(site: Site, tmp_path: Path) -> None:
    """Entries of a celerybeat-schedule come over, intervals on the grid of their last run."""
    last = datetime(2026, 11, 1, 0, 0, 7, tzinfo=timezone.utc)
    path = tmp_path / "celerybeat-schedule"
    with shelve.open(str(path)) as store:
        store["entries"] = {
            "grid": ScheduleEntry("grid", "note", last, 5, schedule(300.0), (1,), {}, {}, app=site.app),
            "cron": ScheduleEntry("cron", "note", last, 5, crontab(minute="0", hour="9"), (), {}, {}, app=site.app),
        }
    report = import_shelve(site, str(path))
    assert (sorted(report.created), report.faults) == (["cron", "grid"], {})
    due = site.schedules.get("grid").due_us
    assert due is not None
    assert (from_us(due) - last) % timedelta(minutes=5) == timedelta(0)
    assert import_shelve(site, str(path)).unchanged == ["cron", "grid"]
