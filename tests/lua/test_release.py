"""lua/release.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, OTHER, PAST, RUNG, RUNG_TWICE, TOKEN, Case, run, table
from tests.servers import RunningServer


def leased(record: str) -> dict[str, dict[str, object]]:
    """Return a state with one leased id."""
    return {"leases": {"a": AHEAD}, "claims": {"a": record}, "bodies": {"a": "A"}}


@table(
    Case(
        "what was cancelled meanwhile is gone, however it is given back",
        {
            "leases": {"a": AHEAD, "b": AHEAD},
            "claims": {"a": f"{TOKEN} 1 0 {PAST} !cancelled me", "b": f"{TOKEN} 2 1 {PAST} !cancelled me"},
            "bodies": {"a": "A", "b": "B"},
            "notes": {"b": "n"},
        },
        ["a", TOKEN, "uncounted", "b", TOKEN, "+5000000"],
        [],
    ),
    Case(
        "uncounted, as if never delivered",
        leased(f"{TOKEN} 1 1 {PAST} me"),
        ["a", TOKEN, "uncounted"],
        [],
        {"timeline:1": {"a": PAST}, "bodies": {"a": "A"}, **RUNG},
    ),
    Case(
        "uncounted, after other deliveries",
        leased(f"{TOKEN} 3 0 {PAST} me"),
        ["a", TOKEN, "uncounted"],
        [],
        {"timeline": {"a": PAST}, "claims": {"a": f"-{TOKEN} 2 0 {PAST} me"}, "bodies": {"a": "A"}, **RUNG},
    ),
    Case(
        "counted",
        leased(f"{TOKEN} 1 2 {PAST} a holder"),
        ["a", TOKEN, "counted"],
        [],
        {"timeline:2": {"a": PAST}, "claims": {"a": f"-{TOKEN} 1 2 {PAST} a holder"}, "bodies": {"a": "A"}, **RUNG},
    ),
    Case(
        "later, but due for the old moment",
        leased(f"{TOKEN} 1 0 {PAST} me"),
        ["a", TOKEN, "+5000000"],
        [],
        {
            "timeline": {"a": NOW + 5_000_000},
            "claims": {"a": f"-{TOKEN} 1 0 {PAST} me"},
            "bodies": {"a": "A"},
            **RUNG_TWICE,
        },
    ),
    Case(
        "much later wakes nobody",
        leased(f"{TOKEN} 1 0 {PAST} me"),
        ["a", TOKEN, "+60000000"],
        [],
        {"timeline": {"a": NOW + 60_000_000}, "claims": {"a": f"-{TOKEN} 1 0 {PAST} me"}, "bodies": {"a": "A"}},
    ),
    Case(
        "an ended lease",
        {**leased(f"{TOKEN} 1 0 {PAST} me"), "leases": {"a": PAST}},
        ["a", TOKEN, "uncounted"],
        [],
        {"timeline": {"a": PAST}, "bodies": {"a": "A"}, **RUNG},
    ),
    Case(
        "a level that is no longer there",
        leased(f"{TOKEN} 1 9 {PAST} me"),
        ["a", TOKEN, "uncounted"],
        [],
        {"timeline:2": {"a": PAST}, "bodies": {"a": "A"}, **RUNG},
    ),
    Case(
        "not ours",
        leased(f"{TOKEN} 1 0 {PAST} me"),
        ["a", OTHER, "uncounted", "z", TOKEN, "counted"],
        ["a", "z"],
        leased(f"{TOKEN} 1 0 {PAST} me"),
    ),
    Case(
        "twice in one call",
        leased(f"{TOKEN} 1 0 {PAST} me"),
        ["a", TOKEN, "counted", "a", TOKEN, "counted"],
        ["a"],
        {"timeline": {"a": PAST}, "claims": {"a": f"-{TOKEN} 1 0 {PAST} me"}, "bodies": {"a": "A"}, **RUNG},
    ),
)
def test_giving_back(any_server: RunningServer, case: Case) -> None:
    """What is given back stands where it stood, and its token is void."""
    run(any_server, "release", case)
