"""Random operations of several clients on a real server, compared with the model after each step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_zsched.connection import Server
from celery_zsched.timeline import Timeline
from celery_zsched.types import Hold, Item, Mark, Place, Put
from tests.integration.timeline_model import Model
from tests.lua.tables import AHEAD, LEVELS, PAST, clock, look
from tests.servers import DEFAULT_KIND, RunningServer

IDS = ["a", "b", "c d", "{e}", "ü~", "\N{PARTY POPPER}"]
FOREVER = 3600 * 1_000_000


def rarely(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly None."""
    return st.one_of(st.none(), st.none(), st.none(), strategy)


clients = st.integers(0, 2)
ids = st.sampled_from(IDS)
some_ids = st.lists(ids, max_size=3)
bodies = st.sampled_from([b"", b"x", b"yy"])
moments = st.sampled_from([PAST, PAST + 1, PAST + 1, AHEAD])
#: Of tiny leases most have ended by the next step.
leases = st.sampled_from([1, 300, FOREVER])
reasons = st.sampled_from(["why", "because"])
notes = st.sampled_from([b"", b"n", b"m"])
#: Which of all tokens ever given out, counted from the latest.
choices = st.lists(st.integers(0, 9), max_size=4)
items = st.builds(
    Item,
    id=ids,
    body=bodies,
    due_us=st.none() | moments,
    delay_us=rarely(st.sampled_from([400, FOREVER])),
    level=st.integers(0, LEVELS - 1),
    mode=st.sampled_from(Put),
    mark=rarely(st.builds(Mark, st.just("entry"), st.integers(1, 2), st.integers(1, 9))),
    expect=rarely(st.just("") | bodies.map(lambda body: hashlib.sha1(body).hexdigest())),
)
batches = st.lists(items, min_size=1, max_size=3)


#: The machine's operations and their arguments.
OPERATIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "put": {"by": clients, "batch": batches},
    "put_too_late": {"by": clients, "batch": batches},
    "claim": {
        "by": clients,
        "limit": st.integers(0, 5),
        "lease": st.sampled_from([1, 1, 300, FOREVER, FOREVER, 0]),
        "settle": st.just([]) | choices,
        "delivery_limit": st.sampled_from([0, 0, 2]),
        "armed": st.booleans(),
        "linger": st.booleans(),
    },
    "extend": {"by": clients, "which": choices, "lease": leases},
    "settle": {"by": clients, "which": choices},
    "release": {
        "by": clients,
        "which": choices,
        "counted": st.booleans(),
        "delay": st.sampled_from([None, None, 0, 300, FOREVER]),
    },
    "reschedule": {"by": clients, "which": choices, "due": moments, "note": notes, "linger": st.booleans()},
    "park": {"by": clients, "which": some_ids, "reason": reasons, "force": st.booleans()},
    "unpark": {"by": clients, "which": some_ids, "due": st.none() | moments},
    "revive": {"by": clients, "which": some_ids, "due": st.none() | moments},
    "bury": {"by": clients, "which": choices, "others": some_ids, "reason": reasons, "note": notes},
    "remove": {"by": clients, "which": some_ids, "spare": st.booleans()},
    "cancel": {"by": clients, "which": some_ids},
    "purge": {"by": clients},
    "flush_scripts": {},
    "count": {"by": clients},
    "page": {"by": clients, "limit": st.integers(1, 3)},
    "locate": {"by": clients, "which": some_ids},
}
_OFTEN = {
    "put": 6,
    "claim": 9,
    "cancel": 2,
    "release": 3,
    "settle": 2,
    "reschedule": 2,
    "park": 2,
    "unpark": 2,
    "bury": 2,
}
steps = st.sampled_from([name for name in OPERATIONS for _ in range(_OFTEN.get(name, 1))]).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(OPERATIONS[name]))
)


