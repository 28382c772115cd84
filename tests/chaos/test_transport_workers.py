"""Workers that die, freeze, are cut off and are stopped, and what becomes of their tasks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import datetime, timezone

import pytest

from tests.servers import wait_until
from tests.stamps import EVENTLET, POOLS, Stamped, passes


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_outlives_its_lease_is_started_once(stamped: Callable[..., Stamped], pool: str) -> None:
    """Leases are renewed in every pool, though its main loop may stand still."""
    project = stamped({"lease_timeout": 1})
    project.worker(pool=pool)
    project.send("sl", "x", 4)
    project.until(1, "start", "x")
    project.worker()
    project.until(1, "end", "x")
    project.until_empty()
    assert len(project.stamps("start", "x")) == 1


def test_a_killed_workers_tasks_run_elsewhere_within_the_lease(stamped: Callable[..., Stamped]) -> None:
    """What a killed worker ran and had prefetched is another's, marked redelivered, one lease and a second later."""
    project = stamped({"lease_timeout": 2}, task_acks_late=True)
    first = project.worker(concurrency=1)
    project.send("sl", "x", 30)
    project.until(1, "start", "x")
    second = project.worker()
    killed = time.time()
    first.kill()
    runs = project.until(2, "start", "x", timeout_s=10)
    assert runs[1].at - killed <= 3.5
    assert [run.number for run in runs] == [0, 1]
    second.kill()


def test_an_eta_survives_the_death_of_a_worker(stamped: Callable[..., Stamped]) -> None:
    """A task that waits for its ETA is nobody's, so it runs at its ETA whoever died meanwhile, and once."""
    project = stamped({"lease_timeout": 1})
    first = project.worker()
    due = time.time() + 4
    project.send("stamp", "x", due, countdown=4)
    passes(0.5)
    first.kill()
    project.worker()
    (ran,) = project.until(1, "ran", "x")
    passes(2)
    assert len(project.stamps("ran", "x")) == 1
    assert -0.001 <= ran.at - ran.number <= 1


@pytest.mark.parametrize("pool", POOLS)
def test_a_frozen_worker_starts_nothing_that_has_passed_on(stamped: Callable[..., Stamped], pool: str) -> None:
    """What a frozen worker had prefetched and another has taken is not started when it goes on, nor acked."""
    project = stamped({"lease_timeout": 2}, worker_prefetch_multiplier=2)
    first = project.worker(pool=pool)
    project.send("sl", "blk", 3)
    project.until(1, "start", "blk")
    project.send("sl", "x", 60)
    wait_until(lambda: project.counts().leased == 2 or pool == "solo", what="the second to be prefetched")
    first.freeze()
    project.worker(concurrency=2)
    project.until(1, "start", "x")
    first.thaw()
    passes(0.2)
    os.kill(first.pid, signal.SIGTERM)
    passes(3)
    assert len(project.stamps("start", "x")) == 1


def test_a_worker_that_is_told_to_stop_gives_back_what_it_will_not_start(stamped: Callable[..., Stamped]) -> None:
    """Running tasks finish and are acked; prefetched ones are free for others at once, in their order, uncounted."""
    project = stamped(None, worker_prefetch_multiplier=4, task_acks_late=True)
    first = project.worker(concurrency=2)
    for n in range(8):
        project.send("sl", n, 3 if n < 2 else 0.1)
    project.until(2, "start")
    wait_until(lambda: project.counts().leased == 8, what="the rest to be prefetched")
    os.kill(first.pid, signal.SIGTERM)
    wait_until(lambda: project.counts().ready == 6, timeout_s=2, what="the prefetched to be given back")
    assert first.wait() == 0
    assert project.counts().leased == 0
    second = project.worker(concurrency=1)
    project.until(8, "end")
    project.until_empty()
    starts = project.stamps("start")
    assert [stamp.name for stamp in starts[2:]] == ["2", "3", "4", "5", "6", "7"]
    assert [stamp.number for stamp in starts] == [0] * 8
    second.kill()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("task", ["sl", "early"])
def test_a_restart_of_the_server_ends_no_task(stamped: Callable[..., Stamped], pool: str, task: str) -> None:
    """What runs while the server restarts ends once and is acked through the next connection; then work goes on."""
    project = stamped({"lease_timeout": 30}, aof=True)
    worker = project.worker(pool=pool, concurrency=2)
    project.send(task, "r", 3)
    project.until(1, "start", "r")
    project.server.stop()  # type: ignore[attr-defined]
    passes(1)
    project.server.start()  # type: ignore[attr-defined]
    project.send("stamp", "after")
    project.until(1, "ran", "after")
    project.until(1, "end", "r")
    project.until_empty()
    assert worker.is_running
    assert len(project.stamps("start", "r")) == 1


def test_a_killed_child_is_told_as_with_other_brokers(stamped: Callable[..., Stamped]) -> None:
    """A task whose child process was killed is acked, unless it asks to be given back."""
    project = stamped()
    project.worker()
    project.send("sl", "x", 30)
    (run,) = project.until(1, "start", "x")
    os.kill(run.pid, signal.SIGKILL)
    project.until_empty()
    assert len(project.stamps("start", "x")) == 1


def test_a_poisonous_message_is_set_aside(stamped: Callable[..., Stamped]) -> None:
    """A task that kills its child each time stops after the limit, and is kept; others go on meanwhile."""
    project = stamped({"delivery_limit": 3})
    project.worker(concurrency=2)
    project.send("poison")
    project.send("again")
    for n in range(5):
        project.send("stamp", n)
    project.until(5, "ran")
    wait_until(lambda: project.counts().dead == 2, what="both to be set aside")
    assert len(project.stamps("start", "poison")) == len(project.stamps("start", "again")) == 3
    project.until_empty()


