"""The Celery app of every workload, made from what the environment says, and its tasks."""

from __future__ import annotations

import importlib
import json
import os
import struct
import time
from functools import cache
from typing import Any

from celery import Celery

#: What is measured: the system (see ``systems.System.spec``) and the workload's own parameters.
SPEC: dict[str, Any] = json.loads(os.environ["ZSCHED_BENCH"])

#: One line of a task's report: its number, and when it ran in nanoseconds since the epoch.
REPORT = struct.Struct("qq")

#: What a worker adds to the numbers of its naps, so that one can tell which worker ran them.
MARK: int = SPEC.get("mark", 0)

for module in SPEC["imports"]:
    importlib.import_module(module)

app = Celery("benchmarks", set_as_current=True)
app.conf.update(
    broker_url=SPEC["broker"],
    broker_transport_options=SPEC.get("options", {}),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_acks_late=SPEC.get("acks_late", False),
    timezone="UTC",
    worker_prefetch_multiplier=SPEC.get("prefetch", 64),
    **SPEC["conf"],
)


@cache
def _reports() -> int:
    return os.open(SPEC["reports"], os.O_WRONLY)


@app.task(name="bench.noop")
def noop(number: int, _: int = 0) -> None:
    """Report that it ran, and do nothing else."""
    os.write(_reports(), REPORT.pack(number, time.time_ns()))


@app.task(name="bench.nap")
def nap(number: int, seconds: float) -> None:
    """Report when it starts, then sleep; report once more, by the number below zero, when it has ended."""
    number += MARK
    os.write(_reports(), REPORT.pack(number, time.time_ns()))
    time.sleep(seconds)
    os.write(_reports(), REPORT.pack(~number, time.time_ns()))
