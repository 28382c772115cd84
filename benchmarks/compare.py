"""Ours and the peers side by side: ``python -m benchmarks.compare NAME [--rounds 5] [--json FILE|-]``.

Every round runs each system once, one after the other, on a fresh private server, so that a slow minute of the machine
touches all alike; the figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers import executable, private_server
from benchmarks.systems import ROOT, SYSTEMS

BROKERS = ("zsched", "kombu", "crp")
BEATS = ("zsched", "redbeat")


@dataclass(frozen=True)
class Benchmark:
    """A workload with its usual parameters. ``own`` are parameters for one system alone; ``small`` is for a trial."""

    workload: str
    systems: tuple[str, ...]
    parameters: dict[str, Any]
    small: dict[str, Any]
    rounds: int = 5
    own: dict[str, dict[str, Any]] = field(default_factory=dict)


def _worker(pool: str, concurrency: int) -> Benchmark:
    parameters = {"size": 10_000, "pool": pool, "concurrency": concurrency}
    return Benchmark("worker", BROKERS, parameters, {"size": 200})


BENCHMARKS: dict[str, Benchmark] = {
    "drain": Benchmark("drain", BROKERS, {"size": 20_000}, {"size": 200}),
    "publish": Benchmark("publish", BROKERS, {"size": 5_000}, {"size": 50}),
    "worker-solo": _worker("solo", 1),
    "worker-prefork": _worker("prefork", 2),
    "worker-threads": _worker("threads", 8),
    "latency": Benchmark("latency", BROKERS, {"size": 300}, {"size": 5}),
    "worker-startup": Benchmark("startup", BROKERS, {}, {}),
    "idle": Benchmark("idle", BROKERS, {"seconds": 60}, {"seconds": 2}, rounds=1),
    "memory": Benchmark("memory", BROKERS, {"size": 10_000}, {"size": 200}, rounds=3),
    "eta": Benchmark(
        "eta",
        BROKERS,
        {"size": 2_000, "spread_s": 10, "pending": 100_000, "settle_s": 5},
        {"size": 20, "spread_s": 1, "pending": 50, "settle_s": 0.5},
        rounds=1,
    ),
    # The peers with the shortest time-outs that are practical, since their defaults take an hour and five minutes.
    "crash": Benchmark(
        "crash",
        BROKERS,
        {"size": 8, "nap_s": 3.0, "rate": 50, "patience_s": 120, "options": {}},
        {"size": 4, "nap_s": 1.0, "options": {"lease_timeout": 1}},
        rounds=3,
        own={
            "kombu": {
                "options": {"visibility_timeout": 5, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
            },
            "crp": {"options": {"visibility_timeout": 5}},
        },
    ),
    "crash-short": Benchmark(
        "crash",
        ("zsched",),
        {"size": 8, "nap_s": 3.0, "rate": 50, "patience_s": 120, "options": {"lease_timeout": 2}},
        {"size": 4, "nap_s": 1.0, "options": {"lease_timeout": 1}},
    ),
    "beat-firing": Benchmark(
        "beat_firing", BEATS, {"size": 5_000}, {"size": 20, "every_s": 2}, rounds=3, own={"zsched": {"two": True}}
    ),
    "beat-startup": Benchmark(
        "beat_startup", BEATS, {"size": 10_000}, {"size": 20}, rounds=3, own={"zsched": {"first_tick": True}}
    ),
    "beat-lateness": Benchmark(
        "beat_lateness", BEATS, {"size": 200, "seconds": 20}, {"size": 5, "seconds": 3}, rounds=3
    ),
    "beat-scale": Benchmark(
        "beat_scale",
        ("zsched",),
        {"due": 1_000, "shallow": 1_000, "deep": 1_000_000},
        {"due": 10, "shallow": 10, "deep": 100, "every_s": 2},
        rounds=1,
    ),
    "beat-idle": Benchmark("beat_idle", BEATS, {"size": 100, "seconds": 60}, {"size": 5, "seconds": 2}, rounds=1),
}


def run_once(workload: str, system: str, parameters: dict[str, Any], server: str) -> dict[str, Any]:
    """Run a workload for one system on a fresh server; return its figures and the versions that took part.

    Raises ``SystemExit`` with the end of its output when it fails: a missing figure is never made up.
    """
    with private_server(server) as address:
        spec = SYSTEMS[system].spec(address) | {"parameters": parameters}
        found = subprocess.run(
            [SYSTEMS[system].python(), "-m", "benchmarks.run", workload],
            cwd=ROOT,
            env={**os.environ, "ZSCHED_BENCH": json.dumps(spec)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    if found.returncode:
        raise SystemExit(f"{workload} failed for {system}:\n{found.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


def compare(
    name: str, *, rounds: int | None = None, systems: Sequence[str] = (), server: str = "redis", small: bool = False
) -> dict[str, Any]:
    """Run a benchmark by name and return the report that is written as JSON."""
    benchmark = BENCHMARKS[name]
    chosen = [system for system in benchmark.systems if not systems or system in systems]
    gathered: dict[str, list[dict[str, float]]] = {system: [] for system in chosen}
    versions: dict[str, Any] = {"server": server_version(server)}
    rounds = rounds or (1 if small else benchmark.rounds)
    for number in range(rounds):
        for system in chosen:
            began = time.monotonic()
            parameters = {**benchmark.parameters, **(benchmark.small if small else {}), **benchmark.own.get(system, {})}
            answer = run_once(benchmark.workload, system, parameters, server)
            gathered[system].append(answer["figures"])
            versions[system] = answer["versions"]
            print(
                f"{name}: round {number + 1} of {rounds}, {system}, {time.monotonic() - began:.1f} s", file=sys.stderr
            )
    return report(name, versions, gathered) | {"parameters": benchmark.small if small else benchmark.parameters}


def report(name: str, versions: dict[str, Any], gathered: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return medians, spreads and our ratios to each peer."""
    results: dict[str, dict[str, float]] = {}
    spread: dict[str, dict[str, tuple[float, float]]] = {}
    for system, rounds in gathered.items():
        names = [figure for figure in rounds[0] if all(figure in one for one in rounds)]
        results[system] = {figure: statistics.median(one[figure] for one in rounds) for figure in names}
        spread[system] = {
            figure: (min(one[figure] for one in rounds), max(one[figure] for one in rounds)) for figure in names
        }
    ours = results.get("zsched", {})
    ratios = {
        system: {figure: ours[figure] / value for figure, value in figures.items() if value and figure in ours}
        for system, figures in results.items()
        if system != "zsched" and ours
    }
    return {"name": name, "versions": versions, "results": results, "spread": spread, "ratios": ratios}


