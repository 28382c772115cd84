"""The primitive with much and with odd things: pages, large calls, long bodies, levels, names, slots."""

from __future__ import annotations

import pytest
import redis

from celery_zsched.connection import Server
from celery_zsched.keys import TimelineKeys
from celery_zsched.timeline import MAX_BATCH, Timeline, claim_arguments, parse_batch
from celery_zsched.types import Hold, Item, Outcome, Place
from tests.claims import holds_of, ids_of
from tests.lua.tables import AHEAD, PAST, look
from tests.servers import RunningServer
from tests.topologies import Cluster

LONG = 3600 * 1_000_000


def nothing_but_bells(keyspace: redis.Redis, line: Timeline) -> bool:
    """Whether only bells and watches are stored; look() makes sure that they lapse by themselves."""
    return {key for key in look(keyspace, line) if not key.startswith("own:")} <= {"bell", "watch"}


# -- Sizes


def test_pages_of_a_thousand_with_equal_moments(line: Timeline) -> None:
    """A thousand ids, most of one moment, are listed page by page, each once, whatever the page's size."""
    names = [f"id {number * 7919 % 1000}" for number in range(1000)]
    line.put(
        [
            Item(name, name.encode(), due_us=AHEAD + (number % 10 == 0) * number, level=number % 3)
            for number, name in enumerate(names)
        ]
    )
    whole = None
    for size in (7, 100, 1000):
        found = line.upcoming(size)
        while page := line.upcoming(size, found[-1]):
            assert len(page) <= min(size, MAX_BATCH)
            found += page
        assert len({one.id for one in found}) == 1000 == len(found)
        assert [(one.due_us, one.id.encode()) for one in found] == sorted(
            (one.due_us, one.id.encode()) for one in found
        )
        assert all(one.body == one.id.encode() for one in found)
        assert whole in (None, found)
        whole = found


def test_a_page_after_an_id_that_is_gone(line: Timeline) -> None:
    """What is claimed or removed between two pages makes no other id be missed."""
    line.put([Item(f"{number:03}", b"", due_us=AHEAD) for number in range(100)])
    first = line.upcoming(50)
    line.remove([first[-1].id, "010"])
    assert [one.id for one in line.upcoming(100, first[-1])] == [f"{number:03}" for number in range(50, 100)]


@pytest.mark.alone
def test_large_calls_are_split(line: Timeline, keyspace: redis.Redis) -> None:
    """Calls of more ids than one script handles do for each what they do for one, and no script takes long."""
    count = 2 * MAX_BATCH + 7
    names = [f"{number:05}" for number in range(count)]
    keyspace.config_set("slowlog-log-slower-than", 100_000)
    keyspace.slowlog_reset()
    assert {placed.outcome for placed in line.put([Item(name, b"x" * 200, due_us=PAST) for name in names])} == {
        Outcome.PUT
    }
    assert len(line.claim(count, LONG).items) == MAX_BATCH
    assert len(line.claim(count, LONG).items) == MAX_BATCH
    held = [Hold(one.id, str(one.claimed_us)) for one in line.locate(names).values() if one.place is Place.LEASED]
    assert len(held) == 2 * MAX_BATCH
    assert line.extend([*held, Hold("z", "1")], LONG) == ["z"]
    assert line.release([*held, Hold("z", "1")]) == ["z"]
    assert line.park([*names, "z"], "why") == [*[Place.WAITING] * count, None]
    assert line.unpark(names) == [Place.PARKED] * count
    assert line.bury([(name, "", "bad", b"") for name in [*names, "z"]]) == ["z"]
    assert line.revive(names) == [Place.DEAD] * count
    assert line.counts().ready == count
    assert line.remove(names[:600]) == [Place.WAITING] * 600
    taken = line.claim(MAX_BATCH, LONG).items
    batch = line.claim(0, LONG, settle=holds_of(taken) + [Hold(f"z{number}", "1") for number in range(9000)])
    assert len(batch.stale) == 9000
    assert line.purge() == count - 600 - len(taken)
    assert nothing_but_bells(keyspace, line)
    slow = [entry["duration"] for entry in keyspace.slowlog_get(10)]
    assert slow == []


def test_a_level_that_is_not_there_is_refused(line: Timeline, keyspace: redis.Redis) -> None:
    """A put on a level the timeline does not have raises, and nothing of the call is put."""
    with pytest.raises(ValueError, match=r"'b' has level 3; timeline 'q' has 0 to 2"):
        line.put([Item("a", b""), Item("b", b"", level=3)])
    assert look(keyspace, line) == {}


def test_fewer_levels_lose_nothing(line: Timeline) -> None:
    """What was claimed on a level that the next release no longer has comes back on its last one."""
    line.put([Item("a", b"A", due_us=PAST, level=2)])
    (item,) = line.claim(1, LONG).items
    narrow = Timeline(line.server, "q", levels=1)
    assert narrow.release(holds_of([item])) == []
    assert ids_of(narrow.claim(1, LONG).items) == ["a"]


# -- Names

