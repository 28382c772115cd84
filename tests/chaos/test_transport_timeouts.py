"""What holds without any time-out of the user's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forwarder import Forwarder
from tests.servers import RunningServer, wait_until
from tests.stamps import Stamped


@pytest.mark.slow
def test_a_half_open_link_is_replaced_and_what_ran_is_acked(
    start_server: Callable[..., RunningServer],
    forward: Callable[[RunningServer], Forwarder],
    tmp_path: Path,
    close_later: Callable[[Stamped], Stamped],
) -> None:
    """A busy worker whose links all fall silent finds new ones while its task runs, and the task is run once."""
    server = start_server(tcp=True)
    way = forward(server)
    # By default a pop lasts longer, and the test would.
    worker_side = close_later(Stamped(tmp_path, way.url, options={"max_block": 5}))
    (tmp_path / "direct").mkdir()
    direct = close_later(Stamped(tmp_path / "direct", server.url))
    worker = worker_side.worker(concurrency=2)
    worker_side.send("sl", "through", 12)
    worker_side.until(1, "start", "through")
    with server.client() as raw:
        wait_until(lambda: raw.info("clients")["blocked_clients"], what="the worker to wait for more")
    way.freeze()
    began = time.monotonic()
    direct.send("stamp", "after")
    way.replace()  # new connections get through, the frozen ones stay as they are
    worker_side.until(1, "ran", "after", timeout_s=90)
    assert time.monotonic() - began < 60
    worker_side.until(1, "end", "through")
    wait_until(lambda: direct.counts().leased == 0, timeout_s=60, what="the ack by way of a new link")
    assert len(worker_side.stamps("start", "through")) == 1
    assert worker.is_running
