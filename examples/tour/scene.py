"""Sets scenes for the tour: ``python -m examples.tour.scene NAME``."""

import json
import shelve
import sys
from datetime import datetime, timezone
from itertools import islice

from celery.beat import ScheduleEntry
from celery.schedules import schedule

from celery_zsched import planner
from celery_zsched.operations import Site
from celery_zsched.types import Item, Put
from examples.tour.app import app


def wait(id_: str) -> None:
    """Send a task that waits for an hour."""
    app.send_task("tour.work", (1,), countdown=3600, task_id=id_)


def slow(id_: str) -> None:
    """Send a task that takes ten minutes."""
    app.send_task("tour.work", (1, 600), task_id=id_)


def dead(id_: str) -> None:
    """Set a message aside, as twenty crashed workers would have."""
    app.send_task("tour.work", (2,), task_id=id_, queue="broken")
    Site.of(app).queues.timeline("broken").bury([(id_, "", "delivered 20 times without an end", b"")])


def redbeat(name: str) -> None:
    """Write an entry as redbeat does."""
    definition = {
        "name": name, "task": "tour.work", "args": [3], "kwargs": {}, "options": {}, "enabled": True,
        "schedule": {"__type__": "interval", "every": 600.0, "relative": False},
    }  # fmt: skip
    client = Site.of(app).schedules.server.client
    client.hset(f"redbeat:{name}", mapping={"definition": json.dumps(definition), "meta": '{"last_run_at": null}'})
    client.zadd("redbeat::schedule", {f"redbeat:{name}": 1.0})


def ahead(name: str) -> None:
    """Let an entry stand as if it had been sent while the server's clock was days ahead."""
    schedules = Site.of(app).schedules
    stored = schedules.get(name)
    nominal_us, following_us = islice(planner.nominals(stored.spec, schedules.now_us(), zone=schedules.zone), 1, 3)
    schedules.timeline.put([Item(name, stored.located.body, following_us, mode=Put.REPLACE)])
    note = stored.last.but(nominal_us=nominal_us, next_nominal_us=following_us).to_json()
    schedules.server.client.hset(schedules.timeline.keys.notes, name, note)


def celerybeat(path: str) -> None:
    """Write the file of Celery's own scheduler."""
    last = datetime(2026, 11, 1, tzinfo=timezone.utc)
    with shelve.open(path) as store:
        store["entries"] = {"old": ScheduleEntry("old", "tour.work", last, 5, schedule(900.0), (4,), {}, {}, app=app)}


SCENES = {
    "wait": wait, "slow": slow, "dead": dead, "redbeat": redbeat, "ahead": ahead, "celerybeat": celerybeat,
}  # fmt: skip

if __name__ == "__main__":
    SCENES[sys.argv[1]](sys.argv[2])
