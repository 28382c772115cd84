"""What a Celery worker does for the transport: it starts nothing whose lease has gone, gives back at once what it will
not start, tells the result backend of messages that were set aside, and ends at once where settings cannot be used.

Installed into every app of the process by importing the transport; see :func:`install`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from celery_zsched import cautions, countdowns
from celery_zsched import message as wire_format
from celery_zsched.errors import ConfigurationError, ServerError, ZschedError
from celery_zsched.ours import is_ours
from celery_zsched.transport.delivery import Message, give_back
from celery_zsched.transport.shared import Broker
from celery_zsched.types import Upcoming, from_us

logger = logging.getLogger("celery_zsched.transport")

#: How many tasks that wait in the broker ``inspect scheduled`` shows for each queue.
SHOWN_MOST = 100


class NotStartedError(ZschedError):
    """The lease on the task passed to another worker, or was given back, before it was started here."""


def stands(message: Any) -> bool:
    """Return whether a delivered message is still this worker's to start."""
    if not isinstance(message, Message) or message.channel is None:
        return True
    if message.given_back:
        return False
    found = message.channel.qos.delivered.get(message.delivery_tag)
    if found is None:
        return True  # acked before it was started, or never to be acked
    desk = found[0]
    try:
        return bool(message.channel.broker.keeper.confirm(desk, message.delivery_tag))
    except ServerError as exc:
        logger.warning("it cannot be confirmed that message %s is still ours: %s", message.delivery_tag[16:], exc)
        return False


class Guard:
    """Stands between one worker's consumer and its pool."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._lock = threading.Lock()
        self._controller = consumer.controller
        self._process: Any = self._controller._process_task
        self._controller._process_task = self._start
        # A pool with a semaphore is handed a request when it has room; the others queue by themselves.
        pool = consumer.pool
        self._has_room = bool(getattr(pool, "uses_semaphore", False))
        # The solo pool starts what it is handed on the spot.
        self._at_once = self._has_room or type(pool).__module__ == "celery.concurrency.solo"
        if not self._has_room:
            consumer.on_task_request = self._start

    def _start(self, request: Any) -> None:
        """Hand a request to the pool, unless its message is no longer ours."""
        message = request._message
        if not stands(message):
            self._leave_out(request)
            if self._has_room:
                self._controller._quick_release()
            return
        if self._at_once:
            begin(message)
        else:
            # It may be started later: it is looked at again then.
            accepted = request.on_accepted

            def on_accepted(pid: int, time_accepted: float) -> None:
                with self._lock:
                    if not stands(message):
                        self._leave_out(request)
                        raise self._stop()
                    begin(message)
                accepted(pid, time_accepted)

            request.on_accepted = on_accepted
        self._process(request)

    def _stop(self) -> BaseException:
        greenlet = sys.modules.get("greenlet")
        if greenlet is not None and getattr(self._consumer.pool, "is_green", False):
            return greenlet.GreenletExit()  # type: ignore[no-any-return]
        return NotStartedError()

    @staticmethod
    def _leave_out(request: Any) -> None:
        from celery.worker import state

        message = request._message
        message.channel.qos.delivered.pop(message.delivery_tag, None)
        if not message.given_back:
            logger.warning(
                "task %s[%s] is not started: its lease has passed to another worker", request.name, request.id
            )
        state.task_ready(request)

    def give_back(self, transport: Any) -> None:
        """Give back what was delivered and has not begun, since the worker is stopping."""
        with self._lock:
            for channel in list(transport.channels):
                for tag, (desk, _, reference) in list(channel.qos.delivered.items()):
                    message = reference()
                    if message is None:  # dropped by the consumer already
                        del channel.qos.delivered[tag]
                        give_back(transport.broker.keeper, desk, tag)
                    elif not message.begun:
                        message.give_back()


def begin(message: Any) -> None:
    """Note that a message is being worked on from now on."""
    if isinstance(message, Message):
        message.begun = True


def make_step() -> type:
    """Return the bootstep; made late, since Celery is only imported by those who use it."""
    from celery import bootsteps

    class Leases(bootsteps.StartStopStep):
        """Keeps a worker's starts and stops in step with its leases."""

        requires = ("celery.worker.consumer.connection:Connection",)
        label = "zsched leases"

        def __init__(self, consumer: Any, **kwargs: Any) -> None:
            super().__init__(consumer, **kwargs)
            self.enabled = is_ours(consumer.conninfo)
            self.guard = Guard(consumer) if self.enabled else None

        def include_if(self, consumer: Any) -> bool:
            return self.enabled

        def start(self, consumer: Any) -> None:
            transport = consumer.connection.transport
            # Also of workers that a program starts: those of the shell know the commands already.
            import_module("celery_zsched.control")
            transport.broker.holder = consumer.hostname
            transport.buried_hook = lambda queue, ids: tell_backend(
                consumer.app, transport.broker, queue, ids, dispatcher=getattr(consumer, "event_dispatcher", None)
            )
            warn_if_evicting(transport.broker)
            show_scheduled()

        def close(self, consumer: Any) -> None:
            """The worker is stopping for good: what it holds and has not started is for others."""
            if self.guard is not None and consumer.connection is not None:
                self.guard.give_back(consumer.connection.transport)

        def stop(self, consumer: Any) -> None:
            """Nothing: a lost connection ends no lease."""

    return Leases


