"""Small things that apps of kombu's Redis transport count on, and links that fall silent all at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import kombu
import pytest

import celery_zsched  # noqa: F401  makes the transport known
from celery_zsched.connection import Server
from celery_zsched.errors import ServerUnavailableError
from celery_zsched.transport import shared
from celery_zsched.wires import Wires
from tests.forwarder import Forwarder
from tests.servers import RunningServer, wait_until


def test_a_priority_out_of_range_is_warned_about_once(
    valkey: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process says once that a priority is taken as the nearest one, however many messages have such."""
    monkeypatch.setattr(shared, "_noticed", set())
    caplog.set_level(logging.WARNING, "celery_zsched.transport")
    with kombu.Connection(f"zsched+{valkey.url}") as connection:
        producer = kombu.Producer(connection.default_channel)
        for priority in (50, -1, 10):
            producer.publish("x", routing_key="q", priority=priority)
    assert caplog.text.count("outside 0 to 9") == 1


def test_links_that_fall_silent_together_are_found_out_once(
    start_server: Callable[..., RunningServer], forward: Callable[[RunningServer], Forwarder]
) -> None:
    """Of many idle links that are dead, one costs a time-out; the others of the process are not tried one by one."""
    way = forward(start_server(tcp=True))
    server = Server.from_url(f"zsched+{way.url}", {"socket_timeout": 2.0})
    wires, beside = Wires(server), Wires(server)
    wires.kin.add(beside)
    together = threading.Barrier(6)

    def ask(of: Wires) -> None:
        node, wire = of._take("")
        together.wait()
        of._give(node, wire)

    askers = [threading.Thread(target=ask, args=(of,)) for of in [wires] * 4 + [beside] * 2]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    wait_until(lambda: way.connections == 6, what="the links to be through")
    way.freeze()
    way.replace()  # new links get through
    with pytest.raises(ServerUnavailableError):
        wires.command("PING")
    began = time.monotonic()
    assert wires.command("PING") == beside.command("PING") == b"PONG"
    assert time.monotonic() - began < 2
    for one in (wires, beside):
        one.close()
    server.close()
