"""Runs that no schedule asked for: one more now, or past occurrences made up for."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice, takewhile
from typing import Any

from kombu.exceptions import OperationalError

from celery_zsched import planner
from celery_zsched.entry import Cause, EntrySpec, Past
from celery_zsched.errors import EntryError, NotFoundError, ServerUnavailableError
from celery_zsched.guesses import asked, likely
from celery_zsched.operations.moments import duration_us, moment_in_years, moment_us
from celery_zsched.operations.records import note
from celery_zsched.operations.requests import KNOWN_S, once
from celery_zsched.operations.site import Site
from celery_zsched.operations.standing import moment
from celery_zsched.operations.targets import find_entry, task_names
from celery_zsched.outlet import PublishError, RefusedError
from celery_zsched.publishing import CeleryPublisher
from celery_zsched.stored import Stored
from celery_zsched.types import SECOND_US

#: The most occurrences that one backfill sends.
BACKFILL_LIMIT = 1000

#: How long it is known that an occurrence was backfilled, in seconds.
BACKFILL_KNOWN_S = 30 * 86_400

#: Requests to run an entry that have no id of their own and come so soon after each other, in seconds, are one: a
#: broadcast that every worker hears.
FOLD_S = 10

_TASK = "task:"

_NAMESPACE = uuid.UUID("8d0ae1c1-53c8-5b1f-a8a1-3f2d3a0f7d11")


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was sent. ``changed`` says whether this call sent it; ``nominal`` and ``fired`` are ISO 8601.

    ``entry`` is empty for a task that was sent by its name.
    """

    entry: str
    task: str
    task_id: str
    nominal: str
    fired: str
    cause: str
    changed: bool
    by: str

    def to_dict(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return asdict(self)


def run_task(
    site: Site,
    target: str,
    *,
    request: str | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> Run:
    """Send an entry's task once more, now: same routing, its schedule unmoved, cause ``manual``.

    ``task:NAME`` sends a task by its name, routed as always. A paused entry can be run too. One ``request`` sends once,
    whoever repeats it; without one, requests with the same arguments within :data:`FOLD_S` seconds are taken for the
    same. ``args`` and ``kwargs`` take the place of the entry's own.

    Raises :class:`~celery_zsched.errors.NotFoundError`, and
    :class:`~celery_zsched.errors.ServerUnavailableError` if the broker does not take the message.
    """
    if target.startswith(_TASK) and not site.schedules.get_many([target]):
        return _run_by_name(site, target.removeprefix(_TASK), request, args, kwargs, reason)
    _check_arguments(args, kwargs)
    stored = _find(site, target)
    spec = _readable(stored.name, stored.spec, stored.fault)
    own = None
    if args is not None or kwargs is not None:
        own = (list(args or ()), dict(kwargs or {}))
    if own is not None:
        _check_call(site, spec.task, *own)
    elif spec.arguments is not None and not spec.lazy:
        _check_call(site, spec.task, *spec.arguments.arguments())
    known_s = KNOWN_S if request else FOLD_S
    asked_for = request or _digest(args, kwargs)

    def send() -> dict[str, Any]:
        now_us = site.schedules.now_us()
        task_id = _task_id(site, spec, "manual", request or f"{now_us}{asked_for}")
        with _publisher(site) as publish:
            publish(spec, _send(spec, now_us, "manual", now_us, site.schedules.zone), now_us, task_id, own, 0.0)
        _remember(site, spec, now_us, now_us, "manual", task_id)
        note(site, "run", f"entry:{spec.name}", reason, task_id=task_id)
        return Run(
            spec.name, spec.task, task_id, moment(now_us) or "", moment(now_us) or "", "manual", True, site.by
        ).to_dict()

    answer, done = once(site, f"run:{spec.name}:{spec.epoch}:{asked_for}", send, known_s=known_s)
    return Run(**answer | {"changed": done})


def _find(site: Site, target: str) -> Stored:
    """Return the entry to be run; the error for a name that is none thinks of tasks too."""
    try:
        return find_entry(site, target)
    except NotFoundError:
        if target in task_names(site):
            raise NotFoundError(f"there is no entry {target!r}{asked([_TASK + target])}") from None
        raise


def _check_arguments(args: object, kwargs: object) -> None:
    """Raise :class:`~celery_zsched.errors.EntryError` for arguments of a wrong kind, as a broadcast may bring them."""
    if args is not None and not isinstance(args, (list, tuple)):
        raise EntryError(f'the args of a run are a list, such as [1, "a"], not {args!r:.200}')
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)):
        raise EntryError(f'the kwargs of a run are a mapping from names, such as {{"a": 1}}, not {kwargs!r:.200}')


