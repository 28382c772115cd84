"""lua/leave.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, RUNG, Case, run, table
from tests.servers import RunningServer


@table(
    Case(
        "who watched",
        {"watch": {"c": AHEAD, "w": AHEAD}, "own:c": {"own": 0}},
        ["c"],
        1,
        {"watch": {"w": AHEAD}, **RUNG},
    ),
    Case("who did not watch", {"watch": {"w": AHEAD}, "own:c": {"own": 0}}, ["c"], 0, {"watch": {"w": AHEAD}}),
    Case("nobody is left", {}, ["c"], 0),
    Case("whose pop may have taken a ring along", {}, ["c", 1], 0, RUNG),
)
def test_leaving(any_server: RunningServer, case: Case) -> None:
    """A claimer that ends leaves no keys, and wakes another if it would have woken for a moment."""
    run(any_server, "leave", case)
