"""lua/run_end.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, PAST, RUNG, Case, run, table
from tests.servers import RunningServer

WANTED = f"{AHEAD} wanted - {PAST} "


def over(id_: str = "1") -> str:
    """Return the line of the run that ended last."""
    return f"NOW+600000000 over {id_} NOW "


@table(
    Case(
        "the last run",
        {"runs": {"e": f"{AHEAD} running 1 {PAST} w1"}, "lapses": {"e": AHEAD}},
        ["e", "1"],
        1,
        {"runs": {"e": over()}, "lapses": {"e": NOW + 600_000_000}},
    ),
    Case(
        "a run that is not known",
        {},
        ["e", "1"],
        0,
        {"runs": {"e": over()}, "lapses": {"e": NOW + 600_000_000}},
    ),
    Case(
        "the one that ended before is forgotten",
        {"runs": {"e": f"{AHEAD} running 1 {PAST} w1\n{AHEAD} over 0 {PAST} "}, "lapses": {"e": AHEAD}},
        ["e", "1"],
        1,
        {"runs": {"e": over()}, "lapses": {"e": NOW + 600_000_000}},
    ),
    Case(
        "an entry that nobody wants stays",
        {
            "runs": {"e": f"{AHEAD} running 1 {PAST} w1"}, "lapses": {"e": AHEAD},
            "timeline": {"e": AHEAD}, "bodies": {"e": "E"},
        },
        ["e", "1"],
        1,
        {
            "runs": {"e": over()}, "lapses": {"e": NOW + 600_000_000}, "timeline": {"e": AHEAD}, "bodies": {"e": "E"},
        },
    ),
    Case(
        "an entry that waits for it is due",
        {
            "runs": {"e": f"{AHEAD} running 1 {PAST} w1\n{WANTED}"}, "lapses": {"e": AHEAD},
            "timeline:1": {"e": AHEAD}, "bodies": {"e": "E"},
        },
        ["e", "1"],
        1,
        {
            "runs": {"e": over()}, "lapses": {"e": NOW + 600_000_000}, "timeline:1": {"e": NOW}, "bodies": {"e": "E"},
            **RUNG,
        },
    ),
    Case(
        "an entry that waits for another too is not",
        {
            "runs": {"e": f"{AHEAD} running 1 {PAST} w1\n{AHEAD} running 2 {PAST} w1\n{WANTED}"},
            "lapses": {"e": AHEAD}, "timeline": {"e": AHEAD}, "bodies": {"e": "E"},
        },
        ["e", "1"],
        1,
        {
            "runs": {"e": f"{AHEAD} running 2 {PAST} w1\n{WANTED}\n{over()}"}, "lapses": {"e": AHEAD},
            "timeline": {"e": AHEAD}, "bodies": {"e": "E"},
        },
    ),
    Case(
        "an entry that is due sooner stays so",
        {
            "runs": {"e": f"{AHEAD} running 1 {PAST} w1\n{WANTED}"}, "lapses": {"e": AHEAD},
            "timeline": {"e": PAST}, "bodies": {"e": "E"},
        },
        ["e", "1"],
        1,
        {"runs": {"e": over()}, "lapses": {"e": NOW + 600_000_000}, "timeline": {"e": PAST}, "bodies": {"e": "E"}},
    ),
)  # fmt: skip
def test_run_end(any_server: RunningServer, case: Case) -> None:
    """A run is over, is remembered as the last, and calls the entry that waits for it."""
    run(any_server, "run_end", case)