_installed = False


def install() -> None:
    """Add the bootstep to every app of this process that there is and that will be."""
    global _installed
    if _installed or "celery" not in sys.modules:
        return
    _installed = True
    countdowns.install()
    # Here, since the pool's children inherit it only if it is there before they are forked.
    import_module("celery_zsched.run_leases")
    from celery import _state, signals

    signals.celeryd_after_setup.connect(refuse_faults, dispatch_uid="celery_zsched")

    step = make_step()

    def add(app: Any) -> None:
        app.steps["consumer"].add(step)

    for app in _state._get_active_apps():
        add(app)
    _state.connect_on_app_finalize(add)


def refuse_faults(instance: Any = None, **_: Any) -> None:
    """End a worker whose broker's settings cannot be used, before it connects: one line for each fault."""
    for conninfo in (instance.app.connection_for_read(), instance.app.connection_for_write()):
        if not is_ours(conninfo):
            continue
        try:
            _ = conninfo.transport.broker
        except ConfigurationError as exc:
            for fault in exc.faults:
                logger.critical("the worker cannot start: %s", fault)
            raise SystemExit(os.EX_CONFIG) from None


def show_scheduled() -> None:
    """Make ``inspect scheduled`` show what waits in the broker for this worker's queues as well."""
    from celery.worker.control import Panel

    held = Panel.data["scheduled"]
    if getattr(held, "shows_broker", False):
        return

    def scheduled(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """List of currently scheduled ETA/countdown tasks."""
        rows: list[dict[str, Any]] = list(held(state, **kwargs))
        consumer = state.consumer
        if consumer.task_consumer is not None and consumer.connection is not None and is_ours(consumer.connection):
            for queue in consumer.task_consumer.queues:
                rows += waiting_in_broker(consumer.connection.transport.broker, queue.name, consumer.hostname)
        return rows

    scheduled.shows_broker = True  # type: ignore[attr-defined]
    Panel.data["scheduled"] = Panel.data["dump_schedule"] = scheduled


def waiting_in_broker(broker: Broker, queue: str, hostname: str) -> list[dict[str, Any]]:
    """Return the next tasks of a queue that are not due yet, in the form of ``inspect scheduled``."""
    rows: list[dict[str, Any]] = []
    for waiting in broker.timeline(queue).upcoming(SHOWN_MOST, Upcoming("", broker.wires.now_us(), 0, b"")):
        try:
            payload = wire_format.decode(waiting.body)
        except ValueError:
            continue
        headers, properties = payload["headers"], payload["properties"]
        try:
            args, kwargs, _ = Message(payload, None).decode()
        except Exception:  # of another serializer, or compressed: its own summary will do
            args, kwargs = headers.get("argsrepr"), headers.get("kwargsrepr")
        request = {
            "id": headers.get("id", waiting.id),
            "name": headers.get("shadow") or headers.get("task"),
            "args": args,
            "kwargs": kwargs,
            "type": headers.get("task"),
            "hostname": hostname,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                **properties["delivery_info"], "priority": properties.get("priority"), "redelivered": False
            },
            "worker_pid": None,
        }  # fmt: skip
        # Celery's own rows have the priority of a timer here.
        rows.append({"eta": from_us(waiting.due_us).isoformat(), "priority": 6, "request": request})
    return rows


def tell_backend(app: Any, broker: Broker, queue: str, ids: Sequence[str], *, dispatcher: Any = None) -> None:
    """Tell the result backend of tasks that were set aside, so that nobody waits for them for ever.

    Receivers of our signals are told too, and by ``dispatcher`` those of Celery's events.
    """
    from celery.app.task import Context
    from celery.exceptions import WorkerLostError

    from celery_zsched import events, notices

    try:
        found = broker.timeline(queue).locate(ids)
    except ServerError as exc:
        logger.warning("the result backend is not told of dead messages of queue %s: %s", queue, exc)
        return
    for id_, located in found.items():
        notices.message_buried.send(sender=app, queue=queue, id=id_, reason=located.reason)
        events.buried(dispatcher, queue, id_, located.reason)
        try:
            payload = wire_format.decode(located.body)
            headers = payload["headers"]
            if not headers.get("task") or headers.get("ignore_result"):
                continue
            message = Message(payload, None)
            args, kwargs, embed = message.decode()
            request = Context({**headers, **(embed or {}), "args": args, "kwargs": kwargs})
            request.update(delivery_info=payload["properties"]["delivery_info"])
            reason = f"set aside as dead: {located.reason or 'delivered too often'}"
            app.backend.mark_as_failure(headers.get("id", id_), WorkerLostError(reason), request=request)
        except Exception as exc:  # a backend may raise anything, and the worker goes on
            logger.exception("the result backend could not be told of dead message %s: %s", id_, exc)


def warn_if_evicting(broker: Broker) -> None:
    """Warn when the server may throw away what waits."""
    caution = cautions.eviction(broker.server)
    if caution:
        logger.warning("%s", caution)
