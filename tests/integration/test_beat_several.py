"""Several beats on one schedule: each occurrence is sent once, whoever is killed, frozen or has a wrong clock."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from celery_zsched import Entry, operations, roll
from celery_zsched.operations import Site
from celery_zsched.stored import State
from celery_zsched.types import from_us, to_us
from tests.entries import put_at
from tests.programs import Project, Sent, has_ended
from tests.servers import RunningServer, missing, wait_until

SECOND_US = 1_000_000

EVERY_SECOND = """
    each = {"task": "note", "schedule": 1.0}
    app.conf.beat_schedule = {f"entry-{number}": each for number in range(10)}
"""

#: A project's beats have a lease of so many seconds.
LEASE_S = 1.0


@pytest.fixture
def project(start_server: Callable[..., RunningServer], start_project: Callable[..., Project]) -> Project:
    """Ten entries of a second, on a server of its own."""
    return start_project(start_server(tcp=True), EVERY_SECOND, ours=True, zsched_lease_timeout=LEASE_S)


def nominals(sent: list[Sent]) -> dict[str, list[Sent]]:
    """Return what was sent for each entry, by nominal time; no occurrence may have been sent twice."""
    often = Counter((one.entry, one.nominal_us) for one in sent)
    assert [twice for twice, times in often.items() if times > 1] == []
    per_entry: dict[str, list[Sent]] = defaultdict(list)
    for one in sorted(sent, key=lambda one: one.nominal_us):
        per_entry[one.entry].append(one)
    return per_entry


def gaps(sent: list[Sent]) -> set[int]:
    """Return the distances between neighbouring occurrences, in seconds; whatever is missing must be owned up to."""
    found = set()
    for mine in nominals(sent).values():
        for before, after in pairwise(mine):
            distance, rest = divmod(after.nominal_us - before.nominal_us, SECOND_US)
            assert (rest, after.missed) == (0, distance - 1)
            found.add(distance)
    return found


def test_three_beats_send_each_occurrence_once_and_stop_without_a_gap(project: Project) -> None:
    """Stopped one after the other, they exit with 0, hold nothing any more, and what is left goes on in time."""
    beats = [project.beat() for _ in range(3)]
    sent = project.collect(30)
    for beat in beats[:2]:
        assert beat.terminate() == 0
        sent += project.collect(15)
    assert beats[2].terminate() == 0
    sent += project.drain()
    assert gaps(sent) == {1}
    counts = project.schedules.timeline.counts()
    assert (counts.leased, counts.ready + counts.delayed) == (0, 10)
    assert all("Traceback" not in beat.output() for beat in beats)
    beats.append(project.beat())
    sent += project.collect(10)
    assert set(nominals(sent)) == {f"entry-{number}" for number in range(10)}
    assert "0 created, 0 updated, 10 unchanged" in beats[-1].output()


def test_beats_killed_one_after_the_other_cost_at_most_a_lease_each(project: Project) -> None:
    """What the first of three held the others send, and then the third alone, which until then had nothing to watch."""
    beats = [project.beat() for _ in range(3)]
    sent = project.collect(20)
    for victim in beats[:2]:
        victim.kill()
        sent += project.collect(20)
    sent += project.collect(10)
    assert max(gaps(sent)) <= 2 + LEASE_S
    assert beats[2].is_running


@pytest.mark.slow
def test_a_beat_that_was_frozen_beyond_its_lease_goes_on_living_and_sends_nothing_twice(project: Project) -> None:
    """It comes back to find others' work done, says so at most in a line, and takes part again."""
    frozen, other = project.beat(), project.beat()
    sent = project.collect(15)
    frozen.freeze()
    sent += project.collect(40)
    frozen.thaw()
    assert other.terminate() == 0
    sent += project.collect(20)
    assert max(gaps(sent)) <= 2 + LEASE_S
    assert frozen.is_running and "Traceback" not in frozen.output()


@pytest.mark.slow
def test_a_lone_beat_that_was_frozen_resumes_by_the_misfire_policy(project: Project) -> None:
    """One run stands for all that was missed; meanwhile health is red, though the process is there."""
    beat = project.beat()
    sent = project.collect(10)
    beat.freeze()
    sent += project.collect_for(3.5)
    told = operations.health(Site.of(project.app), max_lag_s=1)
    assert not told.ok and "overdue" in told.problems[0]
    beat.thaw()
    sent += project.collect(20)
    assert 3 <= max(gaps(sent)) <= 15
    assert beat.terminate() == 0 and "Traceback" not in beat.output()


