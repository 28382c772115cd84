"""lua/locate.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, PAST, TOKEN, Case, run, table
from tests.servers import RunningServer

STATE = {
    "timeline": {"w": PAST},
    "timeline:2": {"v": AHEAD},
    "leases": {"l": AHEAD},
    "parked": {"p": PAST},
    "dead": {"d": PAST},
    "bodies": {"w": "W", "v": "V", "l": "L", "p": "P", "d": "D"},
    "claims": {"l": f"{TOKEN} 1 1 {PAST} me", "v": f"-{TOKEN} 2 2 {PAST} me"},
    "reasons": {"p": "paused", "d": "bad"},
    "notes": {"w": "n"},
}
NOWHERE = ["", 0, "", "", "", "", ""]


@table(
    Case("nothing", STATE, [], [NOW], STATE),
    Case("an unknown id", {}, ["z"], [NOW, *NOWHERE]),
    Case(
        "each place",
        STATE,
        ["w", "v", "l", "p", "d", "z"],
        [
            NOW,
            "waiting",
            0,
            str(PAST),
            "",
            "",
            "n",
            "W",
            "waiting",
            2,
            str(AHEAD),
            f"-{TOKEN} 2 2 {PAST} me",
            "",
            "",
            "V",
            "leased",
            0,
            str(AHEAD),
            f"{TOKEN} 1 1 {PAST} me",
            "",
            "",
            "L",
            "parked",
            0,
            str(PAST),
            "",
            "paused",
            "",
            "P",
            "dead",
            0,
            str(PAST),
            "",
            "bad",
            "",
            "D",
            *NOWHERE,
        ],
        STATE,
    ),
)
def test_looking_up(any_server: RunningServer, case: Case) -> None:
    """An id is found wherever it stands with all that is known of it, and nothing changes."""
    run(any_server, "locate", case)
