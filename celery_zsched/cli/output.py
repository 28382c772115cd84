"""What the commands print: tables and sentences for people, JSON for programs.

JSON has one form throughout: one object a line, with the fields of the result that the verb returns in Python; a list
is as many lines, and moments are in UTC. For people a moment is in the zone of the entry that it is about, or else in
the app's, or wherever ``--zone`` says, and always with its offset.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

#: How wide a table may be where no terminal says it: lines are not broken for a pipe.
WIDE = 500

#: What is so short is not broken either, where a terminal is narrow.
WORD = 11

#: A moment as the verbs give it, ISO 8601 in UTC.
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3,6})?\+00:00")

#: A moment as it is shown, or nothing.
_SHOWN = re.compile(r"-|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+)")

#: How a state is coloured.
STYLES = {"paused": "yellow", "quarantined": "red", "finished": "dim", "firing": "green", "dead": "red"}

Column = tuple[str, str]


class Output:
    """Prints one command's results; ``app_zone`` is what moments are in, unless one of an entry or ``asked`` is."""

    def __init__(self, as_json: bool, app_zone: str = "UTC", asked: str | None = None) -> None:
        self.as_json = as_json
        self.zone = asked or app_zone
        #: The zone that the user wants to see, if any.
        self.asked = asked

    def speak_of(self, entry_zone: str | None) -> None:
        """Go on in the zone of an entry, unless the user asked for another."""
        self.zone = self.asked or entry_zone or self.zone

    def rows(
        self,
        columns: Sequence[Column],
        rows: Iterable[Mapping[str, Any]],
        nothing: str,
        *,
        zone: str | None = None,
        spare: Sequence[str] = (),
    ) -> None:
        """Print rows: as a table of the columns (head, field) or as JSON; ``nothing`` is said when there are none.

        ``zone`` is the field of a row that has its own zone; ``spare`` are fields, the first one first, that a terminal
        that is too narrow for all may go without.
        """
        if self.as_json:
            for row in rows:
                self.document(row)
            return
        found = list(rows)
        if not found:
            click.echo(nothing)
            return
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE
        cells = [
            {field: _cell(row.get(field), self.asked or (row.get(zone) if zone else None) or self.zone)
             for _, field in columns}
            for row in found
        ]  # fmt: skip
        kept = fitting(columns, cells, width, spare)
        click.echo(_table(kept, cells, found, width))
        if len(kept) < len(columns):
            heads = ", ".join(head for head, field in columns if (head, field) not in kept)
            click.echo(f"Left out, since the terminal is narrow: {heads}.", err=True)

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON object on one line."""
        click.echo(json.dumps(document, ensure_ascii=False, default=str))

    def one(self, document: Mapping[str, Any], sentence: str) -> None:
        """Print one result: as JSON, or as a sentence."""
        if self.as_json:
            self.document(document)
        else:
            self.say(sentence)

    def say(self, text: str) -> None:
        """Print a text for people."""
        click.echo(short(text, self.zone))

    def facts(self, document: Mapping[str, Any]) -> None:
        """Print one result in full: a fact a line, or as JSON."""
        if self.as_json:
            self.document(document)
            return
        facts = {name: value for name, value in document.items() if value not in (None, [], {}, "")}
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            lines = value if isinstance(value, list) and all(isinstance(each, str) for each in value) else [value]
            for position, line in enumerate(lines):
                click.echo(f"{name if position == 0 else '':{width}}  {_cell(line, self.zone)}")

    @contextmanager
    def progress(self, label: str, length: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show on a terminal how far long work has come; yields what is told how many more are done."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda count: None
            return
        with click.progressbar(length=length or 0, label=label, file=sys.stderr) as bar:
            yield bar.update


def fitting(
    columns: Sequence[Column], rows: Sequence[Mapping[str, str]], width: int, spare: Sequence[str]
) -> list[Column]:
    """Return the columns that fit without breaking a cell, or all but those that can be spared."""
    kept = list(columns)
    for field in spare:
        if sum(max(len(head), *(len(row[name]) for row in rows)) + 2 for head, name in kept) <= width + 2:
            break
        kept = [column for column in kept if column[1] != field]
    return kept


def _table(
    columns: Sequence[Column], rows: Sequence[Mapping[str, str]], values: Sequence[Mapping[str, Any]], width: int
) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, field in columns:
        # A moment or a word is of no use in pieces; other cells go over several lines where a terminal is narrow.
        whole = all(len(row[field]) <= WORD or _SHOWN.fullmatch(row[field]) for row in rows)
        table.add_column(head, overflow="fold", no_wrap=whole)
    for row, value in zip(rows, values, strict=True):
        table.add_row(*(Text(row[field], style=_style(value.get(field))) for _, field in columns))
    console = Console(width=width, highlight=False, soft_wrap=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def short(text: str, zone: str) -> str:
    """Return a text with its moments in a zone, to the millisecond and no further than they go."""
    return _MOMENT.sub(lambda found: _local(found[0], zone), text)


def _local(text: str, zone: str) -> str:
    here = datetime.fromisoformat(text)
    try:
        here = here.astimezone(ZoneInfo(zone))
    except OverflowError:
        pass  # the end of what a datetime can tell, which stands for anything beyond it
    return here.isoformat(timespec="milliseconds").replace(".000", "").removesuffix("+00:00") + (
        "" if here.utcoffset() else "Z"
    )


def plural(count: int, one: str) -> str:
    """Return a number with its noun."""
    noun = one if count == 1 else one.removesuffix("y") + "ies" if one.endswith("y") else one + "s"
    return f"{count:,} {noun}"


def _cell(value: Any, zone: str) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return short(json.dumps(value, ensure_ascii=False, default=str), zone)
    return short(str(value), zone)


def _style(value: Any) -> str:
    return STYLES.get(value, "") if isinstance(value, str) else ""
