"""Runs every benchmark and renews ``docs/performance.md``: ``python -m benchmarks.all [NAME …] [--page-only]``.

The figures are kept as JSON in ``benchmarks/results``, and the page is printed from them alone. What fails is told at
the end, with a non-zero exit code; its old figures stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import timeline
from benchmarks.compare import BENCHMARKS, compare
from benchmarks.systems import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"

_HEAD = """\
# Performance

Printed by `python -m benchmarks.all` from the figures in `benchmarks/results`; do not edit. Each table names the
command that measures it again. Figures are medians over interleaved rounds, each on a fresh private server on loopback
without persistence; in brackets the smallest and the largest. They tell systems apart on one machine, not machines.

The server is asked, not the client: *commands* come from `INFO commandstats`, and those that a script calls are counted
too; *round_trips* and *requests* are read events; *server_us* and *client_us* are CPU time. All are per item unless the
name says otherwise. *ours / kombu* and so on are our figure divided by the peer's.
"""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _versions(found: dict[str, Any]) -> str:
    parts = [found["versions"]["server"]]
    for system, versions in found["versions"].items():
        if system != "server":
            parts.append(f"{system}: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return "; ".join(parts)


def _section(found: dict[str, Any]) -> str:
    results, spread, ratios = found["results"], found["spread"], found["ratios"]
    peers = [system for system in results if system != "zsched"]
    header = ["figure", *results, *(f"ours / {peer}" for peer in peers)]
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    for figure in dict.fromkeys(figure for figures in results.values() for figure in figures):
        cells = [figure]
        for system, figures in results.items():
            if figure in figures:
                low, high = (_number(value) for value in spread[system][figure])
                cells.append(_number(figures[figure]) + (f" ({low} to {high})" if low != high else ""))
            else:
                cells.append("")
        cells += [_number(ratios[peer][figure]) if figure in ratios.get(peer, {}) else "" for peer in peers]
        lines.append(f"| {' | '.join(cells)} |")
    said = ", ".join(f"{name}={value}" for name, value in found["parameters"].items())
    return "\n".join(
        [f"## {found['name']}", "", f"`python -m benchmarks.compare {found['name']}`: {said}.", "", *lines, "",
         _versions(found) + ".", ""]
    )  # fmt: skip


def _flat(figures: Any, name: str = "") -> list[tuple[str, float]]:
    if not isinstance(figures, dict):
        return [(name, figures)]
    return [pair for key, value in figures.items() for pair in _flat(value, f"{name} · {key}" if name else key)]


def _primitive(found: dict[str, Any]) -> str:
    rows = _flat({key: value for key, value in found.items() if key not in ("name", "versions")})
    return "\n".join(
        ["## The primitive", "",
         "`python -m benchmarks.timeline`: put, claim and settle on one timeline, without Celery.",
         "", "| figure | value |", "| --- | --- |", *(f"| {name} | {_number(value)} |" for name, value in rows), "",
         found["versions"]["server"] + ".", ""]
    )  # fmt: skip


def page() -> str:
    """Return the page of all figures there are."""
    sections = [_HEAD]
    for name in ("timeline", *BENCHMARKS):
        path = RESULTS / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text())
            sections.append(_primitive(found) if name == "timeline" else _section(found))
    return "\n".join(sections)


def renew(name: str) -> None:
    """Measure one benchmark and keep its figures."""
    found = timeline.measure("valkey", timeline.USUAL) if name == "timeline" else compare(name)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    """Read the command line, measure, and write the page."""
    names = ["timeline", *BENCHMARKS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--page-only", action="store_true", help="measure nothing; print the page anew")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(names):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    failed = []
    for name in [] if asked.page_only else asked.names or names:
        try:
            renew(name)
        except (Exception, SystemExit) as exc:
            print(f"{name} failed: {exc}", file=sys.stderr)
            failed.append(name)
    Path(PAGE).write_text(page())
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
