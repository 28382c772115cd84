"""What a name that is not known probably meant: one judgement for settings, fields, zones and every kind of target."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

#: How many likely names a message shows.
MOST = 5

#: How like each other two names must be, of 1 (the same): one slip or two in a word of usual length, no other word.
LIKE = 0.7


def likely(name: str, known: Iterable[str], most: int = MOST) -> list[str]:
    """Return the known names that somebody may have meant who wrote ``name``, the likeliest first.

    Upper and lower case count as the same, and the last part of a dotted name stands for all of it.
    """
    wanted = name.casefold()
    spellings: dict[str, list[str]] = {}
    for each in dict.fromkeys(known):
        spellings.setdefault(each.casefold(), []).append(each)
    if wanted in spellings:
        return spellings[wanted][:most]
    parts = [spelled for spelled in spellings if "." in spelled and spelled.rpartition(".")[2] == wanted]
    near = difflib.get_close_matches(wanted, spellings, n=most, cutoff=LIKE)
    found = [each for spelled in dict.fromkeys([*near, *parts]) for each in spellings[spelled]]
    return found[:most]


def asked(near: Iterable[str]) -> str:
    """Return "; did you mean …?" with some likely names, or nothing without any."""
    names = ", ".join(map(repr, near))
    return f"; did you mean {names}?" if names else ""


def asked_of(name: str, known: Iterable[str], things: str) -> str:
    """Return "; did you mean …?" with the likely ones of the known names; if none is, what there is of ``things``."""
    every = sorted(set(known))
    near = likely(name, every)
    if near:
        return asked(near)
    if not every:
        return f"; there are no {things} at all"
    more = f" and {len(every) - MOST:,} more" if len(every) > MOST else ""
    return f"; the {things} are {', '.join(map(repr, every[:MOST]))}{more}"


def unknown_faults(given: Iterable[Any], known: Sequence[str], what: str) -> list[str]:
    """Return a sentence for each of the given names that is not known, with the one that was probably meant."""
    faults = []
    for name in given:
        if name not in known:
            near = likely(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            faults.append(f"it has the unknown {what} {name!r} ({hint})")
    return faults
