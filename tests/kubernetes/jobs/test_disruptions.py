"""Disruptions of elastic jobs: drains, quotas, invalid reports, a paused leader."""

from __future__ import annotations

import asyncio
import copy
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.elasticjob import ElasticJob
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.jobs.codec import SavedState
from aliquot.kubernetes.jobs.sizes import Candidate, Sizer
from aliquot.kubernetes.jobs.spec import parse_job, worker_pod, worker_requests
from aliquot.model.job_state import JobState
from kubernetes.fake_api import Json
from kubernetes.jobs.job_cluster import JobCluster
from kubernetes.jobs.test_jobs import scenario, started


def told(cluster: JobCluster) -> str:
    return "; ".join(one.reason for one in cluster.status().history)


# --- disrupted workers ----------------------------------------------------------------------------


@scenario
async def test_a_drained_worker_that_exits_with_0_has_not_finished() -> None:
    cluster = await started(least=2, backoffLimit=0)
    for pod in ("train-0", "train-1"):
        cluster.drain(pod)
    cluster.run_pods()
    assert {one["status"]["phase"] for one in cluster.pods().values()} == {"Succeeded"}
    await cluster.go(8)
    assert cluster.running() == {"train-0": 2, "train-1": 2}
    assert cluster.status().restarts == 0
    assert "worker 0 was disrupted: its pod was deleted" in told(cluster)


@scenario
async def test_a_worker_that_finished_before_its_drain_has_finished() -> None:
    cluster = await started(least=2)
    cluster.exit("train-1", 0)
    await cluster.go(1)
    marked = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    cluster._set("train-1", marked)
    await cluster.go(2)
    assert cluster.running() == {"train-0": 1}
    cluster.exit("train-0", 0)
    await cluster.go(2)
    assert cluster.phase() == "Succeeded"


@scenario
async def test_failures_beside_a_drained_worker_cost_no_retry() -> None:
    cluster = await started(least=2, backoffLimit=0)
    cluster.drain("train-1")
    cluster.exit("train-0", 1)  # its collective lost a peer
    await cluster.go(10)
    assert (cluster.phase(), cluster.status().restarts) == ("Running", 0)
    assert "worker 0 ended when another worker was disrupted" in told(cluster)


@scenario
async def test_a_disruption_wins_over_the_failure_of_a_lower_rank() -> None:
    cluster = await started(least=2, backoffLimit=0)
    cluster.exit("train-0", 1)
    cluster.api.delete("pods", "train-1", "ns")
    await cluster.go(8)
    assert (cluster.phase(), cluster.status().restarts) == ("Running", 0)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (
            {"initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": 1}}}]},
            "ended with exit code 1",
        ),
        ({"reason": "DeadlineExceeded"}, "ended: DeadlineExceeded"),
        ({"containerStatuses": []}, "was lost"),
    ],
)
def test_failures_of_the_program_are_not_disruptions(status: Json, why: str) -> None:
    async def run() -> None:
        cluster = await started(least=2, backoffLimit=0)
        cluster._set("train-0", {"phase": "Failed", **status})
        await cluster.go(5)
        assert cluster.phase() == "Failed"
        assert why in cluster.status().reason

    asyncio.run(run())


@pytest.mark.parametrize("reason", ["Evicted", "OutOfcpu", "UnexpectedAdmissionError"])
def test_pods_that_the_kubelet_refuses_are_disrupted(reason: str) -> None:
    async def run() -> None:
        cluster = await started(least=2, backoffLimit=0)
        cluster._set("train-0", {"phase": "Failed", "reason": reason})
        await cluster.go(8)
        assert (cluster.phase(), cluster.status().restarts) == ("Running", 0)

    asyncio.run(run())