class Machine(RuleBasedStateMachine):
    """Three clients, one timeline, one model."""

    def __init__(self, running: RunningServer) -> None:
        super().__init__()
        self.client = running.client()
        self.client.flushall()
        self.lines = [
            Timeline(Server.from_url(running.url), "q ü", levels=LEVELS, holder=f"holder {number}", claimer=str(number))
            for number in range(3)
        ]
        self.model = Model()
        self.given: list[Hold] = []
        self.tokens: set[Hold] = set()

    def teardown(self) -> None:
        """Close the connections."""
        for line in self.lines:
            line.server.close()
        self.client.close()

    @rule(step=steps)
    def act(self, step: tuple[str, dict[str, Any]]) -> None:
        """Do one operation. It is one rule, so that no example goes without claims."""
        name, arguments = step
        getattr(self, name)(**arguments)

    def timed(self, act: Callable[[], Any]) -> Any:
        """Call and remember between which moments of the server it was."""
        before = clock(self.client)
        answer = act()
        self.window = (before, clock(self.client))
        return answer

    def chosen(self, numbers: list[int]) -> list[Hold]:
        """Return some of the tokens that were given out, most of them stale."""
        return [self.given[-1 - number] for number in dict.fromkeys(numbers) if number < len(self.given)]

    def put(self, by: int, batch: list[Item]) -> None:
        """Place items in every mode, with marks and expectations."""
        placed = self.timed(lambda: self.lines[by].put(batch))
        assert placed == self.model.put(batch, placed)

    def put_too_late(self, by: int, batch: list[Item]) -> None:
        """What is no longer wanted changes nothing."""
        placed = self.timed(lambda: self.lines[by].put(batch, not_after_us=PAST))
        assert {one.outcome.value for one in placed} == {"late"}

    def claim(
        self, by: int, limit: int, lease: int, settle: list[int], delivery_limit: int, armed: bool, linger: bool
    ) -> None:
        """Take what is free, in the order in which it must be."""
        line, done = self.lines[by], self.chosen(settle)
        batch = self.timed(
            lambda: line.claim(limit, lease, settle=done, delivery_limit=delivery_limit, armed=armed, linger=linger)
        )
        expected = self.model.claim(batch.now_us, limit, lease, line.holder, settle=done, delivery_limit=delivery_limit)
        assert replace(batch, wake_us=None) == expected
        assert batch.wake_us is None or not batch.items
        for item in batch.items:
            hold = Hold(item.id, item.token)
            assert hold not in self.tokens
            self.tokens.add(hold)
            self.given.append(hold)

    def extend(self, by: int, which: list[int], lease: int) -> None:
        """Renew leases, ended and stale ones among them."""
        holds = self.chosen(which)
        assert self.timed(lambda: self.lines[by].extend(holds, lease)) == self.model.extend(holds, lease)

    def settle(self, by: int, which: list[int]) -> None:
        """Settle, with stale tokens among them."""
        holds = self.chosen(which)
        assert self.timed(lambda: self.lines[by].settle(holds)) == self.model.settle(holds)

    def release(self, by: int, which: list[int], counted: bool, delay: int | None) -> None:
        """Give back, at once or later."""
        holds = self.chosen(which)
        answer = self.timed(lambda: self.lines[by].release(holds, counted=counted, delay_us=delay))
        assert answer == self.model.release(holds, counted=counted, delay_us=delay)

    def reschedule(self, by: int, which: list[int], due: int, note: bytes, linger: bool) -> None:
        """Move on to a next moment."""
        moves = [(hold, due, note) for hold in self.chosen(which)]
        answer = self.timed(lambda: self.lines[by].reschedule(moves, linger=linger))
        assert answer == self.model.reschedule(moves)

    def park(self, by: int, which: list[str], reason: str, force: bool) -> None:
        """Park, by force at times."""
        answer = self.timed(lambda: self.lines[by].park(which, reason, force=force))
        assert answer == self.model.park(which, reason, force=force)

    def unpark(self, by: int, which: list[str], due: int | None) -> None:
        """Put back what is parked."""
        answer = self.timed(lambda: self.lines[by].unpark(which, due))
        assert answer == self.model.restore(Place.PARKED, which, due)

    def revive(self, by: int, which: list[str], due: int | None) -> None:
        """Put back what is dead."""
        answer = self.timed(lambda: self.lines[by].revive(which, due))
        assert answer == self.model.restore(Place.DEAD, which, due)

    def bury(self, by: int, which: list[int], others: list[str], reason: str, note: bytes) -> None:
        """Bury by token and by id."""
        graves = [(hold.id, hold.token, reason, note) for hold in self.chosen(which)]
        graves += [(id_, "", reason, note) for id_ in others]
        assert self.timed(lambda: self.lines[by].bury(graves)) == self.model.bury(graves)

    def remove(self, by: int, which: list[str], spare: bool) -> None:
        """Delete, sparing the leased at times."""
        answer = self.timed(lambda: self.lines[by].remove(which, spare_leased=spare))
        assert answer == self.model.remove(which, spare_leased=spare)

    def cancel(self, by: int, which: list[str]) -> None:
        """Cancel, what is held among them."""
        answers = self.timed(lambda: self.lines[by].cancel(which))
        assert answers == self.model.cancel(which, answers, self.window)

    def purge(self, by: int) -> None:
        """Delete what waits."""
        assert self.timed(lambda: self.lines[by].purge()) == self.model.purge()

    def flush_scripts(self) -> None:
        """The server forgets every script."""
        self.timed(lambda: self.client.script_flush())

    def count(self, by: int) -> None:
        """Counts are those of the model."""
        counts = self.timed(lambda: self.lines[by].counts())
        waiting = [one.due_us for one in self.model.upcoming()]
        ready = sum(due <= counts.now_us for due in waiting)
        assert (counts.ready, counts.delayed) == (ready, len(waiting) - ready)
        places = [entry.place for entry in self.model.entries.values()]
        assert [counts.leased, counts.parked, counts.dead] == [
            places.count(place) for place in (Place.LEASED, Place.PARKED, Place.DEAD)
        ]
        assert counts.oldest_us == min(waiting, default=None)

    def page(self, by: int, limit: int) -> None:
        """Pages of any size together are all that waits, in order."""
        found = self.timed(lambda: self.lines[by].upcoming(limit))
        while len(page := self.lines[by].upcoming(limit, found[-1] if found else None)) and found:
            found += page
        assert found == self.model.upcoming()

    def locate(self, by: int, which: list[str]) -> None:
        """Ids are found with all that is known of them."""
        located = self.timed(lambda: self.lines[by].locate(which))
        assert located == {id_: found for id_ in which if (found := self.model.located(id_))}

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        """The whole keyspace is the model's: each id in one place, nothing left behind."""
        actual = look(self.client, self.lines[0])
        bells = {key: actual.pop(key) for key in list(actual) if key.startswith(("bell", "watch", "own:"))}
        assert actual == self.model.state(actual, getattr(self, "window", (0, 0)))
        assert set(bells.get("bell", {})) <= {"ring", "second"}
        assert set(bells.get("watch", {})) <= {"0", "1", "2"}


def test_random_operations_keep_every_rule(any_server: RunningServer) -> None:
    """Whatever several clients do in whatever order, the server holds exactly what the model holds."""
    thorough = any_server.kind == DEFAULT_KIND
    run_state_machine_as_test(
        lambda: Machine(any_server),
        settings=settings(
            max_examples=100 if thorough else 20,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