@pytest.mark.slow
def test_a_worker_whose_beat_was_frozen_with_it_goes_on_with_both(project: Project) -> None:
    """C-17: as long as three leases; one warning, one run for what was missed, and the worker is as it was."""
    worker = project.worker("-B", "--scheduler=celery_zsched:Scheduler", "--queues=work")
    sent = project.collect(20)
    keys, client = project.schedules.timeline.keys, project.schedules.server.client

    def waits() -> bool:
        """Whether the beat is half way between two seconds' occurrences, and does not work."""
        past_us = (project.schedules.now_us() - max(one.nominal_us for one in sent)) % SECOND_US
        return SECOND_US // 3 < past_us < 2 * SECOND_US // 3 and bool(client.zcard(keys.watch))

    wait_until(waits, what="the beat to wait")
    worker.freeze()
    frozen_us = project.schedules.now_us()
    project.app.send_task("note", queue="work")
    sent += project.collect_for(3 * LEASE_S)
    thawed_us = project.schedules.now_us()
    worker.thaw()
    sent += project.collect(30)
    for mine in nominals(sent).values():
        resumed = next(one for one in mine if one.nominal_us > frozen_us)
        assert resumed.nominal_us > thawed_us - SECOND_US and resumed.missed >= 2
    assert gaps(sent) > {1}
    worker.says("succeeded")
    output = worker.output()
    assert worker.is_running and output.count("ready.") == 1 and "Traceback" not in output
    told = [line for line in output.splitlines() if "/Beat]" in line and "INFO" not in line]
    assert all("stood still for" in line for line in told)
    assert len([line for line in told if float(re.findall(r"still for ([\d.]+) s", line)[0]) >= 2 * LEASE_S]) == 1
    assert worker.terminate() == 0


