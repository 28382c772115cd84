"""``celery control pause_task | resume_task | run_task | …`` and ``celery inspect schedule | paused | …``.

Workers and the shell know them once this module is imported, and so do beats whose remote control is on
(:mod:`celery_zsched.remote`). Each of them hears a command and does it; since the effect is on the server and doing it
twice is doing it once, all of them answer with the same standing, and one of them says that it changed something.
"""

from __future__ import annotations

import inspect as introspection
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import click
from celery.utils.serialization import strtobool
from celery.worker import state as worker_state
from celery.worker.control import control_command, inspect_command

from celery_zsched import operations
from celery_zsched.errors import EntryError, NotFoundError, ZschedError
from celery_zsched.guesses import unknown_faults

logger = logging.getLogger("celery_zsched.control")

#: The most entries that an inspect command answers with, unless asked for more.
INSPECT_LIMIT = 1000

Target = str | dict[str, str] | None


# -- What the shell makes of the words of a command line, before it sends


def addressed(target: str) -> dict[str, str]:
    """Return a target with who asks for it, and an id that makes of many hearers' doing one deed.

    The shell calls this before it sends; workers run as somebody else.
    """
    return {"target": target, "by": operations.whoami(), "request": uuid.uuid4().hex}


def json_list(text: str) -> list[Any]:
    """Return a JSON list on a command line; a usage error for anything else."""
    found: list[Any] = _json(text, list, "the positional arguments", "'[1, \"a\"]'")
    return found


def json_object(text: str) -> dict[str, Any]:
    """Return a JSON object on a command line; a usage error for anything else."""
    found: dict[str, Any] = _json(text, dict, "the named arguments", "'{\"a\": 1}'")
    return found


def yes_or_no(text: str) -> bool:
    """Return yes or no on a command line; a usage error for anything else."""
    try:
        return bool(strtobool(text))
    except TypeError:
        raise click.UsageError(f"catch_up is {text!r}; write yes or no") from None


def whole_number(text: str) -> int:
    """Return a number on a command line; a usage error for anything else."""
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"the limit is {text!r}; write a whole number such as 50") from None


