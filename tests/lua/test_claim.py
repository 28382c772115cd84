"""lua/claim.lua"""

from __future__ import annotations

from celery_zsched.types import Item
from tests.lua.tables import AHEAD, NOW, OTHER, PAST, RUNG, RUNG_TWICE, TOKEN, Case, look, run, table, timeline
from tests.servers import RunningServer

LEASE = 7_000_000
BACKUP = 500_000


def ask(
    limit: int = 10,
    lease: int = LEASE,
    *,
    delivery_limit: int = 0,
    armed: int = 0,
    linger: int = 0,
    keep: int = 10,
    settle: tuple[str, ...] = (),
) -> list[object]:
    """Return the arguments of a claim by claimer c for holder me."""
    return [limit, lease, "me", "c", delivery_limit, armed, linger, BACKUP, keep, 0, *settle]


def got(id_: str, body: str, count: int = 1, due: int = PAST) -> list[object]:
    """Return how an item is given out."""
    return [id_, body, NOW, count, str(due)]


WAITING = {"timeline": {"a": PAST, "b": PAST + 1, "f": AHEAD}, "bodies": {"a": "A", "b": "B", "f": "F"}}
ENDED = {"leases": {"e": PAST}, "claims": {"e": f"{TOKEN} 1 1 {PAST - 5} you"}, "bodies": {"e": "E"}}


def over(id_: str, count: int = 1, *, token: object = TOKEN) -> list[str]:
    """Return what is said of an id that is taken over from another holder."""
    return ["over", f"{token} {count} you\n{id_}"]


@table(
    Case(
        "what is due, oldest first",
        WAITING,
        ask(),
        [NOW, "0", [], *got("a", "A"), *got("b", "B", due=PAST + 1)],
        {
            "timeline": {"f": AHEAD},
            "leases": {"a": NOW + LEASE, "b": NOW + LEASE},
            "bodies": WAITING["bodies"],
            "claims": {"a": f"NOW 1 0 {PAST} me", "b": f"NOW 1 0 {PAST + 1} me"},
            **RUNG_TWICE,
        },
    ),
    Case(
        "up to the limit, and the next is woken",
        WAITING,
        ask(1),
        [NOW, "0", ["left", "1"], *got("a", "A")],
        {
            "timeline": {"b": PAST + 1, "f": AHEAD},
            "leases": {"a": NOW + LEASE},
            "bodies": WAITING["bodies"],
            "claims": {"a": f"NOW 1 0 {PAST} me"},
            **RUNG,
        },
    ),
    Case(
        "lower levels first",
        {"timeline:2": {"a": PAST}, "timeline:1": {"b": PAST + 1}, "bodies": {"a": "A", "b": "B"}},
        ask(1),
        [NOW, "0", ["left", "1"], *got("b", "B", due=PAST + 1)],
        {
            "timeline:2": {"a": PAST},
            "leases": {"b": NOW + LEASE},
            "bodies": {"a": "A", "b": "B"},
            "claims": {"b": f"NOW 1 1 {PAST + 1} me"},
            **RUNG,
        },
    ),
    Case(
        "ended leases before what is due",
        {**ENDED, "timeline": {"a": PAST - 9}, "bodies": {"a": "A", "e": "E"}},
        ask(1),
        [NOW, "0", [*over("e"), "left", "1"], *got("e", "E", 2, PAST - 5)],
        {
            "timeline": {"a": PAST - 9},
            "leases": {"e": NOW + LEASE},
            "bodies": {"a": "A", "e": "E"},
            "claims": {"e": f"NOW 2 1 {PAST - 5} me"},
            **RUNG,
        },
    ),
    Case(
        "both in one batch",
        {**ENDED, "timeline": {"a": PAST}, "bodies": {"a": "A", "e": "E"}},
        ask(linger=1),
        [NOW, "0", over("e"), *got("e", "E", 2, PAST - 5), *got("a", "A")],
        {
            "leases": {"e": NOW + LEASE, "a": NOW + LEASE},
            "bodies": {"a": "A", "e": "E"},
            "claims": {"e": f"NOW 2 1 {PAST - 5} me", "a": f"NOW 1 0 {PAST} me"},
        },
    ),
    Case(
        "a retry is due for its first moment",
        {"timeline": {"a": PAST + 9}, "bodies": {"a": "A"}, "claims": {"a": f"-{TOKEN} 1 0 {PAST} you"}},
        ask(linger=1),
        [NOW, "0", [], *got("a", "A", 2)],
        {"leases": {"a": NOW + LEASE}, "bodies": {"a": "A"}, "claims": {"a": f"NOW 2 0 {PAST} me"}},
    ),
    Case(
        "a token is above any the id has had",
        {"leases": {"a": PAST}, "bodies": {"a": "A"}, "claims": {"a": f"{AHEAD} 1 0 {PAST} you"}},
        ask(linger=1),
        [NOW, "0", over("a", token=AHEAD), "a", "A", str(AHEAD + 1), 2, str(PAST)],
        {"leases": {"a": NOW + LEASE}, "bodies": {"a": "A"}, "claims": {"a": f"{AHEAD + 1} 2 0 {PAST} me"}},
    ),
    Case(
        "also above a voided one",
        {"timeline": {"a": PAST}, "bodies": {"a": "A"}, "claims": {"a": f"-{AHEAD} 1 0 {PAST} you"}},
        ask(linger=1),
        [NOW, "0", [], "a", "A", str(AHEAD + 1), 2, str(PAST)],
        {"leases": {"a": NOW + LEASE}, "bodies": {"a": "A"}, "claims": {"a": f"{AHEAD + 1} 2 0 {PAST} me"}},
    ),
    Case(
        "due before the epoch",
        {"timeline": {"a": -5}, "bodies": {"a": "A"}},
        ask(linger=1),
        [NOW, "0", [], *got("a", "A", due=-5)],
        {"leases": {"a": NOW + LEASE}, "bodies": {"a": "A"}, "claims": {"a": "NOW 1 0 -5 me"}},
    ),
    Case(
        "removed at once without a lease",
        {**WAITING, "notes": {"a": "n"}},
        ask(2, 0),
        [NOW, "0", [], *got("a", "A"), *got("b", "B", due=PAST + 1)],
        {"timeline": {"f": AHEAD}, "bodies": {"f": "F"}},
    ),
    Case(
        "ends the claimer's own pop",
        {"timeline": {"a": PAST}, "bodies": {"a": "A"}},
        ask(armed=1, linger=1),
        [NOW, "0", [], *got("a", "A")],
        {
            "leases": {"a": NOW + LEASE},
            "bodies": {"a": "A"},
            "claims": {"a": f"NOW 1 0 {PAST} me"},
            "own:c": {"own": 0},
        },
    ),
)
def test_taking(any_server: RunningServer, case: Case) -> None:
    """Ended leases are taken first, then what is due, by level and oldest first, each with a token of its own."""
    run(any_server, "claim", case)


