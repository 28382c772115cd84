"""What a verb is about: an entry, a task name, a queue or a message, and errors that name likely ones.

``entry:``, ``task:``, ``queue:`` and ``id:`` in front of a target say what it is. Without one it is whatever has that
name, and if that is several things, the error lists them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from celery_zsched.errors import ConflictError, EntryError, NotFoundError
from celery_zsched.guesses import MOST, asked, asked_of, likely
from celery_zsched.operations.site import Site
from celery_zsched.schedules import Schedules
from celery_zsched.stored import Stored

#: The kinds of targets, in the order in which they are looked for.
KINDS = ("entry", "task", "queue", "id")

_ENTRY = "entry:"


@dataclass(frozen=True, slots=True)
class Target:
    """A kind, one of :data:`KINDS`, and a name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def is_pattern(target: str) -> bool:
    """Return whether a target selects many by ``*``, ``?`` or ``[…]``."""
    return any(character in target for character in "*?[")


def resolve(site: Site, text: str) -> Target:
    """Return what a text means: what its prefix says, or else whatever has that name.

    What is said by its prefix need not exist yet (see :func:`unknown_notice`). Where the broker is not ours, a text is
    an entry unless it says otherwise. Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely ones, and
    :class:`~celery_zsched.errors.ConflictError` if several things have that name.
    """
    if not text.strip():
        raise EntryError(
            f"there is no target in {text!r}; name an entry, a task, a queue or the id of a task, such as 'report' or "
            "'task:app.report'"
        )
    kind, separator, name = text.partition(":")
    if separator and kind in KINDS and name and not site.schedules.get_many([text]):
        return Target(kind, name)
    kinds = ("entry",) if site.own_queues is None else KINDS
    if is_pattern(text):
        return Target("entry", text)
    found = [Target(each, text) for each in kinds if _exists(site, each, text)]
    if not found and site.own_queues is not None and site.own_queues.locate(text):
        found = [Target("id", text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConflictError(f"{text!r} is several things; say which: {', '.join(map(str, found))}")
    raise NotFoundError(f"there is no {_listed(kinds)} {text!r}{_hint(site, text, kinds)}")


def find_entry(site: Site, target: str) -> Stored:
    """Return the entry of that name; ``entry:`` in front of it is allowed.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely entries.
    """
    for stored in site.schedules.get_many(dict.fromkeys([target, target.removeprefix(_ENTRY)])):
        return stored
    name = target.removeprefix(_ENTRY)
    raise NotFoundError(f"there is no entry {name!r}{_hint(site, name, ('entry',))}")


def find_entries(site: Site, target: str) -> list[Stored]:
    """Return the entry of that name, or, for a pattern that is no entry's name, all that it selects, by name.

    Raises :class:`~celery_zsched.errors.NotFoundError` when there is none, and
    :class:`~celery_zsched.errors.EntryError` for a pattern of anything else.
    """
    if not is_pattern(target) or site.schedules.get_many([target]):
        return [find_entry(site, target)]
    kind, separator, _ = target.partition(":")
    if separator and kind in KINDS[1:]:
        raise EntryError(f"{target!r} is no pattern of entries, and patterns select only those; name one {kind}")
    pattern = target.removeprefix(_ENTRY)
    names = sorted(selected(site.schedules, pattern))
    if not names:
        raise NotFoundError(f"no entry matches {pattern!r}; see the names with `celery zsched list`")
    return site.schedules.get_many(names)


def selected(schedules: Schedules, pattern: str) -> Iterable[str]:
    """Return the names of the entries that a pattern selects, in no order: one alone where that is its very name."""
    if schedules.get_many([pattern]):
        return [pattern]
    return (name for name in schedules.names() if fnmatch.fnmatchcase(name, pattern))


def require_queue(site: Site, name: str) -> None:
    """Raise :class:`~celery_zsched.errors.NotFoundError`, which names likely ones, for a queue that there is not."""
    if not site.queues.knows(name):
        raise NotFoundError(f"there is no queue {name!r}{asked_of(name, site.queues.names(), 'queues')}")


def task_names(site: Site) -> list[str]:
    """Return the names of the tasks that the app knows, Celery's own left out."""
    site.app.loader.import_default_modules()
    return sorted(name for name in site.app.tasks if not name.startswith("celery."))


def unknown_notice(site: Site, target: Target) -> str | None:
    """Return what is to be said of an entry, a task name or a queue that nobody here knows; None for what is known."""
    if target.kind == "entry" and not _exists(site, "entry", target.name):
        near = asked(likely(target.name, list(site.schedules.names())))
        return f"there is no entry {target.name!r}, and no message of one waits{near}"
    if target.kind == "task" and not _exists(site, "task", target.name):
        near = asked(f"task:{name}" for name in likely(target.name, task_names(site)))
        return f"this app has no task {target.name!r}, and no message of one waits{near}"
    if target.kind == "queue" and not _exists(site, "queue", target.name):
        near = asked(f"queue:{name}" for name in likely(target.name, site.queues.names()))
        return f"no queue {target.name!r} is declared{near}"
    return None


def _exists(site: Site, kind: str, name: str) -> bool:
    if kind == "entry":
        return bool(site.schedules.get_many([name]))
    if kind == "task":
        return name in site.app.tasks or name in task_names(site)
    return kind == "queue" and site.own_queues is not None and name in site.own_queues.names()


def _hint(site: Site, text: str, kinds: tuple[str, ...]) -> str:
    entries = list(site.schedules.names())
    if kinds == ("entry",):
        return asked_of(text, entries, "entries")
    queues = site.own_queues.names() if site.own_queues is not None else []
    known = {"entry": entries, "task": task_names(site), "queue": queues}
    near = [f"{kind}:{name}" for kind, names in known.items() for name in likely(text, names)]
    if near:
        return asked(near[:MOST])
    return asked_of("", (f"{kind}:{name}" for kind, names in known.items() for name in names), "known ones")


def _listed(kinds: tuple[str, ...]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"
