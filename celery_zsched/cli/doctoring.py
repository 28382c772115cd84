"""``celery zsched doctor | blackout``."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from celery_zsched.cli.base import ZoneType, reason_option, shown, verb, zone_option
from celery_zsched.cli.output import Output, plural
from celery_zsched.operations import Site

_FINDINGS = [("CHECK", "check"), ("VERDICT", "verdict"), ("FOUND", "said"), ("REMEDY", "remedy")]
_BLACKOUTS = [
    ("BLACKOUT", "name"), ("OPEN", "open"), ("NEXT FROM", "start"), ("TO", "end"), ("WINDOWS", "windows"),
    ("ZONE", "zone"), ("NOTE", "note"), ("FAULT", "fault"),
]  # fmt: skip
_OPENINGS = [("FROM", "start"), ("TO", "end"), ("OPEN NOW", "open")]


@verb("doctor", examples=("doctor", "doctor --json"))
def doctor(site: Site, out: Output) -> None:
    """Check servers, rights, clocks, left-over keys and settings that lose tasks; the exit code is 1 if one is bad."""
    from celery_zsched.operations.doctoring import BAD
    from celery_zsched.operations.doctoring import doctor as examine

    findings = examine(site)
    out.rows(_FINDINGS, [each.to_dict() for each in findings], "Nothing was checked.")
    if any(each.verdict == BAD for each in findings):
        raise click.exceptions.Exit(1)


@click.group(
    epilog=shown(
        (
            "blackout set xmas 2026-12-24/2026-12-26 --note 'nobody is there'",
            "edit report --blackout xmas",
            "blackout list",
        )
    )
)
def blackout() -> None:
    """See and change blackouts: windows, by name, in which entries that name them are not sent."""


@verb("list")
@zone_option
def blackout_list(site: Site, out: Output, zone: str | None) -> None:
    """List the blackouts, each with the window that is open or comes next."""
    from celery_zsched import blackouts

    rows: list[dict[str, Any]] = []
    for each in blackouts.listed(site.schedules):
        row = dataclasses.asdict(each)
        coming = row.pop("next") or {}
        rows.append({**row, "start": coming.get("start"), "end": coming.get("end")})
    out.rows(_BLACKOUTS, rows, "There are no blackouts.", zone="zone")


@verb("show")
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many windows.")
@zone_option
def blackout_show(site: Site, out: Output, name: str, count: int, zone: str | None) -> None:
    """Show the next windows of a blackout."""
    from celery_zsched import blackouts

    found = blackouts.preview(site.schedules, name, count)
    out.speak_of(next((each.zone for each in blackouts.listed(site.schedules) if each.name == name), None))
    out.rows(_OPENINGS, [dataclasses.asdict(each) for each in found], "No window is to come.")


@verb(
    "set",
    examples=(
        "blackout set xmas 2026-12-24/2026-12-26 --zone Europe/Paris --note 'nobody is there'",
        "blackout set holidays --ics holidays.ics",
    ),
)
@click.argument("name")
@click.argument("windows", nargs=-1)
@click.option("--ics", type=click.File("rb"), help="Take the events of this calendar file.")
@click.option("--zone", type=ZoneType(), help="The zone of days and moments without an offset; the app's by default.")
@click.option("--note", "remark", help="What it is for.")
@reason_option
def blackout_set(
    site: Site, out: Output, name: str, windows: tuple[str, ...], ics: Any, zone: str | None, remark: str | None,
    reason: str | None,
) -> None:  # fmt: skip
    """Store a blackout, in place of one of the same name; in force within a second.

    WINDOWS are days (2026-12-25) or ranges (2026-12-24/2026-12-26, 2026-12-31T18:00/2027-01-01T06:00).
    """
    from celery_zsched import blackouts

    calendar = ics.read() if ics is not None else None
    made = blackouts.define(
        site.schedules, name, windows, calendar=calendar, zone=zone, note=remark, reason=reason, by=site.by
    )
    out.one({"name": name, "windows": len(made.windows)}, f"{name}: stored, {plural(len(made.windows), 'window')}")


@verb("rm")
@click.argument("name")
@click.option("--force", is_flag=True, help="Also one that entries name; they run at all times then.")
@reason_option
def blackout_remove(site: Site, out: Output, name: str, force: bool, reason: str | None) -> None:
    """Remove a blackout that no entry names; with --force also one that entries name."""
    from celery_zsched import blackouts

    blackouts.remove(site.schedules, name, force=force, reason=reason, by=site.by)
    out.one({"name": name, "deleted": True}, f"{name}: deleted")


for each in (blackout_list, blackout_show, blackout_set, blackout_remove):
    blackout.add_command(each)

COMMANDS = {"doctor": doctor, "blackout": blackout}