def ruled(**rules: object) -> dict[str, dict[str, object]]:
    """Return the rules of a queue."""
    return {"rules": {"declared": str(PAST), **rules}}


STILL = f"x {PAST} y {AHEAD}"


@table(
    Case("while one puts back", WAITING | ruled(still=STILL), ask(), [NOW, "0", []], WAITING | ruled(still=STILL)),
    Case(
        "a paused one, for which nobody puts back any more",
        WAITING | ruled(paused="1", still=f"x {PAST}"),
        ask(),
        [NOW, "0", []],
        WAITING | ruled(paused="1"),
    ),
    Case(
        "whose pause is over, while one puts back",
        WAITING | ruled(paused=str(PAST), still=STILL),
        ask(),
        [NOW, "0", []],
        WAITING | ruled(still=STILL),
    ),
)
def test_a_queue_that_stands_still(any_server: RunningServer, case: Case) -> None:
    """Nothing is taken from a queue while anybody puts back what was parked in it, nor while it is paused."""
    run(any_server, "claim", case)


HELD = {"leases": {"a": AHEAD}, "claims": {"a": f"{TOKEN} 1 0 {PAST} me"}, "bodies": {"a": "A"}}


@table(
    Case("ours", HELD, ask(0, settle=("a", TOKEN)), [NOW, "0", []]),
    Case("not ours", HELD, ask(0, settle=("a", OTHER, "z", TOKEN)), [NOW, "0", ["stale", "a", "stale", "z"]], HELD),
    Case("before its ended lease is taken", {**HELD, "leases": {"a": PAST}}, ask(settle=("a", TOKEN)), [NOW, "0", []]),
    Case("nothing for no limit", WAITING, ask(0), [NOW, "0", []], WAITING),
)
def test_settling_by_the_way(any_server: RunningServer, case: Case) -> None:
    """What is done is settled before anything is taken."""
    run(any_server, "claim", case)


