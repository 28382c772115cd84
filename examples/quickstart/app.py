"""A Celery app with periodic tasks. Run it with `celery -A examples.quickstart.app worker -B`."""

import os
from datetime import datetime, timezone

from celery import Celery
from celery.schedules import crontab

import celery_zsched

app = Celery(
    "quickstart",
    # A private Valkey on a Unix socket, gone with the last process that uses it. In production: zsched+redis://host:6379/0
    broker=os.environ.get("QUICKSTART_BROKER", "zsched+embedded://"),
)
app.conf.beat_scheduler = "celery_zsched:Scheduler"
app.conf.beat_schedule = {
    "every-2-seconds": {"task": "quickstart.report", "schedule": 2.0},
    "every-minute": {"task": "quickstart.report", "schedule": crontab()},
}
# Let print() go straight to the terminal.
app.conf.worker_redirect_stdouts = False


@app.task(name="quickstart.report")
def report() -> None:
    """Say which occurrence this run is for, and how late it is."""
    occurrence = celery_zsched.current()
    if occurrence is None:
        print("run by hand", flush=True)
        return
    late_ms = (datetime.now(timezone.utc) - occurrence.nominal).total_seconds() * 1000
    print(f"ran {occurrence.entry} for {occurrence.nominal.isoformat()} {late_ms:.1f} ms late", flush=True)
