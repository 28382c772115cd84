"""``celery control pause_task | resume_task | run_task | cancel_task`` and ``celery inspect schedule | paused | …``.

Workers and the shell know them once this module is imported. Every worker hears a command and each does it; since the
effect is on the server and doing it twice is doing it once, all of them answer with the same standing, and one of them
says that it changed something.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from typing import Any

from celery.utils.serialization import strtobool
from celery.worker import state as worker_state
from celery.worker.control import control_command, inspect_command

from celery_zsched import operations
from celery_zsched.errors import NotFoundError, ZschedError

logger = logging.getLogger("celery_zsched.control")

#: The most entries that an inspect command answers with, unless asked for more.
INSPECT_LIMIT = 1000


def addressed(target: str) -> dict[str, str]:
    """Return a target with who asks for it, and an id that makes of many hearers' doing one deed.

    The shell calls this before it sends; workers run as somebody else.
    """
    return {"target": target, "by": operations.whoami(), "request": uuid.uuid4().hex}


@control_command(
    args=[("target", addressed), ("reason", str), ("lasting", str)], signature="TARGET [REASON [FOR, like 2h]]"
)
def pause_task(
    state: Any,
    target: str | dict[str, str],
    reason: str | None = None,
    lasting: str | None = None,
    until: str | None = None,
    request: str | None = None,
    by: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Pause a periodic task, or entry:, task:, queue: or id:NAME: nothing of it goes on until it is resumed."""
    name, by, request = _parts(target, by, request)

    def pause(site: operations.Site) -> Any:
        ends: dict[str, Any] = {"lasting": lasting, "until": until, "request": request}
        if operations.is_pattern(name):
            return operations.pause_tasks(site, name, reason=reason or None, **ends)
        done = operations.pause_task(site, name, reason=reason or None, tell=False, **ends)
        if isinstance(done, operations.Holding) and done.target.startswith("task:"):
            _give_back(done.target.removeprefix("task:"))
        return done

    return _answer(state, by, pause)


@control_command(args=[("target", addressed), ("catch_up", strtobool)], signature="TARGET [catch_up=no]")
def resume_task(
    state: Any, target: str | dict[str, str], catch_up: bool = False, by: str | None = None, **_: Any
) -> dict[str, Any]:
    """Resume what is paused: a periodic task is due at its next time, messages keep their order."""
    name, by, _request = _parts(target, by)
    verb: Any = operations.resume_tasks if operations.is_pattern(name) else operations.resume_task
    return _answer(state, by, lambda site: verb(site, name, catch_up=catch_up))


@control_command(
    args=[("target", addressed), ("args", json.loads), ("kwargs", json.loads)],
    signature="ENTRY [ARGS as JSON [KWARGS as JSON]]",
)
def run_task(
    state: Any,
    target: str | dict[str, str],
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    reason: str | None = None,
    request: str | None = None,
    by: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Run a periodic task, or task:NAME, once more, now; its schedule does not move. One run, however many hear it."""
    name, by, request = _parts(target, by, request)
    return _answer(
        state,
        by,
        lambda site: operations.run_task(site, name, request=request, args=args, kwargs=kwargs, reason=reason or None),
    )


@control_command(args=[("target", addressed)], signature="TARGET")
def cancel_task(
    state: Any,
    target: str | dict[str, str],
    reason: str | None = None,
    request: str | None = None,
    by: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Remove what waits of a task name, an entry or a queue, or one message; what runs is revoked."""
    name, by, request = _parts(target, by, request)
    return _answer(state, by, lambda site: operations.cancel_once(site, name, reason=reason or None, request=request))


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
def task_state(state: Any, target: str, **_: Any) -> Any:
    """How one periodic task stands and why it does not run if it does not, or where a task is by its id."""

    def look(site: operations.Site) -> Any:
        if not target.startswith("id:"):
            try:
                return operations.explain(site, target).to_dict()
            except NotFoundError as exc:
                if target.startswith("entry:") or site.own_queues is None:
                    raise
                if not site.own_queues.locate(target):
                    raise NotFoundError(f"no queue has a message {target!r}, and {exc}") from None
        return [each.to_dict() for each in operations.where_is(site, target)]

    return _look(state, look)


@inspect_command(args=[("limit", int)], signature="[LIMIT]")
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


def _parts(
    target: str | dict[str, str], by: str | None = None, request: str | None = None
) -> tuple[str, str | None, str | None]:
    """Return the target, who asks for it, and the id of the request, wherever they were said."""
    if isinstance(target, str):
        return target, by, request
    return target["target"], by or target.get("by"), request or target.get("request")


def _answer(panel: Any, by: str | None, operate: Callable[[operations.Site], Any]) -> dict[str, Any]:
    try:
        done = operate(operations.Site.of(panel.app, by=by))
    except ZschedError as exc:
        return {"error": str(exc)}
    return {"ok": [each.to_dict() for each in done] if isinstance(done, list) else done.to_dict()}
