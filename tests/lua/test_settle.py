"""lua/settle.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, OTHER, PAST, TOKEN, Case, run, table
from tests.servers import RunningServer

LEASED = {
    "leases": {"a": AHEAD, "b": PAST},
    "claims": {"a": f"{TOKEN} 1 0 {PAST} me", "b": f"{OTHER} 2 1 {PAST} you"},
    "bodies": {"a": "A", "b": "B"},
}


@table(
    Case("nothing", LEASED, [], [], LEASED),
    Case("all", {**LEASED, "notes": {"a": "n"}}, ["a", TOKEN, "b", OTHER], []),
    Case(
        "an ended lease that nobody else took",
        LEASED,
        ["b", OTHER],
        [],
        {"leases": {"a": AHEAD}, "claims": {"a": f"{TOKEN} 1 0 {PAST} me"}, "bodies": {"a": "A"}},
    ),
    Case("somebody else's token", LEASED, ["a", OTHER], ["a"], LEASED),
    Case("the beginning of a token", LEASED, ["a", TOKEN[:-1]], ["a"], LEASED),
    Case("no token", LEASED, ["a", ""], ["a"], LEASED),
    Case("an unknown id", LEASED, ["z", TOKEN], ["z"], LEASED),
    Case(
        "the same twice",
        LEASED,
        ["a", TOKEN, "a", TOKEN, "b", TOKEN],
        ["b"],
        {"leases": {"b": PAST}, "claims": {"b": f"{OTHER} 2 1 {PAST} you"}, "bodies": {"b": "B"}},
    ),
)
def test_settling(any_server: RunningServer, case: Case) -> None:
    """What is done is gone with all that is known of it; a token that is no longer current changes nothing."""
    run(any_server, "settle", case)


RELEASED = {"timeline": {"a": PAST}, "bodies": {"a": "A"}, "claims": {"a": f"-{TOKEN} 1 0 {PAST} me"}}
NEVER_HELD = {"parked": {"a": PAST}, "bodies": {"a": "A"}, "claims": {"a": f"- 0 1 {PAST} "}, "reasons": {"a": "r"}}


@table(
    Case("its old token", RELEASED, ["a", TOKEN], ["a"], RELEASED),
    Case("the voided token itself", RELEASED, ["a", f"-{TOKEN}"], ["a"], RELEASED),
    Case("the token of what was never held", NEVER_HELD, ["a", "-"], ["a"], NEVER_HELD),
)
def test_settling_what_nobody_holds(any_server: RunningServer, case: Case) -> None:
    """What is not leased cannot be settled, whatever is shown for it."""
    run(any_server, "settle", case)
