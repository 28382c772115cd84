"""Scripts called over a few kept connections, past redis-py's client: what a message costs is mostly the client's time.

A call's constant part, script and keys, is packed once; the rest is packed by hand. What is sent once is never sent
again by this module: a call whose answer did not come may have run, and its caller must know what that means.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from redis.exceptions import MovedError, NoScriptError, ResponseError

from celery_zsched import scripts
from celery_zsched.connection import Dedicated, Server
from celery_zsched.errors import ServerUnavailableError, ZschedError
from celery_zsched.types import SECOND_US

#: A kept connection that was idle for so long is looked at before it is used: the server may have closed it.
IDLE_S = 1.0

#: What ends a link, as against what a server answers on it.
_BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError, ServerUnavailableError)

_all_wires: weakref.WeakSet[Wires] = weakref.WeakSet()


class Call:
    """One script on one set of keys, ready to be sent with any arguments."""

    __slots__ = ("_prefixes", "keys", "route", "script")

    def __init__(self, script: scripts.Script, keys: Sequence[str]) -> None:
        self.script = script
        self.keys = keys
        self.route = keys[0] if keys else ""
        self._prefixes: dict[bool, bytes] = {}

    def pack(self, args: Sequence[scripts.Argument], flags: bool) -> bytes:
        """Return the call as the protocol wants it."""
        prefix = self._prefixes.get(flags)
        if prefix is None:
            source = self.script.flagged if flags else self.script.plain
            prefix = self._prefixes[flags] = _pack(["EVALSHA", source.sha, len(self.keys), *self.keys])
        return b"*%d\r\n" % (3 + len(self.keys) + len(args)) + prefix + _pack(args)

    def pack_text(self, args: Sequence[scripts.Argument], flags: bool) -> bytes:
        """Return the call with the script's text, for a server that does not have it."""
        source = self.script.flagged if flags else self.script.plain
        parts: list[scripts.Argument] = ["EVAL", source.text, len(self.keys), *self.keys, *args]
        return b"*%d\r\n" % len(parts) + _pack(parts)


