"""What a verb is about: an entry by name or pattern, and errors that name likely ones."""

from __future__ import annotations

import difflib
import fnmatch

from celery_zsched.errors import NotFoundError
from celery_zsched.operations.site import Site
from celery_zsched.schedules import Stored

#: How many likely names an error shows.
CANDIDATES = 5

_ENTRY = "entry:"


def is_pattern(target: str) -> bool:
    """Return whether a target selects many by ``*``, ``?`` or ``[…]``."""
    return any(character in target for character in "*?[")


def find_entry(site: Site, target: str) -> Stored:
    """Return the entry of that name; ``entry:`` in front of it is allowed.

    Raises :class:`~celery_zsched.errors.NotFoundError`, which names likely entries.
    """
    for stored in site.schedules.get_many(dict.fromkeys([target, target.removeprefix(_ENTRY)])):
        return stored
    names = list(site.schedules.names())
    near = difflib.get_close_matches(target, names, n=CANDIDATES) or sorted(names)[:CANDIDATES]
    hint = f"; did you mean {', '.join(map(repr, near))}?" if near else "; there are no entries at all"
    raise NotFoundError(f"there is no entry {target!r}{hint}")


def find_entries(site: Site, target: str) -> list[Stored]:
    """Return the entry of that name, or, for a pattern that is no entry's name, all that it selects, by name.

    Raises :class:`~celery_zsched.errors.NotFoundError` when there is none.
    """
    if not is_pattern(target) or site.schedules.get_many([target]):
        return [find_entry(site, target)]
    pattern = target.removeprefix(_ENTRY)
    names = sorted(name for name in site.schedules.names() if fnmatch.fnmatchcase(name, pattern))
    if not names:
        raise NotFoundError(f"no entry matches {pattern!r}; see the names with `celery zsched list`")
    return site.schedules.get_many(names)
