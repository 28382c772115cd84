"""What became of every occurrence: the counts of :mod:`tests.chaos.beats`. Values only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message as it stood in the queue: whose, for when, what it says it stands for, when it arrived (seconds)."""

    entry: str
    nominal_us: int
    missed: int
    at: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the schedule says of an entry at the end: its grid, its next occurrence, what it has not told a task yet."""

    anchor_us: int
    every_us: int
    next_us: int
    missed: int


def count(arrivals: Iterable[Arrival], ledgers: Mapping[str, Ledger], outages: list[Span]) -> dict[str, float]:
    """Return the counts, as :mod:`tests.chaos.beats` explains them."""
    per_entry: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        per_entry[arrival.entry].append(arrival)
    totals: Counter[str] = Counter()
    late_max = gap_max = gap_beyond = 0.0
    for entry, ledger in ledgers.items():
        mine = per_entry.pop(entry, [])
        totals["out_of_order"] += sum(b.nominal_us < a.nominal_us for a, b in pairwise(mine))
        often = Counter(arrival.nominal_us for arrival in mine)
        totals["doubled"] += sum(times - 1 for times in often.values())
        totals["occurrences"] += (ledger.next_us - ledger.anchor_us) // ledger.every_us - 1
        totals["sent"] += len(often)
        totals["off_grid"] += sum((at_us - ledger.anchor_us) % ledger.every_us != 0 for at_us in often)
        totals["early"] += sum(arrival.at * 1e6 < arrival.nominal_us - 1000 for arrival in mine)
        said: dict[int, int] = {}
        for arrival in mine:
            said[arrival.nominal_us] = max(arrival.missed, said.get(arrival.nominal_us, 0))
        before_us = ledger.anchor_us
        for nominal_us, missed in [*sorted(said.items()), (ledger.next_us, ledger.missed)]:
            between = (nominal_us - before_us) // ledger.every_us - 1
            totals["folded"] += min(between, missed)
            totals["lost"] += max(0, between - missed)
            totals["overcounted"] += max(0, missed - between)
            before_us = nominal_us
        late_max = max([late_max, *(arrival.at - arrival.nominal_us / 1e6 for arrival in mine)])
        moments = sorted(arrival.at for arrival in mine)
        for before, after in zip([ledger.anchor_us / 1e6, *moments], moments, strict=False):
            gap_max = max(gap_max, after - before)
            gap_beyond = max(gap_beyond, after - before - overlap(outages, before, after))
    totals["foreign"] = sum(map(len, per_entry.values()))
    return {
        **{name: totals[name] for name in COUNTED},
        "late_max_s": round(late_max, 3), "gap_max_s": round(gap_max, 3), "gap_beyond_s": round(gap_beyond, 3),
    }  # fmt: skip


COUNTED = (
    "occurrences", "sent", "folded", "lost", "doubled", "overcounted", "out_of_order", "off_grid", "early", "foreign",
)  # fmt: skip


def overlap(spans: list[Span], begin: float, end: float) -> float:
    """Return for how long of the time from ``begin`` to ``end`` at least one of the spans lasted."""
    covered, reached = 0.0, begin
    for first, last in sorted(spans):
        first, last = max(first, reached), min(last, end)
        if last > first:
            covered += last - first
            reached = last
    return covered
