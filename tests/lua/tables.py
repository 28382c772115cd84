"""Tables for the tests of one script each: seed the whole state, call once, compare the whole keyspace.

A state is ``{key: {member or field: score or text}}``; keys are named as in :mod:`celery_zsched.keys`, without the
timeline's own part. In what is expected, ``NOW`` stands for the server's clock during the call, also inside a text;
``NOW+5`` there is five microseconds later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from celery_zsched.connection import Server
from celery_zsched.timeline import Timeline
from tests.servers import RunningServer

State = dict[str, dict[str, Any]]

#: A moment that has passed and one that is far off, in microseconds, with the same digits' count as today's.
PAST = 1_100_000_000_000_000
AHEAD = 4_000_000_000_000_000

#: The token of a claim made long ago.
TOKEN = "1200000000000000"
OTHER = "1300000000000000"

#: One priority level more than most timelines have.
LEVELS = 3

#: What wakes one claimer, and what wakes two for a moment still to come.
RUNG = {"bell": {"ring": 0}}
RUNG_TWICE = {"bell": {"ring": 0, "second": 1}}

_MORTAL = ("bell", "watch", "own:")

#: Keys that live as long as what is in them.
_LAPSING = ("runs", "lapses")


@dataclass(frozen=True)
class Now:
    """The server's clock during the call, plus some microseconds."""

    plus: int = 0

    def __add__(self, more: int) -> Now:
        return Now(self.plus + more)


NOW = Now()


@dataclass(frozen=True)
class Case:
    """One row of a table."""

    name: str
    before: State
    args: list[Any]
    answer: Any
    after: State = field(default_factory=dict)


def table(*cases: Case) -> pytest.MarkDecorator:
    """Return the decorator that runs a test once for each case."""
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name.replace(" ", "-")) for case in cases])


def timeline(running: RunningServer, **kwargs: Any) -> Timeline:
    """Return a timeline ``q`` with three levels on a running server."""
    return Timeline(Server.from_url(running.url), "q", **{"levels": LEVELS, "holder": "me", "claimer": "c", **kwargs})


def run(running: RunningServer, script: str, case: Case) -> None:
    """Seed, call, and compare the answer and every key of the server."""
    line = timeline(running)
    with running.client() as client:
        seed(client, line, case.before)
        start = clock(client)
        answer = readable(line.run(script, case.args))
        window = (start, clock(client))
        after = look(client, line)
    line.server.close()
    assert answer == settled(case.answer, answer, window)
    assert after == settled(case.after, after, window)


def clock(client: redis.Redis) -> int:
    """Return the server's clock in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


def seed(client: redis.Redis, line: Timeline, state: State) -> None:
    """Write a state."""
    for key, content in state.items():
        name = f"{line.keys.base}:{key}"
        if key in ("claims", "bodies", "notes", "reasons", "marks", "runs", "rules"):
            client.hset(name, mapping=content)
        else:
            client.zadd(name, content)
        if key.startswith(_MORTAL):
            client.pexpire(name, 60_000)
        elif key in _LAPSING:
            client.pexpire(name, 3_600_000)


def look(client: redis.Redis, line: Timeline) -> State:
    """Return every key of the server. Bells and watches must have a life of a minute at most."""
    state: State = {}
    for name in client.scan_iter(count=1000):
        key = name.decode().removeprefix(f"{line.keys.base}:")
        kind, remaining_ms = client.type(name), client.pttl(name)
        if kind == b"zset":
            state[key] = {member.decode(): int(score) for member, score in client.zrange(name, 0, -1, withscores=True)}
        else:
            state[key] = {name.decode(): value.decode() for name, value in client.hgetall(name).items()}
        if key.startswith(_MORTAL):
            assert 0 < remaining_ms <= 60_000, f"{key} lives {remaining_ms} ms"
        elif key in _LAPSING:
            assert remaining_ms > 0, f"{key} never lapses"
        else:
            assert remaining_ms == -1, f"{key} would lapse in {remaining_ms} ms"
    return state


def readable(answer: Any) -> Any:
    """Return a server's answer as text and numbers."""
    if isinstance(answer, list):
        return [readable(part) for part in answer]
    return answer.decode() if isinstance(answer, bytes) else answer


def settled(expected: Any, actual: Any, window: tuple[int, int]) -> Any:
    """Return ``expected`` with each NOW that fits replaced by what is there."""
    if isinstance(expected, Now):
        fits = _is_number(actual) and window[0] <= int(actual) - expected.plus <= window[1]
        return actual if fits else f"a moment between {window[0] + expected.plus} and {window[1] + expected.plus}"
    if isinstance(expected, dict) and isinstance(actual, dict):
        return {_name(key, actual, window): settled(value, actual.get(_name(key, actual, window)), window)
                for key, value in expected.items()}  # fmt: skip
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return [settled(one, other, window) for one, other in zip(expected, actual, strict=True)]
    if isinstance(expected, str) and "NOW" in expected and isinstance(actual, str):
        return actual if _fits(expected, actual, window) else expected
    return expected


def _name(key: str, actual: dict[str, Any], window: tuple[int, int]) -> str:
    if "NOW" not in key:
        return key
    return next((name for name in actual if _fits(key, name, window)), key)


def _fits(expected: str, actual: str, window: tuple[int, int]) -> bool:
    plus = [int(digits or 0) for digits in re.findall(r"NOW(?:\+(\d+))?", expected)]
    match = re.fullmatch(re.sub(r"NOW(?:\\\+\d+)?", r"(\\d+)", re.escape(expected)), actual)
    return match is not None and all(
        window[0] <= int(digits) - more <= window[1] + 1000 for digits, more in zip(match.groups(), plus, strict=True)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
