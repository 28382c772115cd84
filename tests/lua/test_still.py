"""lua/still.lua"""

from __future__ import annotations

from celery_zsched.types import Item
from tests.lua.tables import AHEAD, NOW, PAST, RUNG, Case, State, run, table, timeline
from tests.servers import RunningServer

PLAIN: State = {"rules": {"declared": str(PAST)}}


def still(*ends: str) -> State:
    """Return the rules of a queue that stands still, each of ``ends`` being a token and until when."""
    return {"rules": {"declared": str(PAST), "still": " ".join(ends)}}


@table(
    Case("a queue stands still", PLAIN, ["a", 9], NOW + 9, still("a NOW+9")),
    Case("for longer", still(f"a {AHEAD}"), ["a", 9], NOW + 9, still("a NOW+9")),
    Case("for two", still(f"b {AHEAD}"), ["a", 9], str(AHEAD), still(f"b {AHEAD}", "a NOW+9")),
    Case("who has died is forgotten", still(f"b {PAST}"), ["a", 9], NOW + 9, still("a NOW+9")),
    Case("it goes on", still(f"a {AHEAD}"), ["a", 0], "0", PLAIN | RUNG),
    Case(
        "one of two ends only its own",
        still(f"b {AHEAD}", f"a {AHEAD}"),
        ["a", 0],
        str(AHEAD),
        still(f"b {AHEAD}") | RUNG,
    ),
    Case(
        "the pause of an operator stays", {"rules": {"paused": "1"}}, ["a", 0], "0", {"rules": {"paused": "1"}} | RUNG
    ),
    Case("a queue that is gone stays gone", {}, ["a", 9], "0", {}),
)
def test_still(any_server: RunningServer, case: Case) -> None:
    """A queue stands still for as long as any of those who put back says, each of whom ends only his own."""
    run(any_server, "still", case)


def test_a_claimer_wakes_when_the_standing_still_ends(any_server: RunningServer) -> None:
    """Nobody has to ring for what waits, should whoever puts back have died."""
    line = timeline(any_server)
    line.put([Item("a", b"A")])
    with any_server.client() as client:
        client.hset(line.keys.rules, "declared", PAST)
    until_us = int(line.run("still", ["x", 20_000_000]))
    batch = line.claim(1, 1_000_000)
    assert (batch.items, batch.wake_us) == ([], until_us)
    line.run("still", ["x", 0])
    assert [item.id for item in line.claim(1, 1_000_000).items] == ["a"]
    line.server.close()
