"""lua/reschedule.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, OTHER, PAST, RUNG, TOKEN, Case, run, table
from tests.servers import RunningServer

LEASED = {
    "leases": {"a": AHEAD},
    "claims": {"a": f"{TOKEN} 3 1 {PAST} me"},
    "bodies": {"a": "A"},
    "notes": {"a": "old"},
}


@table(
    Case(
        "far off",
        LEASED,
        [0, "a", TOKEN, AHEAD, "new"],
        [],
        {"timeline:1": {"a": AHEAD}, "bodies": {"a": "A"}, "notes": {"a": "new"}},
    ),
    Case(
        "without a note",
        LEASED,
        [0, "a", TOKEN, AHEAD, ""],
        [],
        {"timeline:1": {"a": AHEAD}, "bodies": {"a": "A"}, "notes": {"a": "old"}},
    ),
    Case(
        "due already rings",
        LEASED,
        [0, "a", TOKEN, PAST, ""],
        [],
        {"timeline:1": {"a": PAST}, "bodies": {"a": "A"}, "notes": {"a": "old"}, **RUNG},
    ),
    Case(
        "due already, by who claims again at once",
        LEASED,
        [1, "a", TOKEN, PAST, ""],
        [],
        {"timeline:1": {"a": PAST}, "bodies": {"a": "A"}, "notes": {"a": "old"}},
    ),
    Case("not ours", LEASED, [0, "a", OTHER, AHEAD, "new", "z", TOKEN, AHEAD, "new"], ["a", "z"], LEASED),
    Case(
        "twice in one call",
        LEASED,
        [0, "a", TOKEN, AHEAD, "n", "a", TOKEN, PAST, "m"],
        ["a"],
        {"timeline:1": {"a": AHEAD}, "bodies": {"a": "A"}, "notes": {"a": "n"}},
    ),
    Case(
        "an ended lease on a level that is no longer there",
        {"leases": {"a": PAST}, "claims": {"a": f"{TOKEN} 3 7 {PAST} me"}, "bodies": {"a": "A"}},
        [0, "a", TOKEN, AHEAD, ""],
        [],
        {"timeline:2": {"a": AHEAD}, "bodies": {"a": "A"}},
    ),
)
def test_moving_on(any_server: RunningServer, case: Case) -> None:
    """What was claimed waits on its level for its next moment, its deliveries forgotten."""
    run(any_server, "reschedule", case)
