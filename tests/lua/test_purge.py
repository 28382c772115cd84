"""lua/purge.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, PAST, RUNG, RUNG_TWICE, TOKEN, Case, run, table
from tests.servers import RunningServer

STATE = {
    "timeline": {"a": PAST, "b": AHEAD},
    "timeline:2": {"c": PAST},
    "bodies": {"a": "A", "b": "B", "c": "C"},
    "claims": {"a": f"-{TOKEN} 1 0 {PAST} me"},
    "notes": {"c": "n"},
    "marks": {"entry": "1 5"},
    **RUNG_TWICE,
}
ASIDE = {
    "leases": {"l": AHEAD},
    "parked": {"p": PAST},
    "dead": {"d": PAST},
    "bodies": {"l": "L", "p": "P", "d": "D"},
    "claims": {"l": f"{TOKEN} 1 0 {PAST} me"},
    "reasons": {"p": "r", "d": "r"},
    "notes": {"l": "n"},
    **RUNG,
}


@table(
    Case("an empty timeline", {}, [10], 0),
    Case("everything that waits", STATE, [10], 3, {"marks": {"entry": "1 5"}}),
    Case(
        "a bounded number",
        STATE,
        [1],
        1,
        {**STATE, "timeline": {"b": AHEAD}, "bodies": {"b": "B", "c": "C"}, "claims": {}},
    ),
    Case("across levels", STATE, [3], 3, {"marks": {"entry": "1 5"}}),
    Case("what does not wait stays", ASIDE, [10], 0, ASIDE),
)
def test_purging(any_server: RunningServer, case: Case) -> None:
    """What waits is gone, level after level, up to the limit; the rest stays."""
    after = {key: content for key, content in case.after.items() if content}
    run(any_server, "purge", Case(case.name, case.before, case.args, case.answer, after))
