"""The thread that keeps a process's leases and sees its acks through, with connections of its own.

Renewal depends on neither the worker's main loop nor the connection on which a message came: a task of hours in the
solo pool keeps its lease, and what runs when a connection is lost is acked through the next one.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_zsched.connection import Server
from celery_zsched.errors import ServerError
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.transport.desk import TOKEN_DIGITS, Desk, pairs
from celery_zsched.types import SECOND_US
from celery_zsched.wires import Wires

logger = logging.getLogger("celery_zsched.transport")

#: An ack rides on the next claim if there is one within this time; otherwise the thread sends it. In seconds.
ACK_DELAY_S = 0.005

#: After a failure the thread tries again this much later, in seconds.
RETRY_S = 0.5

#: So long a connection that is closed waits for its last acks to be sent, in seconds; they go on being tried after it.
CLOSING_S = 1.0

#: A thread that had nothing to keep for so long ends; it is started again when there is, in seconds.
IDLE_S = 60.0

_all_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


class Keeper:
    """Renews the leases of all desks of one server, and sends what was not sent otherwise.

    ``stall_s`` is how long the main loop may stand still before leases are no longer renewed (None: for ever); the
    loop shows that it moves by setting :attr:`alive_at` to the monotonic clock. ``beside`` are the main loop's wires.
    """

    def __init__(self, server: Server, *, stall_s: float | None = None, beside: Wires | None = None) -> None:
        self._wires = Wires(server, limit=2)
        if beside is not None:
            self._wires.kin.add(beside)
            beside.kin.add(self._wires)
        self.stall_s = stall_s
        self.alive_at = time.monotonic()
        #: Told in each round what queues answered that were told to live on (``lua/touch.lua``).
        self.on_touched: Callable[[Wires, list[list[Any]]], None] = _nothing
        self._start_over()
        _all_keepers.add(self)

    def _start_over(self) -> None:
        #: Queue -> what is held of it.
        self.desks: dict[str, Desk] = {}
        self._chores: deque[Callable[[Wires], object]] = deque()
        #: Held while a chore is done.
        self._at_chores = threading.Lock()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._asleep = False
        self._thread: threading.Thread | None = None
        self._next_renewal = 0.0
        #: Queues whose leases could not be renewed in the last round, and why.
        self._unrenewed: dict[Desk, ServerError] = {}
        #: Queues that are consumed here and have gone, as was logged.
        self._gone: weakref.WeakSet[Desk] = weakref.WeakSet()
        self._stalled = False
        self._failing = False
        #: Whether somebody waits for what is to be sent.
        self._hurried = False

    def desk(self, queue: str, make: Callable[[], Desk]) -> Desk:
        """Return the desk of a queue; ``make`` is called for the first time."""
        with self._lock:
            found = self.desks.get(queue)
            if found is None:
                found = self.desks[queue] = make()
            return found

    def forget(self, queue: str) -> bool:
        """Drop the desk of a queue that is gone; return False, and keep it, if it is needed here."""
        with self._lock:
            desk = self.desks.get(queue)
            if desk is not None:
                if not desk.is_bare:
                    return False
                del self.desks[queue]
            return True

    def nudge(self) -> None:
        """Make the thread look at what there is to do; cheap when it is looking anyway."""
        if self._asleep:
            self._asleep = False
            self._wake.set()
        elif self._thread is None:
            self._start()

    def hold(self, desk: Desk) -> None:
        """Note that something is held at a desk; the thread looks often enough by itself once it runs."""
        if self.desks.get(desk.queue) is not desk:
            # It was forgotten while somebody was about to claim.
            with self._lock:
                self.desks[desk.queue if desk.queue not in self.desks else f"{desk.queue} {id(desk)}"] = desk
        if self._thread is None:
            self._start()

    def outlive(self, lives_s: float) -> None:
        """Note that a queue is consumed that lives for so many seconds unless it is told to live on."""
        self._next_renewal = min(self._next_renewal, time.monotonic() + lives_s / 3)
        self.nudge()

    def later(self, chore: Callable[[Wires], object]) -> None:
        """Have the thread do something that nobody waits for, and that is no loss if the server cannot be reached."""
        self._chores.append(chore)
        self.nudge()

    def finish_chores(self) -> None:
        """Have everything done that was asked for :meth:`later`, in the caller's thread where it has not begun."""
        with self._at_chores:
            while self._chores:
                try:
                    self._chores.popleft()(self._wires)
                except ServerError as exc:
                    logger.debug("left undone: %s", exc)

    def flush(self, desks: list[Desk] | None = None) -> None:
        """Send every waiting ack and give-back now, in the caller's thread; raises what goes wrong."""
        for desk in desks if desks is not None else list(self.desks.values()):
            self._send(desk)
            while desk.acks or desk.returns:
                self._send(desk)

    def finish(self, patience_s: float = CLOSING_S) -> bool:
        """Have everything that waits sent at once, and return once it was; False if that takes too long, or fails."""
        deadline = time.monotonic() + patience_s
        pause = 0.0002
        try:
            while self._has_unsent():
                if self._failing or time.monotonic() > deadline:
                    return False
                self._hurried = True
                self.nudge()
                self._wake.set()
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
        finally:
            self._hurried = False
        return True

    def end(self) -> None:
        """Send what waits, in this thread, as the process ends; what is worked on goes back, since nobody will end it.

        Raises what goes wrong.
        """
        for desk in list(self.desks.values()):
            for tag in list(desk.held):
                desk.give_back(tag, "counted")
        if self._has_unsent():
            self.finish_chores()
            try:
                self.flush()
            except ServerError:
                self.flush()  # the connection may have been an old one
        self._wires.close()

    def _has_unsent(self) -> bool:
        return bool(self._chores) or any(
            desk.acks or desk.returns or desk.sending.locked() for desk in list(self.desks.values())
        )

    # -- The thread

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                _end_with_process()
                # A daemon, since the process's end ends the leases.
                self._thread = threading.Thread(target=self._run, name="zsched-leases", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        idle_since: float | None = None
        while self._thread is me:
            try:
                now = time.monotonic()
                pause = self._round(now)
                self._failing = False
                idle_since = None if self._has_work() else idle_since or now
                if idle_since is not None and now - idle_since >= IDLE_S:
                    self._thread = None
                    if not self._has_work():  # looked at again: something may have come before it saw us gone
                        self._wires.close()
                        return
                    self._thread = me
            except ServerError as exc:
                if not self._failing:  # once for each outage
                    logger.warning("leases and acks: %s; tried again until it is known to be done", exc)
                self._failing = True
                pause = RETRY_S
            except Exception:
                logger.exception("leases and acks: an error that was not foreseen; tried again")
                pause = RETRY_S
            self._sleep(pause)

    def _has_work(self) -> bool:
        return bool(self._chores) or any(
            desk.held or desk.lives or desk.waiting_since is not None for desk in list(self.desks.values())
        )

    def _sleep(self, pause: float) -> None:
        self._wake.clear()
        if pause > ACK_DELAY_S:
            self._asleep = not self._failing
            if self._asleep and (
                self._chores or any(desk.waiting_since is not None for desk in list(self.desks.values()))
            ):
                self._asleep = False  # one came before it could see that we sleep
                pause = ACK_DELAY_S
        self._wake.wait(pause)
        self._asleep = False

    def _round(self, now: float) -> float:
        """Do what is due; return in how many seconds to look again. An error in one part does not stop another."""
        trouble: ServerError | None = None
        if self._chores:
            self.finish_chores()
        pause = max(0.0, self._next_renewal - now)
        if not pause:
            try:
                pause = self._renew_all(now)
            except ServerError as exc:
                trouble = exc
        for desk in list(self.desks.values()):
            since = desk.waiting_since
            if since is not None and (self._hurried or now - since >= ACK_DELAY_S):
                try:
                    self._send(desk)
                except ServerError as exc:
                    trouble = exc
                since = desk.waiting_since
            if since is not None:
                pause = min(pause, max(0.0005, since + ACK_DELAY_S - now))
        if trouble is not None:
            raise trouble
        return pause

    def _renew_all(self, now: float) -> float:
        desks, period = list(self.desks.values()), self._period()
        holding = [desk for desk in desks if desk.held]
        failed, self._unrenewed = self._unrenewed, {}
        if holding and self._may_renew(now):
            # Where renewing failed last time it comes last: a dead node must not keep the others waiting.
            for desk in sorted(holding, key=failed.__contains__):
                # What was claimed just now is renewed in the next round, at half its lease.
                tags = [tag for tag, since in list(desk.held.items()) if now - since > period / 2]
                self._attempt(desk, partial(self._renew, desk, tags))
        touched: list[list[Any]] = []
        for desk in desks:
            if desk.lives:
                self._attempt(desk, partial(self._touch, desk, touched))
        if touched:
            self._attempt(desks[0], partial(self.on_touched, self._wires, touched))
        if self._unrenewed:
            raise next(iter(self._unrenewed.values()))
        period = self._period()  # there may be one more meanwhile
        self._next_renewal = now + period
        return period

    def _period(self) -> float:
        """Return how often to renew: thrice in the shortest lease, and in the shortest life of a queue."""
        desks = list(self.desks.values())
        lease = min((desk.lease_us for desk in desks), default=3 * SECOND_US) / SECOND_US
        return min([lease, *(desk.lives for desk in desks if desk.lives)]) / 3

    def _attempt(self, desk: Desk, do: Callable[[], object]) -> None:
        """Do something for one queue; its failure is noted and does not keep the others from theirs."""
        try:
            do()
        except ServerError as exc:
            self._unrenewed[desk] = exc

    def _may_renew(self, now: float) -> bool:
        stalled = self.stall_s is not None and now - self.alive_at > self.stall_s
        if stalled and not self._stalled:
            logger.error(
                "the worker's main loop has stood still for %.0f s (stall_timeout is %g s): its leases are no longer "
                "renewed, and its messages go to other workers",
                now - self.alive_at, self.stall_s,
            )  # fmt: skip
        self._stalled = stalled
        return not stalled

    def _touch(self, desk: Desk, touched: list[list[Any]]) -> None:
        """Have a queue live on that has a consumer here; add what the script answers."""
        answer: list[Any] = self._wires.call(desk.touch_call, [0])
        touched.append(answer)
        if answer[0] >= 0:
            self._gone.discard(desk)
        elif desk.lives and desk not in self._gone:  # once for each time that it goes
            self._gone.add(desk)
            logger.warning(
                "queue %s is consumed here and has gone: somebody deleted it, or nobody could tell it to live on for "
                "longer than its x-expires; what is published by an exchange does not come until it is declared anew, "
                "as a restart of its consumer does",
                desk.queue,
            )  # fmt: skip

    def _renew(self, desk: Desk, tags: list[str]) -> None:
        renewed: dict[str, float] = {}
        for start in range(0, len(tags), MAX_BATCH):
            chunk = tags[start : start + MAX_BATCH]
            began = time.monotonic()
            stale = self._wires.call(desk.extend_call, [desk.lease_us, *pairs(chunk)])
            if stale:
                # What was acked meanwhile is no longer held, and so not lost.
                desk.lose(id_.decode() for id_ in stale)
            renewed.update(dict.fromkeys(chunk, began))
        desk.renewed = renewed

    def _send(self, desk: Desk) -> None:
        with desk.sending:
            self._send_some(desk)

    def _send_some(self, desk: Desk) -> None:
        tags = desk.take_acks()
        if tags:
            try:
                stale = self._wires.call(desk.settle_call, pairs(tags))
            except BaseException:
                desk.not_sent(tags)
                raise
            desk.settled(tags, [id_.decode() for id_ in stale])
        returns: list[tuple[str, str]] = []
        while desk.returns and len(returns) < MAX_BATCH:
            returns.append(desk.returns.popleft())
        if returns:
            try:
                self._wires.call(
                    desk.release_call,
                    [part for tag, how in returns for part in (tag[TOKEN_DIGITS:], tag[:TOKEN_DIGITS], how)],
                )
            except BaseException:
                desk.returns.extendleft(reversed(returns))
                raise
        desk.waiting_since = time.monotonic() if desk.acks or desk.returns else None

    def confirm(self, desk: Desk, tag: str) -> bool:
        """Return whether a lease still stands; the server is asked only if it may have ended."""
        known = desk.is_current(tag, time.monotonic())
        if known is not None:
            return known
        began = time.monotonic()
        stale = self._wires.call(desk.extend_call, [desk.lease_us, *pairs([tag])])
        if stale:
            desk.lose(id_.decode() for id_ in stale)
            return False
        desk.renewed = {**desk.renewed, tag: began}
        return True


def _nothing(wires: Wires, touched: list[list[Any]]) -> None:
    """Do nothing for queues that live on."""


def _forget_all_after_fork() -> None:
    # A child holds nothing: the parent renews and acks.
    for keeper in _all_keepers:
        keeper._start_over()


os.register_at_fork(after_in_child=_forget_all_after_fork)


def _end_all() -> None:
    for keeper in list(_all_keepers):
        try:
            keeper.end()
        except Exception as exc:
            logger.warning(
                "as this process ended not everything could be told to the broker: %s; what it had done and not told "
                "runs again, once its leases have ended", exc,
            )  # fmt: skip


atexit.register(_end_all)


def _end_with_process() -> None:
    """See to the end of a child of multiprocessing, which before Python 3.13 does not run what is registered above."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, _end_all, exitpriority=0)