def _digest(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
    """Return what tells requests without an id apart by their arguments; nothing for those that bring none."""
    if args is None and kwargs is None:
        return ""
    given = [None if args is None else list(args), None if kwargs is None else dict(kwargs)]
    try:
        text = json.dumps(given, sort_keys=True)
    except (TypeError, ValueError):  # no JSON values: what shows alike is alike
        text = repr(given)
    return f"args {hashlib.blake2b(text.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


def _check_call(site: Site, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise :class:`~celery_zsched.errors.EntryError` if a task that the app knows cannot be called like that."""
    site.app.loader.import_default_modules()
    task = site.app.tasks.get(name)
    check = getattr(task, "__header__", None) if getattr(task, "typing", False) else None
    if check is None:
        return
    try:
        check(*args, **kwargs)
    except TypeError as exc:
        raise EntryError(f"the task {name!r} cannot be called with these arguments: {exc}") from None


def _run_by_name(
    site: Site,
    name: str,
    request: str | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    reason: str | None,
) -> Run:
    _check_arguments(args, kwargs)
    if name not in task_names(site):
        near = asked(_TASK + known for known in likely(name, task_names(site)))
        raise NotFoundError(f"this app has no task {name!r}, and a worker would throw its message away{near}")
    _check_call(site, name, args or (), kwargs or {})
    asked_for = request or _digest(args or None, kwargs or None)

    def send() -> dict[str, Any]:
        now_us = site.schedules.now_us()
        parts = (site.schedules.prefix, name, "by name", request or f"{now_us}{asked_for}")
        task_id = str(uuid.uuid5(_NAMESPACE, "\0".join(parts)))
        try:
            site.app.tasks[name].apply_async(args, kwargs, task_id=task_id)
        except OperationalError as exc:
            raise ServerUnavailableError(f"the broker did not take {name!r}: {exc}; try again") from exc
        note(site, "run", f"{_TASK}{name}", reason, task_id=task_id)
        moment_ = moment(now_us) or ""
        return Run("", name, task_id, moment_, moment_, "manual", True, site.by).to_dict()

    known_s = KNOWN_S if request else FOLD_S
    answer, done = once(site, f"run:{_TASK}{name}:{asked_for}", send, known_s=known_s)
    return Run(**answer | {"changed": done})


def backfill(
    site: Site,
    target: str,
    since: str,
    until: str,
    *,
    limit: int = 100,
    pace: str | float = 0,
    label: str = "",
    reason: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Run]:
    """Send an entry's past occurrences from ``since`` to ``until`` (both included), oldest first, cause ``backfill``.

    Each nominal time is sent once for each ``label``, however often it is asked for; the schedule does not move. With
    ``pace`` they are due one by one, so many seconds apart. More than ``limit`` of them are refused before anything is
    sent. With ``dry_run`` nothing is sent; the runs that would be have no task id. ``progress`` is told (done, all).

    Raises :class:`~celery_zsched.errors.EntryError` for a range that is not in the past or holds too many occurrences.
    """
    stored = find_entry(site, target)
    spec = _readable(stored.name, stored.spec, stored.fault)
    nominals = _nominals(site, spec, since, until, limit)
    if dry_run:
        return [
            Run(spec.name, spec.task, "", moment(at_us) or "", "", "backfill", False, site.by) for at_us in nominals
        ]
    pace_us = duration_us(pace)
    moment_in_years(site.schedules.now_us() + pace_us * len(nominals), f"+{len(nominals)} x {pace}")
    pace_s = pace_us / SECOND_US
    runs: list[Run] = []
    with _publisher(site) as publish:
        for position, nominal_us in enumerate(nominals):
            runs.append(_backfill_one(site, spec, nominal_us, label, position * pace_s, publish))
            if progress is not None:
                progress(position + 1, len(nominals))
    sent = sum(run.changed for run in runs)
    if sent:
        note(
            site, "backfill", f"entry:{spec.name}", reason, since=runs[0].nominal, until=runs[-1].nominal, sent=sent,
            **({"label": label} if label else {}),
        )  # fmt: skip
    return runs


_Publish = Callable[[EntrySpec, planner.Send, int, str, "tuple[Any, Any] | None", float], None]


def _backfill_one(site: Site, spec: EntrySpec, nominal_us: int, label: str, delay_s: float, publish: _Publish) -> Run:
    def do() -> dict[str, Any]:
        now_us = site.schedules.now_us()
        task_id = _task_id(site, spec, "backfill", f"{nominal_us}:{label}")
        wanted_us = now_us + round(delay_s * SECOND_US)
        send = _send(spec, nominal_us, "backfill", wanted_us, site.schedules.zone)
        publish(spec, send, now_us, task_id, None, delay_s)
        _remember(site, spec, nominal_us, now_us, "backfill", task_id)
        nominal, fired = moment(nominal_us) or "", moment(now_us) or ""
        return Run(spec.name, spec.task, task_id, nominal, fired, "backfill", True, site.by).to_dict()

    request = f"backfill:{spec.name}:{spec.epoch}:{nominal_us}:{label}"
    answer, done = once(site, request, do, known_s=BACKFILL_KNOWN_S)
    return Run(**answer | {"changed": done})


def _nominals(site: Site, spec: EntrySpec, since: str, until: str, limit: int) -> list[int]:
    if not 1 <= limit <= BACKFILL_LIMIT:
        raise EntryError(f"the limit of a backfill is {limit}; it can be 1 to {BACKFILL_LIMIT}")
    schedules = site.schedules
    now_us = schedules.now_us()
    zone = spec.zone or schedules.zone
    since_us, until_us = moment_us(since, now_us, zone), moment_us(until, now_us, zone)
    if until_us < since_us:
        raise EntryError(f"the range of the backfill ends ({until}) before it begins ({since})")
    if until_us > now_us:
        raise EntryError(f"the range of the backfill ends at {moment(until_us)}, which is still to come")
    coming = planner.nominals(spec, since_us - 1, zone=schedules.zone)
    found = list(islice(takewhile(lambda at_us: at_us <= until_us, coming), limit + 1))
    if len(found) > limit:
        raise EntryError(
            f"{spec.name!r} has more than {limit} occurrences from {moment(since_us)} to {moment(until_us)}; "
            f"shorten the range, or raise the limit (at most {BACKFILL_LIMIT})"
        )
    return found


def _send(spec: EntrySpec, nominal_us: int, cause: Cause, now_us: int, zone: str) -> planner.Send:
    following_us = planner.next_nominal(spec, now_us, zone=zone) if spec.expires == "next" else None
    expires_us = planner.expires_of(spec, now_us, following_us, zone=zone)
    return planner.Send(nominal_us, cause, 0, expires_us)


@contextmanager
def _publisher(site: Site) -> Iterator[_Publish]:
    publisher = CeleryPublisher(
        site.app, prefix=site.schedules.prefix, declared=lambda: dict(site.app.conf.beat_schedule or {}),
        overlap=site.overlap,
    )  # fmt: skip

    def publish(
        spec: EntrySpec, send: planner.Send, at_us: int, task_id: str, own: tuple[Any, Any] | None, delay_s: float
    ) -> None:
        try:
            publisher.send(spec, send, at_us, task_id=task_id, arguments=own, delay_s=delay_s)
            refused = publisher.flush().get(spec.name)
        except (PublishError, RefusedError) as exc:
            raise ServerUnavailableError(f"the broker did not take {spec.name!r}: {exc}; try again") from exc
        if refused is not None:
            raise ServerUnavailableError(f"the broker did not take {spec.name!r}: {refused}; try again")

    try:
        yield publish
    finally:
        publisher.close()


def _remember(site: Site, spec: EntrySpec, nominal_us: int, now_us: int, cause: str, task_id: str) -> None:
    site.schedules.remember([(spec.name, Past(nominal_us, now_us, "sent", cause, task_id, 0, site.by))])


def _task_id(site: Site, spec: EntrySpec, cause: str, request: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, "\0".join((site.schedules.prefix, spec.name, str(spec.epoch), cause, request))))


def _readable(name: str, spec: EntrySpec | None, fault: str | None) -> EntrySpec:
    if spec is None:
        raise EntryError(f"the entry {name!r} cannot be run: {fault}")
    return spec
