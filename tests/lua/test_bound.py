"""lua/bound.lua and lua/touch.lua: what a queue knows of its bindings, and what it says of them as it lives on."""

from __future__ import annotations

from tests.lua.tables import PAST, Case, State, run, table
from tests.servers import RunningServer

RULES = {"declared": str(PAST), "claimed": "7"}
BOUND = {"bound x\0k\0^k$\0q": "1"}
PLAIN: State = {"rules": RULES}
NOTED: State = {"rules": RULES | BOUND}


@table(
    Case("bound", PLAIN, ["x\0k\0^k$\0q", 1], "", NOTED),
    Case("bound once more", NOTED, ["x\0k\0^k$\0q", 1], "", NOTED),
    Case("no longer bound", NOTED, ["x\0k\0^k$\0q", 0], "", PLAIN),
    Case("never bound", NOTED, ["x\0other\0^other$\0q", 0], "", NOTED),
    Case("its life is told", {"rules": {"expires": "9"}}, ["x", 1], "9", {"rules": {"expires": "9", "bound x": "1"}}),
    Case("a queue that has gone stays so", {}, ["x", 1], None),
)
def test_noting_a_binding(any_server: RunningServer, case: Case) -> None:
    """A queue knows what it is bound to as long as it is known itself."""
    run(any_server, "bound", case)


@table(
    Case("gone", {}, [0], [-1, ""]),
    Case("bound and for ever", NOTED, [0], [0, "", "x\0k\0^k$\0q"], NOTED),
    Case("one consumer more", PLAIN, [1], [1, ""], {"rules": RULES | {"consumers": "1"}}),
)
def test_touching(any_server: RunningServer, case: Case) -> None:
    """A queue that lives on tells what is to live on with it."""
    run(any_server, "touch", case)
