"""The roll of live beats, and of the static entries that live releases declare.

Each beat says now and then that it lives, and which release of the app it runs. What no live release declares any more
goes after a settle time, so that neither a start nor a stop of one release takes an entry from another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_zsched.errors import ServerError
from celery_zsched.keys import ScheduleKeys
from celery_zsched.schedules import Schedules
from celery_zsched.settings import Settings
from celery_zsched.types import SECOND_US
from celery_zsched.upkeep import forget_finished

if TYPE_CHECKING:
    from celery_zsched.engine import Engine

logger = logging.getLogger("celery.beat.zsched")

#: How often a beat says that it lives, in seconds; more often when the settle time is short.
CALL_S = 60.0

#: A beat that has not called for so long, in seconds, is not counted as alive.
SILENT_S = 150.0

#: One that has neither called nor said that it ends may be connecting anew for so long, in seconds.
CONNECTING_S = 15.0

#: How much of its fault a beat tells, in characters.
_FAULT_LENGTH = 500

#: For how long it is remembered whether beats of another release are alive, in seconds.
OTHERS_KNOWN_S = 2.0

#: A schedule that has just answered that nothing waits is checked again after this long, in seconds.
SOON_S = 1.0

#: How many names go into one command.
_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """One beat as it last called: where it runs, since when, how late it sent last, how wrong its clock is.

    ``ended_us`` is when it has ended in the orderly way (0: it has not), ``client`` the name of its connection in
    ``CLIENT LIST`` (empty: it has none). ``fault`` is why it cannot send, ``failing_us`` since when (empty and 0: it
    can).
    """

    id: str
    host: str
    pid: int
    release: str
    started_us: int
    at_us: int
    lag_us: int
    offset_us: int
    ended_us: int = 0
    client: str = ""
    fault: str = ""
    failing_us: int = 0

    def to_json(self) -> bytes:
        """Return the stored form."""
        return json.dumps({"v": 1} | dataclasses.asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Beat:
        """Read the stored form, of another version too: what that has besides is left out, what it lacks is unknown.

        Raises ``ValueError`` for a record that does not say which beat it is of, when it called, and its release.
        """
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError(f"a beat's record is {text[:80]!r}")
        unknown = {"host": "?", "pid": 0, "started_us": document.get("at_us"), "lag_us": 0, "offset_us": 0}
        names = [field.name for field in dataclasses.fields(cls)]
        known: dict[str, Any] = unknown | {name: document[name] for name in names if name in document}
        if not all(isinstance(known.get(name), kind) for name, kind in (("id", str), ("release", str), ("at_us", int))):
            raise ValueError(f"a beat's record is {text[:80]!r}")
        for name, default in (("ended_us", 0), ("client", ""), ("fault", ""), ("failing_us", 0)):
            if type(known.get(name, default)) is not type(default):
                known[name] = default
        return cls(**known)


class Roll:
    """This beat's place on the roll. Not for several threads at once; raises translated server errors."""

    def __init__(
        self, schedules: Schedules, engine: Engine, settings: Settings, *, also: Callable[[int], object]
    ) -> None:
        """Take part by an engine; ``also`` is called with the server's time (microseconds) at each sweep."""
        self._schedules = schedules
        self._engine = engine
        self._settings = settings
        self._also = also
        self._keys = ScheduleKeys(schedules.prefix)
        self._release = ""
        self._started_us = 0
        self._known = False
        self._called_at = 0.0
        self._swept_at = 0.0
        self._shown_as = ""
        self._others = (0.0, False)
        engine.isolation.neighbours = self
        #: Since when this beat fails, as it told last (0: it does not).
        self._failing_us = 0
        #: How often this beat calls, in seconds: so often that others do not miss it for one call that comes late.
        self.every_s = min(CALL_S, settings.settle_time / 3)

    @property
    def release(self) -> str:
        """The release of the app that this beat runs; empty before it has declared its entries."""
        return self._release

    def others(self) -> bool:
        """Return whether beats of another release are alive, as of a moment ago."""
        until, there = self._others
        now_us = self._engine.lookout.now_us()
        if time.monotonic() < until or now_us is None:
            return there
        there = any(
            beat.release != self._release and not beat.ended_us and now_us - beat.at_us < SILENT_S * SECOND_US
            for beat in beats_of(self._schedules)
        )
        self._others = time.monotonic() + OTHERS_KNOWN_S, there
        return there

    def declare(self, names: Sequence[str], documents: Iterable[bytes] = ()) -> None:
        """Say which static entries this release has, before they are stored.

        The set of names is a part of what a release is called, so that one that keeps its name and drops an entry is
        another one; so are the entries' ``documents``, so that one which only sends other arguments is, too.
        """
        told = b"\0".join([*(name.encode() for name in sorted(names)), *sorted(documents)])
        digest = hashlib.blake2b(told, digest_size=8).hexdigest()
        before, self._release = self._release, f"{self._settings.release}/{digest}".removeprefix("/")
        now_us = self._schedules.now_us()
        self._started_us = self._started_us or now_us
        with self._schedules.server.translated("declaring static entries"):
            pipeline: Any = self._client().pipeline(transaction=True)
            key = self._keys.release(self._release)
            pipeline.delete(key)
            for start in range(0, len(names), _AT_ONCE):
                pipeline.sadd(key, *names[start : start + _AT_ONCE])
            record = self._record(now_us)
            pipeline.hset(self._keys.beats, record.id, record.to_json())
            if before not in ("", self._release):  # it counts for the settle time, as if another beat had ended
                ended = dataclasses.replace(
                    record, id=f"{record.id}/{before}", release=before, ended_us=now_us, client="", fault="",
                    failing_us=0,
                )  # fmt: skip
                pipeline.hset(self._keys.beats, ended.id, ended.to_json())
            pipeline.execute()
        self._known = True
        self._called_at = time.monotonic()

    def call(self) -> bool:
        """Say that this beat lives, if it is time to; return False if the server has forgotten it, and so all else.

        Whether it fails, and why, is said at once. Nothing is said while the server does not answer, nor before it is
        known what this beat declares.
        """
        since_s = time.monotonic() - self._called_at
        now_us = self._engine.lookout.now_us()
        every_s = min(SOON_S, self.every_s) if self._engine.lookout.nothing_waits else self.every_s
        news = self._engine.lookout.connected_as not in ("", self._shown_as)
        if bool(self._engine.fault) != bool(self._failing_us):
            every_s = min(every_s, SOON_S)
        if not self._known or not self._engine.reached or now_us is None or (since_s < every_s and not news):
            return True
        # An idle beat hears by this alone that the server's clock was set.
        asked_us = time.monotonic_ns() // 1000
        seconds, micros = self._schedules.wires.command("TIME", route=self._keys.beats)
        now_us = int(seconds) * SECOND_US + int(micros)
        self._engine.lookout.heard(now_us, asked_us)
        with self._schedules.server.translated("calling the roll"):
            fresh = self._client().hset(
                self._keys.beats, self._schedules.timeline.claimer, self._record(now_us).to_json()
            )
        self._called_at = time.monotonic()
        self._engine.lookout.nothing_waits = False  # looked into: once for each such answer
        if fresh and self._known:
            return False
        # When the clock was just set, the others have not called by it yet, and seem to be silent for as long.
        quiet_since = max(self._swept_at, self._engine.lookout.set_at)
        if time.monotonic() - quiet_since > self._settings.settle_time:
            self._swept_at = time.monotonic()
            self._sweep(now_us)
        return True

    def leave(self) -> None:
        """Say that this beat ends. Its record stays for the settle time, since others must know what it declared."""
        now_us = self._engine.lookout.now_us()
        if not self._known or now_us is None:
            return
        ended = dataclasses.replace(self._record(now_us), ended_us=now_us, client="", fault="", failing_us=0)
        with self._schedules.server.translated("leaving the roll"):
            self._client().hset(self._keys.beats, self._schedules.timeline.claimer, ended.to_json())
        self._known = False

    def _sweep(self, now_us: int) -> None:
        """Forget beats that were silent for the settle time, what only they declared, and what is long finished."""
        every, unread = _read(self._schedules)
        gone = self._gone(every, now_us)
        living = {beat.release for beat in every if beat not in gone}
        if unread:
            logger.warning(
                "no static entry is deleted: the beats %s in %s cannot be read, so nobody knows what their releases "
                "declare; if no such beat runs, delete them with HDEL",
                ", ".join(unread[:5]), self._keys.beats,
            )  # fmt: skip
        for release in {beat.release for beat in gone} - living if not unread else ():
            self._retire(release, living, {beat.id for beat in gone})
        forget_finished(self._schedules, now_us - round(self._settings.done_time * SECOND_US))
        self._also(now_us)
        if gone:
            with self._schedules.server.translated("calling the roll"):
                self._client().hdel(self._keys.beats, *(beat.id for beat in gone))

    def _gone(self, every: Iterable[Beat], now_us: int) -> list[Beat]:
        """Return the beats that were silent for the settle time, and are not only held up.

        One that sends to a broker that hardly answers, say, or connects anew, calls late; a settle time of seconds must
        not take its entries away. Where it cannot be told whether it is connected, it may be.
        """
        quiet = [beat for beat in every if now_us - beat.at_us > self._settings.settle_time * SECOND_US]
        held_up = [beat for beat in quiet if not beat.ended_us and now_us - beat.at_us <= SILENT_S * SECOND_US]
        connected = connections(self._schedules) if held_up else None
        return [
            beat
            for beat in quiet
            if beat not in held_up
            or (connected is not None and beat.client and beat.client not in connected
                and now_us - beat.at_us > CONNECTING_S * SECOND_US)
        ]  # fmt: skip

    def _retire(self, release: str, living: Iterable[str], beats: Collection[str]) -> None:
        """Delete what only a release declares, whose ``beats`` are gone."""
        with self._schedules.server.translated("retiring static entries"):
            client = self._client()
            others = [self._keys.release(other) for other in living]
            names = [name.decode() for name in client.sdiff([self._keys.release(release), *others])]
        gone = self._schedules.retire(names)
        with self._schedules.server.translated("retiring static entries"):
            client.delete(self._keys.release(release))
            late = [beat for beat in beats_of(self._schedules) if beat.id not in beats and beat.release not in living]
            # Who came amid this found there what was about to go; it is told at its next call, and stores it anew.
            hit = [
                beat.id
                for beat in late
                if beat.release == release or (gone and any(client.smismember(self._keys.release(beat.release), gone)))
            ]
            if hit:
                client.hdel(self._keys.beats, *hit)
        if gone:
            logger.info(
                "static entries deleted: %d that only the release %s declared, which no beat has run for %g s: %s",
                len(gone), release, self._settings.settle_time, ", ".join(sorted(gone)[:5]),
            )  # fmt: skip

    def _record(self, now_us: int) -> Beat:
        self._shown_as = self._engine.lookout.connected_as
        fault = self._engine.fault[:_FAULT_LENGTH]
        self._failing_us = (self._failing_us or now_us) if fault else 0
        return Beat(
            id=self._schedules.timeline.claimer,
            host=socket.gethostname(),
            pid=os.getpid(),
            release=self._release,
            started_us=self._started_us,
            at_us=now_us,
            lag_us=self._engine.lag_us,
            offset_us=time.time_ns() // 1000 - now_us,
            client=self._shown_as,
            fault=fault,
            failing_us=self._failing_us,
        )

    def _client(self) -> Any:
        return self._schedules.server.client


