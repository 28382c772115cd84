"""Runs one workload in the system's own interpreter and prints one line of JSON; started by ``benchmarks.compare``."""

from __future__ import annotations

import importlib
import json
import platform
import sys
from importlib import metadata

from benchmarks.app import SPEC

_PACKAGES = ("celery", "kombu", "redis", "hiredis", "celery-zsched", "celery-redis-plus", "celery-redbeat")


def versions() -> dict[str, str]:
    """Return the versions of everything that takes part."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    workload = importlib.import_module(f"benchmarks.workloads.{sys.argv[1]}")
    figures = workload.measure(**SPEC["parameters"])
    print(json.dumps({"figures": figures, "versions": versions()}))