def spent(count: int) -> dict[str, dict[str, object]]:
    """Return a state with an ended lease after some deliveries."""
    return {"leases": {"a": PAST}, "claims": {"a": f"{TOKEN} {count} 1 {PAST} you"}, "bodies": {"a": "A"}}


GRAVES = {"dead": {"x": PAST}, "bodies": {"x": "X", "a": "A"}, "reasons": {"x": "r"}, "notes": {"x": "n"}}


@table(
    Case(
        "delivered too often",
        spent(3),
        ask(delivery_limit=3),
        [NOW, "0", ["buried", "a"]],
        {
            "dead": {"a": NOW},
            "claims": {"a": f"-{TOKEN} 3 1 {PAST} you"},
            "bodies": {"a": "A"},
            "reasons": {"a": "delivered 3 times without an end"},
        },
    ),
    Case(
        "not yet too often",
        spent(2),
        ask(delivery_limit=3, linger=1),
        [NOW, "0", over("a", 2), *got("a", "A", 3)],
        {"leases": {"a": NOW + LEASE}, "claims": {"a": f"NOW 3 1 {PAST} me"}, "bodies": {"a": "A"}},
    ),
    Case(
        "without a limit",
        spent(300),
        ask(linger=1),
        [NOW, "0", over("a", 300), *got("a", "A", 301)],
        {"leases": {"a": NOW + LEASE}, "claims": {"a": f"NOW 301 1 {PAST} me"}, "bodies": {"a": "A"}},
    ),
    Case(
        "the dead are bounded",
        {**spent(3), **GRAVES},
        ask(delivery_limit=3, keep=1),
        [NOW, "0", ["buried", "a"]],
        {
            "dead": {"a": NOW},
            "claims": {"a": f"-{TOKEN} 3 1 {PAST} you"},
            "bodies": {"a": "A"},
            "reasons": {"a": "delivered 3 times without an end"},
        },
    ),
    Case(
        "the next is taken in its stead",
        {**spent(3), "timeline": {"b": PAST}, "bodies": {"a": "A", "b": "B"}},
        ask(1, 0, delivery_limit=3),
        [NOW, "0", ["buried", "a"], *got("b", "B")],
        {
            "dead": {"a": NOW},
            "claims": {"a": f"-{TOKEN} 3 1 {PAST} you"},
            "bodies": {"a": "A"},
            "reasons": {"a": "delivered 3 times without an end"},
        },
    ),
    Case(
        "what was cancelled while it was held is dropped, and the next is taken",
        {
            "leases": {"a": PAST, "b": PAST + 1},
            "claims": {"a": f"{TOKEN} 1 1 {PAST} !cancelled you", "b": f"{TOKEN} 1 0 {PAST} you"},
            "bodies": {"a": "A", "b": "B"},
            "notes": {"a": "n"},
        },
        ask(2, linger=1),
        [NOW, "0", ["cancelled", "a", *over("b")], "b", "B", NOW, 2, str(PAST)],
        {"leases": {"b": NOW + LEASE}, "claims": {"b": f"NOW 2 0 {PAST} me"}, "bodies": {"b": "B"}},
    ),
    Case(
        "cancelled ones only: claim again at once",
        {
            "leases": {"a": PAST, "b": PAST + 1},
            "claims": {"a": f"{TOKEN} 1 1 {PAST} !cancelled you", "b": f"{TOKEN} 1 0 {PAST} you"},
            "bodies": {"a": "A", "b": "B"},
        },
        ask(1, linger=1),
        [NOW, NOW, ["cancelled", "a"]],
        {"leases": {"b": PAST + 1}, "claims": {"b": f"{TOKEN} 1 0 {PAST} you"}, "bodies": {"b": "B"}},
    ),
    Case(
        "a cancelled one whose lease goes on stays",
        {"leases": {"a": AHEAD}, "claims": {"a": f"{TOKEN} 1 1 {PAST} !cancelled you"}, "bodies": {"a": "A"}},
        ask(linger=1),
        [NOW, "0", []],
        {"leases": {"a": AHEAD}, "claims": {"a": f"{TOKEN} 1 1 {PAST} !cancelled you"}, "bodies": {"a": "A"}},
    ),
    Case(
        "lost bodies are dropped",
        {"timeline": {"a": PAST, "b": PAST}, "bodies": {"b": "B"}, "notes": {"a": "n"}},
        ask(linger=1),
        [NOW, "0", ["lost", "a"], *got("b", "B")],
        {"leases": {"b": NOW + LEASE}, "claims": {"b": f"NOW 1 0 {PAST} me"}, "bodies": {"b": "B"}},
    ),
    Case(
        "a lost body under an ended lease",
        {"leases": {"a": PAST}, "claims": {"a": f"{TOKEN} 1 0 {PAST} you"}},
        ask(),
        [NOW, NOW, [*over("a"), "lost", "a"]],
    ),
    Case(
        "lost bodies only: claim again at once",
        {"timeline": {"a": PAST, "b": PAST}, "bodies": {"b": "B"}},
        ask(1, linger=1),
        [NOW, NOW, ["lost", "a", "left", "1"]],
        {"timeline": {"b": PAST}, "bodies": {"b": "B"}, **RUNG},
    ),
    Case(
        "a lease without a record",
        {"leases": {"a": PAST}, "bodies": {"a": "A"}},
        ask(linger=1),
        [NOW, "0", [], "a", "A", NOW, 1, NOW],
        {"leases": {"a": NOW + LEASE}, "claims": {"a": "NOW 1 0 NOW me"}, "bodies": {"a": "A"}},
    ),
)
def test_troubles(any_server: RunningServer, case: Case) -> None:
    """What was delivered too often is set aside, what has no body is dropped, and both are said."""
    run(any_server, "claim", case)