@scenario
async def test_the_pause_grows_with_disruptions_until_a_long_run() -> None:
    cluster = await started(least=2)

    async def seconds_until_it_runs_again() -> int:
        before = cluster.status().generation
        cluster.api.delete("pods", "train-1", "ns")
        for number in range(600):
            if cluster.phase() == "Running" and cluster.status().generation > before:
                return number
            await cluster.go(1)
        raise AssertionError(cluster.status())

    pauses = [await seconds_until_it_runs_again() for _ in range(6)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 10
    assert 60 < pauses[-1] < 80
    cluster.now += 400
    await cluster.go(1)
    assert await seconds_until_it_runs_again() == pauses[0]


@scenario
async def test_voiding_a_pod_that_was_just_bound_keeps_its_grace() -> None:
    cluster = JobCluster()
    cluster.submit(least=2, most=2)
    await cluster.round(1)
    await cluster.round(1)
    cluster.sync()
    cluster.behind = True
    cluster.place()
    job = copy.deepcopy(cluster.api.objects["elasticjobs", "ns", "train"])
    job["spec"]["suspend"] = True
    cluster.api.put("elasticjobs", job)
    cluster._synced["elasticjobs", "ns", "train"] = cluster.api.objects[
        "elasticjobs", "ns", "train"
    ]
    await cluster.round(1)
    await cluster.round(1)
    assert cluster.pods()
    assert all(one["metadata"].get("deletionTimestamp") for one in cluster.pods().values())
    assert not cluster.api.forgotten


@scenario
async def test_a_garbled_termination_message_counts_as_ready() -> None:
    cluster = await started(least=1, most=1)
    cluster.cooperative = False
    cluster.change(suspend=True)
    await cluster.round(1)
    cluster.exit("train-0", 0, said='{"ready": 1}{"ready": 1}')
    await cluster.go(3)
    assert cluster.phase() == "Suspended"


# --- reports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "report",
    [
        {"size": 4, "samples_per_second": 5e-324},
        {"size": 4, "samples_per_second": 1e300},
        {"size": 4096, "samples_per_second": 5.0},
        {"size": -1, "samples_per_second": 5.0},
    ],
)
def test_invalid_reports_do_not_stop_decisions(report: dict[str, Any]) -> None:
    async def run() -> None:
        cluster = await started(most=4, live=False)
        cluster.exit("train-0", 1, said={"report": report})
        await cluster.go(10)
        assert cluster.phase() == "Running"
        assert "speeds" not in cluster.status().controller_state
        cluster.submit("other", most=1)
        await cluster.go(20)
        assert cluster.phase("other") == "Running"

    asyncio.run(run())


def test_a_job_that_raises_an_error_is_left_out_of_the_decision() -> None:
    cluster = JobCluster()
    cluster.submit("good", most=1)
    one = msgspec.convert(
        cluster.api.objects["elasticjobs", "ns", "good"], ElasticJob, strict=False
    )
    pod = worker_pod(one)
    good = Candidate(
        "good", parse_job(one), SavedState(JobState()), pod, worker_requests(pod, (ALIQUOT,))
    )
    bad = Candidate("bad", parse_job(one), SavedState(JobState()), pod, ())
    changes = asyncio.run(Sizer(cluster.allocations).changes([bad, good], [], 1000.0))
    assert [(change.name, change.size) for change in changes] == [("good", 1)]


# --- sizes that fail ------------------------------------------------------------------------------


def allow(cluster: JobCluster, pods: int) -> None:
    """Let a ResourceQuota allow so many pods."""
    cluster.api.faults.refuse = lambda method, path: (
        403
        if method == "POST" and path.endswith("/pods") and len(cluster.api.all("pods")) >= pods
        else None
    )


@scenario
async def test_a_size_that_the_api_server_refuses_is_limited() -> None:
    cluster = JobCluster()
    allow(cluster, 2)
    cluster.submit(most=4)
    await cluster.go(80)
    assert (cluster.phase(), len(cluster.running())) == ("Running", 2)
    generation = cluster.status().generation
    await cluster.go(500)
    assert (len(cluster.running()), cluster.status().generation) == (2, generation)
    allow(cluster, 9)
    await cluster.go(1200)
    assert len(cluster.running()) == 4


