"""lua/extend.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, OTHER, PAST, TOKEN, Case, run, table
from tests.servers import RunningServer

LEASED = {
    "leases": {"a": PAST, "b": AHEAD},
    "claims": {"a": f"{TOKEN} 1 0 {PAST} me", "b": f"{OTHER} 2 1 {PAST} you"},
    "bodies": {"a": "A", "b": "B"},
}


@table(
    Case("nothing", LEASED, [1000], [], LEASED),
    Case(
        "ours, an ended one too",
        LEASED,
        [7_000_000, "a", TOKEN, "b", OTHER],
        [],
        {**LEASED, "leases": {"a": NOW + 7_000_000, "b": NOW + 7_000_000}},
    ),
    Case("not ours", LEASED, [1000, "a", OTHER, "b", TOKEN, "z", TOKEN], ["a", "b", "z"], LEASED),
    Case(
        "some of them",
        LEASED,
        [1000, "z", TOKEN, "b", OTHER],
        ["z"],
        {**LEASED, "leases": {"a": PAST, "b": NOW + 1000}},
    ),
    Case(
        "the same twice", LEASED, [1000, "b", OTHER, "b", OTHER], [], {**LEASED, "leases": {"a": PAST, "b": NOW + 1000}}
    ),
    Case(
        "what was given back",
        {"timeline": {"a": PAST}, "claims": {"a": f"-{TOKEN} 1 0 {PAST} me"}, "bodies": {"a": "A"}},
        [1000, "a", TOKEN, "a", f"-{TOKEN}"],
        ["a", "a"],
        {"timeline": {"a": PAST}, "claims": {"a": f"-{TOKEN} 1 0 {PAST} me"}, "bodies": {"a": "A"}},
    ),
    Case("an empty timeline", {}, [1000, "a", TOKEN], ["a"]),
)
def test_renewing(any_server: RunningServer, case: Case) -> None:
    """A lease ends its length from now for who has the current token; others are told and change nothing."""
    run(any_server, "extend", case)
