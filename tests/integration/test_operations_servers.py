"""The verbs on every kind of server, and on a cluster, where the queues lie in other slots than the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_zsched import NotFoundError, operations
from celery_zsched.entry import OperatorState, build
from celery_zsched.operations import Site
from celery_zsched.operations.carrying import Coming, Report, take_in
from tests.programs import Project
from tests.servers import DEFAULT_KIND, KINDS, RunningServer
from tests.topologies import Cluster


@pytest.fixture(
    params=[
        *(pytest.param(kind, marks=[] if kind == DEFAULT_KIND else pytest.mark.servers) for kind in KINDS),
        pytest.param("cluster", marks=pytest.mark.servers),
    ]
)
def site(
    request: pytest.FixtureRequest,
    start_server: Callable[..., RunningServer],
    start_cluster: Callable[..., Cluster],
    tmp_path: Path,
) -> Iterator[Site]:
    """The site of an app on each kind of server in turn."""
    url = start_cluster().url if request.param == "cluster" else start_server(request.param, tcp=True).url
    project = Project(tmp_path, f"zsched+{url}")
    yield Site.of(project.app, by="ann@desk")
    project.close()


def test_the_verbs_work_on_every_server(site: Site) -> None:
    """Pause, resume, run, cancel, records and the check-up have the same effect everywhere."""
    operations.add(site, "hourly", {"task": "note", "every": "1h"})
    for number in range(4):
        site.app.send_task("note", (number,), queue=f"queue{number % 2}", priority=number)
    assert operations.pause_task(site, "task:note").to_dict()["messages"] == 4
    assert [(row.ready, row.parked) for row in operations.queues(site)] == [(0, 2), (0, 2)]
    assert operations.resume_task(site, "task:note").to_dict()["messages"] == 4
    assert [(row.ready, row.parked) for row in operations.queues(site)] == [(2, 0), (2, 0)]
    for target in ("queue:queue0", "hourly"):
        assert operations.pause_task(site, target, lasting="1h").state == "paused"
        assert operations.resume_task(site, target).changed
    assert operations.run_task(site, "hourly", request="r").changed
    assert not operations.run_task(site, "hourly", request="r").changed
    assert [one["cause"] for one in operations.history(site, "hourly")] == ["manual"]
    assert operations.cancel_task(site, "task:note").removed == 5
    verbs = [record.verb for record in operations.audit(site)]
    assert verbs[::-1] == ["add", "pause", "resume", "pause", "resume", "pause", "resume", "run", "cancel"]
    assert {finding.check: finding.verdict for finding in operations.doctor(site)}["keys"] == "good"
    assert [each.deleted for each in operations.remove(site, "hourly")] == [True]
    assert operations.dead_purge(site, None, queue="queue0") == []
    with pytest.raises(NotFoundError, match="no queue 'queue2'; did you mean"):
        operations.dead(site, queue="queue2")
    coming = [Coming(build("moved", "note", 60, count=3), OperatorState(paused=True), fired=2)]
    for paused in (["moved"], []):
        report = take_in(site, coming, Report(), source="test", taking_over=True)
        assert (report.paused, report.faults, operations.list_entries(site).rows[0].fired) == (paused, {}, 2)
        operations.resume_task(site, "moved")
