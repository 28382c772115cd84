"""``celery zsched timeline | queues | task | cancel | dead``."""

from __future__ import annotations

import click

from celery_zsched import operations
from celery_zsched.cli.base import complete_entry, dry_run_option, reason_option, shown, verb, zone_option
from celery_zsched.cli.output import Output, plural
from celery_zsched.errors import ConflictError, EntryError
from celery_zsched.operations import Site
from celery_zsched.operations.moments import duration_us
from celery_zsched.types import SECOND_US

_QUEUES = [
    ("QUEUE", "queue"), ("READY", "ready"), ("DELAYED", "delayed"), ("LEASED", "leased"), ("ENDED", "ended"),
    ("PARKED", "parked"), ("DEAD", "dead"), ("OLDEST (s)", "oldest_s"), ("PAUSED", "paused"),
]  # fmt: skip
_TIMELINE = [("AT", "at"), ("KIND", "kind"), ("TASK", "task"), ("ID", "id"), ("QUEUE", "queue")]
_DEAD = [
    ("ID", "id"), ("QUEUE", "queue"), ("TASK", "task"), ("DIED", "at"), ("DELIVERIES", "deliveries"),
    ("LAST WITH", "holder"), ("REASON", "reason"),
]  # fmt: skip

#: The longest time for which handing out is counted, in seconds.
LONGEST_MEASURE_S = 86_400

_queue_option = click.option("--queue", help="Only this queue.")
_all_option = click.option("--all", "everything", is_flag=True, help="All of them.")


@verb("queues", examples=("queues", "queues --rate 10s"))
@click.option("--rate", "measure", help="Also count for so long how many are handed to consumers: 2, 10s.")
def queues(site: Site, out: Output, measure: str | None) -> None:
    """List the queues: how many messages stand where, and how long the oldest that is due has waited."""
    measure_s = duration_us(measure) / SECOND_US if measure else 0.0
    if measure_s > LONGEST_MEASURE_S:
        raise EntryError(f"the rate is to be counted for {measure}, which is more than a day; give a shorter time: 10s")
    columns = [*_QUEUES, ("RATE (1/s)", "rate")] if measure else _QUEUES
    rows = [each.to_dict() for each in operations.queues(site, measure_s=measure_s)]
    out.rows(columns, rows, "There are no queues.")


@verb("timeline", examples=("timeline", "timeline --queue celery --limit 10"))
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The most rows.")
@_queue_option
@zone_option
def timeline(site: Site, out: Output, limit: int, queue: str | None, zone: str | None) -> None:
    """Show what comes next, in the order of time: periodic tasks, ready and delayed messages, retries."""
    out.rows(
        _TIMELINE, [each.to_dict() for each in operations.timeline(site, limit=limit, queue=queue)], "Nothing waits."
    )


@verb("task", examples=("task 030ba4e3-593a-5db7-8071-714ad65d4a0d", "task report-1 --args"))
@click.argument("task_id")
@click.option("--args", "arguments", is_flag=True, help="Also its arguments.")
@zone_option
def task(site: Site, out: Output, task_id: str, arguments: bool, zone: str | None) -> None:
    """Say where a task is, by its id: waiting, paused, with which worker, dead and why."""
    for each in operations.where_is(site, task_id, arguments=arguments):
        out.facts(each.to_dict())


@verb(
    "cancel",
    examples=(
        "cancel task:app.mail --dry-run",
        "cancel 030ba4e3-593a-5db7-8071-714ad65d4a0d",
        "cancel queue:slow --reason 'too late now'",
    ),
)
@click.argument("target", shell_complete=complete_entry)
@reason_option
@dry_run_option
def cancel(site: Site, out: Output, target: str, reason: str | None, dry_run: bool) -> None:
    """Remove what waits of TARGET, for good; what runs is revoked by Celery's own means.

    TARGET is a task name, a periodic task (its messages; itself it stays), a queue or a task id; task:, entry:, queue:
    and id: in front say which.
    """
    with out.progress("removing") as advance:
        done = operations.cancel_task(site, target, reason=reason, dry_run=dry_run, progress=advance)
    said = f"{done.target}: {plural(done.removed, 'message')} {_would(dry_run)}removed"
    if done.running:
        holder = "a worker" if len(done.running) == 1 else "workers"
        said += f", {len(done.running):,} with {holder}: {_would(dry_run)}revoked (what runs goes on)"
    if done.notice:
        said += f"\n  {done.notice}"
    out.one(done.to_dict(), said)


@click.group(epilog=shown(("dead list", "dead requeue 030ba4e3-593a-5db7-8071-714ad65d4a0d", "dead purge --all")))
def dead() -> None:
    """See, put back or delete messages that were set aside as dead."""


@verb("list")
@_queue_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The most rows.")
@zone_option
def dead_list(site: Site, out: Output, queue: str | None, limit: int, zone: str | None) -> None:
    """List dead messages with the reason, how often they were delivered, and who had them last."""
    rows = [each.to_dict() for each in operations.dead(site, queue=queue, limit=limit)]
    out.rows(_DEAD, rows, "No message is dead.")


@verb("show")
@click.argument("task_id")
@click.option("--args", "arguments", is_flag=True, help="Also its arguments.")
@zone_option
def dead_show(site: Site, out: Output, task_id: str, arguments: bool, zone: str | None) -> None:
    """Show all that is known of a dead message."""
    found = operations.where_is(site, task_id, arguments=arguments)
    if not any(each.state == "dead" for each in found):
        raise ConflictError(f"{task_id!r} is not dead, but {found[0].state}; see `celery zsched task {task_id}`")
    for each in found:
        if each.state == "dead":
            out.facts(each.to_dict())


@verb("requeue")
@click.argument("task_ids", nargs=-1)
@_queue_option
@_all_option
@reason_option
@dry_run_option
def dead_requeue(
    site: Site, out: Output, task_ids: tuple[str, ...], queue: str | None, everything: bool, reason: str | None,
    dry_run: bool,
) -> None:  # fmt: skip
    """Put dead messages back into their queue, due now."""
    chosen = _chosen(task_ids, everything)
    done = operations.dead_requeue(site, chosen, queue=queue, reason=reason, dry_run=dry_run)
    out.one({"requeued": done, "dry_run": dry_run}, f"{plural(len(done), 'message')} {_would(dry_run)}put back.")


@verb("purge")
@click.argument("task_ids", nargs=-1)
@_queue_option
@_all_option
@reason_option
@dry_run_option
def dead_purge(
    site: Site, out: Output, task_ids: tuple[str, ...], queue: str | None, everything: bool, reason: str | None,
    dry_run: bool,
) -> None:  # fmt: skip
    """Delete dead messages for good."""
    chosen = _chosen(task_ids, everything)
    done = operations.dead_purge(site, chosen, queue=queue, reason=reason, dry_run=dry_run)
    out.one({"purged": done, "dry_run": dry_run}, f"{plural(len(done), 'message')} {_would(dry_run)}deleted.")


def _chosen(task_ids: tuple[str, ...], everything: bool) -> list[str] | None:
    if bool(task_ids) == everything:
        raise EntryError("name the task ids, or else give --all")
    return list(task_ids) or None


def _would(dry_run: bool) -> str:
    return "would be " if dry_run else ""


for each in (dead_list, dead_show, dead_requeue, dead_purge):
    dead.add_command(each)

COMMANDS = {"queues": queues, "timeline": timeline, "task": task, "cancel": cancel, "dead": dead}
