"""Beats whose server fails: down, read-only, full, flushed, silent. They stay alive, say so, and lose nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_zsched import Entry, operations
from celery_zsched.stored import Change
from tests.forwarder import Forwarder
from tests.programs import Program, Project, Sent
from tests.servers import RunningServer, wait_until

EVERY_SECOND = """
    each = {"task": "note", "schedule": 1.0}
    app.conf.beat_schedule = {f"entry-{number}": each for number in range(5)}
"""

StartServer = Callable[..., RunningServer]
StartProject = Callable[..., Project]


def check(sent: list[Sent], beats: list[Program], *, twice: int = 0) -> float:
    """Nothing sent twice, nothing unaccounted for, nobody dead or bewildered; return the longest gap in seconds."""
    often = Counter((one.entry, one.nominal_us) for one in sent)
    assert sum(times - 1 for times in often.values()) <= twice, often.most_common(3)
    longest = 0.0
    for entry in {one.entry for one in sent}:
        mine = {one.nominal_us: one for one in sent if one.entry == entry}
        for before, after in pairwise(sorted(mine)):
            assert mine[after].missed == (after - before) // 1_000_000 - 1
            longest = max(longest, (after - before) / 1e6)
    for beat in beats:
        assert beat.is_running and "Traceback" not in beat.output(), beat.output()
    return longest


@pytest.fixture(params=[False, True], ids=["kombu", "ours"])
def ours(request: pytest.FixtureRequest) -> bool:
    """Whether the broker is ours, which refuses repeats: beats are struck down at any moment there.

    At kombu's they are struck down between two occurrences, for there one that was sent and not moved on comes again.
    """
    return bool(request.param)


def ask(server: RunningServer, *commands: str, **how: Any) -> None:
    """Give commands to a server by the back door."""
    client = server.client(**how)
    for command in commands:
        client.execute_command(*command.split())
    client.close()


def test_a_server_that_evicts_is_told_of_at_start(start_server: StartServer, start_project: StartProject) -> None:
    """One warning names the policy and what to set; the beat works all the same."""
    server = start_server(tcp=True, config={"maxmemory-policy": "allkeys-lru"})
    project = start_project(server, EVERY_SECOND)
    beat = project.beat()
    beat.says("maxmemory-policy is allkeys-lru")
    project.collect(5)
    assert beat.terminate() == 0


def test_beats_that_find_no_server_wait_for_it(start_server: StartServer, start_project: StartProject) -> None:
    """Both join once it is up; nothing is sent twice."""
    server = start_server(tcp=True, aof=True)
    project = start_project(server, EVERY_SECOND)
    server.stop()
    beats = [project.beat(ready=False) for _ in range(2)]
    for beat in beats:
        beat.says("next try in")
    server.start()
    ask(server, "CLIENT KILL TYPE normal")
    for beat in beats:
        beat.says("static entries")
    check(project.collect(15), beats)


def test_a_beat_survives_a_restart_of_the_server(
    start_server: StartServer, start_project: StartProject, ours: bool
) -> None:
    """Killed under load and back with its append-only file: the beat goes on within two seconds, without a gap."""
    server = start_server(tcp=True, aof=True)
    project = start_project(server, EVERY_SECOND, ours=ours)
    beat = project.beat()
    sent = project.collect(5)
    if not ours:
        project.rest()
    server.kill()
    beat.says("next try in")
    server.start()
    sent += project.collect(15)
    # A message whose answer was cut off may be repeated: kombu's broker refuses no repeats.
    assert check(sent, [beat], twice=0 if ours else 5) <= 4
    assert beat.terminate() == 0


def test_beats_survive_a_primary_that_turns_read_only(
    start_server: StartServer, start_project: StartProject, ours: bool
) -> None:
    """Read-only for two seconds, scripts flushed and connections cut in between: both go on within two seconds."""
    server = start_server(tcp=True)
    project = start_project(server, EVERY_SECOND, ours=ours)
    beats = [project.beat() for _ in range(2)]
    sent = project.collect(10)
    if not ours:
        project.rest()
    ask(server, "REPLICAOF 127.0.0.1 1")
    wait_until(lambda: any("read only" in beat.output() for beat in beats), what="somebody to complain")
    ask(server, "SCRIPT FLUSH", "REPLICAOF NO ONE", "CLIENT KILL TYPE normal")
    sent += project.collect(15)
    assert check(sent, beats, twice=0 if ours else 5) <= 6
    assert [beat.terminate() for beat in beats] == [0, 0]


def test_static_entries_come_back_after_the_data_was_flushed(
    start_server: StartServer, start_project: StartProject, ours: bool
) -> None:
    """It is an error in the log; what was added at run time is gone until it is saved again."""
    server = start_server(tcp=True)
    project = start_project(server, EVERY_SECOND, ours=ours, zsched_max_block=2)
    beat = project.beat()
    added = Entry("added", "note", 3600, app=project.app)
    added.save()
    project.collect(5)
    if not ours:
        project.rest()
    ask(server, "FLUSHALL")
    beat.says("its data is gone")
    sent = project.collect(5)
    assert {one.entry for one in sent} == {f"entry-{number}" for number in range(5)}
    assert added.save() is Change.CREATED
    assert beat.terminate() == 0


def test_a_full_server_delays_what_is_due_and_loses_nothing(
    start_server: StartServer, start_project: StartProject, ours: bool
) -> None:
    """At its memory limit the broker takes no messages: due entries stay due, and are sent once there is room."""
    server = start_server(tcp=True)
    project = start_project(server, EVERY_SECOND, ours=ours)
    beat = project.beat()
    sent = project.collect(5)
    if not ours:
        project.rest()
    server.config("maxmemory-policy", "noeviction")
    server.config("maxmemory", "1")
    beat.says("maxmemory")
    server.config("maxmemory", "0")
    sent += project.collect(15)
    check(sent, [beat])
    assert project.schedules.timeline.counts().dead == 0


@pytest.mark.slow
def test_a_beat_notices_a_silent_link_and_makes_a_new_one(
    start_server: StartServer, start_project: StartProject, forward: Callable[[RunningServer], Forwarder], ours: bool
) -> None:
    """A link that swallows everything without a reset: the other beat sends meanwhile, and this one comes back."""
    server = start_server(tcp=True)
    # Sent and not moved on, an occurrence comes again here, unless the next is due when the other may have it.
    project = start_project(server, EVERY_SECOND, ours=ours, zsched_lease_timeout=1.3)
    link = forward(server)
    mine = f"app.conf.update(zsched_url={link.url!r}, zsched_max_block=1, zsched_redis_options={{'socket_timeout': 1}})"
    project.write(f"{EVERY_SECOND}\n    {mine}\n")
    cut_off = project.beat()
    project.write(EVERY_SECOND)
    other = project.beat()
    sent = project.collect(10)
    if not ours:
        project.rest()
    link.freeze()
    cut_off.says("next try in")
    sent += project.collect(10)
    link.replace()
    cut_off.says("working again")
    sent += project.collect(10)
    assert check(sent, [cut_off, other]) <= 3
    link.thaw()


@pytest.mark.slow
def test_a_lone_beat_on_a_silent_link_is_seen_from_elsewhere_and_sends_each_once_when_it_is_back(
    start_server: StartServer, start_project: StartProject, forward: Callable[[RunningServer], Forwarder]
) -> None:
    """C-35: its process lives, but health is red with exit code 1 and its last word grows old; then all goes on."""
    server = start_server(tcp=True)
    project = start_project(server, ours=True)
    link = forward(server)
    options = {"broker_url": f"zsched+{link.url}", "broker_transport_options": {"socket_timeout": 1}}
    project.write(f"{EVERY_SECOND}\n    app.conf.update({options!r}, zsched_max_block=1)\n")
    beat = project.beat()
    project.write(EVERY_SECOND)
    sent = project.collect(10)
    site = operations.Site.of(project.app)

    def called_ago_s() -> float:
        (row,) = operations.beats(site)
        return row.called_ago_s

    link.freeze()
    before_s = called_ago_s()
    wait_until(lambda: operations.health(site, max_lag_s=2).overdue_s > 2, what="the entries to be overdue")
    told = project.celery("zsched", "health", "--max-lag", "2")
    assert told.returncode == 1 and "not healthy" in told.stdout and "overdue" in told.stdout
    assert called_ago_s() > before_s + 1 and beat.is_running
    beat.says("next try in")
    link.replace()
    beat.says("working again")
    sent += project.collect(15)
    assert 3 <= check(sent, [beat]) <= 30
    wait_until(lambda: operations.health(site, max_lag_s=2).ok, what="health to be green")
    assert project.celery("zsched", "health", "--max-lag", "60").returncode == 0
    link.thaw()


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"zsched_url": "http://localhost/0"}, ["zsched_url has the scheme http://; it must be one of"]),
        ({"zsched_url": "localhost:6379"}, ["zsched_url"]),
        ({"zsched_lease_timeot": 5, "zsched_misfire": "twice"}, ["zsched_lease_timeout", "'twice'"]),
        ({"zsched_lease_timeout": "soon"}, ["zsched_lease_timeout", "'soon'"]),
        ({"zsched_prefix": ""}, ["zsched_prefix"]),
        ({"broker_url": "amqp://localhost//"}, ["amqp://", "set zsched_url to the Redis or Valkey server"]),
        ({"zsched_redis_options": {"socket_timeot": 3}}, ["socket_timeout"]),
        ({"timezone": "Mars/Olympus"}, ["Mars/Olympus"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_fault_of_the_configuration_ends_beat_with_a_clear_line_for_each(
    start_project: StartProject, valkey: RunningServer, settings: dict[str, Any], lines: list[str]
) -> None:
    """Exit code 78 (EX_CONFIG), what is wrong with which value, and no traceback."""
    project = start_project(valkey)
    project.write(f"app.conf.update({settings!r})")
    beat = project.beat(ready=False)
    assert beat.wait() == 78, beat.output()
    output = beat.output()
    assert "Traceback" not in output
    for line in lines:
        assert line in output


def test_a_wrong_password_is_told_in_one_line_and_mended_while_the_beat_waits(
    start_server: StartServer, start_project: StartProject
) -> None:
    """It may be a rotation that is under way, so it waits; the password is in no line."""
    server = start_server(tcp=True, config={"requirepass": "right"})
    project = start_project(server)
    url = server.url.replace("redis://", "redis://:wrong-secret@")
    project.write(f"app.conf.update(zsched_url={url!r}, broker_url={url!r})")
    beat = project.beat(ready=False)
    output = beat.says("next try in")
    assert "password" in output and "wrong-secret" not in output and "Traceback" not in output
    ask(server, "CONFIG SET requirepass wrong-secret", password="right")
    beat.says("static entries")
    assert "wrong-secret" not in beat.output()


def test_a_namespaced_configuration_is_read_in_full(start_server: StartServer, start_project: StartProject) -> None:
    """Every setting takes effect under the app's own prefix; the banner shows it."""
    server = start_server(tcp=True)
    project = start_project(server)
    (project.directory / "settings.py").write_text(
        f"CELERY_BROKER_URL = {server.url!r}\nCELERY_ZSCHED_PREFIX = 'mine'\nCELERY_ZSCHED_LEASE_TIMEOUT = 7\n"
        f"CELERY_ZSCHED_URL = '{server.url}/3'\n"
        "CELERY_BEAT_SCHEDULE = {'each': {'task': 'note', 'schedule': 1.0}}\nCELERY_RESULT_EXPIRES = None\n"
    )
    (project.directory / "project.py").write_text(
        "from celery import Celery\napp = Celery('project')\napp.config_from_object('settings', namespace='CELERY')\n"
    )
    beat = project.beat()
    for shown in ("lease -> 7 seconds", "prefix -> mine", f"schedule -> {server.url}/3"):
        assert shown in beat.output()
    project.collect(1)
    client: redis.Redis = server.client(db=3)
    assert all(key.startswith(b"mine:{") for key in client.scan_iter())
    client.close()
