"""Whole apps on the transport: a user with few rights, a full server, remote control, cut batches, a switch."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
import pytest
from kombu.exceptions import OperationalError

import celery_zsched
from celery_zsched.transport.batch import BatchPublishError
from celery_zsched.transport.legacy import hand_back, take_over
from tests.forwarder import Forwarder
from tests.programs import Project
from tests.servers import RunningServer, wait_until
from tests.stamps import SOURCE, Stamped, passes

PAGE = Path(__file__).parents[2] / "docs" / "transport.md"

StartServer = Callable[..., RunningServer]


@pytest.fixture
def project(tmp_path: Path, close_later: Callable[[Stamped], Stamped]) -> Callable[..., Stamped]:
    """Make a project: ``project(url, options=…, **conf)``."""
    return lambda url, options=None, **conf: close_later(Stamped(tmp_path, url, options=options, **conf))


def documented_commands() -> list[str]:
    """Return the commands that the page says a user needs."""
    paragraph = re.search(r"In single commands:(.*?)\. Only", PAGE.read_text(), re.DOTALL)
    assert paragraph is not None
    return re.findall(r"`([A-Z]+)`", paragraph[1])


def test_all_commands_of_the_scripts_are_documented() -> None:
    """A user with just these rights meets none that is missing in a script that is seldom run."""
    scripts = [path.read_text() for path in Path(celery_zsched.__file__).parent.glob("lua/**/*.lua")]
    called = {name for text in scripts for name in re.findall(r"call\('([A-Z]+)'", text)}
    assert {"ZADD", "HGET"} < called
    assert called <= set(documented_commands())


@pytest.mark.slow
@pytest.mark.parametrize("rights", [["+@all", "-@dangerous"], None], ids=["no-dangerous", "as-documented"])
def test_a_worker_of_a_user_limited_to_its_prefix(
    start_server: StartServer, project: Callable[..., Stamped], rights: list[str] | None
) -> None:
    """A worker with gossip, mingle and events runs with the rights that the page names, and is denied nothing."""
    server = start_server(tcp=True)
    rights = rights or [f"+{command.lower()}" for command in documented_commands()]
    with server.client() as raw:
        raw.execute_command("ACL", "SETUSER", "u1", "on", ">p", "~zz:*", "&zz:*", *rights)
        stamped = project(server.url.replace("://", "://u1:p@"), {"global_keyprefix": "zz:"})
        worker = stamped.project.start(
            "worker", "-E", "--concurrency=1", "--hostname=w1@here", "--loglevel=INFO", name="w"
        )
        worker.says("ready.")
        heard: Counter[str] = Counter()
        with stamped.app.connection_for_read() as connection:
            handlers = {"*": lambda event: heard.update([event["type"]])}
            receiver = stamped.app.events.Receiver(connection, handlers=handlers)
            listening = threading.Thread(target=receiver.capture, daemon=True)
            listening.start()
            wait_until(lambda: heard["worker-heartbeat"], what="a heartbeat")
            stamped.send("stamp", "plain")
            stamped.send("stamp", "delayed", countdown=0.5)
            stamped.until(2, "ran")
            wait_until(lambda: heard["task-succeeded"] == 2, what="the events of both tasks")
            receiver.should_stop = True
            listening.join()
        assert stamped.app.control.inspect(timeout=5, destination=["w1@here"]).ping()
        stamped.send("stamp", "never", countdown=600)
        assert stamped.app.control.purge() == 1
        assert worker.terminate() == 0
        assert raw.execute_command("ACL", "LOG") == []
        assert {key.decode()[:3] for key in raw.scan_iter()} <= {"zz:"}


@pytest.mark.slow
def test_a_full_server_is_emptied_by_a_worker(start_server: StartServer, project: Callable[..., Stamped]) -> None:
    """At maxmemory publishing raises, a worker that starts then works everything off, and publishing goes on."""
    server = start_server()
    stamped = project(server.url)
    size, ballast = 3000, "x" * 1000

    def publish(name: Any) -> bool:
        try:
            stamped.send("stamp", name, argsrepr=ballast, retry=False)
        except OperationalError as exc:
            assert "maxmemory" in str(exc)
            return False
        return True

    for n in range(size):
        publish(n)
    with server.client() as raw:
        raw.config_set("maxmemory", raw.info("memory")["used_memory"] - 200_000)
        assert not publish("refused")
        worker = stamped.worker(concurrency=2)
        wait_until(lambda: publish("accepted"), timeout_s=60, what="room for one more")
        stamped.until(size + 1, "ran", timeout_s=60)
        stamped.until_empty()
        assert raw.info("stats")["evicted_keys"] == 0
    ran = Counter(stamp.name for stamp in stamped.stamps("ran"))
    assert ran == Counter([*map(str, range(size)), "accepted"])
    assert worker.is_running


def test_a_worker_warns_of_a_server_that_evicts(start_server: StartServer, project: Callable[..., Stamped]) -> None:
    """A policy by which the server throws away what waits is named when a worker starts."""
    server = start_server(config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    worker = project(server.url).worker(pool="solo")
    assert "allkeys-lru" in worker.output()


@pytest.mark.slow
def test_running_tasks_are_terminated_and_rates_limited(
    start_server: StartServer, project: Callable[..., Stamped]
) -> None:
    """``revoke(terminate=True)`` and ``rate_limit`` reach a worker, also just after its link for broadcasts was cut."""
    server = start_server()
    stamped = project(server.url, {"global_keyprefix": "zz:"})
    worker = stamped.worker(concurrency=2)
    control = stamped.app.control
    for name in ("first", "second"):
        running = stamped.send("sl", name, 60)
        stamped.until(1, "start", name)
        control.revoke(running, terminate=True, signal="KILL")
        worker.says(f"Terminating {running}")
        if name == "first":
            with server.client() as raw:
                raw.client_kill_filter(_type="pubsub")
    stamped.until_empty()
    (answer,) = control.rate_limit("stamp", "1/h", reply=True, timeout=5)
    assert "ok" in answer["w1@here"]
    for n in range(3):
        stamped.send("stamp", n)
    stamped.until(1, "ran")
    assert stamped.stamps("end") == []
    passes(0.5)
    assert len(stamped.stamps("ran")) == 1
    assert len(stamped.stamps("start")) == 2


needs_batches = pytest.mark.skipif(not hasattr(kombu.Producer, "batch"), reason="kombu has batches from 5.7 on")


@needs_batches
def test_a_batch_on_a_link_that_is_cut_leaves_one_copy_or_none(
    start_server: StartServer, forward: Callable[[RunningServer], Forwarder]
) -> None:
    """Whenever the link is cut under a batch, its messages are there once or not at all, and it says that it failed."""
    server = start_server(tcp=True)
    way = forward(server)
    failed = 0
    for attempt in range(8):
        queue = f"q{attempt}"
        with kombu.Connection(f"zsched+{way.url}", transport_options={"socket_timeout": 2.0}) as connection:
            producer = kombu.Producer(connection.default_channel)
            producer.publish("warm", routing_key=queue)
            cut = threading.Timer(0.005 * attempt, way.cut)
            try:
                with producer.batch(max_size=100):
                    for n in range(2000):
                        producer.publish(n, routing_key=queue, headers={"id": f"id{n}"}, priority=n % 3)
                        if n == 500:
                            cut.start()
            except BatchPublishError:
                failed += 1
            cut.join()
        with server.client() as raw:
            line = f"zsched:{{queue:{queue}}}"
            names = [name.partition(b"~")[0] for name in raw.hkeys(f"{line}:bodies")]
            assert len(names) == len(set(names))
            waiting = sum(raw.zcard(key) for key in raw.scan_iter(f"{line}:timeline*"))
            assert waiting == len(names) <= 2001
    assert failed, "no cut came in time"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_live_workers_are_switched_over_and_back(
    start_server: StartServer, start_project: Callable[..., Project], tmp_path: Path
) -> None:
    """By the guide, what waits, runs or waits for its ETA with kombu's own workers is run once by ours, and back.

    Neither transport meets a key of the other's that it cannot read.
    """
    server = start_server(tcp=True)
    stamps = tmp_path / "stamps"
    stamps.touch()
    conf = {"worker_prefetch_multiplier": 1, "task_ignore_result": True}
    old = start_project(server, SOURCE.format(stamps=str(stamps)), **conf)
    new = start_project(server, SOURCE.format(stamps=str(stamps)), ours=True, **conf)

    def counted(what: str) -> Counter[str]:
        return Counter(line.split()[1] for line in stamps.read_text().splitlines() if line.startswith(what))

    def until(what: str, count: int) -> None:
        wait_until(lambda: counted(what).total() >= count, timeout_s=60, what=f"{count} {what}")

    old_worker = old.worker("--pool=threads", "--concurrency=3")
    for n in range(3):
        old.app.send_task("sl", (f"long{n}", 5))
    until("start", 3)
    for n in range(10):
        old.app.send_task("stamp", (f"late{n}",), countdown=12)
    for n in range(100):
        old.app.send_task("stamp", (f"waiting{n}",))
    new_worker = new.worker()
    for n in range(20):
        new.app.send_task("stamp", (f"new{n}",))
    until("ran", 20)
    assert old_worker.terminate() == 0
    with new.app.connection_for_write() as connection:
        moved = take_over(connection.default_channel, ["celery"], unacked=True)
        assert moved == {"celery": 110}
        until("ran", 130)
        # And back.
        for n in range(10):
            new.app.send_task("stamp", (f"later{n}",), countdown=600)
        assert new_worker.terminate() == 0
        for n in range(5):
            new.app.send_task("stamp", (f"back{n}",))
        old_worker = old.worker("--pool=threads", "--concurrency=3")
        for n in range(5):
            old.app.send_task("stamp", (f"old{n}",))
        assert hand_back(connection.default_channel, ["celery"]) == {"celery": 15}
    until("ran", 140)
    assert set(counted("ran").values()) == set(counted("end").values()) == {1}
    assert counted("end").total() == 3
    assert old_worker.terminate() == 0
    with server.client() as raw:
        held = raw.llen("celery") + raw.hlen("unacked")
        assert held == 10, "those for later are the old worker's, or wait for the next"
    for program in (*old._programs, *new._programs):
        assert "WRONGTYPE" not in program.output()
