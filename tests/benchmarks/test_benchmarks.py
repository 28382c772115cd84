"""The benchmarks run from end to end with tiny sizes, for this package alone; the figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import all as everything
from benchmarks import timeline
from benchmarks.compare import BENCHMARKS, report, table
from benchmarks.systems import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs(name: str) -> None:
    """Each workload gives numbers that are not below zero, as the JSON that is promised."""
    done = run("benchmarks.compare", name, "--small", "--systems", "zsched", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["name"] == name
    figures = found["results"]["zsched"]
    assert figures
    assert all(value >= 0 for value in figures.values()), figures


def test_the_primitive_is_measured() -> None:
    """The benchmark of the timeline runs, and names the server that it ran on."""
    found = timeline.measure("valkey", timeline.SMALL)
    assert found["versions"]["server"].startswith("valkey")
    assert found["claim_settle"]["batch_64"]["server_us"] < found["claim_settle"]["batch_1"]["server_us"]
    assert set(found["idle_claimers"]) == {"1", "3"}


def test_an_unknown_benchmark_is_refused() -> None:
    """A mistyped name shows those that there are."""
    done = run("benchmarks.compare", "drian")
    assert done.returncode == 2
    assert "drain" in done.stderr


def test_a_report_has_medians_spreads_and_ratios() -> None:
    """Ratios are ours divided by the peer's, and a figure that a peer lacks has none."""
    found = report(
        "drain",
        {"server": "redis 7"},
        {
            "zsched": [{"rate": 30.0, "batch": 1.0}, {"rate": 10.0, "batch": 1.0}, {"rate": 20.0, "batch": 1.0}],
            "kombu": [{"rate": 2.0}, {"rate": 2.0}, {"rate": 4.0}],
        },
    )
    assert found["results"] == {"zsched": {"rate": 20.0, "batch": 1.0}, "kombu": {"rate": 2.0}}
    assert found["spread"]["zsched"]["rate"] == (10.0, 30.0)
    assert found["ratios"] == {"kombu": {"rate": 10.0}}
    assert "10.00" in table(found)


def test_the_page_of_figures_is_current() -> None:
    """``docs/performance.md`` is what the kept figures give."""
    assert everything.PAGE.read_text() == everything.page()
