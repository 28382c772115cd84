"""lua/upcoming.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, PAST, Case, run, table
from tests.servers import RunningServer

STATE = {
    "timeline": {"a": PAST, "c": PAST + 2, "e": AHEAD},
    "timeline:2": {"b": PAST, "d": PAST + 2},
    "bodies": {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E"},
}
A, B, C = ["a", str(PAST), 0, "A"], ["b", str(PAST), 2, "B"], ["c", str(PAST + 2), 0, "C"]
D, E = ["d", str(PAST + 2), 2, "D"], ["e", str(AHEAD), 0, "E"]
BYTES = {"timeline": {"Z": PAST, "a": PAST, "aa": PAST, "ä": PAST, "": PAST}, "bodies": {"a": "A"}}


@table(
    Case("an empty timeline", {}, [10, "-inf", ""], []),
    Case("all levels by moment and id", STATE, [10, "-inf", ""], [*A, *B, *C, *D, *E], STATE),
    Case("a first page", STATE, [2, "-inf", ""], [*A, *B], STATE),
    Case("a second page", STATE, [2, PAST, "b"], [*C, *D], STATE),
    Case("a page that begins within a moment", STATE, [2, PAST, "a"], [*B, *C], STATE),
    Case("after an item that is gone", STATE, [2, PAST + 2, "cc"], [*D, *E], STATE),
    Case("after the last", STATE, [2, AHEAD, "e"], [], STATE),
    Case("none", STATE, [0, "-inf", ""], [], STATE),
    Case(
        "ids are ordered by their bytes",
        BYTES,
        [10, "-inf", ""],
        [
            "",
            str(PAST),
            0,
            "",
            "Z",
            str(PAST),
            0,
            "",
            "a",
            str(PAST),
            0,
            "A",
            "aa",
            str(PAST),
            0,
            "",
            "ä",
            str(PAST),
            0,
            "",
        ],
        BYTES,
    ),
    Case("and paged by their bytes", BYTES, [10, PAST, "a"], ["aa", str(PAST), 0, "", "ä", str(PAST), 0, ""], BYTES),
)
def test_paging(any_server: RunningServer, case: Case) -> None:
    """A page holds what waits after the last item of the page before, soonest first, and nothing changes."""
    run(any_server, "upcoming", case)
