"""lua/bury.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, OTHER, PAST, TOKEN, Case, run, table
from tests.servers import RunningServer

GRAVES = {
    "dead": {"x": PAST, "y": PAST + 1},
    "bodies": {"x": "X", "y": "Y"},
    "reasons": {"x": "r", "y": "r"},
    "claims": {"x": f"-{TOKEN} 1 0 {PAST} me"},
    "notes": {"x": "n"},
}


def buried(record: str, **more: dict[str, object]) -> dict[str, dict[str, object]]:
    """Return a state with one dead id."""
    return {"dead": {"a": NOW}, "bodies": {"a": "A"}, "claims": {"a": record}, "reasons": {"a": "bad"}, **more}


@table(
    Case(
        "what waits keeps its moment",
        {"timeline": {"a": PAST}, "bodies": {"a": "A"}},
        [9, "a", "", "bad", ""],
        [],
        buried(f"- 0 0 {PAST} "),
    ),
    Case(
        "what waits on a level",
        {"timeline:2": {"a": AHEAD}, "bodies": {"a": "A"}},
        [9, "a", "", "bad", "note"],
        [],
        buried(f"- 0 2 {AHEAD} ", notes={"a": "note"}),
    ),
    Case(
        "by its holder",
        {"leases": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"{TOKEN} 4 1 {PAST} me"}},
        [9, "a", TOKEN, "bad", ""],
        [],
        buried(f"-{TOKEN} 4 1 {PAST} me"),
    ),
    Case(
        "by anybody",
        {
            "leases": {"a": AHEAD},
            "bodies": {"a": "A"},
            "claims": {"a": f"{TOKEN} 4 1 {PAST} me"},
            "notes": {"a": "old"},
        },
        [9, "a", "", "bad", ""],
        [],
        buried(f"-{TOKEN} 4 1 {PAST} me", notes={"a": "old"}),
    ),
    Case(
        "not by a former holder",
        {"leases": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"{TOKEN} 4 1 {PAST} me"}},
        [9, "a", OTHER, "bad", "note", "z", "", "bad", "note"],
        ["a", "z"],
        {"leases": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"{TOKEN} 4 1 {PAST} me"}},
    ),
    Case(
        "what is parked",
        {"parked": {"a": PAST}, "bodies": {"a": "A"}, "reasons": {"a": "r"}},
        [9, "a", "", "bad", ""],
        [],
        buried(f"- 0 0 {PAST} "),
    ),
    Case(
        "what is dead keeps what it was due for",
        {"dead": {"a": AHEAD}, "bodies": {"a": "A"}, "reasons": {"a": "r"}, "claims": {"a": f"-{TOKEN} 4 1 {PAST} me"}},
        [9, "a", "", "bad", ""],
        [],
        buried(f"-{TOKEN} 4 1 {PAST} me"),
    ),
    Case(
        "the oldest go beyond the bound",
        {**GRAVES, "timeline": {"a": PAST}, "bodies": {"a": "A", "x": "X", "y": "Y"}},
        [2, "a", "", "bad", ""],
        [],
        {
            "dead": {"y": PAST + 1, "a": NOW},
            "bodies": {"y": "Y", "a": "A"},
            "reasons": {"y": "r", "a": "bad"},
            "claims": {"a": f"- 0 0 {PAST} "},
        },
    ),
    Case(
        "none are to be kept",
        {**GRAVES, "timeline": {"a": PAST}, "bodies": {"a": "A", "x": "X", "y": "Y"}},
        [0, "a", "", "bad", "note"],
        [],
        {},
    ),
)
def test_burying(any_server: RunningServer, case: Case) -> None:
    """The dead keep body, deliveries, reason, last holder and moment, and are bounded in number."""
    run(any_server, "bury", case)
