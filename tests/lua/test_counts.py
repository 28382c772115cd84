"""lua/counts.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, PAST, Case, run, table
from tests.servers import RunningServer

STATE = {
    "timeline": {"a": PAST + 5, "b": AHEAD},
    "timeline:2": {"c": PAST, "d": PAST, "e": AHEAD},
    "leases": {"l": AHEAD, "m": PAST},
    "parked": {"p": PAST},
    "dead": {"x": PAST, "y": PAST, "z": PAST},
}


@table(
    Case("an empty timeline", {}, [], [NOW, 0, 0, 0, 0, 0, "", 0]),
    Case("of each some", STATE, [], [NOW, 3, 2, 2, 1, 3, str(PAST), 1], STATE),
    Case(
        "only later ones",
        {"timeline:1": {"a": AHEAD}},
        [],
        [NOW, 0, 1, 0, 0, 0, str(AHEAD), 0],
        {"timeline:1": {"a": AHEAD}},
    ),
    Case(
        "the last exact moment",
        {"timeline": {"a": 2**53}},
        [],
        [NOW, 0, 1, 0, 0, 0, str(2**53), 0],
        {"timeline": {"a": 2**53}},
    ),
)
def test_counting(any_server: RunningServer, case: Case) -> None:
    """Each place is counted over all levels, and nothing changes."""
    run(any_server, "counts", case)