def _pack(parts: Iterable[scripts.Argument]) -> bytes:
    packed: list[bytes] = []
    for part in parts:
        if type(part) is not bytes:
            part = (part if type(part) is str else str(part)).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(part), part))
    return b"".join(packed)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Calls that were sent (:meth:`Wires.begin`): one of the two is to be called, once.

    ``answers`` waits, and returns what :meth:`Wires.call_each` does; ``drop`` gives up what is not known then.
    """

    answers: Callable[[], list[Any]]
    drop: Callable[[], None]


class Wires:
    """The connections of this process to one server over which scripts are called.

    ``limit`` bounds them; who finds all taken waits up to ``patience_s`` seconds. Safe for threads, greenlets
    and forks.
    """

    def __init__(self, server: Server, *, limit: int = 10, patience_s: float = 60.0) -> None:
        self.server = server
        self._limit = limit
        self._clustered = server.address.kind == "cluster"
        self._patience_s = patience_s
        #: Server clock minus our monotonic clock, in microseconds; None until the first connection told.
        self.offset_us: int | None = None
        #: Wires of the same process to the same server: what one of them finds broken, the others do not try.
        self.kin: weakref.WeakSet[Wires] = weakref.WeakSet()
        self._reset()
        _all_wires.add(self)

    def _reset(self) -> None:
        self._free: dict[str, deque[tuple[float, Dedicated]]] = {}
        self._room = threading.Semaphore(self._limit)

    # -- The server's clock

    def now_us(self) -> int:
        """Return an estimate of the server's clock, from what it said at the last look."""
        if self.offset_us is None:
            self.look_at_clock()
        assert self.offset_us is not None
        return self.offset_us + time.monotonic_ns() // 1000

    def look_at_clock(self) -> None:
        """Ask the server for its time; also shows that it can be reached."""
        before = time.monotonic_ns()
        seconds, micros = self.command("TIME")
        middle = (before + time.monotonic_ns()) // 2000
        self.offset_us = int(seconds) * SECOND_US + int(micros) - middle

    def heard_clock(self, server_us: int, at: float) -> None:
        """Note what the server said of its time when it was asked at ``at`` by our monotonic clock, in seconds."""
        self.offset_us = server_us - int(at * SECOND_US)

    # -- Calling

    def call(self, call: Call, args: Sequence[scripts.Argument]) -> Any:
        """Run a script; its errors come translated, as :mod:`celery_zsched.errors`."""
        flags = self.server.script_flags
        packed = call.pack(args, flags)
        node, wire = self._take(call.route)
        try:
            wire.send_packed_command([packed])
            answer = wire.read_response()
        except NoScriptError:
            answer = self._send_text(node, wire, call, args)
        except MovedError:
            self._drop(node, wire)
            return self._again(call, args)
        except BaseException as exc:
            self._fail(node, wire, call.script.name, exc)
        self._give(node, wire)
        return answer

    @staticmethod
    def raised(answers: list[Any]) -> list[Any]:
        """Return answers, or raise the first error among them."""
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def call_each(self, calls: Sequence[tuple[Call, Sequence[scripts.Argument]]]) -> list[Any]:
        """Run several scripts whose keys are on one node in one round trip; return their answers, or errors in place.

        What one of them has done is known though another one failed.
        """
        if len(calls) == 1:
            return [self._attempt(*calls[0])]
        try:
            under_way = self.begin(calls)
        except ZschedError as exc:
            return [exc] * len(calls)
        return under_way.answers()

    def begin(self, calls: Sequence[tuple[Call, Sequence[scripts.Argument]]]) -> UnderWay:
        """Send several scripts whose keys are on one node, and do not wait for their answers.

        They are to be fetched or dropped: until then a connection is taken.
        """
        flags = self.server.script_flags
        node, wire = self._take(calls[0][0].route)
        try:
            wire.send_packed_command([call.pack(args, flags) for call, args in calls])
        except BaseException as exc:
            self._fail(node, wire, calls[0][0].script.name, exc)
        return UnderWay(partial(self._fetch, node, wire, calls), partial(self._drop, node, wire))

    def _fetch(self, node: str, wire: Dedicated, calls: Sequence[tuple[Call, Sequence[scripts.Argument]]]) -> list[Any]:
        answers: list[Any] = []
        fault: Exception | None = None
        try:
            for _ in calls:
                try:
                    answers.append(wire.read_response())
                except ResponseError as exc:
                    answers.append(exc)
            for position, (call, args) in enumerate(calls):
                if isinstance(answers[position], NoScriptError):
                    answers[position] = self._ask_text(wire, call, args)
        except Exception as exc:
            fault = exc
        except BaseException:
            self._drop(node, wire)
            raise
        if fault is not None or any(isinstance(answer, Exception) for answer in answers):
            # Also after an error that the server answered: it may be one of a server that was demoted.
            self._drop(node, wire)
            if fault is not None:
                self.distrust(fault, node)
        else:
            self._give(node, wire)
        answers += [fault] * (len(calls) - len(answers))
        return [self._told(answer, fault, *asked) for answer, asked in zip(answers, calls, strict=True)]

    def _attempt(self, call: Call, args: Sequence[scripts.Argument]) -> Any:
        try:
            return self.call(call, args)
        except ZschedError as exc:
            return exc

    def _told(self, answer: Any, fault: Exception | None, call: Call, args: Sequence[scripts.Argument]) -> Any:
        """Return an answer of :meth:`call_each`, or its error as one of ours; a server that has moved is followed."""
        if isinstance(answer, MovedError):
            return self._attempt(call, args)  # it has not run
        if isinstance(answer, NoScriptError) and fault is not None:
            answer = fault
        if not isinstance(answer, Exception):
            return answer
        try:
            with self.server.translated(call.script.doing):
                raise answer
        except Exception as exc:
            return exc

    def command(self, *parts: scripts.Argument, route: str = "") -> Any:
        """Run one plain command on the node that ``route`` is a key of."""
        return self.commands([parts], route=route)[0]

    def commands(self, commands: Sequence[Sequence[scripts.Argument]], *, route: str = "") -> list[Any]:
        """Run plain commands in one round trip; the first error is raised."""
        node, wire = self._take(route)
        doing = str(commands[0][0])
        try:
            wire.send_packed_command([b"".join(b"*%d\r\n" % len(parts) + _pack(parts) for parts in commands)])
            answers: list[Any] = []
            failure: Exception | None = None
            for parts in commands:
                try:
                    answers.append(wire.read_response())
                except ResponseError as exc:
                    failure, doing = failure or exc, str(parts[0])
            if failure is not None:
                raise failure
        except BaseException as exc:
            self._fail(node, wire, doing, exc)
        self._give(node, wire)
        return answers

    def close(self) -> None:
        """Close what is idle; the rest follows as it is given back to nobody."""
        free, self._free = self._free, {}
        for wires in free.values():
            for _, wire in wires:
                wire.close()

    def distrust(self, exc: BaseException, node: str | None = None) -> None:
        """Close what is idle (to one node, or to all) after a link broke or fell silent: the others have, too.

        Otherwise each of them would be found silent in turn, one socket_timeout after the other.
        """
        if isinstance(exc, _BROKEN):
            for wires in (self, *self.kin):
                wires._close_idle(node)

    def _close_idle(self, node: str | None) -> None:
        for each in [node] if node is not None else list(self._free):
            idle = self._free.get(each)
            while idle:
                try:
                    _, wire = idle.popleft()
                except IndexError:  # another thread took the last one
                    break
                wire.close()

    # -- Connections

    def node_of(self, route: str) -> str:
        """Return a name for the node that has a key; keys with the same name can be asked in one round trip."""
        if not self._clustered:
            return ""
        with self.server.translated("connecting"):
            node = self.server.node_of(route)
        return "" if node is None else str(node.name)

    def _take(self, route: str) -> tuple[str, Dedicated]:
        if not self._room.acquire(timeout=self._patience_s):
            raise ServerUnavailableError(
                f"all {self._limit} connections to {self.server.masked} were in use for {self._patience_s:g} s; raise "
                "max_connections in broker_transport_options"
            )
        try:
            node = self.node_of(route)
            free = self._free.get(node)
            if free is None:
                free = self._free.setdefault(node, deque())
            now = time.monotonic()
            while True:
                try:
                    since, wire = free.pop()
                except IndexError:
                    return node, self.server.blocking(route)
                if not wire.is_connected:
                    continue
                if now - since < IDLE_S or not self._is_stale(wire):
                    return node, wire
                wire.close()
        except BaseException:
            self._room.release()
            raise

    @staticmethod
    def _is_stale(wire: Dedicated) -> bool:
        # Nothing was asked, so anything that can be read is the end of the connection.
        try:
            return wire.can_read(0)
        except (redis.RedisError, OSError):
            return True

    def _give(self, node: str, wire: Dedicated) -> None:
        self._free.setdefault(node, deque()).append((time.monotonic(), wire))
        self._room.release()

    def _drop(self, node: str, wire: Dedicated) -> None:
        wire.close()
        self._room.release()

    def _fail(self, node: str, wire: Dedicated, doing: str, exc: BaseException) -> Any:
        # Also after an error that the server answered: it may be one of a server that was demoted.
        self._drop(node, wire)
        self.distrust(exc, node)
        with self.server.translated(doing):
            raise exc

    def _again(self, call: Call, args: Sequence[scripts.Argument]) -> Any:
        # A server that says MOVED has not run the call.
        node, wire = self._take(call.route)
        try:
            wire.send_packed_command([call.pack(args, self.server.script_flags)])
            answer = wire.read_response()
        except NoScriptError:
            answer = self._send_text(node, wire, call, args)
        except BaseException as exc:
            self._fail(node, wire, call.script.name, exc)
        self._give(node, wire)
        return answer

    def _send_text(self, node: str, wire: Dedicated, call: Call, args: Sequence[scripts.Argument]) -> Any:
        try:
            return self._ask_text(wire, call, args)
        except BaseException as exc:
            return self._fail(node, wire, call.script.name, exc)

    def _ask_text(self, wire: Dedicated, call: Call, args: Sequence[scripts.Argument]) -> Any:
        if self.server.script_flags:
            wire.send_packed_command([call.pack_text(args, True)])
            try:
                return wire.read_response()
            except ResponseError as exc:
                if "unexpected symbol near '#'" not in str(exc):
                    raise
                self.server.script_flags = False  # before Redis 7
        wire.send_packed_command([call.pack_text(args, False)])
        return wire.read_response()


def _forget_all_after_fork() -> None:
    # The sockets are the parent's: they are left alone here, not shut.
    for wires in _all_wires:
        wires._reset()


os.register_at_fork(after_in_child=_forget_all_after_fork)