FAR = {"timeline": {"f": AHEAD}, "bodies": {"f": "F"}}


@table(
    Case("an empty timeline", {}, ask(), [NOW, "0", []]),
    Case("rings that nobody needs are taken back", {**RUNG_TWICE, "own:c": {"own": 0}}, ask(), [NOW, "0", []]),
    Case("what is far off needs no watcher", {**FAR, **RUNG}, ask(), [NOW, "0", []], FAR),
    Case(
        "a claimer that claims no longer watches",
        {**FAR, "watch": {"c": AHEAD, "w": AHEAD}},
        ask(),
        [NOW, "0", []],
        {**FAR, "watch": {"w": AHEAD}},
    ),
)
def test_finding_nothing(any_server: RunningServer, case: Case) -> None:
    """A claim that finds nothing leaves no keys of its own."""
    run(any_server, "claim", case)


SECOND = 1_000_000


def watches(running: RunningServer) -> dict[str, int]:
    """Return who wakes by itself and when."""
    line = timeline(running)
    with running.client() as client:
        return look(client, line).get("watch", {})


def test_one_watches_and_one_stands_by(any_server: RunningServer) -> None:
    """Of idle claimers the first wakes at the next moment, the second a little later, and the others only by a ring."""
    first, second, third = (timeline(any_server, claimer=name) for name in ("first", "second", "third"))
    first.put([Item("a", b"A", delay_us=5 * SECOND)])
    (item,) = first.upcoming()
    assert [line.claim(1, LEASE).wake_us for line in (first, second, third)] == [
        item.due_us,
        item.due_us + BACKUP,
        None,
    ]
    assert watches(any_server) == {"first": item.due_us, "second": item.due_us + BACKUP}
    assert second.claim(1, LEASE).wake_us == item.due_us + BACKUP
    assert first.claim(1, LEASE).wake_us == item.due_us


def test_the_end_of_a_lease_is_a_moment_too(any_server: RunningServer) -> None:
    """A claimer with nothing to do wakes when the first lease ends."""
    line = timeline(any_server)
    line.put([Item("a", b"A")])
    taken = line.claim(1, LEASE)
    assert line.claim(1, LEASE).wake_us == taken.now_us + LEASE


def test_a_sooner_moment_moves_the_watch(any_server: RunningServer) -> None:
    """What comes before anybody wakes rings, and who is rung for it watches for it."""
    line = timeline(any_server)
    line.put([Item("later", b"", delay_us=20 * SECOND)])
    line.claim(1, LEASE)
    line.put([Item("even later", b"", delay_us=25 * SECOND)])
    with any_server.client() as client:
        assert "bell" not in look(client, line)
        line.put([Item("sooner", b"", delay_us=10 * SECOND)])
        assert look(client, line)["bell"] == RUNG_TWICE["bell"]
    assert line.claim(1, LEASE).wake_us == line.upcoming()[0].due_us