def server_version(server: str) -> str:
    """Return what the server's program says of itself."""
    said = subprocess.run([executable(server), "--version"], capture_output=True, text=True, check=True).stdout.split()
    return f"{said[0].lower()} {next(word[2:] for word in said if word.startswith('v='))}"


def table(found: dict[str, Any]) -> str:
    """Return a report as a table of text: median, minimum and maximum of each figure, and our ratio to the peer."""
    lines = [f"{found['name']} on {found['versions']['server']}"]
    lines.append(f"{'figure':<18} {'system':<9} {'median':>12} {'min':>12} {'max':>12} {'ours / it':>10}")
    for figure in dict.fromkeys(figure for figures in found["results"].values() for figure in figures):
        for system, figures in found["results"].items():
            if figure not in figures:
                continue
            low, high = found["spread"][system][figure]
            ratio = found["ratios"].get(system, {}).get(figure)
            cells = " ".join(f"{number:>12,.3f}" for number in (figures[figure], low, high))
            lines.append(f"{figure:<18} {system:<9} {cells} {'' if ratio is None else f'{ratio:.2f}':>10}".rstrip())
    return "\n".join(lines)


def write(found: dict[str, Any], where: str | None) -> None:
    """Print the table, or write JSON to a file or (``-``) to standard output, the table going to standard error."""
    print(table(found) if "results" in found else json.dumps(found, indent=2), file=sys.stderr if where else sys.stdout)
    if where == "-":
        print(json.dumps(found, indent=2))
    elif where:
        Path(where).write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    """Read the command line and run one benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHMARKS), metavar="NAME", help=", ".join(sorted(BENCHMARKS)))
    parser.add_argument("--rounds", type=int, help="how often each system runs (5, fewer for the long ones)")
    parser.add_argument("--systems", default="", help="only these, separated by commas")
    parser.add_argument("--server", default="redis", help="redis, valkey, or the path of a server")
    parser.add_argument("--small", action="store_true", help="a trial with tiny sizes; its figures mean nothing")
    parser.add_argument("--json", metavar="FILE|-", help="write the report as JSON")
    asked = parser.parse_args()
    systems = [name for name in asked.systems.split(",") if name]
    found = compare(asked.name, rounds=asked.rounds, systems=systems, server=asked.server, small=asked.small)
    write(found, asked.json)


if __name__ == "__main__":
    main()