def beats_of(schedules: Schedules) -> list[Beat]:
    """Return every beat on the roll, live or not; records that cannot be read are left out."""
    return _read(schedules)[0]


def _read(schedules: Schedules) -> tuple[list[Beat], list[str]]:
    """Return the beats on the roll, and the ids of those whose records cannot be read."""
    with schedules.server.translated("reading the roll of beats"):
        client: Any = schedules.server.client
        records = client.hgetall(ScheduleKeys(schedules.prefix).beats)
    beats, unread = [], []
    for id_, record in records.items():
        try:
            beats.append(Beat.from_json(record))
        except ValueError:
            unread.append(id_.decode(errors="replace"))
    return beats, unread


def connections(schedules: Schedules) -> frozenset[str] | None:
    """Return the names of the beats' connections to the schedule's server; None where it will not tell them.

    A process that is killed is gone from there at once, one whose host is lost after some time.
    """
    try:
        with (
            schedules.server.translated("listing connections"),
            schedules.server.blocking(schedules.timeline.keys.bell) as wire,
        ):
            wire.send_command("CLIENT", "LIST")
            said: bytes = wire.read_response()
    except ServerError:
        return None  # an ACL or a proxy that does not let us; if the server is away, others tell
    return frozenset(name.decode() for name in re.findall(rb" name=(zsched-beat-\S+) ", said))
