"""How workers end, other than well: cold, in haste, by their own task, or while they had lost what they ran."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import wait_until
from tests.stamps import POOLS, SOURCE, Stamped, passes

#: How much later than it must something may come on a machine that is busy with other tests, in seconds.
SLACK_S = 10.0

MORE = """
    @app.task(name="bomb", acks_late=True, reject_on_worker_lost=True)
    def bomb():
        stamp_down("start", "bomb", 0)
        os.killpg(os.getpgrp(), 9)

    @app.task(name="orphan", bind=True, acks_late=True, reject_on_worker_lost=True)
    def orphan(self):
        again = bool(self.request.delivery_info.get("redelivered"))
        stamp_down("start", "orphan", int(again))
        if not again:
            time.sleep(60)

    @app.task(name="grip", acks_late=True)
    def grip(seconds):
        stamp_down("start", "grip", 0)
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            sum(range(2_000_000))
        stamp_down("end", "grip", 0)
"""


@pytest.fixture
def troubled(stamped: Callable[..., Stamped]) -> Callable[..., Stamped]:
    """Make a project with tasks that end their worker, or keep it from everything else."""

    def make(*args: Any, **kwargs: Any) -> Stamped:
        project = stamped(*args, **kwargs)
        project.project.write(SOURCE.format(stamps=str(project.stamps_file)) + textwrap.dedent(MORE))
        return project

    return make


@pytest.mark.slow
def test_a_message_that_kills_its_whole_worker_is_set_aside(troubled: Callable[..., Stamped]) -> None:
    """A task that kills all of each worker it gets to is kept with the dead after the limit; the others run once."""
    project = troubled({"delivery_limit": 3, "lease_timeout": 1})
    project.send("bomb")
    for n in range(20):
        project.send("stamp", n)
    workers = 0
    while not project.counts().dead:
        workers += 1
        assert workers <= 4
        worker = project.worker(ready=False)
        wait_until(lambda worker=worker: not worker.is_running or project.counts().dead)  # type: ignore[misc]
    project.until(20, "ran")
    project.until_empty()
    assert len(project.stamps("start", "bomb")) == 3
    assert len(project.stamps("ran")) == 20


def test_a_lost_child_gives_its_task_back_at_once(troubled: Callable[..., Stamped]) -> None:
    """With reject_on_worker_lost a task whose child was killed is run again without waiting for a lease, and marked."""
    project = troubled({"lease_timeout": 60})
    project.worker()
    project.send("orphan")
    (first,) = project.until(1, "start", "orphan")
    os.kill(first.pid, signal.SIGKILL)
    _, second = project.until(2, "start", "orphan")
    assert second.number == 1
    project.until_empty()


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_task_that_hogs_the_interpreter_is_started_once(troubled: Callable[..., Stamped], pool: str) -> None:
    """Leases are renewed beside a task that computes without a pause in the worker's own process."""
    project = troubled({"lease_timeout": 1})
    project.worker(pool=pool)
    project.send("grip", 4)
    project.until(1, "start", "grip")
    project.worker()
    project.until(1, "end", "grip")
    project.until_empty()
    assert len(project.stamps("start", "grip")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "conf"),
    [
        ("cold", {}),
        ("cold", {"worker_soft_shutdown_timeout": 1.0}),
        ("warm, then killed", {}),
    ],
    ids=["cold", "soft", "killed"],
)
def test_a_worker_that_ends_in_haste_loses_nothing(
    stamped: Callable[..., Stamped], how: str, conf: dict[str, Any]
) -> None:
    """What ran is run again by another within a lease; what was only prefetched is run once."""
    project = stamped({"lease_timeout": 3}, worker_prefetch_multiplier=4, **conf)
    first = project.worker(concurrency=2)
    for n in range(8):
        project.send("sl", n, 5 if n < 2 else 0.1)
    project.until(2, "start")
    wait_until(lambda: project.counts().leased == 8, what="the rest to be prefetched")
    if how == "cold":
        os.kill(first.pid, signal.SIGQUIT)
        first.wait()
        assert project.counts().leased == 0
    else:
        os.kill(first.pid, signal.SIGTERM)
        passes(1)
        first.kill()
    ended = time.time()
    project.worker(concurrency=2)
    project.until(8, "end")
    project.until_empty()
    assert sorted(stamp.name for stamp in project.stamps("end")) == [str(n) for n in range(8)]
    starts = [stamp.name for stamp in project.stamps("start")]
    assert {name: starts.count(name) for name in starts} == {str(n): 2 if n < 2 else 1 for n in range(8)}
    for name in ("0", "1"):
        assert project.stamps("start", name)[1].at - ended < 3 + SLACK_S


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("task", ["sl", "early"])
def test_a_gentle_stop_leaves_nothing_to_be_told(stamped: Callable[..., Stamped], pool: str, task: str) -> None:
    """Once a worker that was told to stop has ended, what it did is known to be done, and all else is free."""
    project = stamped(None, worker_prefetch_multiplier=2)
    for n in range(8):
        project.send(task, n, 0.3)
    worker = project.worker(pool=pool, concurrency=2)
    project.until(1, "start")
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait() == 0
    counts, done = project.counts(), len(project.stamps("end"))
    assert (counts.leased, counts.ready) == (0, 8 - done)
    assert len(project.stamps("start")) == done


def test_a_stale_owner_changes_nothing_for_the_next(stamped: Callable[..., Stamped]) -> None:
    """After a frozen worker has come back and stopped, the lease of who took its task over is as it was.

    That it lapses when the second dies, and a third runs the task, shows that nothing was acked or given back.
    """
    project = stamped({"lease_timeout": 2}, worker_prefetch_multiplier=2)
    first = project.worker(pool="threads")
    project.send("sl", "blk", 3)
    project.until(1, "start", "blk")
    project.send("sl", "x", 60)
    wait_until(lambda: project.counts().leased == 2, what="the second to be prefetched")
    first.freeze()
    second = project.worker(concurrency=2)
    project.until(1, "start", "x")
    first.thaw()
    passes(0.2)
    os.kill(first.pid, signal.SIGTERM)
    passes(2)
    assert len(project.stamps("start", "x")) == 1
    second.kill()
    died = time.time()
    project.worker(concurrency=2)
    runs = project.until(2, "start", "x")
    assert runs[1].at - died < 2 + SLACK_S
    assert runs[1].number == 1
