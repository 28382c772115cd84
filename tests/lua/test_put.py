"""lua/put.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, PAST, RUNG, RUNG_TWICE, TOKEN, Case, run, table
from tests.servers import RunningServer

BODY = "text"
SHA = "372ea08cab33e71c02c651dbc83a474d32c676ea"  # of BODY
WAITING = {"timeline": {"a": PAST}, "bodies": {"a": BODY}}


def item(
    id_: str = "a",
    body: str = "new",
    due: str = "",
    level: int = 0,
    mode: str = "new",
    expect: str = "",
    mark: str = "",
) -> list[object]:
    """Return the eight arguments of one item."""
    return [id_, body, due, level, mode, expect, "entry" if mark else "", mark]


@table(
    Case("nothing", {}, [0], []),
    Case("due now rings", {}, [0, *item()], ["put", "a"], {"timeline": {"a": NOW}, "bodies": {"a": "new"}, **RUNG}),
    Case(
        "a batch keeps its order by a microsecond each",
        {},
        [0, *item("a"), *item("b"), *item("c", level=2)],
        ["put", "a", "put", "b", "put", "c"],
        {
            "timeline": {"a": NOW, "b": NOW + 1},
            "timeline:2": {"c": NOW + 2},
            "bodies": {"a": "new", "b": "new", "c": "new"},
            **RUNG,
        },
    ),
    Case(
        "at a moment far off nobody is woken",
        {},
        [0, *item(due=str(AHEAD))],
        ["put", "a"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}},
    ),
    Case(
        "later than the longest block nobody is woken",
        {},
        [0, *item(due="+31000000")],
        ["put", "a"],
        {"timeline": {"a": NOW + 31_000_000}, "bodies": {"a": "new"}},
    ),
    Case(
        "a moment soon wakes one to watch and one in reserve",
        {},
        [0, *item(due="+5000000")],
        ["put", "a"],
        {"timeline": {"a": NOW + 5_000_000}, "bodies": {"a": "new"}, **RUNG_TWICE},
    ),
    Case(
        "a watcher who wakes only later does not count",
        {"watch": {"w": AHEAD}},
        [0, *item(due="+5000000")],
        ["put", "a"],
        {"timeline": {"a": NOW + 5_000_000}, "bodies": {"a": "new"}, "watch": {"w": AHEAD}, **RUNG_TWICE},
    ),
    Case(
        "a watcher who should have woken long ago does not count",
        {"watch": {"w": PAST}},
        [0, *item(due="+5000000")],
        ["put", "a"],
        {"timeline": {"a": NOW + 5_000_000}, "bodies": {"a": "new"}, "watch": {"w": PAST}, **RUNG_TWICE},
    ),
    Case(
        "a moment before the epoch is due",
        {},
        [0, *item(due="-5")],
        ["put", "a"],
        {"timeline": {"a": -5}, "bodies": {"a": "new"}, **RUNG},
    ),
    Case(
        "an empty body is a body",
        {"timeline": {"a": PAST}, "bodies": {"a": ""}},
        [0, *item()],
        ["exists", "a"],
        {"timeline": {"a": PAST}, "bodies": {"a": ""}},
    ),
    Case("a known id is left alone", WAITING, [0, *item()], ["exists", "a"], WAITING),
    Case(
        "twice in one call is once",
        {},
        [0, *item(), *item(body="other")],
        ["put", "a", "exists", "a"],
        {"timeline": {"a": NOW}, "bodies": {"a": "new"}, **RUNG},
    ),
    Case(
        "a level that is not there is the last or the first",
        {},
        [0, *item(level=7), *item("b", level=-1)],
        ["put", "a", "put", "b"],
        {"timeline:2": {"a": NOW}, "timeline": {"b": NOW + 1}, "bodies": {"a": "new", "b": "new"}, **RUNG},
    ),
    Case(
        "too late nothing is put",
        {},
        [PAST, *item(), *item("b", mode="replace")],
        ["late", "a", "late", "b"],
    ),
    Case(
        "in time it is put",
        {},
        [AHEAD, *item(due=str(AHEAD))],
        ["put", "a"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}},
    ),
)
def test_placing(any_server: RunningServer, case: Case) -> None:
    """An unknown id waits from its due moment on, and whoever must know is woken."""
    run(any_server, "put", case)


@table(
    Case(
        "alias of a known id",
        WAITING,
        [0, *item(mode="alias")],
        ["put", "a~1"],
        {"timeline": {"a": PAST, "a~1": NOW}, "bodies": {"a": BODY, "a~1": "new"}, **RUNG},
    ),
    Case("again with the same body is once", WAITING, [0, *item(body=BODY, mode="again")], ["exists", "a"], WAITING),
    Case(
        "again with another body is another message",
        WAITING,
        [0, *item(mode="again")],
        ["put", "a~1"],
        {"timeline": {"a": PAST, "a~1": NOW}, "bodies": {"a": BODY, "a~1": "new"}, **RUNG},
    ),
    Case(
        "again after a try that had to take another id is once",
        {"timeline": {"a~2": PAST}, "bodies": {"a~2": BODY}},
        [0, *item(body=BODY, mode="again")],
        ["exists", "a~2"],
        {"timeline": {"a~2": PAST}, "bodies": {"a~2": BODY}},
    ),
    Case(
        "the first alias that is free",
        {"timeline": {"a": PAST, "a~1": PAST, "a~3": PAST}, "bodies": {"a": BODY, "a~1": BODY, "a~3": BODY}},
        [0, *item(mode="alias", due=str(AHEAD))],
        ["put", "a~2"],
        {
            "timeline": {"a": PAST, "a~1": PAST, "a~3": PAST, "a~2": AHEAD},
            "bodies": {"a": BODY, "a~1": BODY, "a~3": BODY, "a~2": "new"},
        },
    ),
    Case(
        "more aliases than are looked for",
        {"timeline": {"a": PAST}, "bodies": {"a": BODY, **{f"a~{copy}": BODY for copy in range(1, 10)}}},
        [0, *item(mode="alias", due=str(AHEAD))],
        ["put", "a~NOW"],
        {
            "timeline": {"a": PAST, "a~NOW": AHEAD},
            "bodies": {"a": BODY, **{f"a~{copy}": BODY for copy in range(1, 10)}, "a~NOW": "new"},
        },
    ),
    Case(
        "alias of an unknown id is the id",
        {},
        [0, *item(mode="alias")],
        ["put", "a"],
        {"timeline": {"a": NOW}, "bodies": {"a": "new"}, **RUNG},
    ),
    Case(
        "replace what waits on another level",
        {"timeline:1": {"a": AHEAD}, "bodies": {"a": BODY}, "claims": {"a": f"-{TOKEN} 3 1 {PAST} me"}},
        [0, *item(mode="replace")],
        ["replaced", "a"],
        {"timeline": {"a": NOW}, "bodies": {"a": "new"}, **RUNG},
    ),
    Case(
        "replace what is leased ends the lease",
        {"leases": {"a": AHEAD}, "bodies": {"a": BODY}, "claims": {"a": f"{TOKEN} 1 0 {PAST} me"}, "notes": {"a": "n"}},
        [0, *item(mode="replace", level=2)],
        ["replaced", "a"],
        {"timeline:2": {"a": NOW}, "bodies": {"a": "new"}, "notes": {"a": "n"}, **RUNG},
    ),
    Case(
        "replace what is parked leaves it parked",
        {
            "parked": {"a": PAST},
            "bodies": {"a": BODY},
            "claims": {"a": f"-{TOKEN} 2 1 {PAST} me"},
            "reasons": {"a": "r"},
        },
        [0, *item(mode="replace", due=str(AHEAD))],
        ["replaced", "a"],
        {"parked": {"a": AHEAD}, "bodies": {"a": "new"}, "reasons": {"a": "r"}},
    ),
    Case(
        "replace what is parked on a level",
        {"parked": {"a": PAST}, "bodies": {"a": BODY}, "reasons": {"a": "r"}},
        [0, *item(mode="replace", due=str(AHEAD), level=2)],
        ["replaced", "a"],
        {"parked": {"a": AHEAD}, "bodies": {"a": "new"}, "claims": {"a": f"- 0 2 {AHEAD} "}, "reasons": {"a": "r"}},
    ),
    Case(
        "replace what is dead",
        {"dead": {"a": PAST}, "bodies": {"a": BODY}, "claims": {"a": f"-{TOKEN} 2 1 {PAST} me"}, "reasons": {"a": "r"}},
        [0, *item(mode="replace")],
        ["replaced", "a"],
        {"timeline": {"a": NOW}, "bodies": {"a": "new"}, **RUNG},
    ),
    Case(
        "replace an unknown id",
        {},
        [0, *item(mode="replace", due=str(AHEAD))],
        ["put", "a"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}},
    ),
    Case(
        "rebody keeps the place and the due",
        {"timeline:1": {"a": PAST}, "bodies": {"a": BODY}},
        [0, *item(mode="rebody", due=str(AHEAD))],
        ["rebodied", "a"],
        {"timeline:1": {"a": PAST}, "bodies": {"a": "new"}},
    ),
    Case(
        "rebody keeps the lease",
        {"leases": {"a": AHEAD}, "bodies": {"a": BODY}, "claims": {"a": f"{TOKEN} 1 0 {PAST} me"}},
        [0, *item(mode="rebody")],
        ["rebodied", "a"],
        {"leases": {"a": AHEAD}, "bodies": {"a": "new"}, "claims": {"a": f"{TOKEN} 1 0 {PAST} me"}},
    ),
    Case(
        "rebody brings the dead back",
        {"dead": {"a": PAST}, "bodies": {"a": BODY}, "reasons": {"a": "r"}},
        [0, *item(mode="rebody", due=str(AHEAD))],
        ["replaced", "a"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}},
    ),
    Case(
        "rebody an unknown id",
        {},
        [0, *item(mode="rebody", due=str(AHEAD))],
        ["put", "a"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}},
    ),
)
def test_modes(any_server: RunningServer, case: Case) -> None:
    """What a put does with a known id is what its mode says."""
    run(any_server, "put", case)


@table(
    Case(
        "the expected body",
        WAITING,
        [0, *item(mode="rebody", expect=SHA)],
        ["rebodied", "a"],
        {"timeline": {"a": PAST}, "bodies": {"a": "new"}},
    ),
    Case("another body", WAITING, [0, *item(mode="replace", expect="0" * 40)], ["changed", "a"], WAITING),
    Case("none expected, one there", WAITING, [0, *item(mode="replace", expect="-")], ["changed", "a"], WAITING),
    Case(
        "none expected, none there",
        {},
        [0, *item(expect="-", due=str(AHEAD))],
        ["put", "a"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}},
    ),
    Case("one expected, none there", {}, [0, *item(mode="replace", expect=SHA)], ["changed", "a"]),
    Case(
        "none expected, none there, though it waits",
        {"timeline": {"a": PAST}},
        [0, *item(mode="replace", expect="-", due=str(AHEAD))],
        ["replaced", "a"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}},
    ),
    Case(
        "none expected, none there, though it is leased",
        {"leases": {"a": AHEAD}, "claims": {"a": f"{TOKEN} 1 0 {PAST} w1"}},
        [0, *item(mode="rebody", expect="-", due=str(AHEAD))],
        ["replaced", "a"],
        {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}},
    ),
)
def test_expectations(any_server: RunningServer, case: Case) -> None:
    """A conditional put changes nothing when the stored body is not the expected one."""
    run(any_server, "put", case)


def _marked(name: str, held: str, asked: str, outcome: str) -> Case:
    before = {"marks": {"entry": held}} if held else {}
    placed = {"timeline": {"a": AHEAD}, "bodies": {"a": "new"}, "marks": {"entry": asked}}
    args = [0, *item(due=str(AHEAD), mark=asked)]
    return Case(name, before, args, [outcome, "a"], placed if outcome == "put" else before)


@table(
    _marked("first", "", f"1 {PAST}", "put"),
    _marked("later", f"1 {PAST}", f"1 {PAST + 1}", "put"),
    _marked("same", f"1 {PAST}", f"1 {PAST}", "refused"),
    _marked("earlier", f"1 {PAST}", f"1 {PAST - 1}", "refused"),
    _marked("new epoch", f"1 {PAST}", "2 5", "put"),
    _marked("old epoch", "2 5", f"1 {PAST}", "outdated"),
    _marked("compared as numbers", "9 99", "10 100", "put"),
    _marked("before the epoch of time", "1 -10", "1 -9", "put"),
    Case(
        "an id that is left alone raises no mark",
        WAITING,
        [0, *item(mark="1 5")],
        ["exists", "a"],
        WAITING,
    ),
    Case(
        "raised within one call",
        {},
        [0, *item("a", due=str(AHEAD), mark="1 5"), *item("b", mark="1 5"), *item("c", due=str(AHEAD), mark="1 6")],
        ["put", "a", "refused", "b", "put", "c"],
        {"timeline": {"a": AHEAD, "c": AHEAD}, "bodies": {"a": "new", "c": "new"}, "marks": {"entry": "1 6"}},
    ),
    Case("too late raises no mark", {}, [PAST, *item(mark="1 5")], ["late", "a"]),
)
def test_marks(any_server: RunningServer, case: Case) -> None:
    """An occurrence is put once: what is not above the high-water mark is refused."""
    run(any_server, "put", case)
