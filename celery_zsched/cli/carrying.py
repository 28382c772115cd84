"""``celery zsched export | import | import-redbeat | import-django-celery-beat | import-shelve``."""

from __future__ import annotations

from typing import Any

import click

from celery_zsched import operations
from celery_zsched.cli.base import dry_run_option, verb
from celery_zsched.cli.output import Output, plural
from celery_zsched.operations import Site
from celery_zsched.operations.carrying import Report, read_export, take_in

copy_option = click.option(
    "--copy", is_flag=True, help="Leave it enabled there. Then both send it as long as both run."
)

overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Also what was changed or resumed here since it was taken over."
)


@verb("export", examples=("export entries.jsonl", "export > entries.jsonl"))
@click.argument("file", type=click.File("w", encoding="utf-8"), default="-")
def export(site: Site, out: Output, file: Any) -> None:
    """Write every periodic task as a line of JSON to FILE (- or nothing: to the terminal).

    The lines hold the values of arguments. `celery zsched import` reads them.
    """
    count = 0
    for line in operations.export(site):
        click.echo(line, file=file)
        count += 1
    click.echo(f"{plural(count, 'entry')} exported.", err=True)


@verb("import", examples=("import entries.jsonl --dry-run", "import entries.jsonl"))
@click.argument("file", type=click.File("r", encoding="utf-8"))
@dry_run_option
def import_lines(site: Site, out: Output, file: Any, dry_run: bool) -> None:
    """Store the periodic tasks of an export (FILE, or - for the standard input); done twice, nothing changes."""
    report = Report(dry_run=dry_run)
    with out.progress("storing") as advance:
        take_in(site, read_export(file, report), report, source=f"file {file.name}", progress=advance)
    _say(out, report)


@verb("import-redbeat", examples=("import-redbeat --dry-run", "import-redbeat --url redis://old:6379/1"))
@click.option("--url", help="redbeat's server; redbeat_redis_url or the broker's by default.")
@click.option("--prefix", help="redbeat's key prefix; redbeat_key_prefix by default.")
@copy_option
@overwrite_option
@dry_run_option
def import_redbeat(
    site: Site, out: Output, url: str | None, prefix: str | None, copy: bool, overwrite: bool, dry_run: bool
) -> None:
    """Take over the periodic tasks of a redbeat; try it with --dry-run first.

    They are disabled in redbeat, so that nothing is sent twice while it still runs; what was disabled there is paused
    here. Due times are computed anew. Done twice, nothing changes, and what was changed or resumed here since is left
    so; do not start redbeat again afterwards, since a start enables its static entries.
    """
    from celery_zsched.operations.redbeat import count_redbeat
    from celery_zsched.operations.redbeat import import_redbeat as take_over

    with out.progress("taking over", count_redbeat(site, url=url, prefix=prefix)) as advance:
        report = take_over(
            site, url=url, prefix=prefix, copy=copy, overwrite=overwrite, dry_run=dry_run, progress=advance
        )
    _say(out, report)


@verb("import-django-celery-beat", examples=("import-django-celery-beat --dry-run",))
@copy_option
@overwrite_option
@dry_run_option
def import_django(site: Site, out: Output, copy: bool, overwrite: bool, dry_run: bool) -> None:
    """Take over the rows of django-celery-beat; try it with --dry-run first.

    They are disabled there, so that nothing is sent twice while its beat still runs. Run it where that beat runs, with
    DJANGO_SETTINGS_MODULE set. Done again, what was changed or resumed here since is left so.
    """
    from celery_zsched.operations.otherbeats import import_django as take_over

    _say(out, take_over(site, copy=copy, overwrite=overwrite, dry_run=dry_run))


@verb("import-shelve", examples=("import-shelve celerybeat-schedule --dry-run",))
@click.argument("file", default="celerybeat-schedule", type=click.Path())
@overwrite_option
@dry_run_option
def import_shelve(site: Site, out: Output, file: str, overwrite: bool, dry_run: bool) -> None:
    """Take over the periodic tasks of the FILE of Celery's own scheduler, after its beat has ended.

    The file is a pickle of Celery's: read only files of your own. Done again, what was changed here since is left so.
    """
    from celery_zsched.operations.otherbeats import import_shelve as take_over

    _say(out, take_over(site, file, overwrite=overwrite, dry_run=dry_run))


def _say(out: Output, report: Report) -> None:
    if out.as_json:
        out.document(report.to_dict())
    else:
        counts = ", ".join(
            f"{len(names):,} {word}"
            for word, names in (
                ("created", report.created), ("updated", report.updated), ("unchanged", report.unchanged),
                ("kept", report.kept), ("paused", report.paused), ("left out", report.faults),
            )
            if names or word != "kept"
        )  # fmt: skip
        click.echo(f"{'Would be: ' if report.dry_run else ''}{counts}.")
        for name, fault in report.faults.items():
            click.echo(f"  {name} is left out: {fault}")
        for name, notices in report.notices.items():
            for notice in notices:
                click.echo(f"  {name}: {notice}")
    if report.faults:
        raise click.exceptions.Exit(1)


COMMANDS = {
    "export": export,
    "import": import_lines,
    "import-redbeat": import_redbeat,
    "import-django-celery-beat": import_django,
    "import-shelve": import_shelve,
}
