"""A notice is repeated while its worker exists: the kubelet may have missed the annotation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.kubernetes.api.names import NOTICE
from kubernetes.jobs.job_cluster import JobCluster
from kubernetes.jobs.test_jobs import scenario, started


class NoticeLog:
    """Records each notice that the API server accepts for a pod, and the number of requests."""

    def __init__(self, cluster: JobCluster, pod: str) -> None:
        self.requests = 0
        self._world, self._pod = cluster, pod
        self.notices: list[dict[str, Any]] = []
        cluster.api.faults.refuse = self._hear

    def _hear(self, method: str, path: str) -> int | None:
        self.requests += method == "PATCH" and path.endswith(f"/pods/{self._pod}")
        return None

    def observe_job(self) -> None:
        pod = self._world.pods().get(self._pod, {"metadata": {}})
        text = pod["metadata"].get("annotations", {}).get(NOTICE)
        if text and json.loads(text) not in self.notices:
            self.notices.append(json.loads(text))


@scenario
async def test_a_missed_notice_is_repeated_and_the_worker_saves() -> None:
    cluster = await started(least=2, backoffLimit=0, resizeSeconds=30)
    cluster.missed_notices = {"train-1": 1}
    cluster.change(suspend=True)
    await cluster.go(4)
    assert (cluster.phase(), set(cluster.running())) == ("Suspending", {"train-1"})
    await cluster.go(4)
    assert cluster.phase() == "Suspended"
    late = cluster.pods()["train-1"]
    assert '"ready"' in late["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert "deletionTimestamp" not in late["metadata"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_notice_is_repeated_a_few_times_with_the_same_generation(*, dies: bool) -> None:
    @scenario
    async def run() -> None:
        cluster = await started(least=2, resizeSeconds=60)
        cluster.cooperative = False
        told = NoticeLog(cluster, "train-1")
        cluster.change(suspend=True)
        for _ in range(58):
            if dies:
                cluster.begin()  # a new controller with no memory
            await cluster.round(1.0)
            told.observe_job()
        assert [one.pop("attempt") for one in told.notices] == [1, 2, 3, 4, 5]
        assert all(one == told.notices[0] for one in told.notices)
        assert told.requests == 5
        assert (cluster.phase(), len(cluster.running())) == ("Suspending", 2)

    run()


@scenario
async def test_a_notice_is_not_repeated_after_the_worker_ended() -> None:
    cluster = await started(least=2, resizeSeconds=60)
    cluster.missed_notices = {"train-0": 9}
    told = NoticeLog(cluster, "train-1")
    cluster.change(suspend=True)
    await cluster.go(20)
    assert (cluster.phase(), set(cluster.running())) == ("Suspending", {"train-0"})
    assert told.requests == 1
