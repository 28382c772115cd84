"""lua/park.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, PAST, TOKEN, Case, run, table
from tests.servers import RunningServer


@table(
    Case(
        "what waits",
        {"timeline": {"a": PAST}, "bodies": {"a": "A"}},
        ["why", 0, "a"],
        ["waiting"],
        {"parked": {"a": PAST}, "bodies": {"a": "A"}, "reasons": {"a": "why"}},
    ),
    Case(
        "what waits on a level",
        {"timeline:2": {"a": AHEAD}, "bodies": {"a": "A"}},
        ["why", 0, "a"],
        ["waiting"],
        {"parked": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"- 0 2 {AHEAD} "}, "reasons": {"a": "why"}},
    ),
    Case(
        "what waits for a retry keeps what it is due for",
        {"timeline": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"-{TOKEN} 2 0 {PAST} me"}},
        ["why", 0, "a"],
        ["waiting"],
        {
            "parked": {"a": AHEAD},
            "bodies": {"a": "A"},
            "claims": {"a": f"-{TOKEN} 2 0 {PAST} me"},
            "reasons": {"a": "why"},
        },
    ),
    Case(
        "what is leased stays",
        {"leases": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"{TOKEN} 2 0 {PAST} me"}},
        ["why", 0, "a"],
        ["leased"],
        {"leases": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"{TOKEN} 2 0 {PAST} me"}},
    ),
    Case(
        "what is leased, by force",
        {"leases": {"a": AHEAD}, "bodies": {"a": "A"}, "claims": {"a": f"{TOKEN} 2 1 {PAST} me"}},
        ["why", 1, "a"],
        ["leased"],
        {
            "parked": {"a": PAST},
            "bodies": {"a": "A"},
            "claims": {"a": f"-{TOKEN} 2 1 {PAST} me"},
            "reasons": {"a": "why"},
        },
    ),
    Case(
        "what is parked gets the new reason",
        {"parked": {"a": PAST}, "bodies": {"a": "A"}, "reasons": {"a": "old"}},
        ["why", 0, "a"],
        ["parked"],
        {"parked": {"a": PAST}, "bodies": {"a": "A"}, "reasons": {"a": "why"}},
    ),
    Case(
        "what is dead stays dead, by force too",
        {"dead": {"a": PAST}, "bodies": {"a": "A"}, "reasons": {"a": "old"}},
        ["why", 1, "a"],
        ["dead"],
        {"dead": {"a": PAST}, "bodies": {"a": "A"}, "reasons": {"a": "old"}},
    ),
    Case("an unknown id", {}, ["why", 1, "z"], ["unknown"]),
    Case(
        "several, one of them twice",
        {"timeline": {"a": PAST, "b": PAST}, "bodies": {"a": "A", "b": "B"}},
        ["why", 0, "a", "z", "a"],
        ["waiting", "unknown", "parked"],
        {"timeline": {"b": PAST}, "parked": {"a": PAST}, "bodies": {"a": "A", "b": "B"}, "reasons": {"a": "why"}},
    ),
)
def test_parking(any_server: RunningServer, case: Case) -> None:
    """Parked ids keep their moment, level and deliveries; a holder's token is void once its id was taken by force."""
    run(any_server, "park", case)