def test_one_offs_at_one_instant_survive_kills_and_restarts(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """Three beats; one is killed as they come due and started again: each is sent once and stays finished."""
    project = start_project(start_server(tcp=True), ours=True, zsched_lease_timeout=LEASE_S)
    beats = [project.beat() for _ in range(3)]
    due = datetime.now(timezone.utc) + timedelta(seconds=0.5)
    names = {f"once-{number}" for number in range(20)}
    specs = [Entry(name, "note", due, options={"queue": "once"}, app=project.app).spec for name in names]
    put_at(project.schedules, specs, to_us(due))
    sent = project.collect(1, queue="once")
    beats[0].kill()
    project.beat()
    sent += project.collect(20 - len(sent), queue="once")
    sent += project.collect_for(LEASE_S + 0.5, "once")
    assert {name: len(mine) for name, mine in nominals(sent).items()} == dict.fromkeys(names, 1)
    assert {Entry.get(name, app=project.app).state for name in names} == {State.FINISHED}


@pytest.mark.slow
def test_clocks_that_are_off_change_nothing(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """One beat's clock is 3 s ahead and one's 3 s behind: each occurrence once, none before its time, and a warning."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        missing("there is no libfaketime; install Debian's faketime")
    project = start_project(
        start_server(tcp=True), EVERY_SECOND + "\n    app.conf.beat_schedule['entry-0']['jitter'] = 0.5"
    )
    # They start side by side: one after the other, a slow machine would take longer than their clocks are apart.
    envs = [{"LD_PRELOAD": str(library), "FAKETIME": offset} for offset in ("+3s", "-3s")]
    beats = [project.beat(env=env, ready=False) for env in envs]
    for beat in beats:
        beat.says("static entries")
    ahead, behind = (datetime.fromisoformat(re.findall(r"\[(\S+ \S+),\d+: INFO", beat.output())[0]) for beat in beats)
    assert ahead > behind
    seen: dict[tuple[str, int], float] = {}
    client = project.schedules.server.client
    sent: list[Sent] = []
    while len(sent) < 50:
        fresh = project.collect(1)
        now_s, micros = client.time()
        seen.update({(one.entry, one.nominal_us): now_s + micros / 1e6 for one in fresh})
        sent += fresh
    assert gaps(sent) == {1}
    beats[0].says("clock is 3.0 s ahead of the server's")
    beats[1].says("clock is 3.0 s behind the server's")
    assert all(at >= nominal_us / 1e6 for (_, nominal_us), at in seen.items())
    assert all(datetime.fromisoformat(one.fired) >= from_us(one.nominal_us) for one in sent)
    assert [beat.terminate() for beat in beats] == [0, 0]


def test_a_beat_inside_a_worker_takes_part_and_ends_with_it(project: Project) -> None:
    """``worker -B``, and a beat of its own that comes later; both stop in the orderly way and leave nothing to wake."""
    worker = project.worker("-B", "--scheduler=celery_zsched:Scheduler", "--queues=idle")
    sent = project.collect(10)
    client, keys = project.schedules.server.client, project.schedules.timeline.keys
    wait_until(lambda: client.zcard(keys.watch) == 1, what="the worker's beat to wait")
    assert worker.terminate() == 0
    wait_until(lambda: client.zcard(keys.watch) == 0, what="the worker's beat to leave", timeout_s=5)
    beat = project.beat()
    sent += project.collect(30)
    assert max(gaps(sent)) <= 15  # for as long as the one takes to end and the other to start
    assert beat.terminate() == 0 and "Traceback" not in worker.output()


def test_a_beat_inside_a_worker_that_is_killed_ends_too(project: Project) -> None:
    """Nobody else would stop it, and a worker that is started in its place brings one of its own."""
    worker = project.worker("-B", "--scheduler=celery_zsched:Scheduler", "--queues=idle")
    project.collect(10)
    (beat,) = psutil.Process(worker.pid).children()
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: "is gone, so the beat ends" in worker.output(), what="the beat to notice")
    wait_until(lambda: has_ended(beat), what="the beat to end")
    assert "Traceback" not in worker.output()


@pytest.mark.parametrize("scheduler", ["zsched", "celery_zsched:Scheduler"])
def test_a_worker_whose_beat_cannot_start_does_not_start(project: Project, scheduler: str) -> None:
    """It ends as the beat would, with one line for each fault, and does not go on without."""
    project.write("app.conf.update(zsched_leas_timeout=1, zsched_misfire='twice')")
    done = project.celery("worker", "-B", f"--scheduler={scheduler}", "--pool=solo", "--queues=idle")
    assert done.returncode == 78, done.stderr
    for fault in ("zsched_leas_timeout", "'twice'"):
        assert fault in done.stderr
    assert "ready" not in done.stderr + done.stdout and "Traceback" not in done.stderr


def test_which_beats_live_is_known_at_once(project: Project) -> None:
    """One that was stopped has ended, one that was killed is not connected; health needs a living one."""
    site = Site.of(project.app)
    assert operations.health(site).problems == ["no beat is running; start one with `celery -A … beat -S zsched`"]
    beats = [project.beat() for _ in range(3)]
    pids = [beat.pid for beat in beats]

    def living() -> set[int]:
        return {row.pid for row in operations.beats(site) if row.alive}

    wait_until(lambda: all(beat.client for beat in roll.beats_of(site.schedules)), what="the beats to tell their names")
    assert living() == set(pids)
    beats[0].kill()
    wait_until(lambda: living() == set(pids[1:]), timeout_s=10, what="the killed one to be missed")
    beats[1].terminate()
    assert living() == {pids[2]} and operations.health(site).ok
    assert [row.pid for row in operations.beats(site) if row.ended] == [pids[1]]
    ask = project.schedules.server.client
    ask.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert operations.health(site).ok  # it connects anew, and that is waited for
    beats[2].kill()
    wait_until(lambda: not operations.health(site).ok, timeout_s=20, what="health to tell that no beat is left")


def test_where_the_server_tells_no_connections_a_beat_lives_by_what_it_says(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """An ACL that forbids CLIENT altogether keeps no beat from working."""
    server = start_server(tcp=True)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-client")
    project = start_project(server, EVERY_SECOND)
    url = server.url.replace("redis://", "redis://app:secret@")
    project.write(f"{EVERY_SECOND}\n    app.conf.update(broker_url={url!r})\n")
    project.app.conf.broker_url = url
    beat = project.beat()
    project.collect(10)
    (row,) = operations.beats(Site.of(project.app))
    assert row.alive and beat.terminate() == 0
    (row,) = operations.beats(Site.of(project.app))
    assert not row.alive and row.ended and "Traceback" not in beat.output()
