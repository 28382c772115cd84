"""lua/remove.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, OTHER, PAST, RUNG, TOKEN, Case, run, table
from tests.servers import RunningServer

EVERYWHERE = {
    "timeline": {"w": PAST},
    "timeline:2": {"v": PAST},
    "leases": {"l": AHEAD},
    "parked": {"p": PAST},
    "dead": {"d": PAST},
    "bodies": {"w": "W", "v": "V", "l": "L", "p": "P", "d": "D"},
    "claims": {"l": f"{TOKEN} 1 0 {PAST} me", "d": f"-{OTHER} 1 0 {PAST} me"},
    "reasons": {"p": "r", "d": "r"},
    "notes": {"w": "n", "l": "n", "d": "n"},
    "marks": {"entry": "1 5"},
    **RUNG,
}
LEASED = {
    "leases": {"l": AHEAD},
    "bodies": {"l": "L"},
    "claims": {"l": f"{TOKEN} 1 0 {PAST} me"},
    "notes": {"l": "n"},
    "marks": {"entry": "1 5"},
    **RUNG,
}


@table(
    Case(
        "everything",
        EVERYWHERE,
        [0, "w", "v", "l", "p", "d", "z", "w"],
        ["waiting", "waiting", "leased", "parked", "dead", "unknown", "unknown"],
        {"marks": {"entry": "1 5"}},
    ),
    Case(
        "but what is leased",
        EVERYWHERE,
        [1, "w", "v", "l", "p", "d"],
        ["waiting", "waiting", "leased", "parked", "dead"],
        LEASED,
    ),
    Case("nothing", LEASED, [0], [], LEASED),
    Case("an unknown id of an empty timeline", {}, [0, "z"], ["unknown"]),
)
def test_removing(any_server: RunningServer, case: Case) -> None:
    """An id is gone from wherever it stood with all that is known of it, and an empty timeline leaves no bell."""
    run(any_server, "remove", case)
