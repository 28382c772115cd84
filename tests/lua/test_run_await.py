"""lua/run_await.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, PAST, RUNG, Case, run, table
from tests.servers import RunningServer

WANTED = f"{AHEAD} wanted - NOW "
RUN = f"{AHEAD} running 1 {PAST} w1"
WAITS = {"timeline": {"e": AHEAD + 9}, "bodies": {"e": "E"}}


@table(
    Case("an unknown entry", {}, ["e"], 0),
    Case("an entry without a run is due", WAITS, ["e"], 0, {"timeline": {"e": NOW}, "bodies": {"e": "E"}, **RUNG}),
    Case(
        "an entry with a run is due when that lapses",
        {**WAITS, "runs": {"e": RUN}, "lapses": {"e": AHEAD}},
        ["e"],
        1,
        {"timeline": {"e": AHEAD}, "bodies": {"e": "E"}, "runs": {"e": f"{RUN}\n{WANTED}"}, "lapses": {"e": AHEAD}},
    ),
    Case(
        "an entry whose run has not begun is looked at again",
        {**WAITS, "runs": {"e": f"{AHEAD} sent 1 {PAST} b1"}, "lapses": {"e": AHEAD}},
        ["e"],
        1,
        {
            "timeline": {"e": NOW + 300_000_000},
            "bodies": {"e": "E"},
            "runs": {"e": f"{AHEAD} sent 1 {PAST} b1\n{WANTED}"},
            "lapses": {"e": AHEAD},
        },
    ),
    Case(
        "an entry that waits already is told once",
        {**WAITS, "runs": {"e": f"{RUN}\n{PAST + 1} wanted - {PAST} "}, "lapses": {"e": AHEAD}},
        ["e"],
        1,
        {"timeline": {"e": AHEAD}, "bodies": {"e": "E"}, "runs": {"e": f"{RUN}\n{WANTED}"}, "lapses": {"e": AHEAD}},
    ),
    Case(
        "an entry that is claimed is left alone",
        {"leases": {"e": AHEAD}, "bodies": {"e": "E"}},
        ["e"],
        0,
        {"leases": {"e": AHEAD}, "bodies": {"e": "E"}},
    ),
)
def test_run_await(any_server: RunningServer, case: Case) -> None:
    """An entry waits for the end of its runs, or is due at once."""
    run(any_server, "run_await", case)