@scenario
async def test_a_failed_size_is_retried_after_longer_and_longer_pauses() -> None:
    cluster = JobCluster()
    allow(cluster, 1)
    cluster.submit(most=2)
    tries = []
    for second in range(4000):
        before = cluster.status().workers if second else 0
        await cluster.go(1)
        tries += [second] if cluster.status().workers == 2 > before else []
    gaps = [later - sooner for sooner, later in pairwise(tries)]
    assert gaps[0] >= 300
    assert all(later > 1.5 * sooner for sooner, later in pairwise(gaps))
    assert len(tries) >= 3


@scenario
async def test_no_job_shrinks_for_growth_that_waits_in_a_restart() -> None:
    cluster = JobCluster(gpus=6)
    cluster.gang("static", 2)
    cluster.place()
    cluster.submit("giver", least=1, most=2)
    await cluster.go(4)
    cluster.submit(least=2, most=4, workers={"sizes": [2, 4]})
    await cluster.go(4)
    assert (len(cluster.running("giver")), len(cluster.running())) == (2, 2)
    cluster.end_gang("static")
    for _ in range(20):
        await cluster.round(1)
        cluster.run_pods()
        if cluster.status().workers == 4 and cluster.phase() == "Starting":
            break
    cluster.gang("another", 1)  # it takes the GPU first
    cluster.place()
    assert cluster.phase() == "Starting"
    for _ in range(10):
        await cluster.go(1)
        assert len(cluster.running("giver")) == 2


@pytest.mark.parametrize(
    "counts",
    [
        {"capacity": 4, "allocatable": 0},  # a moment after the agent has gone
        {"capacity": 0, "allocatable": 0},  # five minutes later
        {"capacity": 0},  # a new Node
        {},  # no Node
    ],
)
def test_no_job_grows_for_gpus_of_a_dead_agent(counts: dict[str, int]) -> None:
    async def run() -> None:
        cluster = JobCluster()
        cluster.gang("static", 2)
        cluster.place()
        cluster.submit(most=4)
        await cluster.go(10)
        assert (len(cluster.running()), cluster.status().generation) == (2, 1)
        cluster.end_gang("static")
        cluster.lose_agent(**counts)
        await cluster.go(400)
        assert (len(cluster.running()), cluster.status().generation) == (2, 1)

    asyncio.run(run())


@pytest.mark.parametrize("live", [False, True])
def test_an_overdue_start_is_abandoned_for_a_smaller_one(*, live: bool) -> None:
    async def run() -> None:
        cluster = JobCluster()
        cluster.stuck.add("train-3")
        cluster.submit(most=4, live=live)
        await cluster.go(290)
        assert (cluster.phase(), len(cluster.running())) == ("Starting", 3)
        assert cluster.status().reason == "train-3: ImagePullBackOff: no such image"
        await cluster.go(40)
        assert (cluster.phase(), len(cluster.running())) == ("Running", 3)
        assert "not all of 4 workers started within 300 s: train-3: ImagePullBackOff" in told(
            cluster
        )
        await cluster.go(100)
        assert (cluster.phase(), len(cluster.running())) == ("Running", 3)

    asyncio.run(run())


@scenario
async def test_a_start_at_the_smallest_size_waits_and_says_why() -> None:
    cluster = JobCluster()
    cluster.stuck.add("train-0")
    cluster.submit(least=2, most=2)
    await cluster.go(400)
    assert (cluster.phase(), cluster.status().generation) == ("Starting", 1)
    assert cluster.status().reason == "train-0: ImagePullBackOff: no such image"


# --- leadership -----------------------------------------------------------------------------------


