"""Celery's own events of what is fired, skipped, missed and buried, as a real receiver gets them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_zsched import blackouts, operations
from celery_zsched.operations import Site
from tests.programs import Project
from tests.servers import RunningServer, wait_until

SOURCE = """
    import time

    @app.task(name="slow", acks_late=True)
    def slow():
        time.sleep(0.1)
"""


class Heard:
    """Celery's receiver in a thread, on a project's broker, and what it has heard of ours."""

    def __init__(self, project: Project) -> None:
        self.events: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._ready = threading.Event()
        self._app = project.app
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        assert self._ready.wait(30)

    def _listen(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": self._hear})
            with receiver.consumer_context(wakeup=False) as (own, _, _):
                self._ready.set()
                while not self._over.is_set():
                    try:
                        own.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    def _hear(self, event: dict[str, Any]) -> None:
        if event["type"].startswith("zsched-"):
            self.events.append(event)

    def first(self, kind: str) -> dict[str, Any]:
        """Wait for an event of a kind and return the first."""
        found: dict[str, Any] = wait_until(
            lambda: next((event for event in self.events if event["type"] == kind), None), what=kind
        )
        return found

    def close(self) -> None:
        """Stop to listen."""
        self._over.set()
        self._thread.join(30)


@pytest.fixture
def project(start_server: Callable[..., RunningServer], tmp_path: Path, close_later: Callable[[Any], Any]) -> Project:
    """A project on our own broker whose beats send events."""
    project: Project = close_later(
        Project(
            tmp_path, f"zsched+{start_server(tcp=True).url}", SOURCE, zsched_send_events=True,
            broker_transport_options={"delivery_limit": 1, "lease_timeout": 1},
        )
    )  # fmt: skip
    return project


def test_a_receiver_hears_what_becomes_of_occurrences(project: Project, close_later: Callable[[Any], Any]) -> None:
    """Fired with its task and lateness, missed with their number, skipped with the reason; `celery events` too."""
    site = Site.of(project.app)
    operations.add(site, "fast", {"task": "note", "every": 0.5})
    blackouts.define(site.schedules, "freeze", ["2000-01-01/2098-12-31"])
    operations.add(site, "frozen", {"task": "note", "every": 0.5, "blackouts": ["freeze"]})
    wait_until(lambda: operations.health(site).overdue_s > 1.5, what="some to be missed")
    heard = close_later(Heard(project))
    shown = project.start("events", "--dump", name="events")
    shown.says("starting capture")
    project.beat()
    fired, missed, skipped = (heard.first(kind) for kind in ("zsched-fired", "zsched-missed", "zsched-skipped"))
    records = wait_until(lambda: operations.history(site, "fast"), what="the record")
    assert (fired["entry"], fired["missed"] > 0, fired["lateness_s"] > 0) == ("fast", True, True)
    assert fired["uuid"] in {record["task_id"] for record in records}
    assert fired["nominal"] in {record["nominal"] for record in records}
    assert fired["hostname"].startswith("beat@") and fired["cause"] in ("schedule", "catch-up")
    assert (missed["entry"], missed["nominal"], missed["missed"]) == ("fast", fired["nominal"], fired["missed"])
    assert (skipped["entry"], skipped["reason"]) == ("frozen", "blackout")
    shown.says("zsched fired: ")


def test_no_event_is_sent_unless_asked_for(project: Project, close_later: Callable[[Any], Any]) -> None:
    """A beat without the setting tells nobody."""
    project.conf["zsched_send_events"] = False
    project.write(SOURCE)
    site = Site.of(project.app)
    heard = close_later(Heard(project))
    operations.add(site, "fast", {"task": "note", "every": 0.3})
    project.beat()
    wait_until(lambda: len(operations.history(site, "fast")) >= 3, what="three occurrences")
    assert heard.events == []


def test_a_receiver_hears_of_dead_messages(project: Project, close_later: Callable[[Any], Any]) -> None:
    """A worker that sends events tells of a message that was delivered too often."""
    site = Site.of(project.app)
    heard = close_later(Heard(project))
    id_ = str(project.app.send_task("slow").id)
    (item,) = site.queues.timeline("celery").claim(1, 1).items
    assert item.id == id_
    project.worker("-E")
    dead = heard.first("zsched-buried")
    assert (dead["uuid"], dead["queue"]) == (id_, "celery")
    assert "without an end" in dead["reason"]


def test_a_broker_that_takes_no_events_stops_no_occurrence(
    start_server: Callable[..., RunningServer], start_project: Callable[..., Project]
) -> None:
    """Events that cannot be sent are told of in the log, and what is due is sent all the same."""
    source = """
    from celery.events import EventDispatcher

    class Deaf(EventDispatcher):
        def send(self, *args, **kwargs):
            raise OSError("nobody listens")

    app.events.dispatcher_cls = Deaf
    app.conf.beat_schedule = {"fast": {"task": "note", "schedule": 0.3}}
    """
    project = start_project(start_server(tcp=True), source, ours=True, zsched_send_events=True)
    beat = project.beat()
    assert len(project.collect(4)) >= 4
    beat.says("events are not sent for 5 s, occurrences are: nobody listens")
