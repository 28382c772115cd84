"""The demo: `python -m examples.quickstart [--seconds 20]`.

Starts one worker with `-B` on an embedded server, shows periodic tasks firing, adds an entry while the scheduler
sleeps, pauses and resumes one by `celery control`, and ends by itself; `--seconds 0` goes on until Ctrl-C.
"""

import argparse
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

APP = "examples.quickstart.app"
CELERY = [sys.executable, "-m", "celery", "-A", APP]
RAN = re.compile(r"ran (\S+) for (\S+) (\S+) ms late")


class Demo:
    """One worker under observation."""

    def __init__(self, broker: str) -> None:
        self.env = {**os.environ, "QUICKSTART_BROKER": broker, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
        self.lines: queue.Queue[str] = queue.Queue()
        self.runs: list[tuple[str, datetime, float]] = []
        self.worker = subprocess.Popen(
            [*CELERY, "worker", "-B", "--concurrency=2", "--loglevel=WARNING"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.env, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.worker.stdout is not None
        for line in self.worker.stdout:
            self.lines.put(line.rstrip())

    def watch(self, seconds: float) -> Iterator[str]:
        """Show what runs for so long; yield the entry of each run."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                line = self.lines.get(timeout=min(left, 0.5))
            except queue.Empty:
                if self.worker.poll() is not None:
                    raise SystemExit(f"the worker ended with exit code {self.worker.returncode}") from None
                continue
            ran = RAN.search(line)
            if ran:
                nominal = datetime.fromisoformat(ran[2])
                self.runs.append((ran[1], nominal, float(ran[3])))
                print(
                    f"  {datetime.now(timezone.utc):%H:%M:%S}  {ran[1]:<16} nominal {nominal:%H:%M:%S.%f}   "
                    f"{ran[3]:>6} ms late"
                )
                yield ran[1]

    def show(self, seconds: float) -> int:
        """Show what runs for so long; return how many runs there were."""
        return sum(1 for _ in self.watch(seconds))

    def control(self, *command: str) -> None:
        """Run one remote-control command and show its answer."""
        print(f"\n$ celery -A {APP} control {' '.join(command)}")
        done = subprocess.run([*CELERY, "control", *command], env=self.env, capture_output=True, text=True, check=False)
        print("  " + (done.stdout + done.stderr).strip().replace("\n", "\n  "))
        if done.returncode:
            raise SystemExit(f"`celery control {' '.join(command)}` ended with exit code {done.returncode}")

    def stop(self) -> int:
        """Stop the worker gently; return its exit code."""
        if self.worker.poll() is None:
            self.worker.send_signal(signal.SIGTERM)
        try:
            return self.worker.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.worker.pid, signal.SIGKILL)
            return self.worker.wait()


def add_entry(broker: str) -> None:
    """Add an entry that is due in one second, from this process, while the scheduler sleeps in another."""
    os.environ["QUICKSTART_BROKER"] = broker
    from celery_zsched import Entry
    from examples.quickstart.app import app

    due = datetime.now(timezone.utc) + timedelta(seconds=1)
    print(f'\n>>> Entry("once", "quickstart.report", {due:%H:%M:%S.%f} UTC).save()')
    print(f"  {Entry('once', 'quickstart.report', due, app=app).save().value}")


def tour(demo: Demo, broker: str, seconds: float) -> None:
    """Show the main job, in about so many seconds."""
    part = seconds / 4
    print("A worker with -B is starting on an embedded server; its periodic tasks:")
    for _ in demo.watch(30):
        break
    demo.show(part)
    add_entry(broker)
    if "once" not in demo.watch(5):
        raise SystemExit("the new entry did not run")
    demo.control("pause_task", "every-2-seconds", "demo")
    paused = datetime.now(timezone.utc)
    print(f"  nothing is due for {part:.0f} seconds; what was sent before still runs")
    demo.show(part)
    if any(entry == "every-2-seconds" and nominal > paused for entry, nominal, _ in demo.runs):
        raise SystemExit("the paused entry ran")
    demo.control("resume_task", "every-2-seconds")
    if not demo.show(part):
        raise SystemExit("the resumed entry did not run")
    late = sorted(ms for _, _, ms in demo.runs)
    twice = len(demo.runs) - len({(entry, nominal) for entry, nominal, _ in demo.runs})
    print(f"\n{len(late)} runs, {twice} of them twice; lateness median {late[len(late) // 2]} ms, most {late[-1]} ms")


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m examples.quickstart")
    parser.add_argument("--seconds", type=float, default=20, help="how long to show (0: until Ctrl-C)")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="zsched-demo-") as directory:
        broker = f"zsched+embedded://{directory}"
        demo = Demo(broker)
        try:
            if seconds:
                tour(demo, broker, seconds)
            else:
                print(f"QUICKSTART_BROKER={broker}\nTry the commands of the README in another terminal; Ctrl-C ends.")
                while True:
                    demo.show(3600)
        except KeyboardInterrupt:
            print("\nending")
        finally:
            code = demo.stop()
    print(f"the worker ended with exit code {code}")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
