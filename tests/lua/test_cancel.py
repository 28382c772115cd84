"""lua/cancel.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, OTHER, PAST, RUNG, TOKEN, Case, run, table
from tests.servers import RunningServer

EVERYWHERE = {
    "timeline": {"w": PAST},
    "timeline:2": {"v": AHEAD},
    "leases": {"l": AHEAD, "e": PAST},
    "parked": {"p": PAST},
    "dead": {"d": PAST},
    "bodies": {"w": "W", "v": "V", "l": "L", "e": "E", "p": "P", "d": "D"},
    "claims": {
        "l": f"{TOKEN} 1 0 {PAST} me", "e": f"{OTHER} 1 0 {PAST} you", "d": f"-{OTHER} 1 0 {PAST} me"
    },
    "reasons": {"p": "r", "d": "r"},
    "notes": {"w": "n", "l": "n", "d": "n"},
    **RUNG,
}  # fmt: skip
HELD = {
    "leases": {"l": AHEAD},
    "bodies": {"l": "L"},
    "claims": {"l": f"{TOKEN} 1 0 {PAST} !cancelled me"},
    "notes": {"l": "n"},
    **RUNG,
}


@table(
    Case(
        "what nobody holds is gone, what is held is marked",
        EVERYWHERE,
        ["w", "v", "l", "e", "p", "d", "z"],
        ["removed", "removed", "held", "removed", "removed", "removed", "unknown"],
        HELD,
    ),
    Case("marked twice is marked once", HELD, ["l"], ["held"], HELD),
    Case("a lease without a record is nobody's", {"leases": {"l": AHEAD}, "bodies": {"l": "L"}}, ["l"], ["removed"]),
    Case("nothing", {}, [], []),
)
def test_cancelling(any_server: RunningServer, case: Case) -> None:
    """What waits, is parked, dead or under an ended lease goes; a lease that goes on keeps its token and is marked."""
    run(any_server, "cancel", case)
