"""Many entries at once, many one-offs with kills among them, a cluster, and where messages go."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_zsched import Entry, operations
from celery_zsched.apps import open_schedules
from celery_zsched.engine import Engine, Options
from celery_zsched.entry import EntrySpec, build, encode
from celery_zsched.operations import Site
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.settings import Settings
from celery_zsched.stored import State
from celery_zsched.types import SECOND_US, Item, from_us, to_us
from tests.entries import put_at
from tests.programs import Project, Sent, messages, sent_of
from tests.servers import RunningServer, wait_until
from tests.topologies import Cluster

MINUTE_US = 60 * SECOND_US

#: The server notes what takes longer than 10 ms.
SLOWLOG = {"slowlog-log-slower-than": "10000", "slowlog-max-len": "10000"}


class Beats:
    """Schedulers of one app in this process, each with connections of its own."""

    def __init__(self, broker: str, *tasks: Callable[[Celery], Any], **conf: Any) -> None:
        self.app = Celery("beats", broker=broker, set_as_current=False)
        self.app.conf.update(conf)
        for declare in tasks:
            declare(self.app)
        self.settings = Settings.from_conf(self.app.conf)
        self.schedules = open_schedules(self.app, self.settings)
        self._made: list[tuple[Engine, CeleryPublisher]] = []

    def engine(self) -> Engine:
        """Return one more scheduler."""
        publisher = CeleryPublisher(self.app, prefix=self.settings.prefix, declared=dict)
        engine = Engine(open_schedules(self.app, self.settings), publisher, Options(lease_s=60))
        self._made.append((engine, publisher))
        return engine

    def due(self, specs: list[EntrySpec], due_us: int) -> None:
        """Let entries be due that were stored long ago."""
        life_us = due_us - 2 * 3600 * SECOND_US
        items = [Item(spec.name, encode(spec.installed(life_us)), due_us) for spec in specs]
        for start in range(0, len(items), 500):
            self.schedules.timeline.put(items[start : start + 500])

    def sent(self, queue: str) -> list[Sent]:
        """Take what was sent to a queue."""
        with self.app.connection_for_read() as connection:
            return [sent for message in messages(connection, queue) if (sent := sent_of(message)) is not None]

    def close(self) -> None:
        """Drop the connections."""
        for engine, publisher in self._made:
            engine.close()
            publisher.close()
        self.schedules.server.close()
        self.app.close()


@pytest.mark.slow
@pytest.mark.parametrize("beats", [1, 4])
def test_ten_thousand_entries_due_at_one_minute_are_sent_once_each_by_small_steps(
    start_server: Callable[..., RunningServer], close_later: Callable[[Any], Any], beats: int
) -> None:
    """C-37: however many beats share them; no script holds the server for long, by its own slow log."""
    server = start_server(tcp=True, config=SLOWLOG)
    crew = close_later(Beats(f"zsched+{server.url}"))
    due_us = crew.schedules.now_us() // MINUTE_US * MINUTE_US
    # A minute that comes once an hour, as "*/5" comes again while a slow machine is still at it.
    schedule = crontab(minute=str(from_us(due_us).minute))
    crew.due([build(f"entry-{number}", "note", schedule) for number in range(10_000)], due_us)
    engines = [crew.engine() for _ in range(beats)]
    over = threading.Event()

    def work(engine: Engine) -> None:
        while not over.is_set():
            engine.turn(0.1)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: crew.schedules.timeline.counts().ready == 0, timeout_s=120, what="all to be claimed")
        wait_until(lambda: crew.schedules.timeline.counts().leased == 0, timeout_s=120, what="all to be moved on")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    sent = Counter((one.entry, one.nominal_us) for one in crew.sent("celery"))
    assert sent == {(f"entry-{number}", due_us): 1 for number in range(10_000)}
    check_that_scripts_are_short(server)


@pytest.mark.slow
def test_two_beats_share_ten_thousand_entries_of_one_moment(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """C-37: each sends a part, all is sent once, nothing before its time, and the last within seconds."""
    server = start_server(tcp=True, config=SLOWLOG)
    project = start_project(server, ours=True)
    running = [project.beat() for _ in range(2)]
    timeline = project.schedules.timeline
    due_us = project.schedules.now_us() + 3 * SECOND_US
    hourly = build("entry", "note", 3600).installed(due_us - 3600 * SECOND_US)
    names = [f"entry-{number}" for number in range(10_000)]
    timeline.put([Item(name, encode(replace(hourly, name=name)), due_us) for name in names])
    with server.client() as client:
        client.slowlog_reset()
        client.config_resetstat()
    wait_until(lambda: project.schedules.now_us() > due_us, what="the moment")
    wait_until(lambda: (now := timeline.counts()).ready + now.leased == 0, timeout_s=120, what="all to be moved on")
    assert timeline.counts().delayed == 10_000
    check_that_scripts_are_short(server)
    sent = project.collect(10_000, timeout_s=60)
    assert Counter((one.entry, one.nominal_us) for one in sent) == dict.fromkeys([(name, due_us) for name in names], 1)
    fired = [to_us(datetime.fromisoformat(one.fired)) for one in sent]
    assert min(fired) >= due_us
    assert max(fired) - due_us < 30 * SECOND_US  # about a second where nothing else goes on
    parts = [beat.output().count("sent entry-") for beat in running]
    assert sum(parts) == 10_000 and min(parts) > 0
    assert [beat.terminate() for beat in running] == [0, 0]
    assert not any("Traceback" in beat.output() for beat in running)


def check_that_scripts_are_short(server: RunningServer) -> None:
    """Look at the server's slow log: a script that took all at once would take a second."""
    with server.client() as client:
        scripts = [each for each in client.slowlog_get(10_000) if each["command"].upper().startswith(b"EVAL")]
        calls = sum(stats["calls"] for name, stats in client.info("commandstats").items() if "eval" in name)
    # A busy machine may stop the server in the middle of some.
    assert len(scripts) <= max(3, calls // 10)
    assert max((each["duration"] for each in scripts), default=0) < 250_000


@pytest.mark.slow
def test_a_hundred_pairs_of_one_offs_are_each_sent_once_whoever_is_killed(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """C-25: two at each of a hundred instants; of three beats one is killed and another started all the time."""
    project = start_project(start_server(tcp=True), ours=True, zsched_lease_timeout=1)
    beats = [project.beat() for _ in range(3)]
    begin = datetime.now(timezone.utc) + timedelta(seconds=1.5)
    names = []
    for number in range(100):
        for which in "pq":
            names.append(f"{which}-{number}")
            moment = begin + timedelta(milliseconds=80 * number)
            one = Entry(names[-1], "note", moment, options={"queue": "once"}, app=project.app)
            put_at(project.schedules, [one.spec], to_us(moment))
    sent: list[Sent] = []
    rng = random.Random(25)
    while len(sent) < 200:
        sent += project.collect(min(15, 200 - len(sent)), queue="once", timeout_s=60)
        if len(sent) < 190:
            place = rng.randrange(len(beats))
            beats[place].kill()
            beats[place] = project.beat(ready=False)
    sent += project.collect_for(1.5, "once")
    assert Counter(one.entry for one in sent) == dict.fromkeys(names, 1)
    wait_until(
        lambda: {Entry.get(name, app=project.app).state for name in names} == {State.FINISHED}, what="all to be done"
    )
    beats.append(project.beat())
    assert project.collect_for(1.0, "once") == []


@pytest.mark.slow
def test_beats_work_on_a_cluster(cluster: Cluster, start_project: Callable[..., Project]) -> None:
    """C-44: schedule and queues in slots of several nodes; one beat is killed, and health and pause work there too."""
    source = """
        app.conf.beat_schedule = {
            f"a{{b}}c {number}": {"task": "note", "schedule": 1.0, "options": {"queue": f"q{number}"}}
            for number in range(4)
        }
    """
    project = start_project(cluster.servers[0], source, broker=f"zsched+{cluster.url}", zsched_lease_timeout=1)
    beats = [project.beat() for _ in range(2)]
    site = Site.of(project.app)
    sent = [one for number in range(4) for one in project.collect(3, queue=f"q{number}")]
    beats[0].kill()
    sent += [one for number in range(4) for one in project.collect(3, queue=f"q{number}")]
    assert max(Counter((one.entry, one.nominal_us) for one in sent).values()) == 1
    wait_until(lambda: [row.pid for row in operations.beats(site) if row.alive] == [beats[1].pid], what="one to live")
    assert operations.health(site).ok
    operations.pause_task(site, "entry:a{b}c 1")
    assert Entry.get("a{b}c 1", app=project.app).state is State.PAUSED
    assert beats[1].terminate() == 0 and "Traceback" not in beats[1].output()


def test_two_apps_share_a_server_under_prefixes_of_their_own(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """C-44: entries of one name are told apart, a pause holds one of them, and no key is outside the prefixes."""
    server = start_server(tcp=True)
    source = 'app.conf.beat_schedule = {":lock": {"task": "note", "schedule": 1.0, "args": (%r,)}}'
    one, two = (
        start_project(server, source % prefix, ours=True, broker_transport_options={"prefix": prefix})
        for prefix in ("one", "two")
    )
    beats = [project.beat() for project in (one, two)]
    for project, prefix in ((one, "one"), (two, "two")):
        sent = project.collect(3)
        assert {tuple(each.body[0]) for each in sent} == {(prefix,)}
        assert max(Counter(each.nominal_us for each in sent).values()) == 1
        assert [stored.name for stored in Entry.all(app=project.app)] == [":lock"]
    operations.pause_task(Site.of(one.app), ":lock")
    one.settled()
    two.drain()
    assert two.collect(2) and one.drain() == []
    assert [Entry.get(":lock", app=project.app).state is State.PAUSED for project in (one, two)] == [True, False]
    assert [beat.terminate() for beat in beats] == [0, 0]
    with server.client() as client:
        outside = [key for key in client.scan_iter(count=1000) if not key.startswith((b"one:{", b"two:{"))]
    assert outside == []


def declare(app: Celery) -> None:
    """Declare a task whose decorator names a queue, and one without."""

    @app.task(name="decorated", queue="q1", priority=5, shared=False)
    def decorated() -> None:
        pass

    @app.task(name="plain", shared=False)
    def plain() -> None:
        pass


@pytest.fixture(params=["", "zsched+"], ids=["kombu", "ours"])
def routed(
    request: pytest.FixtureRequest, start_server: Callable[..., RunningServer], close_later: Callable[[Any], Any]
) -> Iterator[Beats]:
    """A scheduler with a task of its own queue, and routes."""
    routes = {"plain": {"queue": "q2"}, "far.*": {"queue": "q3"}}
    yield close_later(Beats(request.param + start_server(tcp=True).url, declare, task_routes=routes))


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_messages_go_where_apply_async_would_send_them(routed: Beats, caplog: pytest.LogCaptureFixture) -> None:
    """C-45: an entry's options come before decorator and ``task_routes``; one warning for each task not imported."""
    own = {"queue": "q4", "priority": 3, "expires": 60, "headers": {"k": "v"}}
    wanted = {
        "by decorator": ("q1", build("by decorator", "decorated", 3600)),
        "by route": ("q2", build("by route", "plain", 3600)),
        "unknown": ("q3", build("unknown", "far.away", 3600)),
        "unknown too": ("q3", build("unknown too", "far.away", 3600)),
        "by entry": ("q4", build("by entry", "decorated", 3600, options=own)),
        "later": ("celery", build("later", "other", 3600, options={"countdown": 0.5})),
    }
    now_us = routed.schedules.now_us()
    routed.due([spec for _, spec in wanted.values()], now_us)
    engine = routed.engine()
    engine.turn(0)
    found: dict[str, tuple[str, Sent]] = {}

    def all_there() -> bool:
        for queue in ("q1", "q2", "q3", "q4", "celery"):
            found.update({one.entry: (queue, one) for one in routed.sent(queue)})
        return len(found) == len(wanted)

    wait_until(all_there, what="all to arrive")
    assert {name: queue for name, (queue, _) in found.items()} == {name: queue for name, (queue, _) in wanted.items()}
    by_entry = found["by entry"][1]
    assert (by_entry.headers["k"], by_entry.properties["priority"]) == ("v", 3)
    assert by_entry.headers["zsched"]["entry"] == "by entry" and by_entry.headers["expires"]
    assert found["by decorator"][1].properties["priority"] == 5
    assert found["later"][1].headers["eta"]
    assert caplog.text.count("the task far.away of entry") == 1
