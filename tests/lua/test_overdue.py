"""lua/overdue.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, OTHER, PAST, TOKEN, Case, run, table
from tests.servers import RunningServer

MINUTE = 60_000_000
RETRY = {
    "timeline": {"again": PAST + 9, "plain": PAST + 5, "later": AHEAD},
    "claims": {"again": f"-{TOKEN} 2 0 {PAST} ann:1"},
}
LEASED = {
    "leases": {"live": AHEAD, "ended": PAST + 9, "early": AHEAD},
    "claims": {
        "live": f"{TOKEN} 1 0 {PAST + 4} ann:1",
        "ended": f"{OTHER} 1 0 {PAST + 3} bob:2",
        "early": f"{OTHER} 1 0 {AHEAD} bob:2",
    },
}


@table(
    Case("nothing is leased", {}, [-1, 0, 10, MINUTE], [0]),
    Case("of the leased", LEASED, [-1, 0, 10, MINUTE], [3, NOW, "ended", str(PAST + 3), "bob:2"], LEASED),
    Case("of a part of the leased", LEASED, [-1, 1, 10, MINUTE], [2, NOW, "live", str(PAST + 4), "ann:1"], LEASED),
    Case("what is leased is not due", LEASED, [-1, 1, 1, MINUTE], [1], LEASED),
    Case("what is tried again stands for its first moment", RETRY, [0, 0, 10, MINUTE],
         [2, NOW, "again", str(PAST), "ann:1"], RETRY),
    Case("what was never claimed is nobody's", RETRY, [0, 0, 1, MINUTE], [1, NOW, "plain", str(PAST + 5), ""], RETRY),
    Case("what waits elsewhere", RETRY, [1, 0, 10, MINUTE], [0], RETRY),
    Case("what is not due", {"timeline:2": {"a": AHEAD}}, [2, 0, 10, 2 * AHEAD], [1], {"timeline:2": {"a": AHEAD}}),
)  # fmt: skip
def test_what_is_overdue(any_server: RunningServer, case: Case) -> None:
    """The earliest moment that anything stands for and that has passed, wherever it is; nothing changes."""
    run(any_server, "overdue", case)


def test_what_waits_to_be_tried_again_is_seen_before_that_moment(any_server: RunningServer) -> None:
    """It waits for a moment to come, a little ahead."""
    state = {"timeline": {"a": AHEAD}, "claims": {"a": f"-{TOKEN} 1 0 {PAST} ann:1"}}
    run(any_server, "overdue", Case("", state, [0, 0, 9, AHEAD], [1, NOW, "a", str(PAST), "ann:1"], state))
    any_server.reset()
    run(any_server, "overdue", Case("", state, [0, 0, 9, MINUTE], [0], state))
