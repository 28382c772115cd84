"""lua/restore.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, OTHER, PAST, RUNG, TOKEN, Case, run, table
from tests.servers import RunningServer

PARKED = {"parked": {"a": PAST}, "bodies": {"a": "A"}, "reasons": {"a": "r"}}
DEAD = {"dead": {"a": OTHER}, "bodies": {"a": "A"}, "reasons": {"a": "r"}, "notes": {"a": "n"}}


@table(
    Case(
        "parked, to where it was",
        PARKED,
        ["parked", "a", ""],
        ["parked"],
        {"timeline": {"a": PAST}, "bodies": {"a": "A"}, **RUNG},
    ),
    Case(
        "parked, to a moment",
        PARKED,
        ["parked", "a", AHEAD],
        ["parked"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "A"}},
    ),
    Case(
        "parked on a level, never delivered",
        {**PARKED, "claims": {"a": f"- 0 2 {PAST} "}},
        ["parked", "a", ""],
        ["parked"],
        {"timeline:2": {"a": PAST}, "bodies": {"a": "A"}, **RUNG},
    ),
    Case(
        "parked on a level that is no longer there",
        {**PARKED, "claims": {"a": f"- 0 8 {PAST} "}},
        ["parked", "a", ""],
        ["parked"],
        {"timeline:2": {"a": PAST}, "bodies": {"a": "A"}, **RUNG},
    ),
    Case(
        "parked while it waited for a retry",
        {
            "parked": {"a": AHEAD},
            "bodies": {"a": "A"},
            "reasons": {"a": "r"},
            "claims": {"a": f"-{TOKEN} 2 0 {PAST} me"},
        },
        ["parked", "a", ""],
        ["parked"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"-{TOKEN} 2 0 {PAST} me"}},
    ),
    Case(
        "parked after deliveries, to another moment",
        {**PARKED, "claims": {"a": f"-{TOKEN} 2 1 {PAST} me"}},
        ["parked", "a", AHEAD],
        ["parked"],
        {"timeline:1": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"-{TOKEN} 2 1 {AHEAD} me"}},
    ),
    Case(
        "dead, to where it was",
        {**DEAD, "claims": {"a": f"-{TOKEN} 20 1 {PAST} me"}},
        ["dead", "a", ""],
        ["dead"],
        {"timeline:1": {"a": PAST}, "bodies": {"a": "A"}, "notes": {"a": "n"}, **RUNG},
    ),
    Case(
        "dead, to a moment",
        {**DEAD, "claims": {"a": f"-{TOKEN} 20 0 {PAST} me"}},
        ["dead", "a", AHEAD],
        ["dead"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "A"}, "notes": {"a": "n"}},
    ),
    Case("only from the place that was named", PARKED, ["dead", "a", "", "z", ""], ["parked", "unknown"], PARKED),
    Case(
        "what waits is left",
        {"timeline": {"a": AHEAD}, "bodies": {"a": "A"}},
        ["parked", "a", PAST],
        ["waiting"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "A"}},
    ),
    Case(
        "twice in one call",
        PARKED,
        ["parked", "a", "", "a", AHEAD],
        ["parked", "waiting"],
        {"timeline": {"a": PAST}, "bodies": {"a": "A"}, **RUNG},
    ),
)
def test_restoring(any_server: RunningServer, case: Case) -> None:
    """What was set aside waits again on its own level; the dead begin with no deliveries."""
    run(any_server, "restore", case)
