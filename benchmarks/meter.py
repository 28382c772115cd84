"""Measuring, alike for every system: time, server CPU, client CPU, commands, and round trips.

The server is asked, not the client, so that no client can hide anything: CPU from ``INFO cpu``; commands from ``INFO
commandstats``, those that a script calls included; round trips as read events (``total_reads_processed``): what a
client sends in one go is read in one event.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import redis


@dataclass(frozen=True)
class Reading:
    """All counters at one moment."""

    at: float
    server_s: float
    client_s: float
    commands: int
    reads: int


class Meter:
    """Reads the counters of one server and of the processes that use it."""

    def __init__(self, url: str, pids: Sequence[int] = ()) -> None:
        self.client = redis.Redis.from_url(url)
        self.pids = pids

    def read(self) -> Reading:
        """Return all counters now."""
        at = time.perf_counter()
        facts = self.client.info("all")
        calls = sum(
            stats["calls"]
            for name, stats in facts.items()
            if name.startswith("cmdstat_") and not name.startswith(("cmdstat_info", "cmdstat_client", "cmdstat_hello"))
        )
        server_s = facts["used_cpu_user"] + facts["used_cpu_sys"]
        return Reading(at, server_s, self._client_s(), calls, facts["total_reads_processed"])

    def memory(self) -> int:
        """Return the server's used memory in bytes."""
        return int(self.client.info("memory")["used_memory"])

    def _client_s(self) -> float:
        if not self.pids:
            return time.process_time()
        total = 0.0
        for pid in self.pids:
            process = psutil.Process(pid)
            for member in (process, *process.children(recursive=True)):
                times = member.cpu_times()
                total += times.user + times.system
        return total


def per_item(before: Reading, after: Reading, count: int, seconds: float | None = None) -> dict[str, float]:
    """Return the figures of ``count`` items between two readings."""
    took = seconds if seconds is not None else after.at - before.at
    return {
        "rate": count / took,
        "client_us": (after.client_s - before.client_s) / count * 1e6,
        "server_us": (after.server_s - before.server_s) / count * 1e6,
        "commands": (after.commands - before.commands) / count,
        # The second reading reads an event itself.
        "round_trips": max(0, after.reads - before.reads - 1) / count,
    }


def per_minute(before: Reading, after: Reading) -> tuple[float, float]:
    """Return the commands a minute between two readings, and the requests (round trips) that they came in."""
    minutes = (after.at - before.at) / 60
    return (after.commands - before.commands) / minutes, max(0, after.reads - before.reads - 1) / minutes


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
