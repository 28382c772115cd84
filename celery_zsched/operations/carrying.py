"""Carrying a schedule from one server to another: every entry as a line of JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from celery_zsched.entry import EntrySpec, OperatorState, decode, encode
from celery_zsched.errors import EntryError, ZschedError
from celery_zsched.operations import takeovers
from celery_zsched.operations.guarding import undefined_blackouts
from celery_zsched.operations.planning import changes_of
from celery_zsched.operations.records import note
from celery_zsched.operations.site import Site
from celery_zsched.operations.takeovers import Taken
from celery_zsched.stored import Change, State

#: The version of the exported lines.
VERSION = 1

#: How many entries are stored at once.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Coming:
    """An entry that comes from elsewhere, what its operator wanted, and how often it was sent there."""

    spec: EntrySpec
    operator: OperatorState = field(default_factory=OperatorState)
    #: What of it cannot be carried over.
    notices: tuple[str, ...] = ()
    fired: int = 0


@dataclass(slots=True)
class Report:
    """What became of what was read: names by ``created``, ``updated``, ``unchanged``; faults and notices by name.

    ``kept`` are those left as they are in what was changed here since they were taken over; a notice says what that is.
    """

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    notices: dict[str, list[str]] = field(default_factory=dict)
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


def export(site: Site) -> Iterator[str]:
    """Yield every entry as one line of JSON, arguments included.

    It is ``{"v": 1, "entry": …, "fired": …, "operator": …}``: see ``docs/data-model.md``.
    """
    for stored in sorted(site.schedules.all(), key=lambda each: each.name):
        line: dict[str, Any] = {"v": VERSION}
        try:
            line["entry"] = json.loads(stored.located.body)
        except ValueError:
            continue  # not even JSON; there is nothing to carry
        if stored.last.fired:
            line["fired"] = stored.last.fired
        if stored.state is State.PAUSED:
            line["operator"] = json.loads(stored.operator.to_json())
        yield json.dumps(line, separators=(",", ":"), ensure_ascii=False)


def read_export(lines: Iterable[str], report: Report) -> Iterator[Coming]:
    """Yield the entries of exported lines; a line that cannot be read is a fault in the report."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
            if not isinstance(document, dict) or document.get("v") != VERSION:
                raise EntryError(f"it is no line of an export of version {VERSION}")
            operator = OperatorState.from_json(json.dumps(document["operator"]) if "operator" in document else None)
            fired = document.get("fired", 0)
            if type(fired) is not int or fired < 0:
                raise EntryError(f"its fired is {fired!r:.100}, not how often the entry was sent, a number from 0")
            yield Coming(decode(json.dumps(document.get("entry"))), operator, fired=fired)
        except (ValueError, ZschedError) as exc:
            report.faults[f"line {number}"] = str(exc)


def take_in(
    site: Site,
    coming: Iterable[Coming],
    report: Report,
    *,
    source: str,
    progress: Callable[[int], None] | None = None,
    taking_over: bool = False,
    overwrite: bool = False,
) -> Report:
    """Store entries that come from elsewhere, paused where they were; done twice, nothing changes.

    Due times are computed anew on the grid that the entries bring. How often one was sent elsewhere counts here, unless
    it stands here already, with a count of its own. Filled in is ``report``; with its ``dry_run``
    nothing is stored.

    With ``taking_over``, of what has come before the changes that were made here since are kept, unless ``overwrite``.
    """
    batch: list[Coming] = []
    for one in coming:
        batch.append(one)
        if len(batch) == _AT_ONCE:
            _take_in(site, batch, report, taking_over, overwrite)
            if progress is not None:
                progress(len(batch))
            batch = []
    _take_in(site, batch, report, taking_over, overwrite)
    if progress is not None:
        progress(len(batch))
    if not report.dry_run and (report.created or report.updated or report.paused):
        note(site, "import", source, created=len(report.created), updated=len(report.updated))
    return report


def _take_in(site: Site, batch: list[Coming], report: Report, taking_over: bool, overwrite: bool) -> None:
    if not batch:
        return
    specs = {one.spec.name: one.spec for one in batch}
    standing = {stored.name: stored for stored in site.schedules.get_many(specs)}
    notices = {one.spec.name: list(one.notices) for one in batch}
    for name, undefined in _undefined(site, batch).items():
        notices[name].append(
            f"there is no blackout {undefined!r} here: it closes nothing until it is (celery zsched blackout set)"
        )
    taken = takeovers.read(site.schedules, standing) if taking_over and not overwrite else {}
    for name, spec in list(specs.items()):
        known = standing.get(name)
        if known is not None and known.spec is not None and known.spec.owner == "static" and spec.owner != "static":
            # As everywhere: what code declares is changed in the code.
            specs[name] = known.spec
            notices[name].append("beat_schedule declares it here, so it is left as it is; only a pause is carried over")
        elif known is not None and known.spec is not None and _was_changed(known.spec, spec, taken.get(name)):
            del specs[name]
            report.kept.append(name)
            notices[name].append(
                f"it was changed here since it was taken over, so it is left as it is, though what comes has another "
                f"{', '.join(changes_of(known.spec, spec))}; --overwrite takes what comes"
            )
        elif known is not None and known.spec is not None and known.spec.fingerprint == spec.fingerprint:
            # The schedule that stands keeps its grid; only what is said beside it can have changed.
            specs[name] = spec = _with_life_of(known.spec, spec)
    if report.dry_run:
        changes: dict[str, Change] = {}
        for name, spec in specs.items():
            known = standing.get(name)
            same = known is not None and known.spec is not None and encode(known.spec) == encode(spec)
            changes[name] = Change.UNCHANGED if same else Change.UPDATED if known else Change.CREATED
    else:
        changes, faults = site.schedules.save_many(specs.values(), fired={one.spec.name: one.fired for one in batch})
        report.faults.update({name: str(fault) for name, fault in faults.items()})
    for name, change in changes.items():
        getattr(report, change.value).append(name)
    for one in batch:
        name = one.spec.name
        paused = standing[name].state is State.PAUSED if name in standing else False
        if one.operator.paused and not paused and name in changes:
            if name in taken and taken[name].paused:
                report.kept.append(name)
                notices[name].append(
                    "it was resumed here since it was taken over, so it goes on; --overwrite pauses it"
                )
            else:
                report.paused.append(name)
                if not report.dry_run:
                    site.schedules.pause(name, one.operator)
        if notices[name]:
            report.notices[name] = notices[name]
    if taking_over and not report.dry_run:
        came = {one.spec.name: one for one in batch if one.spec.name in changes}
        takeovers.write(
            site.schedules,
            {name: Taken(takeovers.digest_of(specs[name]), one.operator.paused) for name, one in came.items()},
        )


def _was_changed(known: EntrySpec, spec: EntrySpec, taken: Taken | None) -> bool:
    """Return whether an entry is another than it was taken over as, and than what comes."""
    return taken is not None and takeovers.digest_of(known) not in (taken.digest, takeovers.digest_of(spec))


def _undefined(site: Site, batch: list[Coming]) -> dict[str, str]:
    """Return the blackout of each entry that names one which is not defined here."""
    found = undefined_blackouts(site.schedules, (one.spec for one in batch))
    return {entry: name for name, entries in found.items() for entry in entries}


def _with_life_of(known: EntrySpec, spec: EntrySpec) -> EntrySpec:
    return spec.succeeding(known, known.anchor_us or 0)
