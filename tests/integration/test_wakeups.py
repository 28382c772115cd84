"""Who wakes, when, and at what cost: idle claimers with connections of their own, on a real server.

What is counted is what clients sent: calls of scripts and blocking pops. Times are the server's.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import redis

from celery_zsched.bell import Bell
from celery_zsched.connection import Server
from celery_zsched.timeline import BACKUP_US, MAX_BLOCK_S, Timeline
from celery_zsched.types import Batch, Hold, Item
from tests.lua.tables import clock
from tests.servers import RunningServer, wait_until

MINUTE = 60_000_000
#: What a busy machine may add to anything, in microseconds.
MARGIN_US = 5_000_000


class Claimer:
    """A claimer that works in no time: it claims, settles with its next claim, and waits on its bell when idle."""

    def __init__(
        self, url: str, name: str, *, limit: int = 10, block_s: float = MAX_BLOCK_S, keeps: bool = False
    ) -> None:
        self.server = Server.from_url(url)
        self.line = Timeline(self.server, "q", holder=name, claimer=name)
        self.bell = Bell(self.server, self.line.keys.bell, own=self.line.own_bell, block_s=block_s)
        self.batches: list[Batch] = []
        self._limit, self._block_s, self._keeps = limit, block_s, keeps
        self._ended = threading.Event()
        #: Clear it to make the claimer wait before its next claim.
        self.may_claim = threading.Event()
        self.may_claim.set()
        self._thread = threading.Thread(target=self._work, name=name)

    def __enter__(self) -> Claimer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.may_claim.set()
        self._thread.join()
        self.bell.close()
        self.server.close()

    @property
    def taken(self) -> list[tuple[str, int, int]]:
        """What was claimed: id, due moment, moment of the claim."""
        return [(item.id, item.due_us, batch.now_us) for batch in self.batches for item in batch.items]

    def _work(self) -> None:
        done: list[Hold] = []
        while self.may_claim.wait() and not self._ended.is_set():
            batch = self.line.claim(self._limit, MINUTE, settle=done, armed=self.bell.armed)
            self.batches.append(batch)
            done = [] if self._keeps else [Hold(item.id, item.token) for item in batch.items]
            if not batch.items:
                self._wait(self._block_s if batch.wake_us is None else (batch.wake_us - batch.now_us) / 1e6)

    def _wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        self.bell.arm()
        # Nothing is sent meanwhile; the pieces are only for ending with the test.
        while not self._ended.is_set() and self.bell.armed and (left := until - time.monotonic()) > 0:
            self.bell.wait(min(left, 0.05))


@pytest.fixture
def keyspace(valkey: RunningServer) -> Iterator[redis.Redis]:
    """A client to look at the server with."""
    with valkey.client() as client:
        yield client


@pytest.fixture
def line(valkey: RunningServer, close_later: Callable[[Server], Server]) -> Timeline:
    """A timeline to put on."""
    return Timeline(close_later(Server.from_url(valkey.url)), "q", claimer="putter")


def sent(client: redis.Redis) -> int:
    """Return how many scripts were called and pops begun."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval", "bzpopmin"))


def settled_down(client: redis.Redis, line: Timeline, claimers: int) -> bool:
    """Whether all are blocked and nobody will wake by itself within the longest block."""
    return client.info("clients")["blocked_clients"] == claimers and not client.zcount(
        line.keys.watch, clock(client), "inf"
    )


def cost_of_an_item(client: redis.Redis, line: Timeline, url: str, claimers: int, delay_us: int) -> float:
    """Return what one due item costs in commands, its put included, with so many idle claimers."""
    rounds = 5 if delay_us else 12
    with ExitStack() as running:
        idle = [running.enter_context(Claimer(url, f"{number}")) for number in range(claimers)]
        wait_until(lambda: settled_down(client, line, claimers))
        before = sent(client)
        for number in range(rounds):
            line.put([Item(f"{number}", b"", delay_us=delay_us)])
            wait_until(lambda: sum(len(claimer.taken) for claimer in idle) > number)  # noqa: B023
            wait_until(lambda: settled_down(client, line, claimers))
        cost = (sent(client) - before) / rounds
        assert sorted(int(id_) for claimer in idle for id_, _, _ in claimer.taken) == list(range(rounds))
    client.flushall()
    return cost


