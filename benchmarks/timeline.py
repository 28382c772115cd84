"""What the primitive costs: ``python -m benchmarks.timeline [--json FILE|-]``.

Claims and settles in batches of 1 and 64; the same with a long and a short timeline behind it; memory for a waiting
item; how soon a blocked claimer has what was put, or came due; and what a due item costs when many claimers idle.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.compare import server_version, write
from benchmarks.meter import Meter, Reading, per_item, percentile
from benchmarks.servers import private_server
from celery_zsched.bell import Bell
from celery_zsched.connection import Server
from celery_zsched.timeline import MAX_BATCH, Timeline
from celery_zsched.types import SECOND_US, Hold, Item

LEASE_US = 30 * SECOND_US
HOUR_US = 3600 * SECOND_US

#: How often a cost is measured; the median counts.
ROUNDS = 5

#: Items of the usual and of the trial run.
USUAL = {
    "items": 64 * 500,
    "singles": 5_000,
    "deep": 1_000_000,
    "shallow": 1_000,
    "wakes": 300,
    "claimers": (1, 10, 50),
}
SMALL = {"items": 128, "singles": 20, "deep": 500, "shallow": 50, "wakes": 5, "claimers": (1, 3)}


def fill(timeline: Timeline, name: str, count: int, *, delay_us: int | None = None, size: int = 200) -> None:
    """Put ``count`` items of ``size`` bytes."""
    body = b"x" * size
    for start in range(0, count, MAX_BATCH):
        numbers = range(start, min(start + MAX_BATCH, count))
        timeline.put([Item(f"{name}-{number}", body, delay_us=delay_us) for number in numbers])


def work_off(timeline: Timeline, count: int, batch: int) -> None:
    """Claim and settle ``count`` items; what one claim took is settled by the next, as the transport does."""
    done: list[Hold] = []
    taken = 0
    while taken < count:
        got = timeline.claim(batch, LEASE_US, settle=done, linger=True).items
        if not got:
            raise RuntimeError(f"only {taken} of {count} items could be claimed")
        done = [Hold(item.id, item.token) for item in got]
        taken += len(got)
    timeline.settle(done)


def cost(meter: Meter, timeline: Timeline, count: int, batch: int) -> dict[str, float]:
    """Return the figures of working off ``count`` items by batches."""
    fill(timeline, "now", count)
    before = meter.read()
    work_off(timeline, count, batch)
    return per_item(before, meter.read(), count)


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def put_cost(meter: Meter, timeline: Timeline, count: int) -> dict[str, float]:
    """Return the figures of putting items one by one."""
    before = meter.read()
    for number in range(count):
        timeline.put([Item(f"p{number}", b"x" * 200)])
    figures = per_item(before, meter.read(), count)
    timeline.purge()
    return figures


def depth(meter: Meter, server: Server, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return what a claim costs with few and with many items waiting behind, and the memory that these take."""
    timelines = {count: Timeline(server, f"depth-{count}", claimer="c") for count in (sizes["shallow"], sizes["deep"])}
    figures: dict[str, Any] = {}
    for count, timeline in timelines.items():
        before = meter.memory()
        fill(timeline, "later", count, delay_us=HOUR_US)
        figures["bytes_per_waiting_item"] = (meter.memory() - before) / count
    for batch in (1, 64):
        rounds: dict[int, list[dict[str, float]]] = {count: [] for count in timelines}
        # Interleaved, so that a slow moment of the machine touches both.
        for _ in range(ROUNDS):
            for count, timeline in timelines.items():
                rounds[count].append(cost(meter, timeline, sizes["singles"] * min(batch, 4), batch))
        server_us = {count: medians(found)["server_us"] for count, found in rounds.items()}
        ratio = server_us[sizes["deep"]] / server_us[sizes["shallow"]]
        figures[f"batch_{batch}"] = {"server_us": server_us, "ratio": ratio}
    for timeline in timelines.values():
        timeline.purge()
    return figures


class Claimer(threading.Thread):
    """Claims one at a time, and blocks on the bell when there is nothing; tells ``got`` each id and the time."""

    def __init__(self, url: str, name: str, claimer: str, got: Callable[[str, float], None]) -> None:
        super().__init__(daemon=True)
        # A server of its own, so that the claimers share no connection, like processes.
        self.server = Server.from_url(url)
        self.timeline = Timeline(self.server, name, claimer=claimer)
        self.bell = Bell(self.server, self.timeline.keys.bell, own=self.timeline.own_bell, block_s=30.0)
        self.got = got
        self.over = False

    def run(self) -> None:
        """Claim until :attr:`over`, then settle."""
        done: list[Hold] = []
        while not self.over:
            batch = self.timeline.claim(1, LEASE_US, settle=done, armed=self.bell.armed)
            at = time.time()
            done = [Hold(item.id, item.token) for item in batch.items]
            for item in batch.items:
                self.got(item.id, at)
            if batch.items:
                continue
            wait_s = 30.0 if batch.wake_us is None else max(0.0, (batch.wake_us - batch.now_us) / SECOND_US)
            self.bell.wait(wait_s)
        self.bell.close()
        self.server.close()


