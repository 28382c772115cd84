"""What is compared: this package and its peers, each in a virtual environment of its own, made on first use."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class System:
    """A broker transport and a scheduler. ``requires`` is what pip installs; empty for what runs us now: ourselves."""

    name: str
    broker: str
    requires: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    conf: dict[str, Any] = field(default_factory=dict)
    scheduler: str | None = None

    def spec(self, address: str) -> dict[str, Any]:
        """Return what a workload needs to know, as plain data."""
        url = f"redis://{address}/0"
        conf = {name: url if value == "SERVER" else value for name, value in self.conf.items()}
        return {**asdict(self), "broker": self.broker.format(address=address), "conf": conf, "server": url}

    def python(self) -> str:
        """Return the interpreter to run this system with."""
        if not self.requires:
            return sys.executable
        digest = hashlib.sha1("\n".join((sys.version, *self.requires)).encode()).hexdigest()[:8]
        place = ROOT / ".venvs" / f"{self.name}-{digest}"
        python = place / "bin" / "python"
        if not (place / "ready").exists():
            print(f"making a virtual environment for {self.name}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
            install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "psutil", *self.requires]
            subprocess.run(install, check=True)
            (place / "ready").touch()
        return str(python)


#: The same Celery for all, so that only the transport or the scheduler differs.
_CELERY = "celery[redis]~=5.7.0"

ZSCHED = System(
    "zsched",
    "zsched+redis://{address}/0",
    imports=("celery_zsched",),
    scheduler="celery_zsched:Scheduler",
)
KOMBU = System("kombu", "redis://{address}/0", (_CELERY, "redis>=8.1,<9", "hiredis"))
CRP = System(
    "crp",
    "valkey://{address}/0",
    (_CELERY, "celery-redis-plus[hiredis]==0.4.1"),
    imports=("celery_redis_plus",),
)
REDBEAT = System(
    "redbeat",
    "redis://{address}/0",
    (_CELERY, "celery-redbeat==2.4.2", "redis>=8.1,<9", "hiredis"),
    conf={"redbeat_redis_url": "SERVER"},
    scheduler="redbeat.RedBeatScheduler",
)
SYSTEMS = {system.name: system for system in (ZSCHED, KOMBU, CRP, REDBEAT)}
