"""lua/runs.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, PAST, Case, run, table
from tests.servers import RunningServer

OUTSTANDING = f"{AHEAD} running 1 {PAST} w1\n{AHEAD + 1} sent 2 {PAST} b1"
REMEMBERED = f"{AHEAD} over 3 {PAST} \n{AHEAD} wanted - {PAST} "


@table(
    Case("an unknown entry has none", {}, ["e"], [NOW, []]),
    Case(
        "what is outstanding is told, in order",
        {"runs": {"e": f"{OUTSTANDING}\n{REMEMBERED}", "f": REMEMBERED}, "lapses": {"e": AHEAD, "f": AHEAD}},
        ["f", "e", "g"],
        [NOW, [], ["1", "running", f"{AHEAD}", f"{PAST}", "w1", "2", "sent", f"{AHEAD + 1}", f"{PAST}", "b1"], []],
        {"runs": {"e": f"{OUTSTANDING}\n{REMEMBERED}", "f": REMEMBERED}, "lapses": {"e": AHEAD, "f": AHEAD}},
    ),
    Case(
        "what has lapsed is not, and stays until somebody writes",
        {"runs": {"e": f"{PAST} running 1 {PAST} w1"}, "lapses": {"e": AHEAD}},
        ["e"],
        [NOW, []],
        {"runs": {"e": f"{PAST} running 1 {PAST} w1"}, "lapses": {"e": AHEAD}},
    ),
    Case(
        "a line that is none of ours is passed over",
        {"runs": {"e": f"nonsense\n{AHEAD} sent 2 {PAST} a b"}, "lapses": {"e": AHEAD}},
        ["e"],
        [NOW, ["2", "sent", f"{AHEAD}", f"{PAST}", "a b"]],
        {"runs": {"e": f"nonsense\n{AHEAD} sent 2 {PAST} a b"}, "lapses": {"e": AHEAD}},
    ),
)
def test_runs(any_server: RunningServer, case: Case) -> None:
    """What counts as a run is told, and nothing is changed."""
    run(any_server, "runs", case)