class Arrivals:
    """When each id was claimed."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self._changed = threading.Condition()

    def got(self, id_: str, at: float) -> None:
        """Take one claim down."""
        with self._changed:
            self.at[id_] = at
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Wait until ``count`` ids were claimed."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.at) >= count, timeout=60):
                raise TimeoutError(f"{len(self.at)} of {count} items were claimed within 60 s")


def wakes(meter: Meter, server: Server, url: str, claimers: int, count: int) -> dict[str, float]:
    """Return how soon items are claimed by idle claimers, and the commands that each costs."""
    arrivals = Arrivals()
    name = f"wakes-{claimers}"
    crowd = [Claimer(url, name, f"c{number}", arrivals.got) for number in range(claimers)]
    for claimer in crowd:
        claimer.start()
    timeline = Timeline(server, name)
    # All block once the server says so.
    deadline = time.monotonic() + 30
    while meter.client.info("clients")["blocked_clients"] < claimers and time.monotonic() < deadline:
        time.sleep(0.02)

    before = meter.read()
    now_late = []
    for number in range(count):
        time.sleep(0.01)
        sent = time.time()
        timeline.put([Item(f"now-{number}", b"x" * 200)])
        arrivals.wait(number + 1)
        now_late.append((arrivals.at[f"now-{number}"] - sent) * 1e3)
    middle = meter.read()
    first_us = int((time.time() + 0.2) * SECOND_US)
    dues = {f"due-{number}": first_us + number * 10_000 for number in range(count)}
    timeline.put([Item(id_, b"x" * 200, due_us=due_us) for id_, due_us in dues.items()])
    arrivals.wait(2 * count)
    after = meter.read()
    due_late = [(arrivals.at[id_] - due_us / SECOND_US) * 1e3 for id_, due_us in dues.items()]
    _dismiss(timeline, crowd)
    return {
        "put_to_claim_p50_ms": percentile(now_late, 0.5),
        "put_to_claim_p99_ms": percentile(now_late, 0.99),
        "due_to_claim_p50_ms": percentile(due_late, 0.5),
        "due_to_claim_p99_ms": percentile(due_late, 0.99),
        "per_put_item": _asked(before, middle, count),
        "per_due_item": _asked(middle, after, count),
    }


def _asked(before: Reading, after: Reading, count: int) -> dict[str, float]:
    figures = per_item(before, after, count)
    return {name: figures[name] for name in ("commands", "round_trips", "server_us")}


def _dismiss(timeline: Timeline, crowd: list[Claimer]) -> None:
    for claimer in crowd:
        claimer.over = True
    deadline = time.monotonic() + 60
    number = 0
    while any(claimer.is_alive() for claimer in crowd) and time.monotonic() < deadline:
        timeline.put([Item(f"bye-{number}", b"")])
        number += 1
        time.sleep(0.01)


def measure(server_kind: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return every figure of the primitive."""
    with private_server(server_kind) as address:
        url = f"redis://{address}/0"
        meter = Meter(url)
        server = Server.from_url(url)
        timeline = Timeline(server, "bench", claimer="c")
        return {
            "name": "timeline",
            "versions": {"server": server_version(server_kind)},
            "put": put_cost(meter, timeline, sizes["singles"]),
            "claim_settle": {
                f"batch_{batch}": medians([cost(meter, timeline, sizes[items], batch) for _ in range(ROUNDS)])
                for batch, items in ((1, "singles"), (64, "items"))
            },
            "depth": depth(meter, server, sizes),
            "idle_claimers": {
                str(claimers): wakes(meter, server, url, claimers, sizes["wakes"]) for claimers in sizes["claimers"]
            },
        }


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline", description=__doc__)
    parser.add_argument("--server", default="valkey", help="valkey (from a wheel), redis, or the path of a server")
    parser.add_argument("--small", action="store_true", help="a trial with tiny sizes; its figures mean nothing")
    parser.add_argument("--json", metavar="FILE|-", help="write the figures as JSON")
    asked = parser.parse_args()
    write(measure(asked.server, SMALL if asked.small else USUAL), asked.json)


if __name__ == "__main__":
    main()