@scenario
async def test_a_paused_leader_writes_and_deletes_nothing() -> None:
    cluster = await started(least=2)
    leads = [True]
    cluster.begin(may=lambda: leads[0])
    cluster.change(suspend=True)
    leads[0] = False
    before = cluster.api.version
    await cluster.round(1)
    assert cluster.api.version == before
    leads[0] = True
    await cluster.go(6)
    assert cluster.phase() == "Suspended"


@scenario
async def test_a_leader_that_loses_its_lease_stops_between_requests() -> None:
    cluster = JobCluster()
    left = [2]

    def may() -> bool:
        left[0] -= 1
        return left[0] >= 0

    cluster.begin(may=may)
    cluster.submit(least=4, most=4)
    for _ in range(5):
        await cluster.round(1)
    assert not cluster.pods()
    cluster.begin()
    await cluster.go(5)
    assert len(cluster.running()) == 4


@scenario
async def test_late_pods_do_not_outlive_their_job() -> None:
    cluster = await started(least=2)
    late = copy.deepcopy(cluster.pods()["train-1"])
    for pod in ("train-0", "train-1"):
        cluster.exit(pod, 0)
    await cluster.go(2)
    assert cluster.phase() == "Succeeded"
    late["metadata"] |= {"name": "train-7", "uid": "late"}
    late["metadata"]["labels"] |= {"aliquot.io/job-rank": "7"}
    cluster.api.put("pods", late)
    waits = copy.deepcopy(late)
    waits["metadata"] |= {"name": "train-8", "uid": "waits"}
    waits["metadata"]["labels"] |= {"aliquot.io/job-rank": "8"}
    waits["spec"].pop("nodeName")
    waits["status"] = {"phase": "Pending"}
    cluster.api.put("pods", waits)
    await cluster.go(3)
    assert set(cluster.pods()) == {"train-0", "train-1"}
    assert cluster.phase() == "Succeeded"
    assert not cluster.controller._applier._killed, "what is gone is still remembered"


@scenario
async def test_a_pod_of_another_namespace_is_never_a_worker() -> None:
    cluster = JobCluster()
    cluster.submit(least=2, most=2)
    await cluster.go(4)
    other = copy.deepcopy(cluster.pods()["train-0"])
    other["metadata"] |= {"namespace": "other", "uid": "other"}
    other["status"] = {"phase": "Failed", "containerStatuses": []}
    cluster.api.put("pods", other)
    await cluster.go(4)
    assert (cluster.phase(), cluster.status().generation) == ("Running", 1)
    assert ("pods", "other", "train-0") in cluster.api.objects


@scenario
async def test_an_invalid_saved_state_is_reported_and_nothing_is_done() -> None:
    cluster = await started(least=2)
    job = copy.deepcopy(cluster.api.objects["elasticjobs", "ns", "train"])
    job["status"]["controllerState"] = "nonsense"
    cluster.api.put("elasticjobs", job)
    await cluster.go(3)
    assert "status.controllerState is invalid" in cluster.status().reason
    assert "Delete the job and create it again." in cluster.status().reason
    assert len(cluster.running()) == 2


@scenario
async def test_an_unknown_phase_does_not_stop_other_jobs() -> None:
    cluster = JobCluster()
    cluster.submit("odd", most=1)
    job = copy.deepcopy(cluster.api.objects["elasticjobs", "ns", "odd"])
    cluster.api.put("elasticjobs", {**job, "status": {"phase": "Dreaming"}})
    cluster.submit(most=1)
    await cluster.go(5)
    assert cluster.phase() == "Running"


@scenario
async def test_placed_is_true_when_the_gang_is_placed() -> None:
    cluster = JobCluster()
    cluster.submit(least=2, most=2)
    await cluster.round(1)
    await cluster.round(1)
    assert cluster.phase() == "Starting"
    placed = {kind: so for kind, so, _ in cluster.conditions()}
    assert placed["Placed"] == "False"
    await cluster.go(4)
    assert ("Placed", "True", "Running") in cluster.conditions()
