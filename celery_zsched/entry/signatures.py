"""Celery's signatures in the place of a task: one task with its arguments and options; a canvas is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_zsched.errors import EntryError

#: Signatures of several tasks, by the word by which Celery tells them apart.
_CANVASES = ("chain", "group", "chord")


def unfold(task: Any, args: Any, kwargs: Any, options: Any) -> tuple[Any, Any, Any, Any]:
    """Return the task with its arguments and options where it is a signature; anything else as it is.

    What was given beside it goes on top, as in ``Signature.apply_async``: ``args`` before its own, ``kwargs`` and
    ``options`` over its own. Raises :class:`EntryError` for a canvas, and for arguments beside a signature that takes
    none.
    """
    from celery.canvas import Signature

    if not isinstance(task, Signature):
        return task, args, kwargs, options
    kind = task.get("subtask_type")
    if kind in _CANVASES:
        raise EntryError(
            f"its task is a {kind}, which is several tasks, and an entry sends one; let it send a task that calls "
            f"apply_async() on the {kind}"
        )
    if task.get("immutable") and (args or kwargs):
        raise EntryError(
            f"its task is the immutable signature {task!r:.200}, which takes no more arguments, and it is given "
            f"{args or kwargs!r:.100} besides; write them into the signature, or make that with .s()"
        )
    if isinstance(args, (list, tuple)):
        args = (*args, *(task.get("args") or ()))
    return task["task"], args, _over(task.get("kwargs"), kwargs), _over(task.get("options"), options)


def _over(own: Any, given: Any) -> Any:
    return {**(own or {}), **given} if isinstance(given, Mapping) else given or dict(own or {})
