"""How a scheduler sends: exactly as ``apply_async`` would at that moment, over a connection of its own.

Our own broker takes the messages of many occurrences in one call; any other gets them one by one, and where it offers
publisher confirms, a flush waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from traceback import walk_tb
from typing import Any

from celery import beat
from celery.result import denied_join_result
from kombu.exceptions import InconsistencyError, OperationalError

from celery_zsched import planner
from celery_zsched.amqp import Producer
from celery_zsched.confirms import WRITE_TIMEOUT_S, Confirms, UnconfirmedError, channel_error, offered
from celery_zsched.entry import HEADER, EntrySpec, occurrence_header, occurrence_id
from celery_zsched.errors import ConfigurationError, ServerError, ServerUnavailableError
from celery_zsched.message import eta_us, mark_field
from celery_zsched.ours import is_ours
from celery_zsched.outlet import PublishError, RefusedError
from celery_zsched.queues import Queues
from celery_zsched.types import SECOND_US, from_us

logger = logging.getLogger("celery.beat.zsched")

#: How many messages are kept at most until they are sent together.
MAX_BATCH = 512


class CeleryPublisher:
    """Sends occurrences by a Celery app.

    ``prefix`` keeps the task ids of apps apart; ``declared`` returns the ``beat_schedule``, from which arguments that
    are computed at each sending (``BeatLazyFunc``) are taken; ``overlap`` is the rule of entries that have none.
    """

    def __init__(
        self, app: Any, *, prefix: str, declared: Callable[[], Mapping[str, Any]], overlap: str = "allow"
    ) -> None:
        self._app = app
        self._prefix = prefix
        self._overlap = overlap
        self._declared = declared
        self._connection: Any = None
        self._producer: Any = None
        self._batch: Any = None
        self._confirms: Confirms | None = None
        #: Who was refused a message over a connection that is gone, and why.
        self._refused: dict[str, str] = {}
        self._warned: set[str] = set()
        #: The id of the task whose message left last.
        self._published: str | None = None

    def warm(self) -> None:
        """Connect and load what sending needs, so that the first occurrence is not late for it.

        A broker that is not there yet is met again, and told of, when something is due.
        """
        try:
            self._ready()
            _ = self._app.tasks, self._app.amqp.router, self._app.amqp.queues
        except Exception as exc:
            self.close()
            logger.debug("the broker cannot be reached yet: %s", exc)

    def queues(self) -> Queues | None:
        """Return the queues of the broker, if it is ours and there is a connection to it."""
        broker = None if self._connection is None else getattr(self._connection.transport, "broker", None)
        if broker is None:
            return None
        return Queues(broker.server, prefix=broker.settings.key_prefix, levels=broker.levels)

    def send(
        self,
        spec: EntrySpec,
        send: planner.Send,
        at_us: int,
        *,
        task_id: str | None = None,
        arguments: tuple[Any, Any] | None = None,
        delay_s: float = 0.0,
    ) -> str:
        """Send one occurrence at ``at_us`` (microseconds) and return its task id.

        What an operator sends has a ``task_id`` of its own, may have other ``arguments`` (args, kwargs), and may be for
        ``delay_s`` seconds later.
        """
        args, kwargs = arguments or self._arguments(spec)
        header = occurrence_header(
            spec.name, send.nominal_us, at_us, schedule=self._prefix, epoch=spec.epoch, missed=send.missed,
            cause=send.cause, overlap=spec.overlap or self._overlap,
        )  # fmt: skip
        options = dict(spec.options)
        options["headers"] = {**(options.get("headers") or {}), "celery_beat_task": True, HEADER: header}
        options["task_id"] = task_id or occurrence_id(self._prefix, spec.name, spec.epoch, send.nominal_us)
        if delay_s:
            options["countdown"] = delay_s
        if send.expires_us is not None:
            options["expires"] = from_us(send.expires_us)
        task = self._app.tasks.get(spec.task)
        producer = self._ready()
        if self._batch is not None or self._confirms is not None:
            options["retry"] = False  # nothing is certain before the flush, so there is nothing to try again
        if self._confirms is not None:
            self._confirms.sender = spec.name
        # Nobody waits in a scheduler for a result, so the result backend is not told that somebody will: one that is
        # away would keep each message up, and one that is there would remember every task for as long as we live.
        quietly = denied_join_result() if task_id is None else nullcontext()
        self._published = None
        try:
            with quietly:
                if task is not None:
                    result = task.apply_async(args, kwargs, producer=producer, **options)
                else:
                    self._warn_unknown(spec)
                    result = self._app.send_task(spec.task, args, kwargs, producer=producer, **options)
        except Exception as exc:
            fault = self._fault(exc)
            if fault is exc and self._published == options["task_id"]:
                # To try it again would send it again, and where nobody refuses repeats, at each try.
                logger.warning(
                    "the task class of %s failed after it had sent, so it counts as sent: %s: %s",
                    spec.name, type(exc).__name__, exc,
                )  # fmt: skip
            elif fault is exc:
                raise
            else:
                raise fault from exc
            result = None
        # A task class may answer with something else, or nothing: the message has the id that it was given.
        return str(getattr(result, "id", None) or options["task_id"])

    @property
    def keeps_back(self) -> bool:
        """Whether messages are made first and sent by :meth:`start`: our own broker takes many in one call."""
        return self._batch is not None

    def start(self) -> None:
        """Let the broker take what was sent, and do not wait for it to have done so."""
        if self._batch is not None:
            try:
                self._batch.start()
            except Exception as exc:  # by now the messages are made, so whatever fails is the broker's
                raise self._failed(exc) from exc

    def flush(self) -> dict[str, str]:
        """Return once the broker has all that was sent; see :meth:`finish`."""
        self.start()
        return self.finish()

    def finish(self) -> dict[str, str]:
        """Return once the broker has what was started, with the entries it refused a message of, and why."""
        senders = set() if self._confirms is None else self._confirms.waits_for
        refused, self._refused = self._refused, {}
        try:
            if self._batch is not None:
                self._batch.finish()
            return refused if self._confirms is None else refused | self._confirms.flush()
        except UnconfirmedError as exc:
            raise self._failed(exc, keep=exc.blocked) from exc
        except Exception as exc:  # by now the messages are made, so whatever fails is the broker's
            refusal = channel_error(exc)
            failure = self._failed(exc)
            if refusal is not None and len(senders) == 1:
                return refused | dict.fromkeys(senders, str(refusal))  # of several, nobody can say whose it is
            raise failure from exc

    def outdated(self, entries: Iterable[str]) -> set[str]:
        """Return, once, those of the entries whose occurrence was refused as of an earlier life than the mark is."""
        if self._batch is None or not self._batch.outdated:
            return set()
        asked = {mark_field(self._prefix, name): name for name in entries}
        told = [field for field in self._batch.outdated if field in asked]
        self._batch.outdated = [field for field in self._batch.outdated if field not in asked]
        return {asked[field] for field in told}

    def marks(self, entries: Sequence[str]) -> Mapping[str, Sequence[tuple[int, int]]]:
        """Return the high-water marks of entries, as (epoch, nominal); a broker that is not ours has none."""
        if self._connection is None:
            self.warm()
        queues = self.queues()
        return {} if queues is None else queues.marks(self._prefix, entries)

    def standing(self, ids: Sequence[str]) -> Collection[str] | None:
        """Return which tasks have a message that waits or is with a worker; None if the broker is not ours."""
        if self._connection is None:
            self.warm()
        if self._connection is None:
            raise ServerUnavailableError("the broker cannot be reached")
        queues = self.queues()
        return None if queues is None else queues.standing(ids)

    def expires_us(self, task: str, at_us: int) -> int | None:
        """Return when a message of the task expires by its decorator if it is sent at ``at_us``; None for never."""
        own = getattr(self._app.tasks.get(task), "expires", None)
        if isinstance(own, (int, float)):
            return at_us + round(own * SECOND_US)
        return eta_us(own, lambda: self._app.timezone)

    def close(self, *, broken: bool = False) -> None:
        """Drop the connection; the next message makes a new one. A broken one is not told good-bye, if it can be so."""
        connection, self._connection, self._producer = self._connection, None, None
        batch, self._batch = self._batch, None
        confirms, self._confirms = self._confirms, None
        if batch is not None:
            batch.discard()
        if connection is not None:
            try:
                if broken and confirms is not None:
                    connection.collect()  # a broker that takes nothing answers no good-bye either
                else:
                    connection.release()
            except Exception as exc:  # a connection that is broken already cannot be closed better
                logger.debug("the broker's connection could not be closed: %s", exc)

    def _ready(self) -> Any:
        if self._producer is None:
            try:
                self._connect()
            except Exception as exc:  # a wrong password, say; no entry has anything to do with it
                raise self._failed(exc) from exc
        return self._producer

    def _connect(self) -> None:
        self._connection = connection = self._app.connection_for_write()
        if connection.transport.driver_name == "py-amqp":
            connection.transport_options = {"write_timeout": WRITE_TIMEOUT_S} | (connection.transport_options or {})
        # Celery's own scheduler would try a hundred times, while every entry that was claimed waits.
        connection.ensure_connection(max_retries=1)
        ours = is_ours(connection)
        producer = (Producer if ours else self._app.amqp.Producer)(connection, auto_declare=False)
        if ours:
            self._collect(producer)
        elif connection.transport_options.get("confirm_publish", True) and offered(connection, producer.channel):
            self._confirms = Confirms(connection, producer.channel)
        producer._publish = self._noting(producer._publish)
        self._producer = producer

    def _noting(self, publish: Callable[..., Any]) -> Callable[..., Any]:
        """Return a producer's last step, with a note of what it was done for."""

        @wraps(publish)
        def publish_and_note(
            body: Any, priority: Any, content_type: Any, content_encoding: Any, headers: Any, *rest: Any, **more: Any
        ) -> Any:
            done = publish(body, priority, content_type, content_encoding, headers, *rest, **more)
            self._published = (headers or {}).get("id")
            return done

        return publish_and_note

    def _collect(self, producer: Any) -> None:
        """Let a channel of ours keep messages until a flush. Another broker's is left as it is."""
        channel = producer.channel
        self._batch = channel.create_publish_batch(max_size=MAX_BATCH)
        self._batch.outdated = []
        channel.basic_publish = partial(channel.basic_publish, _publish_batch=self._batch)

    def _fault(self, exc: Exception) -> Exception:
        """Return what a failure to send is: one of the broker's, which pass, or ``exc`` itself for an entry's own."""
        if isinstance(exc, UnconfirmedError):
            return self._failed(exc, keep=exc.blocked)
        refusal = None if self._confirms is None else channel_error(exc)
        if refusal is not None and self._confirms is not None:
            alone, refused = not self._confirms.waits_for, self._confirms.refused
            failure = self._failed(exc)
            self._refused |= refused if alone else {}
            # The word may be on the message before this one, which a turn that begins with it will tell.
            return RefusedError(str(refusal)) if alone else failure
        # That no queue is bound for an entry is the entry's fault, though kombu counts it with broken connections.
        entrys = isinstance(exc, InconsistencyError) or isinstance(exc.__cause__, InconsistencyError)
        if entrys or not (isinstance(exc, OperationalError) or self._is_broken(exc)):
            return exc
        # A lock server, a result backend or whatever else a task class asks before it sends fails by such errors too.
        if not self._is_from_here(exc) and self._is_there():
            return exc
        return self._failed(exc)

    def _is_from_here(self, exc: BaseException | None) -> bool:
        """Return whether an error comes from our producer or its channel, by itself or as what another comes from."""
        producer = self._producer
        if producer is None:
            return True  # there is no connection, so whatever failed was to make one
        ours = {id(each) for each in (producer, producer.__dict__.get("_channel"), self._batch, self._confirms)}
        ours.discard(id(None))
        seen: set[int] = set()
        while exc is not None and id(exc) not in seen:
            seen.add(id(exc))
            if any(id(frame.f_locals.get("self")) in ours for frame, _ in walk_tb(exc.__traceback__)):
                return True
            exc = exc.__cause__ or exc.__context__
        return False

    def _is_there(self) -> bool:
        """Return whether our own broker answers; of another one it is not asked, since the next entry will tell."""
        queues = self.queues()
        if queues is None:
            return True
        try:
            with queues.server.translated("looking whether the broker is there"):
                queues.server.client.ping()
        except ServerError:
            return False
        return True

    def _failed(self, exc: Exception, *, keep: bool = False) -> PublishError:
        self._refused = {}
        if not keep:
            self.close(broken=True)
        return PublishError(str(exc) or type(exc).__name__)

    def _is_broken(self, exc: Exception) -> bool:
        connection = self._connection
        if connection is None:
            return isinstance(exc, OSError)
        return isinstance(exc, (*connection.recoverable_connection_errors, *connection.recoverable_channel_errors))

    def _arguments(self, spec: EntrySpec) -> tuple[Any, Any]:
        if not spec.lazy:
            return spec.arguments.arguments() if spec.arguments is not None else ((), {})
        declared = self._declared().get(spec.name)
        if declared is None:
            raise ConfigurationError(
                f"the arguments of {spec.name!r} are computed by the beat that sends it, and this one's beat_schedule "
                "does not have it; start all beats with the same configuration"
            )
        get: Callable[[str], Any] = (
            declared.get if isinstance(declared, Mapping) else lambda key: getattr(declared, key)
        )
        return beat._evaluate_entry_args(get("args")), beat._evaluate_entry_kwargs(get("kwargs"))

    def _warn_unknown(self, spec: EntrySpec) -> None:
        if spec.task not in self._warned:
            self._warned.add(spec.task)
            logger.warning(
                "the task %s of entry %s is not imported in this beat: it is sent by name and routed by task_routes, "
                "without the options of its decorator",
                spec.task, spec.name,
            )  # fmt: skip