def test_a_due_item_costs_the_same_however_many_are_idle(
    valkey: RunningServer, keyspace: redis.Redis, line: Timeline
) -> None:
    """Of 1, 10 and 50 idle claimers one is woken for an item due now: put, its claim, the next claim, the next pop."""
    costs = {count: cost_of_an_item(keyspace, line, valkey.url, count, 0) for count in (1, 10, 50)}
    # Half a command more, for a claimer whose longest block ended meanwhile.
    assert all(3.5 <= cost <= 4.5 for cost in costs.values()), costs


def test_a_later_item_costs_the_same_however_many_are_idle(
    valkey: RunningServer, keyspace: redis.Redis, line: Timeline
) -> None:
    """For an item due later two are woken, to watch and to stand by: their claims and pops come on top, no others."""
    costs = {count: cost_of_an_item(keyspace, line, valkey.url, count, 60_000) for count in (1, 10, 50)}
    # Put; claim and pop of the two that were rung; two claims and a pop of who takes it; a claim of who stood by; and
    # what a second ring and a wake-up at the same moment may add.
    assert all(cost <= 11 for cost in costs.values()), costs
    assert costs[50] <= costs[10] + 2, costs


def test_an_item_due_now_reaches_a_blocked_claimer(
    valkey: RunningServer, keyspace: redis.Redis, line: Timeline
) -> None:
    """A put that is due now ends the wait of a blocked claimer at once."""
    with Claimer(valkey.url, "c") as claimer:
        for number in range(30):
            wait_until(lambda: keyspace.info("clients")["blocked_clients"] == 1)
            line.put([Item(f"{number}", b"")])
            wait_until(lambda: len(claimer.taken) > number)  # noqa: B023
        late = [claimed_us - due_us for _, due_us, claimed_us in claimer.taken]
    assert 0 <= statistics.median(late) < 100_000


def test_a_later_item_is_claimed_at_its_moment(valkey: RunningServer, keyspace: redis.Redis, line: Timeline) -> None:
    """What is due later is claimed when it is due and never before, though nobody rings then."""
    with ExitStack() as running:
        idle = [running.enter_context(Claimer(valkey.url, f"{number}")) for number in range(3)]
        wait_until(lambda: keyspace.info("clients")["blocked_clients"] == 3)
        line.put([Item(f"{number}", b"", delay_us=100_000 + number * 20_000) for number in range(20)])
        wait_until(lambda: sum(len(claimer.taken) for claimer in idle) == 20)
        late = [claimed_us - due_us for claimer in idle for _, due_us, claimed_us in claimer.taken]
    assert min(late) >= 0
    assert statistics.median(late) < 100_000


def test_a_sooner_item_is_not_missed(valkey: RunningServer, keyspace: redis.Redis, line: Timeline) -> None:
    """An item that becomes the new head is claimed at its moment, though everybody waits for a later one."""
    with Claimer(valkey.url, "c") as claimer:
        line.put([Item("later", b"", delay_us=20_000_000)])
        wait_until(lambda: keyspace.zcard(line.keys.watch) and keyspace.info("clients")["blocked_clients"])
        line.put([Item("sooner", b"", delay_us=50_000)])
        wait_until(lambda: claimer.taken)
        ((id_, due_us, claimed_us),) = claimer.taken
    assert id_ == "sooner"
    assert 0 <= claimed_us - due_us < MARGIN_US


