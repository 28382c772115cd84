"""lua/renew.lua"""

from __future__ import annotations

import hashlib

from tests.lua.tables import AHEAD, PAST, RUNG, TOKEN, Case, run, table
from tests.servers import RunningServer


def sha(text: str) -> str:
    """Return what a content is recognized by."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


A, N, NONE = sha("A"), sha("n"), sha("")
KNOWN = {"bodies": {"a": "A"}, "notes": {"a": "n"}}
FRESH = {"bodies": {"a": "B"}, "notes": {"a": "m"}}


@table(
    Case(
        "waiting, with no note",
        {"timeline": {"a": AHEAD}, "bodies": {"a": "A"}},
        ["a", A, NONE, "B", PAST, "m"],
        1,
        {**FRESH, "timeline": {"a": PAST}, **RUNG},
    ),
    Case(
        "waiting for a retry, whose record goes",
        {**KNOWN, "timeline": {"a": AHEAD}, "claims": {"a": f"-{TOKEN} 2 0 {PAST} me"}},
        ["a", A, N, "B", PAST + 5, "m"],
        1,
        {**FRESH, "timeline": {"a": PAST + 5}, **RUNG},
    ),
    Case(
        "leased, whose token is void",
        {**KNOWN, "leases": {"a": AHEAD}, "claims": {"a": f"{TOKEN} 1 0 {PAST} me"}},
        ["a", A, N, "B", AHEAD, "m"],
        1,
        {**FRESH, "timeline": {"a": AHEAD}},
    ),
    Case(
        "parked, where it stays",
        {**KNOWN, "parked": {"a": AHEAD}, "reasons": {"a": "r"}},
        ["a", A, N, "B", PAST + 5, "m"],
        1,
        {**FRESH, "parked": {"a": PAST + 5}, "reasons": {"a": "r"}},
    ),
    Case(
        "dead, to a moment",
        {**KNOWN, "dead": {"a": AHEAD}, "reasons": {"a": "finished"}},
        ["a", A, N, "B", AHEAD + 1, "m"],
        1,
        {**FRESH, "timeline": {"a": AHEAD + 1}},
    ),
    Case(
        "dead, where it stays",
        {**KNOWN, "dead": {"a": AHEAD}, "reasons": {"a": "r"}, "claims": {"a": f"-{TOKEN} 3 0 {PAST} me"}},
        ["a", A, N, "B", "", "m"],
        1,
        {**FRESH, "dead": {"a": AHEAD}, "reasons": {"a": "r"}, "claims": {"a": f"-{TOKEN} 3 0 {PAST} me"}},
    ),
    Case(
        "another body by now",
        {"bodies": {"a": "C"}, "notes": {"a": "n"}, "timeline": {"a": AHEAD}},
        ["a", A, N, "B", PAST, "m"],
        0,
        {"bodies": {"a": "C"}, "notes": {"a": "n"}, "timeline": {"a": AHEAD}},
    ),
    Case(
        "another note by now",
        {"bodies": {"a": "A"}, "notes": {"a": "o"}, "timeline": {"a": AHEAD}},
        ["a", A, N, "B", PAST, "m"],
        0,
        {"bodies": {"a": "A"}, "notes": {"a": "o"}, "timeline": {"a": AHEAD}},
    ),
    Case("gone", {}, ["a", A, NONE, "B", PAST, "m"], 0),
)
def test_renewing(any_server: RunningServer, case: Case) -> None:
    """An entry gets its new document, record and moment together, or nothing if it is another by now."""
    run(any_server, "renew", case)
