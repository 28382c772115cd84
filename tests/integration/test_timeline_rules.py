"""The rules of the primitive, one by one, on real servers: order, tokens, leases, limits, marks."""

from __future__ import annotations

import pytest
import redis

from celery_zsched import scripts
from celery_zsched.timeline import KEEP_DEAD, MAX_BATCH, Timeline, put_arguments
from celery_zsched.types import COPIES, Claimed, Hold, Item, Mark, Outcome, Place, Put
from tests.claims import holds_of, ids_of
from tests.lua.tables import AHEAD, PAST, look
from tests.servers import wait_until

LONG = 3600 * 1_000_000


def claim_ended(line: Timeline, limit: int = 10, **kwargs: int) -> list[Claimed]:
    """Claim what a lease of a microsecond has set free."""
    items: list[Claimed] = wait_until(lambda: line.claim(limit, LONG, **kwargs).items)
    return items


# -- Order


def test_first_in_first_out_within_a_level(line: Timeline) -> None:
    """What was put first is claimed first, across puts and within one batch, whatever the ids."""
    names = [f"{number * 7919 % 1000:03}" for number in range(1000)]
    line.put([Item(name, b"") for name in names[:600]])
    for name in names[600:700]:
        line.put([Item(name, b"")])
    line.put([Item(name, b"") for name in names[700:]])
    claimed: list[str] = []
    wait_until(lambda: claimed.extend(ids_of(line.claim(64, LONG).items)) or len(claimed) == len(names))
    assert claimed == names


def test_lower_levels_first(line: Timeline) -> None:
    """Level 0 goes before level 1 whatever came first."""
    line.put([Item("c", b"", level=2), Item("b", b"", level=1), Item("a", b"", level=0)])
    assert ids_of(wait_until(lambda: line.claim(1, LONG).items)) == ["a"]
    assert ids_of(line.claim(1, LONG).items) == ["b"]
    assert ids_of(line.claim(1, LONG).items) == ["c"]


def test_order_outlives_release_park_and_unpark(line: Timeline) -> None:
    """What was given back or set aside for a while is claimed in its old order."""
    line.put([Item(name, name.encode(), due_us=PAST + at) for at, name in enumerate("dcba")])
    taken = line.claim(3, LONG).items
    line.release(reversed(holds_of(taken[:2])))
    line.release(holds_of(taken[2:]), counted=True)
    line.park(["a", "d"], "for a while")
    line.unpark(["a", "d"])
    again = line.claim(10, LONG).items
    assert ids_of(again) == ["d", "c", "b", "a"]
    assert [item.count for item in again] == [1, 1, 2, 1]
    assert [item.due_us for item in again] == [PAST, PAST + 1, PAST + 2, PAST + 3]


def test_ended_leases_go_first(line: Timeline) -> None:
    """What its holder left behind is taken before what has waited longer, with its count and its due moment."""
    line.put([Item("left", b"L", due_us=PAST + 9, level=2)])
    line.claim(1, 1)
    line.put([Item("old", b"O", due_us=PAST)])
    (item,) = claim_ended(line, 1)
    assert (item.id, item.body, item.count, item.due_us) == ("left", b"L", 2, PAST + 9)


# -- Tokens and leases


def test_a_token_never_repeats(line: Timeline) -> None:
    """The token of a retry is another than that of its first life, so a holder from then cannot settle it."""
    tokens = set()
    for life in range(200):
        line.put([Item("same", b"")])
        (item,) = line.claim(1, LONG).items
        assert item.count == 1
        assert item.token not in tokens
        tokens.add(item.token)
        former = [Hold("same", token) for token in tokens if token != item.token]
        if life % 20 == 0:
            assert line.settle(former) == ["same"] * len(former)
        assert line.settle([Hold("same", item.token)]) == []


def test_a_stale_token_changes_nothing(line: Timeline, keyspace: redis.Redis) -> None:
    """Who lost a lease to another can neither renew, settle, release, move nor bury what is the other's."""
    line.put([Item("a", b"A", due_us=PAST)])
    stale = holds_of(line.claim(1, 1).items)
    claim_ended(line)
    before = look(keyspace, line)
    (lost,) = stale
    assert line.extend(stale, LONG) == ["a"]
    assert line.settle(stale) == ["a"]
    assert line.release(stale) == ["a"]
    assert line.release(stale, delay_us=5) == ["a"]
    assert line.reschedule([(lost, AHEAD, b"n")]) == ["a"]
    assert line.bury([("a", lost.token, "bad", b"n")]) == ["a"]
    assert line.claim(0, LONG, settle=stale).stale == ["a"]
    assert look(keyspace, line) == before


