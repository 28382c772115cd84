"""lua/run_forget.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, PAST, Case, run, table
from tests.servers import RunningServer

RUNNING = f"{AHEAD} running 1 {PAST} w1"
SENT = f"{AHEAD} sent 2 {PAST} b1"
OTHERS = f"{AHEAD + 1} over 0 {PAST} \n{AHEAD + 1} wanted - {PAST} "


@table(
    Case("an entry without runs", {}, ["e"], 0),
    Case("what waits is forgotten, and what is remembered",
         {"runs": {"e": f"{SENT}\n{OTHERS}"}, "lapses": {"e": AHEAD + 1}}, ["e", "g"], 1),
    Case(
        "what runs stays",
        {"runs": {"e": f"{SENT}\n{RUNNING}\n{OTHERS}"}, "lapses": {"e": AHEAD + 1}},
        ["e"],
        1,
        {"runs": {"e": RUNNING}, "lapses": {"e": AHEAD}},
    ),
    Case(
        "runs of others stay",
        {"runs": {"e": SENT, "f": SENT}, "lapses": {"e": AHEAD, "f": AHEAD}},
        ["e"],
        1,
        {"runs": {"f": SENT}, "lapses": {"f": AHEAD}},
    ),
)  # fmt: skip
def test_run_forget(any_server: RunningServer, case: Case) -> None:
    """A deleted entry takes its runs along, but for those that go on."""
    run(any_server, "run_forget", case)
