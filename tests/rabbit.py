"""A private RabbitMQ for tests: Debian's server in a directory of its own, with ports and a port mapper of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers import _DIE_WITH_PARENT, PATIENCE_S, free_port, missing, wait_until

#: Where Debian keeps the programs; what is on PATH there wants to be a user of its own.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")

#: How long the server may take to start or to stop, in seconds, on a busy machine: it takes 8 s on an idle one.
START_S = 180.0


class RabbitMQ:
    """One RabbitMQ on the loopback. ``url`` stays through restarts; what is durable does, too."""

    def __init__(self) -> None:
        mapper = shutil.which("epmd")
        if mapper is None or not (PROGRAMS / "rabbitmq-server").is_file():
            missing(f"there is no {PROGRAMS}/rabbitmq-server; install Debian's rabbitmq-server")
        self.directory = Path(tempfile.mkdtemp(prefix="zs-rabbit-"))
        port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{port}//"
        place = {name: str(self.directory / name) for name in ("home", "mnesia", "log")}
        for path in place.values():
            Path(path).mkdir()
        self._environment = {
            **os.environ,
            "HOME": place["home"],
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": "zsched@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": place["mnesia"],
            "RABBITMQ_LOG_BASE": place["log"],
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            **{f"RABBITMQ_{name}_FILE": str(self.directory / name.lower())
               for name in ("CONFIG", "CONF_ENV", "ADVANCED_CONFIG", "ENABLED_PLUGINS", "PID")},
        }  # fmt: skip
        self._log = self.directory / "said"
        self._mapper = self._run(mapper)
        self.start()

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        self._log.write_text("")
        self._server = self._run(str(PROGRAMS / "rabbitmq-server"))
        wait_until(self._is_up, timeout_s=START_S, what="RabbitMQ to start")

    def restart(self) -> None:
        """Kill the server and start it anew in the same place."""
        self.thaw()
        self._end(self._server)
        self.start()

    def control(self, *words: str) -> str:
        """Run ``rabbitmqctl``; return what it says."""
        command = [str(PROGRAMS / "rabbitmqctl"), "--quiet", *words]
        return subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True, timeout=START_S
        ).stdout

    def freeze(self) -> None:
        """Stop the server from running; its sockets stay open."""
        os.killpg(self._server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        os.killpg(self._server.pid, signal.SIGCONT)

    def close(self) -> None:
        """End everything and remove the files."""
        for process in (self._server, self._mapper):
            self._end(process)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, program: str) -> subprocess.Popen[bytes]:
        command = [program]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *command]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.directory, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _is_up(self) -> bool:
        said = self._log.read_text(errors="replace")
        assert self._server.poll() is None, f"RabbitMQ ended at its start:\n{said[-4000:]}"
        return "Server startup complete" in said

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
