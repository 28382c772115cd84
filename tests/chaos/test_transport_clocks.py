"""Workers whose clocks are wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import RunningServer, missing
from tests.stamps import Stamped

HOUR_S = 3600


@pytest.mark.parametrize(("offset", "said"), [("-1h", "behind"), ("+1h", "ahead of")])
def test_an_eta_is_met_by_a_worker_whose_clock_is_an_hour_off(
    start_server: Callable[..., RunningServer],
    tmp_path: Path,
    close_later: Callable[[Stamped], Stamped],
    offset: str,
    said: str,
) -> None:
    """The server's clock alone decides: the task runs when it is due, and has not expired; the worker's log tells."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        missing("there is no libfaketime; install Debian's faketime")
    stamped = close_later(Stamped(tmp_path, start_server(tcp=True).url))
    wrong = {"LD_PRELOAD": str(library), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    worker = stamped.project.start("worker", "--loglevel=INFO", "--concurrency=1", name="worker", env=wrong)
    worker.says("ready.")
    worker.says(f"{said} the server's")
    sent = time.monotonic()
    stamped.send("stamp", "due", countdown=1.5, expires=600)
    (stamp,) = stamped.until(1, "ran", "due")
    assert time.monotonic() - sent >= 1.4
    assert abs(abs(stamp.at - time.time()) - HOUR_S) < 60