def test_a_burst_is_shared(valkey: RunningServer, keyspace: redis.Redis, line: Timeline) -> None:
    """Each claimer that has taken its fill wakes the next while something is left."""
    with ExitStack() as running:
        idle = [running.enter_context(Claimer(valkey.url, f"{number}", limit=1, keeps=True)) for number in range(8)]
        wait_until(lambda: settled_down(keyspace, line, 8))
        line.put([Item(f"{number}", b"", due_us=1) for number in range(40)])
        wait_until(lambda: sum(len(claimer.taken) for claimer in idle) == 40)
        assert len({id_ for claimer in idle for id_, _, _ in claimer.taken}) == 40
        assert sum(bool(claimer.taken) for claimer in idle) > 1


def test_who_stands_by_steps_in_for_a_dead_watcher(
    valkey: RunningServer, keyspace: redis.Redis, line: Timeline
) -> None:
    """An item whose watcher has vanished is late by no more than the time of who stands by, not by a whole block."""
    with closing(Server.from_url(valkey.url)) as server:
        watcher = Timeline(server, "q", claimer="watcher")
        bell = Bell(server, watcher.keys.bell, own=watcher.own_bell, block_s=MAX_BLOCK_S)
        assert watcher.claim(1, MINUTE).items == []
        bell.arm()
        wait_until(lambda: keyspace.info("clients")["blocked_clients"] == 1)
        with Claimer(valkey.url, "c") as claimer:
            wait_until(lambda: keyspace.info("clients")["blocked_clients"] == 2)
            claimer.may_claim.clear()
            line.put([Item("a", b"", delay_us=500_000)])
            (item,) = line.upcoming()
            assert bell.wait(30)
            watching = watcher.claim(1, MINUTE)
            bell.close()  # and that was the last of it
            claimer.may_claim.set()
            assert (watching.items, watching.wake_us) == ([], item.due_us)
            wait_until(lambda: claimer.taken)
            assert [batch.wake_us for batch in claimer.batches][:2] == [None, item.due_us + BACKUP_US]
            ((_, due_us, claimed_us),) = claimer.taken
    assert BACKUP_US <= claimed_us - due_us < BACKUP_US + MARGIN_US


def test_a_lost_ring_costs_the_longest_block(valkey: RunningServer, keyspace: redis.Redis, line: Timeline) -> None:
    """When a ring goes to somebody who dies over it, the others find the item at the end of their block."""
    block_s = 1.0
    with valkey.client() as dead:
        ring = threading.Thread(target=lambda: dead.bzpopmin(line.keys.bell, 30))
        ring.start()
        wait_until(lambda: keyspace.info("clients")["blocked_clients"] == 1)
        with Claimer(valkey.url, "c", block_s=block_s) as claimer:
            wait_until(lambda: keyspace.info("clients")["blocked_clients"] == 2)
            line.put([Item("a", b"")])
            ring.join()
            wait_until(lambda: claimer.taken)
            ((_, due_us, claimed_us),) = claimer.taken
    assert claimed_us - due_us < block_s * 1e6 + MARGIN_US


def test_a_busy_claimer_takes_no_ring(valkey: RunningServer, keyspace: redis.Redis, line: Timeline) -> None:
    """A claim that takes something ends its claimer's own pop, so that the next ring goes to somebody who listens."""
    with closing(Server.from_url(valkey.url)) as server:
        busy = Timeline(server, "q", claimer="busy")
        bell = Bell(server, busy.keys.bell, own=busy.own_bell, block_s=MAX_BLOCK_S)
        line.put([Item("a", b"", due_us=1)])
        keyspace.delete(line.keys.bell)
        bell.arm()
        wait_until(lambda: keyspace.info("clients")["blocked_clients"] == 1)
        assert [item.id for item in busy.claim(1, MINUTE, armed=bell.armed).items] == ["a"]
        wait_until(lambda: keyspace.info("clients")["blocked_clients"] == 0)
        line.put([Item("b", b"")])
        assert keyspace.zcard(line.keys.bell) == 1
        assert bell.wait(10) is False
        assert not bell.armed
        bell.close()
