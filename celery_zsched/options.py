"""Tables of settings: a dataclass whose fields carry kind, unit and meaning, read from any mapping at once.

A table is the only place that knows a setting. What reads it, refuses mistyped names and bad values, and prints the
documentation is the same for every table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from celery_zsched.guesses import likely

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What values a setting takes: a phrase for people, and a reader that raises ``ValueError`` for anything else."""

    phrase: str
    read: Callable[[Any], Any]

    def or_none(self, meaning: str) -> Kind:
        """Return this kind with ``None`` allowed too; ``meaning`` says what ``None`` stands for."""
        return Kind(
            f"{self.phrase}, or None ({meaning})", lambda value: None if value in (None, "") else self.read(value)
        )


def _number(value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        raise ValueError
    number = float(value)
    if math.isnan(number):
        raise ValueError
    return number


def seconds(minimum: float) -> Kind:
    """Return the kind of a duration in seconds: a number, its text, or a timedelta."""

    def read(value: Any) -> float:
        number = _number(value)
        if not minimum <= number < math.inf:
            raise ValueError
        return number

    return Kind(f"seconds, {minimum:g} or more", read)


def whole(minimum: int) -> Kind:
    """Return the kind of a whole number that is not below ``minimum``."""

    def read(value: Any) -> int:
        number = _number(value)
        if number < minimum or not number.is_integer():
            raise ValueError
        return int(number)

    return Kind(f"a whole number, {minimum} or more", read)


def choice(*names: str) -> Kind:
    """Return the kind of a word out of a few."""

    def read(value: Any) -> str:
        word = str(value).lower()
        if word not in names:
            raise ValueError
        return word

    return Kind(" or ".join(repr(name) for name in names), read)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise ValueError
    return value


def _name(value: Any) -> str:
    text = _text(value)
    if not text or any(character in text for character in "{}") or any(character.isspace() for character in text):
        raise ValueError
    return text


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    try:
        return _WORDS[str(value).lower()]
    except KeyError:
        raise ValueError from None


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError
    return dict(value)


#: Any text.
TEXT = Kind("text", _text)
#: Text that may stand in a key: not empty, no blanks, and no braces, which would change its cluster slot.
NAME = Kind("a name without blanks and braces", _name)
#: Yes or no.
FLAG = Kind("True or False", _flag)
#: Names and values.
MAPPING = Kind("a dictionary", _mapping)
#: Anything at all; whoever uses the value checks it.
ANYTHING = Kind("any value", lambda value: value)


def setting(kind: Kind, default: Any, meaning: str) -> Any:
    """Declare one setting of a table: its kind, its default, and a sentence that says what it does."""
    metadata = {"kind": kind, "meaning": meaning}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def fields(table: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the settings of a table by name: the fields that were declared with :func:`setting`."""
    return {field.name: field for field in dataclasses.fields(table) if "kind" in field.metadata}


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of one field of a table."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def nearest(name: str, known: Iterable[str], *, spell: Callable[[str], str] = str) -> str:
    """Return " (did you mean …?)" with the known name that is most like ``name``, or nothing when none is."""
    near = likely(name, known, 1)
    return f" (did you mean {spell(near[0])}?)" if near else ""


def read_table(
    table: type,
    given: Mapping[str, Any],
    *,
    spell: Callable[[str], str] = str,
    also: Iterable[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Read ``given`` by ``table``.

    ``spell`` turns a name of the table into the name that the user wrote; ``also`` are further names that are known
    and read elsewhere. Returns the values by name, and a sentence for each fault; it never raises, so that the faults
    of several tables can be raised together.
    """
    known = fields(table)
    elsewhere = set(also)
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, value in given.items():
        if name in elsewhere:
            continue
        field = known.get(name)
        if field is None:
            guess = nearest(name, [*known, *elsewhere], spell=spell)
            faults.append(f"{spell(name)} is not a known setting{guess}")
            continue
        kind: Kind = field.metadata["kind"]
        try:
            values[name] = kind.read(value)
        except (TypeError, ValueError, OverflowError):
            faults.append(f"{spell(name)} is {_shown(name, value)}; it must be {kind.phrase}")
    return values, faults


def _shown(name: str, value: Any) -> str:
    # A password that was put into the wrong place must not reach a log by way of the complaint about it.
    if name == "url" or any(word in name for word in ("password", "credential", "secret")):
        return "not usable (value not shown)"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def describe(table: type, *, spell: Callable[[str], str] = str, without: type = object) -> str:
    """Return the table as Markdown: name, values, default, meaning; without what it has from the class ``without``."""
    lines = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in fields(table).items():
        cells = (f"`{spell(name)}`", field.metadata["kind"].phrase, f"`{default_of(field)!r}`")
        lines.append(f"| {' | '.join(cells)} | {field.metadata['meaning']} |")
    return "\n".join(lines)