def _json(text: str, kind: type, what: str, example: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise click.UsageError(f"{what} are {text!r}, which is no JSON ({exc}); write them as {example}") from None
    if not isinstance(found, kind):
        raise click.UsageError(f"{what} are {text!r}; write them as {example}")
    return found


# -- The commands


@control_command(
    args=[("target", addressed), ("reason", str), ("lasting", str)], signature="TARGET [REASON [FOR, like 2h]]"
)
def pause_task(
    state: Any,
    target: Target = None,
    reason: str | None = None,
    lasting: str | None = None,
    until: str | None = None,
    request: str | None = None,
    by: str | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """Pause a periodic task, or entry:, task:, queue: or id:NAME: nothing of it goes on until it is resumed."""

    def pause(site: operations.Site, name: str, request: str | None) -> Any:
        ends: dict[str, Any] = {"lasting": lasting, "until": until, "request": request}
        if operations.is_pattern(name):
            return operations.pause_tasks(site, name, reason=reason or None, **ends)
        here = getattr(state, "consumer", None) is not None  # a beat tells the workers, who may not have heard it
        done = operations.pause_task(site, name, reason=reason or None, tell=not here, **ends)
        if here and isinstance(done, operations.Holding) and done.target.startswith("task:"):
            _give_back(done.target.removeprefix("task:"))
        return done

    return _answer(state, pause_task, pause, target, by, request, rest, reason=reason)


@control_command(args=[("target", addressed), ("catch_up", yes_or_no)], signature="TARGET [catch_up=no]")
def resume_task(
    state: Any,
    target: Target = None,
    catch_up: bool = False,
    reason: str | None = None,
    request: str | None = None,
    by: str | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """Resume what is paused: a periodic task is due at its next time, messages keep their order."""

    def resume(site: operations.Site, name: str, request: str | None) -> Any:
        if not isinstance(catch_up, (bool, int)):
            raise EntryError(f"catch_up is {catch_up!r}; give true or false")
        verb: Any = operations.resume_tasks if operations.is_pattern(name) else operations.resume_task
        return verb(site, name, catch_up=bool(catch_up), reason=reason or None)

    return _answer(state, resume_task, resume, target, by, request, rest, reason=reason)


@control_command(
    args=[("target", addressed), ("args", json_list), ("kwargs", json_object)],
    signature="ENTRY [ARGS as JSON [KWARGS as JSON]]",
)
def run_task(
    state: Any,
    target: Target = None,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    reason: str | None = None,
    request: str | None = None,
    by: str | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """Run a periodic task, or task:NAME, once more, now; its schedule does not move. One run, however many hear it."""

    def run(site: operations.Site, name: str, request: str | None) -> Any:
        return operations.run_task(site, name, request=request, args=args, kwargs=kwargs, reason=reason or None)

    return _answer(state, run_task, run, target, by, request, rest, reason=reason)


@control_command(args=[("target", addressed), ("reason", str)], signature="TARGET [REASON]")
def cancel_task(
    state: Any,
    target: Target = None,
    reason: str | None = None,
    request: str | None = None,
    by: str | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """Remove what waits of a task name, an entry or a queue, or one message; what runs is revoked."""

    def cancel(site: operations.Site, name: str, request: str | None) -> Any:
        return operations.cancel_once(site, name, reason=reason or None, request=request)

    return _answer(state, cancel_task, cancel, target, by, request, rest, reason=reason)


@control_command(args=[("target", addressed), ("reason", str)], signature="ENTRY [REASON]")
def reanchor_task(
    state: Any,
    target: Target = None,
    reason: str | None = None,
    request: str | None = None,
    by: str | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """Let a periodic task go on that waits for what is far off, as the server's clock was ahead; '*' for all such."""

    def reanchor(site: operations.Site, name: str, request: str | None) -> Any:
        verb: Any = operations.reanchor_tasks if operations.is_pattern(name) else operations.reanchor_task
        return verb(site, name, reason=reason or None)

    return _answer(state, reanchor_task, reanchor, target, by, request, rest, reason=reason)


@control_command(visible=False)
def zsched_give_back(state: Any, task: str, **_: Any) -> dict[str, Any]:
    """Give back what was received of a task and is not started: it was paused."""
    return {"ok": _give_back(task)}


@inspect_command(args=[("pattern", str)], signature="[PATTERN]")
def schedule(state: Any, pattern: str | None = None, limit: int = INSPECT_LIMIT, **_: Any) -> Any:
    """Every periodic task: state, next and last run, zone."""
    return _list(state, pattern=pattern, limit=limit)


@inspect_command()
def paused(state: Any, limit: int = INSPECT_LIMIT, **_: Any) -> Any:
    """What is paused, periodic tasks and messages: by whom, why, until when."""

    def look(site: operations.Site) -> list[dict[str, Any]]:
        entries = operations.list_entries(site, state="paused", limit=limit).rows
        return [each.to_dict() for each in entries] + [each.to_dict() for each in operations.paused(site)]

    return _look(state, look)


@inspect_command(args=[("target", str)], signature="ENTRY or TASK_ID")
def task_state(state: Any, target: str | None = None, **_: Any) -> Any:
    """How one periodic task stands and why it does not run if it does not, or where a task is by its id."""

    def look(site: operations.Site) -> Any:
        name = _target("task_state", target)
        if not name.startswith("id:"):
            try:
                return operations.explain(site, name).to_dict()
            except NotFoundError as exc:
                if name.startswith("entry:") or site.own_queues is None:
                    raise
                if not site.own_queues.locate(name):
                    raise NotFoundError(f"no queue has a message {name!r}, and {exc}") from None
        return [each.to_dict() for each in operations.where_is(site, name)]

    return _look(state, look)


@inspect_command(args=[("limit", whole_number)], signature="[LIMIT]")
def timeline(state: Any, limit: int = 50, **_: Any) -> Any:
    """What comes next, in the order of time: periodic tasks, delayed tasks and retries."""
    return _look(state, lambda site: [each.to_dict() for each in operations.timeline(site, limit=limit)])


@inspect_command()
def beats(state: Any, **_: Any) -> Any:
    """The schedulers that run: where, since when, how late."""
    return _look(state, lambda site: [beat.to_dict() for beat in operations.beats(site)])


def _give_back(task: str) -> int:
    """Give back to the broker what this worker has received of a task and not started; return how many messages."""
    waiting = [request for request in list(worker_state.reserved_requests) if request.name == task]
    count = 0
    for request in waiting:
        message = request._message
        if request in worker_state.active_requests or message.acknowledged or not hasattr(message, "give_back"):
            continue
        message.give_back()
        count += 1
    logger.info("task:%s is paused; %d received and not started here, given back to the queue", task, count)
    return count


def _list(panel: Any, *, limit: int, **chosen: Any) -> Any:
    def look(site: operations.Site) -> list[dict[str, Any]]:
        return [row.to_dict() for row in operations.list_entries(site, limit=limit, **chosen).rows]

    return _look(panel, look)


def _look(panel: Any, look: Callable[[operations.Site], Any]) -> Any:
    try:
        return look(operations.Site.of(panel.app))
    except ZschedError as exc:
        return {"error": str(exc)}


def _answer(
    panel: Any,
    command: Callable[..., Any],
    operate: Callable[[operations.Site, str, str | None], Any],
    target: Any,
    by: str | None,
    request: str | None,
    rest: Mapping[str, Any],
    **texts: Any,
) -> dict[str, Any]:
    """Do what a command asks for, and answer with its result or with what is wrong; who asks is told in a sentence."""
    try:
        _check(command, rest, {**texts, "by": by, "request": request})
        if isinstance(target, Mapping):  # as the shell says it, see addressed()
            by, request = by or target.get("by"), request or target.get("request")
            target = target.get("target")
        name = _target(command.__name__, target)
        done = operate(operations.Site.of(panel.app, by=by), name, request)
    except ZschedError as exc:
        return {"error": str(exc)}
    return {"ok": [each.to_dict() for each in done] if isinstance(done, list) else done.to_dict()}


def _target(command: str, target: Any) -> str:
    if not isinstance(target, str) or not target.strip():
        given = "" if target is None else f", not {target!r:.200}"
        raise EntryError(
            f"{command} needs a target: the name of an entry, task:NAME, queue:NAME or id:TASK_ID{given}; for example "
            f"{command} entry:report"
        )
    return target


def _check(command: Callable[..., Any], rest: Mapping[str, Any], texts: Mapping[str, Any]) -> None:
    known = [name for name in introspection.signature(command).parameters if name not in ("state", "rest")]
    faults = unknown_faults(rest, known, "argument")
    faults += [f"its {name} is {value!r:.200}, not text" for name, value in texts.items() if not _is_text(value)]
    if faults:
        raise EntryError(f"{command.__name__} cannot be done: {'; '.join(faults)}")


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)
