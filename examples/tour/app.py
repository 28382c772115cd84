"""The app of the tour: two tasks, one periodic entry in the code, our broker and our scheduler."""

import os
import time

from celery import Celery

app = Celery("tour", broker=os.environ.get("TOUR_BROKER", "zsched+embedded:///tmp/celery-zsched-tour"))
app.conf.update(
    beat_scheduler="celery_zsched:Scheduler",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    result_expires=None,
    beat_schedule={"heartbeat": {"task": "tour.beat", "schedule": 2.0, "options": {"expires": 60}}},
)


@app.task(name="tour.beat")
def beat() -> None:
    """Do nothing, often."""


@app.task(name="tour.work")
def work(number: int = 0, seconds: float = 0.0) -> int:
    """Work for so long."""
    time.sleep(seconds)
    return number