def test_an_ended_lease_is_still_ours_until_it_is_claimed(line: Timeline, keyspace: redis.Redis) -> None:
    """Work that was done is not done again: a lease that has ended can be settled while nobody else took it."""
    line.put([Item("a", b"", due_us=PAST), Item("b", b"", due_us=PAST + 1)])
    first, second = line.claim(2, 1).items
    line.put([Item("late", b"")])  # time has passed on the server
    assert line.extend(holds_of([second]), LONG) == []
    assert line.settle(holds_of([first])) == []
    assert ids_of(wait_until(lambda: line.claim(10, LONG).items)) == ["late"]
    assert line.locate(["b"])["b"].place is Place.LEASED
    assert line.settle(holds_of([second])) == []


@pytest.mark.parametrize("way", ["park", "remove", "replace", "bury"])
def test_a_token_is_void_once_the_id_was_taken_away(line: Timeline, keyspace: redis.Redis, way: str) -> None:
    """After an id was parked by force, removed, replaced or buried its holder's token changes nothing."""
    line.put([Item("a", b"A", due_us=PAST)])
    holds = holds_of(line.claim(1, LONG).items)
    if way == "park":
        line.park(["a"], "why", force=True)
    elif way == "remove":
        line.remove(["a"])
    elif way == "replace":
        line.put([Item("a", b"B", due_us=PAST, mode=Put.REPLACE)])
    else:
        line.bury([("a", "", "bad", b"")])
    before = look(keyspace, line)
    assert line.settle(holds) == line.release(holds) == line.extend(holds, LONG) == ["a"]
    assert look(keyspace, line) == before


# -- Troubles


def test_the_delivery_limit_sets_aside(line: Timeline, keyspace: redis.Redis) -> None:
    """What was delivered too often is dead with body, count, reason and last holder, and lives again without them."""
    line.put([Item("poison", b"P", due_us=PAST, level=1)])
    for count in (1, 2, 3):
        (item,) = wait_until(lambda: line.claim(1, 1, delivery_limit=3).items)
        assert item.count == count
    late = holds_of([item])
    batch = wait_until(lambda: (found := line.claim(1, 1, delivery_limit=3)).buried and found)
    assert (batch.buried, batch.items) == (["poison"], [])
    dead = line.locate(["poison"])["poison"]
    assert (dead.place, dead.level, dead.count, dead.holder, dead.body) == (Place.DEAD, 1, 3, "me", b"P")
    assert "3 times" in dead.reason
    before = look(keyspace, line)
    assert line.settle(late) == line.release(late) == ["poison"]
    assert look(keyspace, line) == before
    assert line.revive(["poison"]) == [Place.DEAD]
    (again,) = line.claim(1, LONG, delivery_limit=3).items
    assert (again.count, again.due_us, again.body) == (1, PAST, b"P")


def test_waiting_counts_no_deliveries(line: Timeline) -> None:
    """What is given back unstarted never comes nearer to the limit."""
    line.put([Item("a", b"", due_us=PAST)])
    for _ in range(10):
        batch = line.claim(1, LONG, delivery_limit=2)
        assert [item.count for item in batch.items] == [1]
        line.release(holds_of(batch.items))


def test_lost_bodies_are_reported_and_dropped(line: Timeline, keyspace: redis.Redis) -> None:
    """An id whose body is gone is named and dropped; the others of the batch are given out."""
    line.put([Item(name, b"x", due_us=PAST + at) for at, name in enumerate("abc")])
    keyspace.hdel(line.keys.bodies, "a", "c")
    batch = line.claim(10, LONG)
    assert (batch.lost, ids_of(batch.items)) == (["a", "c"], ["b"])
    line.settle(holds_of(batch.items))
    assert nothing_but_bells(keyspace, line)


def test_the_dead_are_bounded(line: Timeline) -> None:
    """Of the dead the oldest go."""
    line.put([Item(f"{number:04}", b"", due_us=AHEAD) for number in range(1200)])
    line.bury([(f"{number:04}", "", "bad", b"n") for number in range(1200)], keep=5)
    counts = line.counts()
    assert (counts.dead, counts.delayed) == (5, 0)
    assert line.locate(["1199"])["1199"].reason == "bad"
    assert KEEP_DEAD >= MAX_BATCH


# -- Marks


