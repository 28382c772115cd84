"""lua/declare.lua and lua/drop.lua: what a queue stands under, and how it ends."""

from __future__ import annotations

from typing import Any

from tests.lua.tables import AHEAD, NOW, PAST, Case, State, run, table
from tests.servers import RunningServer

NONE = [""] * 5
HELD: State = {"timeline": {"a": PAST, "b": AHEAD}, "bodies": {"a": "A", "b": "B"}}
SHORT: State = {"rules": {"declared": str(PAST), "max_length": "5", "special": "1", "claimed": "7"}}
LENGTH = ["", "", "5", "", ""]


def pairs(**rules: Any) -> list[Any]:
    """Return a declaration's arguments: all five rules, those that are not given being taken away."""
    names = ("expires", "message_ttl", "max_length", "delivery_limit", "auto_delete")
    return [part for name in names for part in (name, rules.get(name, ""))]


@table(
    Case("a look at nothing", {}, [1], [0, 0, 0, *NONE, *NONE]),
    Case("a look at what was never declared", HELD, [1], [1, 1, 0, *NONE, *NONE], HELD),
    Case("a look at rules", SHORT, [1], [1, 0, 0, *LENGTH, *LENGTH], SHORT),
    Case("a new one", {}, [2], [0, 0, 0, *NONE, *NONE], {"rules": {"declared": NOW}}),
    Case(
        "rules that stand",
        SHORT,
        [2],
        [1, 0, 0, *LENGTH, *LENGTH],
        {"rules": {**SHORT["rules"], "declared": NOW}},
    ),
    Case(
        "other rules",
        SHORT | HELD,
        [0, *pairs(message_ttl=3, delivery_limit=2)],
        [1, 1, 0, *LENGTH, "", "3", "", "2", ""],
        {"rules": {"declared": NOW, "message_ttl": "3", "delivery_limit": "2", "claimed": "7"}, **HELD},
    ),
    Case(
        "a life for what holds messages",
        SHORT | HELD,
        [0, *pairs(expires=9, max_length=6, auto_delete=1)],
        [1, 1, 2, *LENGTH, "", "", "6", "", ""],
        {"rules": {**SHORT["rules"], "declared": NOW, "max_length": "6"}, **HELD},
    ),
    Case(
        "the life that a reply has given",
        {"rules": {"expires": "9", "special": "1"}, **HELD},
        [2],
        [1, 1, 0, *NONE, *NONE],
        {"rules": {"declared": NOW}, **HELD},
    ),
)
def test_declaring(any_server: RunningServer, case: Case) -> None:
    """Rules are those of the last declaration that gave any, and nothing that waits is put to an end by one."""
    run(any_server, "declare", case)


PASSING: State = {"rules": {"expires": "9", "auto_delete": "1"}}
CONSUMED: State = {"rules": {"expires": "9", "auto_delete": "1", "consumers": "2"}}
BOUND: State = {"rules": {"declared": str(PAST), "bound \0q\0\0q": "1", "bound x\0k\0^k$\0q": "1"}}
ONE_LEFT: State = {"rules": {"expires": "9", "auto_delete": "1", "consumers": "1"}}


@table(
    Case("all of it", HELD | SHORT, [0, 0, 0], [1, ""]),
    Case("with its bindings", HELD | BOUND, [0, 0, 0], [1, "", "\0q\0\0q", "x\0k\0^k$\0q"]),
    Case("only if it is empty", HELD, [1, 0, 0], [-1, ""], HELD),
    Case("only if it is unused", {"leases": {"a": AHEAD}}, [0, 1, 0], [-1, ""], {"leases": {"a": AHEAD}}),
    Case("one of two consumers leaves", CONSUMED | HELD, [0, 0, 1], [-1, ""], ONE_LEFT | HELD),
    Case("the last consumer leaves", ONE_LEFT | HELD, [0, 0, 1], [1, NOW + 18_000]),
    Case("for broadcasts", PASSING, [0, 0, 2], [0, NOW + 18_000]),
    Case("for broadcasts but consumed", CONSUMED, [0, 0, 2], [-1, ""], CONSUMED),
    Case("for broadcasts but holding messages", PASSING | HELD, [0, 0, 2], [-1, ""], PASSING | HELD),
    Case("for broadcasts but not passing", SHORT, [0, 0, 2], [-1, ""], SHORT),
)
def test_dropping(any_server: RunningServer, case: Case) -> None:
    """A queue goes with all its keys, or stays as it is."""
    run(any_server, "drop", case)
