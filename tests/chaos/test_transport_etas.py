"""ETAs of every length, beside leases and blocking pops that begin and end meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import pairwise

import pytest

from tests.servers import wait_until
from tests.stamps import Stamped

#: Seconds from now: below, at and above the lease and the block of :func:`test_every_countdown_is_met_once`.
COUNTDOWNS = (0.05, 0.2, 1, 1.9, 2, 2.1, 2.9, 3, 3.1, 5, 8, 11)


@pytest.mark.slow
def test_every_countdown_is_met_once(stamped: Callable[..., Stamped]) -> None:
    """However an ETA lies to the lease and to the longest wait for a ring, its task is received once, and not early."""
    project = stamped({"lease_timeout": 2, "max_block": 3})
    workers = [project.worker(pool=pool) for pool in ("prefork", "threads")]
    for countdown in COUNTDOWNS:
        for n in range(3):
            due = time.time() + countdown
            project.send("stamp", f"{countdown}-{n}", due, eta=datetime.fromtimestamp(due, timezone.utc))
    ran = project.until(3 * len(COUNTDOWNS), "ran")
    assert len({stamp.name for stamp in ran}) == len(ran)
    late = sorted(stamp.at - stamp.number for stamp in ran)
    assert late[0] >= -0.001
    assert late[len(late) // 2] < 0.2
    assert sum(worker.output().count("received") for worker in workers) == len(ran)


def test_a_task_that_retries_waits_in_the_broker(stamped: Callable[..., Stamped]) -> None:
    """A retry with a countdown belongs to nobody until then: it takes no credit and outlives the worker."""
    project = stamped({"lease_timeout": 1})
    project.project.write(
        f"""
        @app.task(bind=True, name="retrying", acks_late=True)
        def retrying(self):
            import os, time
            with open({str(project.stamps_file)!r}, "a") as file:
                file.write(f"start retrying {{self.request.retries}} {{os.getpid()}} {{time.time()}}\\n")
            if self.request.retries < 2:
                raise self.retry(countdown=2)
        """
    )
    worker = project.worker()
    project.send("retrying")
    project.until(1, "start")

    def waits() -> bool:
        counts = project.counts()
        return bool(counts.delayed == 1 and counts.leased == 0)

    wait_until(waits, what="the retry to wait, and its first try to be acked")
    worker.kill()
    project.worker()
    starts = project.until(3, "start")
    project.until_empty()
    assert [stamp.number for stamp in starts] == [0, 1, 2]
    assert all(after.at - before.at >= 2 for before, after in pairwise(starts))