NAMES = [
    "a b",
    "{",
    "}{",
    "{}",
    "a{b}c",
    "\N{PARTY POPPER} \N{ZERO WIDTH JOINER}",
    "n" * 300,
    "*?[x]",
    "a\nb\tc",
    "~",
    "-",
    "0",
]


@pytest.mark.parametrize("name", ["a b", "{", "a{b}c", "x}", "\N{PARTY POPPER}", "n" * 300, "*", "a\nb"])
def test_any_name_will_do(any_server: RunningServer, name: str) -> None:
    """Timelines, holders, claimers and ids may have spaces, braces, line ends, emoji and great length."""
    line = Timeline(Server.from_url(any_server.url), name, levels=2, holder=name, claimer=name)
    line.put([Item(id_, id_.encode(), due_us=PAST + at, level=1) for at, id_ in enumerate(NAMES)])
    assert [one.id for one in line.upcoming()] == NAMES
    items = line.claim(20, LONG, armed=True).items
    assert ids_of(items) == NAMES
    found = line.locate(NAMES)
    assert {found[id_].holder for id_ in NAMES} == {name}
    assert [found[id_].body.decode() for id_ in NAMES] == NAMES
    assert line.release(holds_of(items), counted=True) == []
    assert line.park(NAMES, name) == [Place.WAITING] * len(NAMES)
    assert line.locate(NAMES[:1])[NAMES[0]].reason == name
    assert line.unpark(NAMES) == [Place.PARKED] * len(NAMES)
    assert [item.count for item in line.claim(20, LONG).items] == [2] * len(NAMES)
    line.server.close()


@pytest.mark.parametrize("name", ["q", "a b", "{", "a{b}c", "x}", "queue:}", "\N{PARTY POPPER}", "n" * 300])
def test_a_timeline_lies_in_one_slot(cluster: Cluster, name: str) -> None:
    """On a cluster all keys of a timeline have one slot, whatever its name, and every operation works."""
    line = Timeline(Server.from_url(cluster.url), name, levels=3, holder="me", claimer=name)
    with cluster.servers[0].client() as node:
        keys = [*line.keys.all(), line.own_bell]
        assert len({node.execute_command("CLUSTER", "KEYSLOT", key) for key in keys}) == 1
    line.put([Item(id_, b"x", due_us=PAST + at, level=at % 3) for at, id_ in enumerate("abcd")])
    items = line.claim(2, LONG, armed=True).items
    assert line.extend(holds_of(items), LONG) == []
    assert line.release(holds_of(items[:1])) == []
    assert line.reschedule([(hold, AHEAD, b"n") for hold in holds_of(items[1:])]) == []
    line.park(["a"], "why")
    line.unpark(["a"])
    line.bury([("b", "", "bad", b"")])
    line.revive(["b"])
    assert len(line.upcoming()) == line.counts().ready + line.counts().delayed == 4
    assert line.settle(holds_of(line.claim(1, LONG).items)) == []
    assert len(line.locate("abcd")) == 3
    assert line.remove(["b"]) != [None]
    assert line.purge() == 2
    line.server.close()


@pytest.mark.parametrize("name", ["", "}", "}x"])
def test_a_name_that_would_spread_over_slots_is_refused(name: str) -> None:
    """A name that leaves a cluster no hash tag is refused, with the reason."""
    with pytest.raises(ValueError, match="empty hash tag"):
        TimelineKeys(name)


def test_the_length_of_a_body_hardly_matters(line: Timeline, keyspace: redis.Redis) -> None:
    """No script reads long bodies through: claiming 64 of 100 kB each keeps a server busy for a moment only."""
    line.put([Item(f"{number}", b"x" * 100_000, due_us=PAST) for number in range(64)])
    keyspace.config_set("slowlog-log-slower-than", 0)
    took = []
    for _ in range(5):
        keyspace.slowlog_reset()
        items = line.claim(64, LONG).items
        took += [entry["duration"] for entry in keyspace.slowlog_get(20) if entry["command"].startswith(b"EVAL")]
        assert len(items) == 64
        line.release(holds_of(items))
    # Most of it is copying 6.4 MB twice; reading each byte in Lua would take five times as long.
    assert min(took) < 25_000


def test_a_claim_of_more_than_a_script_can_write_takes_a_part(line: Timeline) -> None:
    """Whoever asks for thousands at once gets hundreds, and every id stands in one place."""
    many = 6 * MAX_BATCH
    line.put([Item(f"{number}", b"") for number in range(many)])
    args = claim_arguments(MAX_BATCH, LONG, "me", "c")
    batch = parse_batch(line.run("claim", [many, *args[1:]]))
    assert len(batch.items) == MAX_BATCH
    counts = line.counts()
    assert (counts.leased, counts.ready) == (MAX_BATCH, many - MAX_BATCH)


def test_a_claimer_without_a_name_keeps_nobody_from_watching(line: Timeline) -> None:
    """It takes what is there and waits for nothing, so the moment to come is another's to wake for."""
    line.put([Item("later", b"", delay_us=10 * 1_000_000)])
    watcher = line.claimer
    line.claimer = ""
    assert line.claim(1, LONG).wake_us is None
    line.claimer = watcher
    assert line.claim(1, LONG).wake_us is not None