def test_no_late_ack_is_lost_among_greenlets(stamped: Callable[..., Stamped]) -> None:
    """Hundreds of greenlets that end at once on few connections leave nothing behind."""
    project = stamped({"max_connections": 3}, worker_prefetch_multiplier=2)
    worker = project.worker(pool="gevent", concurrency=100)
    for n in range(500):
        project.send("sl", n, 0.05)
    project.until(500, "end")
    project.until_empty()
    assert len(project.stamps("start")) == 500
    assert "Couldn't ack" not in worker.output()


def test_a_purge_leaves_what_runs(stamped: Callable[..., Stamped]) -> None:
    """A purge takes what waits and what is delayed; what runs comes back when its worker dies."""
    project = stamped({"lease_timeout": 1})
    worker = project.worker()
    project.send("sl", "run", 25)
    project.until(1, "start", "run")
    for n in range(10):
        project.send("stamp", n)
    for n in range(5):
        project.send("stamp", f"late{n}", countdown=600)
    assert project.app.control.purge() == 15
    worker.kill()
    project.worker()
    project.until(2, "start", "run", timeout_s=10)
    assert project.stamps("ran") == []


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_burst_is_shared_by_idle_workers(stamped: Callable[..., Stamped], pool: str) -> None:
    """Four tasks sent to two idle workers do not all go to the first that wakes."""
    project = stamped(None, worker_prefetch_multiplier=4)
    concurrency = 1 if pool == "solo" else 2
    project.worker(pool=pool, concurrency=concurrency)
    project.worker(pool=pool, concurrency=concurrency)
    passes(0.5)
    for n in range(4):
        project.send("early", n, 1)
    project.until(4, "end")
    assert len({stamp.pid for stamp in project.stamps("start")}) > concurrency  # more processes than one worker has


@pytest.mark.alone
@pytest.mark.parametrize("pool", POOLS)
def test_tasks_start_at_their_eta(stamped: Callable[..., Stamped], pool: str) -> None:
    """An idle worker starts a task at its ETA, to a few milliseconds and never before, in every pool."""
    project = stamped()
    project.worker(pool=pool, concurrency=2)
    begin = time.time() + 1
    for n in range(20):
        due = begin + n * 0.1
        project.send("stamp", n, due, eta=datetime.fromtimestamp(due, timezone.utc))
    late = sorted(stamp.at - stamp.number for stamp in project.until(20, "ran"))
    assert late[0] >= 0
    assert late[10] < 0.05


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent", EVENTLET])
def test_remote_control_works_and_survives_a_lost_link(stamped: Callable[..., Stamped], pool: str) -> None:
    """Workers answer remote control, with a key prefix, and again after their link for broadcasts was killed."""
    project = stamped({"global_keyprefix": "zz:"})
    worker = project.worker(pool=pool, concurrency=2)
    control = project.app.control
    node = ["w1@here"]

    def answers() -> bool:
        return bool(control.inspect(destination=node, timeout=1).ping())

    assert answers()
    assert control.add_consumer("other", destination=node, reply=True, timeout=2)
    project.send("stamp", "x", queue="other")
    project.until(1, "ran", "x")
    assert control.cancel_consumer("other", destination=node, reply=True, timeout=2)
    worker.says("Canceling queue other")  # green pools do it a moment after they have answered
    project.send("stamp", "y", queue="other")
    project.send("stamp", "late", countdown=100)
    (row,) = control.inspect(destination=node, timeout=2).scheduled()["w1@here"]
    assert row["request"]["args"] == ["late"]
    with project.server.client() as raw:  # type: ignore[attr-defined]
        raw.client_kill_filter(_type="pubsub")
        wait_until(answers, what="an answer after the link was killed")
        assert project.stamps("ran", "y") == []
        assert not [key for key in raw.scan_iter() if not key.startswith(b"zz:")]
    assert worker.is_running


def test_nothing_is_left_of_killed_askers(stamped: Callable[..., Stamped]) -> None:
    """Programs that ask workers and are killed before the answer leave no key behind."""
    project = stamped()
    project.worker()
    with project.server.client() as raw:  # type: ignore[attr-defined]
        before = set(raw.keys())
        for _ in range(5):
            asker = project.project.start("inspect", "stats", "--timeout=5", name="inspect")
            known = len(before)
            wait_until(lambda known=known: len(raw.keys()) > known, what="the asker's queue")  # type: ignore[misc]
            asker.kill()
        lasting = (b"reply", b"pidbox}:backlog")

        def gone() -> bool:
            return not [key for key in set(raw.keys()) - before if b"reply" in key]

        wait_until(gone, timeout_s=30, what="the reply queues to go")
        left = {
            key for key in set(raw.keys()) - before if raw.ttl(key) == -1 and not any(word in key for word in lasting)
        }
        assert left == set()


def test_no_more_is_taken_than_the_pool_can_start(stamped: Callable[..., Stamped]) -> None:
    """With worker_disable_prefetch a worker holds no more than it runs."""
    project = stamped(None, worker_disable_prefetch=True, task_acks_late=True)
    project.worker(concurrency=2)
    for n in range(6):
        project.send("sl", n, 1)
    project.until(2, "start")
    assert project.counts().leased == 2
    project.until(6, "end")
    project.until_empty()
