"""The counts of a run tell the truth, and a short run of beats under fire loses and doubles nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.count import Arrival, Ledger, count, overlap

SECOND_US = 1_000_000


def counted(nominals: list[tuple[int, int]], *, next_s: int = 6, missed: int = 0) -> dict[str, float]:
    """Count one entry, installed at 0 s, due each second; each message is (nominal in seconds, missed)."""
    arrivals = [Arrival("entry", at * SECOND_US, missed_, at + 0.25) for at, missed_ in nominals]
    return count(arrivals, {"entry": Ledger(0, SECOND_US, next_s * SECOND_US, missed)}, [])


def picked(counts: dict[str, float], *names: str) -> list[float]:
    """Return some of the counts."""
    return [counts[name] for name in names]


def test_all_that_should_arrive_and_does_is_neither_lost_nor_doubled() -> None:
    """Five seconds, five messages."""
    counts = counted([(at, 0) for at in range(1, 6)])
    assert picked(counts, "occurrences", "sent", "lost", "doubled", "late_max_s") == [5, 5, 0, 0, 0.25]


def test_an_occurrence_for_which_a_later_one_stands_is_folded() -> None:
    """The third says that it stands for the second too."""
    assert picked(counted([(1, 0), (3, 1), (4, 0), (5, 0)]), "sent", "folded", "lost", "overcounted") == [4, 1, 0, 0]


def test_an_occurrence_that_nobody_sent_or_owned_up_to_is_lost() -> None:
    """In the middle, at the beginning and at the end."""
    assert picked(counted([(1, 0), (3, 0), (4, 0), (5, 0)]), "folded", "lost") == [0, 1]
    assert picked(counted([(3, 1), (4, 0), (5, 0)]), "folded", "lost") == [1, 1]
    assert picked(counted([(1, 0), (2, 0)], missed=1), "folded", "lost") == [1, 2]
    assert picked(counted([]), "sent", "lost") == [0, 5]


def test_a_repeat_is_doubled_and_one_that_comes_late_is_out_of_order() -> None:
    """It makes up for nothing that is lost."""
    counts = counted([(1, 0), (2, 0), (4, 1), (2, 0), (5, 0)])
    assert picked(counts, "doubled", "out_of_order", "lost", "folded") == [1, 1, 0, 1]


def test_what_was_sent_after_all_is_overcounted() -> None:
    """The fourth stood for the third, which arrives behind it."""
    assert picked(counted([(1, 0), (2, 0), (4, 1), (3, 0), (5, 0)]), "lost", "overcounted", "doubled") == [0, 1, 0]


def test_moments_off_the_grid_and_before_their_time_are_told() -> None:
    """Neither can come from a schedule that works."""
    arrivals = [Arrival("entry", 1_500_000, 0, 1.6), Arrival("entry", 2_000_000, 0, 1.9), Arrival("other", 0, 0, 0.0)]
    counts = count(arrivals, {"entry": Ledger(0, SECOND_US, 3 * SECOND_US, 0)}, [])
    assert picked(counts, "off_grid", "early", "foreign") == [1, 1, 1]


def test_a_gap_is_told_with_and_without_the_time_in_which_nobody_could_work() -> None:
    """Overlapping outages count once."""
    arrivals = [Arrival("entry", SECOND_US, 0, 1.0), Arrival("entry", 5 * SECOND_US, 3, 5.0)]
    outages = [(1.5, 3.0), (2.0, 3.5), (9.0, 10.0)]
    counts = count(arrivals, {"entry": Ledger(0, SECOND_US, 6 * SECOND_US, 0)}, outages)
    assert picked(counts, "gap_max_s", "gap_beyond_s") == [4.0, 2.0]
    assert overlap(outages, 0.0, 9.5) == 2.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param("--broker redis --faults kill,freeze,term", id="kombu"),
        pytest.param("--broker zsched --faults kill,freeze,term,restart,cut,flush", id="ours"),
        pytest.param("--broker zsched --faults kill,freeze,term,cut --misfire all --every 2", id="ours-repeats"),
    ],
)
def test_beats_under_fire_lose_and_double_nothing(options: str) -> None:
    """Three beats are killed, frozen beyond their lease, stopped and cut off: each occurrence once or accounted for.

    What kombu's broker may repeat (a message whose answer was cut off, or one that a dead beat had sent and not moved
    on) cannot come of these faults while another occurrence is due by the end of the lease.
    """
    fixed = "--seconds 6 --entries 40 --lease 1.3 --pause 0.5 --freeze 3 --json -"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.beats", *fixed.split(), *options.split()],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    counts = json.loads(done.stdout)
    wrong = ("lost", "doubled", "early", "off_grid", "foreign", "bad_exits", "tracebacks")
    assert not any(counts[name] for name in wrong), counts
    assert counts["occurrences"] >= 40 * 3 and counts["kills"] + counts["freezes"] + counts["terms"] > 0
    assert done.returncode == 0