def test_an_occurrence_is_put_once(line: Timeline) -> None:
    """What is not above the mark is refused, also after it was settled; an older epoch is outdated for good."""
    line.put([Item("a", b"", mark=Mark("entry", 1, 100))])
    line.settle(holds_of(line.claim(1, LONG).items))

    def put(epoch: int, nominal_us: int) -> Outcome:
        return line.put([Item("b", b"", mark=Mark("entry", epoch, nominal_us), due_us=AHEAD, mode=Put.ALIAS)])[
            0
        ].outcome

    asked = [(1, 100), (1, 99), (1, 101), (1, 101), (2, 1), (1, 10**15), (2, 2)]
    assert [put(*mark) for mark in asked] == [
        *[Outcome.REFUSED] * 2,
        Outcome.PUT,
        Outcome.REFUSED,
        Outcome.PUT,
        Outcome.OUTDATED,
        Outcome.PUT,
    ]


def test_aliases_differ_while_the_clock_stands_still(line: Timeline, keyspace: redis.Redis) -> None:
    """As many aliases as you like, put in one transaction, in which newer servers' clocks stand still, all differ."""
    bodies = [f"{number}".encode() for number in range(COPIES + 4)]
    line.put([Item("a", bodies[0], due_us=PAST)])
    script = scripts.load("put")
    keys = script.key_names(line.keys)
    with keyspace.pipeline(transaction=True) as pipeline:
        for body in bodies[1:]:
            args = [0, *put_arguments(Item("a", body, due_us=PAST, mode=Put.ALIAS))]
            pipeline.execute_command("EVAL", script.plain.text, len(keys), *keys, *args)
        pipeline.execute()
    assert sorted(item.body for item in line.claim(100, LONG).items) == sorted(bodies)


# -- Nothing is left behind


def nothing_but_bells(keyspace: redis.Redis, line: Timeline) -> bool:
    """Whether only bells and watches are stored; look() makes sure that they lapse by themselves."""
    return {key for key in look(keyspace, line) if not key.startswith("own:")} <= {"bell", "watch"}


def test_an_empty_timeline_has_no_keys(line: Timeline, keyspace: redis.Redis) -> None:
    """However ids went, nothing stays but what lapses within a minute; a last idle claim takes back even that."""
    line.put([Item(f"{number}", b"x", level=number % 3, due_us=PAST) for number in range(12)])
    items = {item.id: Hold(item.id, item.token) for item in line.claim(10, LONG, armed=True).items}
    line.settle([items["0"]])
    line.reschedule([(items["3"], PAST, b"note")])
    line.release([items["6"], items["9"]], counted=True)
    line.bury([("1", items["1"].token, "bad", b"note"), ("4", "", "bad", b"")])
    line.park(["3", "7", "10"], "why", force=True)
    line.revive(["4"])
    line.remove(["1", "3", "7", "10"])
    line.put([Item("2", b"y", level=1, mode=Put.REPLACE), Item("12", b"", delay_us=LONG)])
    assert line.purge() >= 2
    line.settle(holds_of(line.claim(10, LONG).items) + list(items.values()))
    line.claim(10, 0)
    assert nothing_but_bells(keyspace, line)
    assert line.claim(1, LONG).items == []
    assert look(keyspace, line) == {}


# -- A life of its own


def test_a_queue_with_a_life_takes_all_its_keys_along(line: Timeline, keyspace: redis.Redis) -> None:
    """Whatever is done on a queue that lapses, no key of it is left without the queue's own life."""
    line.run("declare", [0, "expires", 50_000])

    def mortal() -> bool:
        return all(0 < keyspace.pttl(name) <= 60_000 for name in keyspace.scan_iter(count=1000))

    line.put([Item(name, b"x", due_us=PAST) for name in "abcdef"])
    assert mortal()
    items = line.claim(6, LONG).items
    assert mortal()
    line.release(holds_of(items[:2]), counted=True)
    assert mortal()
    line.park(["a"], "why")
    line.bury([("b", "", "bad", b"note"), ("c", "", "bad", b"")])
    assert mortal()
    line.unpark(["a"])
    line.revive(["b", "c"])
    line.settle(holds_of(items[3:]))
    assert mortal()
    assert [item.id for item in line.claim(9, LONG).items] == ["a", "b", "c"]
    assert mortal()


# -- Bodies


def test_a_body_is_opaque(line: Timeline) -> None:
    """Whatever its bytes, even those by which a message says how long it is wanted, a body comes back as it was put."""
    body = b"name\n1 \x00\xff"
    line.put([Item("a", body, due_us=PAST)])
    (item,) = line.claim(1, LONG).items
    assert item.body == body
