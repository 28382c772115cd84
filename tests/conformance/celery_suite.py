"""Runs Celery's own ``t/integration`` against this transport, a session of pytest for each file as Celery's CI does.

    python -m tests.conformance.celery_suite CELERY_CHECKOUT [--only NAME …] [--broker zsched+redis] [pytest arguments]

``--broker redis`` runs the same with kombu's Redis transport, to compare. The server is CONFORMANCE_REDIS (host:port)
or, without it, a Valkey of the run's own; broker and results share its database 0, where the suite looks for them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.listed import LEFT_OUT, listed
from tests.servers import RunningServer

ROOT = Path(__file__).parents[2]

#: Seconds after which a test that does not limit itself is ended, so that none holds the run up.
TIMEOUT_S = 300

#: pytest's exit codes for a good session, and for one in which everything was deselected.
PASSED = (0, 5)


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Give the address of the server to use."""
    if given := os.environ.get("CONFORMANCE_REDIS"):
        yield given
        return
    with RunningServer(tcp=True) as own:
        yield f"127.0.0.1:{own.port}"


@contextlib.contextmanager
def suite(checkout: Path) -> Iterator[Path]:
    """Copy the tests, so that the checkout's own ``celery`` does not hide the installed one."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        shutil.copytree(checkout / "t", work / "t")
        shutil.copy(checkout / "pyproject.toml", work)
        yield work


def environment(work: Path, address: str, broker: str) -> dict[str, str]:
    """Return what Celery's tox.ini sets, and where to find what."""
    host, _, port = address.rpartition(":")
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{work}{os.pathsep}{ROOT}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "UTF-8",
        "WORKER_LOGLEVEL": "INFO",
        "TEST_BROKER": f"{broker}://{address}/0",
        "TEST_BACKEND": f"redis://{address}/0",
        "REDIS_HOST": host,
        "REDIS_PORT": port,
    }


def main() -> int:
    """Run the files, say how each went, and return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="celery_suite")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a file's name; repeatable")
    parser.add_argument("--broker", default="zsched+redis")
    options, further = parser.parse_known_args()
    # Only the package's import makes the scheme known (docs/transport.md).
    ours = ["-p", "celery_zsched", "-p", "tests.conformance.listed"] if options.broker.startswith("zsched") else []
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--rootdir", ".", "-p", "no:cacheprovider"]
    command += ["-p", "celery.contrib.pytest", *ours, "-s", "-rfExXs", f"--timeout={TIMEOUT_S}", *further]
    whole = [entry for entry in listed(LEFT_OUT) if "::" not in entry]
    outcomes: dict[str, str] = {}
    with suite(options.checkout.resolve()) as work, server() as address:
        for path in sorted((work / "t" / "integration").glob("test_*.py")):
            if path.name in whole or (options.only and path.name not in options.only):
                continue
            began = time.monotonic()
            print(f"\n== {path.name}", flush=True)
            code = subprocess.run(
                [*command, str(path.relative_to(work))],
                cwd=work,
                env=environment(work, address, options.broker),
                stdin=subprocess.DEVNULL,
                check=False,
            ).returncode
            said = "passed" if code in PASSED else f"failed ({code})"
            outcomes[path.name] = f"{said} in {time.monotonic() - began:.0f} s"
    if not outcomes:
        parser.error(
            f"nothing to run in {options.checkout / 't' / 'integration'}; see --only and the page's first table"
        )
    print("\n== summary")
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    return int(any("failed" in outcome for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
