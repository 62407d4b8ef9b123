"""Elastic jobs from the first pod to the last, checked by the objects in the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

from aliquot.kubernetes.api.names import DURATION
from aliquot.kubernetes.api.objects import Meta, QueueObject
from aliquot.kubernetes.api.queue import Amounts, QueueSpec
from kubernetes.jobs.job_cluster import TEMPLATE, JobCluster


def scenario(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type] # a test is a coroutine

    del run.__wrapped__  # pytest would inspect its signature
    return run


async def started(most: int = 2, **spec: Any) -> JobCluster:
    cluster = JobCluster()
    cluster.submit(most=most, **spec)
    await cluster.go(4)
    assert cluster.phase() == "Running"
    return cluster


# --- a job of one size ----------------------------------------------------------------------------


@scenario
async def test_a_job_becomes_a_gang_of_pods_and_a_service() -> None:
    cluster = await started(least=2)
    assert cluster.running() == {"train-0": 1, "train-1": 1}
    notes = [one["metadata"]["annotations"] for one in cluster.pods().values()]
    assert {(one["aliquot.io/gang"], one["aliquot.io/gang-size"]) for one in notes} == {
        ("train-1", "2")
    }
    assert {one["aliquot.io/together"] for one in notes} == {"train"}
    service = cluster.api.objects["services", "ns", "train"]
    assert service["spec"]["clusterIP"] == "None"
    job = cluster.api.objects["elasticjobs", "ns", "train"]["metadata"]["uid"]
    for one in (service, *cluster.pods().values()):
        assert [owner["uid"] for owner in one["metadata"]["ownerReferences"]] == [job]
    status = cluster.status()
    assert (status.workers, status.ready, status.generation) == (2, 2, 1)
    assert status.selector == "aliquot.io/job=train"


@scenario
async def test_workers_ask_for_the_strength_that_their_template_names() -> None:
    notes = {"metadata": {"annotations": {"aliquot.io/min-strength": "100"}}}
    cluster = await started(least=2, template={**TEMPLATE, **notes})
    workers = cluster.pods().values()
    assert {one["metadata"]["annotations"]["aliquot.io/min-strength"] for one in workers} == {"100"}


@scenario
async def test_a_job_grows_to_the_gpus_that_its_template_names() -> None:
    notes = {"metadata": {"annotations": {"aliquot.io/gpu": "GPU-n1-0,GPU-n1-1"}}}
    cluster = await started(most=4, template={**TEMPLATE, **notes})
    await cluster.go(60)
    assert len(cluster.running()) == 2
    assert len(cluster.free()) == 2


@scenario
async def test_a_job_succeeds_with_all_workers_and_keeps_its_pods_for_logs() -> None:
    cluster = await started(least=2)
    cluster.exit("train-1", 0)
    await cluster.go(2)
    assert cluster.phase() == "Running"
    cluster.exit("train-0", 0)
    await cluster.go(2)
    assert cluster.phase() == "Succeeded"
    assert set(cluster.pods()) == {"train-0", "train-1"}
    assert ("Complete", "True", "Succeeded") in cluster.conditions()


@scenario
async def test_a_finished_worker_is_remembered_after_its_pod_is_deleted() -> None:
    cluster = await started(least=2)
    cluster.exit("train-1", 0)
    await cluster.go(1)
    cluster.api.delete("pods", "train-1", "ns")
    await cluster.go(2)
    assert cluster.running() == {"train-0": 1}
    cluster.exit("train-0", 0)
    await cluster.go(2)
    assert cluster.phase() == "Succeeded"


@scenario
async def test_failures_restart_the_job_until_the_backoff_limit() -> None:
    cluster = await started(least=2, backoffLimit=1)
    cluster.exit("train-1", 3, reason="OOMKilled")
    await cluster.go(8)
    assert cluster.running() == {"train-0": 2, "train-1": 2}
    assert (cluster.status().restarts, cluster.status().resizes) == (1, 0)
    told = " ".join(one.reason for one in cluster.status().history)
    assert "worker 1 ended with exit code 3 (OOMKilled): retry 1 of 1" in told
    cluster.exit("train-0", 1)
    await cluster.go(4)
    assert cluster.phase() == "Failed"
    assert cluster.status().reason == "worker 0 ended with exit code 1 (1 of 1 retries used)"
    assert not cluster.running()


@scenario
async def test_a_deleted_pod_costs_no_retry() -> None:
    cluster = await started(least=2, backoffLimit=0)
    cluster.api.delete("pods", "train-1", "ns")
    await cluster.go(8)
    assert cluster.running() == {"train-0": 2, "train-1": 2}
    assert cluster.status().restarts == 0
    assert any("its pod was deleted" in one.reason for one in cluster.status().history)


@scenario
async def test_a_command_that_does_not_exist_fails_at_once() -> None:
    cluster = await started(least=2, backoffLimit=6)
    cluster.exit("train-0", 128, reason="StartError", said='exec: "nosuch": not found in $PATH')
    await cluster.go(4)
    assert cluster.phase() == "Failed"
    assert 'worker 0 could not run: exec: "nosuch"' in cluster.status().reason


@scenario
async def test_suspend_stops_all_workers_and_resume_starts_them() -> None:
    cluster = await started(least=2)
    cluster.change(suspend=True)
    await cluster.go(4)
    assert cluster.phase() == "Suspended"
    assert not cluster.running()
    assert len(cluster.free()) == 4
    cluster.change(suspend=False)
    await cluster.go(8)
    assert cluster.running() == {"train-0": 2, "train-1": 2}
    assert cluster.status().restarts == 0


@scenario
async def test_a_program_that_ignores_the_notice_is_stopped_when_it_ends() -> None:
    cluster = await started(least=2, resizeSeconds=5)
    cluster.cooperative = False
    cluster.change(suspend=True)
    await cluster.go(4)
    assert (cluster.phase(), len(cluster.running())) == ("Suspending", 2)
    await cluster.go(6)
    assert cluster.phase() == "Suspended"
    assert not cluster.pods()


# --- jobs that cannot start -----------------------------------------------------------------------


@scenario
async def test_a_job_that_fits_no_node_says_so_and_has_no_gpus() -> None:
    cluster = JobCluster()
    cluster.submit(least=5, most=6)
    await cluster.go(5)
    assert cluster.phase() == "Starting"
    assert cluster.status().reason == "refused: 5 GPUs asked"
    assert ("Placed", "False", "Refused") in cluster.conditions()
    words = [one.reason for one in cluster.status().history]
    assert words == ["submitted", "starts at its smallest size, 5 workers, and waits for GPUs"]
    assert len(cluster.free()) == 4


@scenario
async def test_a_job_says_that_gpus_are_free_only_if_they_are() -> None:
    cluster = JobCluster()
    cluster.gang("static", 3)
    cluster.place()
    cluster.submit(least=2, most=4)
    await cluster.go(2)
    assert "and waits for GPUs" in cluster.status().history[-1].reason
    cluster.submit("small", most=1)
    await cluster.go(4)
    assert "GPUs are free for 1 worker" in [one.reason for one in cluster.status("small").history]


@scenario
async def test_a_job_suspended_while_waiting_stops_waiting() -> None:
    cluster = JobCluster()
    cluster.submit(least=5, most=6)
    await cluster.go(5)
    cluster.change(suspend=True)
    seen = set()
    for _ in range(4):
        await cluster.round(1)
        seen |= {(cluster.phase(), *one) for one in cluster.conditions() if one[0] == "Placed"}
        cluster.run_pods()
    assert seen == {
        ("Suspending", "Placed", "True", "Suspending"),
        ("Suspended", "Placed", "False", "Suspended"),
    }


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"workers": {"min": 3, "max": 2}}, "workers.max is 2, below workers.min, 3"),
        ({"workers": {"min": 2, "max": 4, "sizes": [1]}}, "none of workers.sizes [1] is from 2"),
        ({"template": {"spec": {"containers": [{"name": "a"}]}}}, "asks for a GPU"),
        ({"template": {"metadata": {"annotations": {DURATION: "2 weeks"}}}}, "is '2 weeks'"),
        ({"template": {"spec": "nonsense"}}, "spec.template is not a valid pod template"),
        ({"queue": "nowhere"}, "queue 'nowhere' does not exist"),
    ],
)
def test_an_invalid_spec_is_reported_and_creates_nothing(spec: dict[str, Any], why: str) -> None:
    async def run() -> None:
        cluster = JobCluster()
        cluster.submit()
        cluster.change(**spec)
        await cluster.go(5)
        assert cluster.phase() == "Pending"
        assert why in cluster.status().reason
        assert ("Accepted", "False", "InvalidSpec") in cluster.conditions()
        assert not cluster.pods()
        cluster.change(workers={"min": 1, "max": 1}, queue="", template=TEMPLATE)
        await cluster.go(5)
        assert ("Accepted", "True", "Valid") in cluster.conditions()
        assert cluster.phase() == "Running"

    asyncio.run(run())


@scenario
async def test_a_pod_that_the_api_server_refuses_is_retried_later() -> None:
    cluster = JobCluster()
    cluster.api.faults.refuse = lambda method, path: (
        403 if method == "POST" and path.endswith("/pods") else None
    )
    cluster.submit()
    await cluster.go(8)
    assert cluster.phase() == "Pending"
    assert "as the test says" in cluster.status().reason
    cluster.api.faults.refuse = lambda _method, _path: None
    await cluster.go(40)
    assert cluster.phase() == "Running"


@scenario
async def test_a_name_in_use_is_reported() -> None:
    cluster = JobCluster()
    spec = TEMPLATE["spec"]
    cluster.api.put("pods", {"metadata": {"name": "train-0", "namespace": "ns"}, "spec": spec})
    cluster.submit(most=1)
    await cluster.go(6)
    assert "pod train-0 exists and belongs to something else" in cluster.status().reason


@scenario
async def test_a_job_deleted_during_a_resize_leaves_nothing() -> None:
    cluster = await started(most=4)
    cluster.change(replicas=2)
    await cluster.round(1)
    assert cluster.phase() == "Shrinking"
    cluster.remove()
    await cluster.go(5)
    assert not cluster.api.all("pods")
    assert not cluster.api.all("services")
    assert not cluster.api.all("gangs")


# --- sizes ----------------------------------------------------------------------------------------


@scenario
async def test_a_job_starts_with_all_free_gpus() -> None:
    cluster = await started(most=4)
    assert len(cluster.running()) == 4


@scenario
async def test_kubectl_scale_makes_a_job_smaller_with_notice() -> None:
    cluster = await started(most=4)
    cluster.change(replicas=2)
    await cluster.round(1)
    assert {"train-0", "train-3"} <= set(cluster.running())
    await cluster.go(6)
    assert cluster.running() == {"train-0": 2, "train-1": 2}
    assert (cluster.status().restarts, cluster.status().resizes) == (0, 1)


@pytest.mark.parametrize("live", [False, True])
def test_a_job_shrinks_for_a_waiting_gang_and_grows_back(*, live: bool) -> None:
    async def run() -> None:
        cluster = await started(most=4, live=live)
        assert len(cluster.running()) == 4
        await cluster.go(5)
        cluster.gang("static", 2)
        await cluster.go(10)
        assert len(cluster.running()) == 2
        assert set(cluster.running().values()) == ({1} if live else {2})
        assert set(cluster.running()) == {"train-0", "train-1"}
        assert all(one["status"]["phase"] == "Running" for one in cluster.pods("static").values())
        cluster.end_gang("static")
        await cluster.go(20)
        assert len(cluster.running()) == 4
        status = cluster.status()
        assert (status.restarts, status.resizes) == (0, 2)

    asyncio.run(run())


@scenario
async def test_a_job_shrinks_for_a_waiting_pod() -> None:
    cluster = await started(most=4)
    await cluster.go(5)
    spec = TEMPLATE["spec"]
    meta = {"name": "single", "namespace": "ns", "creationTimestamp": "1970-01-01T00:16:40Z"}
    cluster.api.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    await cluster.go(6)
    assert len(cluster.running()) == 3


@scenario
async def test_a_live_job_learns_its_size_and_only_the_highest_ranks_change() -> None:
    cluster = await started(most=4, live=True)
    before = {name: one["metadata"]["uid"] for name, one in cluster.pods().items()}
    cluster.change(replicas=3)
    await cluster.go(6)
    after = {name: one["metadata"]["uid"] for name, one in cluster.pods().items()}
    assert after == {name: before[name] for name in ("train-0", "train-1", "train-2")}
    sizes = {one["metadata"]["annotations"]["aliquot.io/size"] for one in cluster.pods().values()}
    assert sizes == {'{"generation":2,"size":3}'}


@scenario
async def test_growth_without_free_gpus_is_abandoned() -> None:
    cluster = JobCluster()
    cluster.gang("static", 2)
    cluster.place()
    cluster.submit(most=4, live=True)
    await cluster.go(4)
    assert len(cluster.running()) == 2
    cluster.end_gang("static")
    for _ in range(9):
        await cluster.round(1)
        cluster.run_pods()
    assert cluster.phase() == "Growing"
    cluster.gang("another", 2)  # it takes the GPUs first
    cluster.place()
    await cluster.go(15)
    assert (cluster.phase(), len(cluster.running())) == ("Running", 2)
    assert set(cluster.pods()) == {"train-0", "train-1"}


@scenario
async def test_reported_speeds_are_saved_by_number_of_workers() -> None:
    cluster = await started(most=4)
    cluster.change(replicas=2)
    await cluster.go(6)
    assert '"speeds":{"2":9.0}' in cluster.status().controller_state


@scenario
async def test_two_jobs_converge_to_equal_sizes() -> None:
    cluster = await started(most=4)
    cluster.submit("other", most=4)
    await cluster.go(40)
    assert (len(cluster.running()), len(cluster.running("other"))) == (2, 2)


@scenario
async def test_no_job_grows_while_a_gang_has_a_planned_start() -> None:
    cluster = JobCluster()
    cluster.gang("static", 2)
    cluster.place()
    cluster.submit(most=4)
    await cluster.go(4)
    cluster.gang("promised", 4)
    cluster.place()
    gang = cluster.api.objects["gangs", "ns", "promised"]
    gang["status"]["plannedStart"] = "2026-11-15T15:00:00Z"
    cluster.end_gang("static")
    for _ in range(20):
        await cluster.round(1)
    assert (cluster.phase(), len(cluster.running())) == ("Running", 2)


@scenario
async def test_without_any_gpu_a_job_waits_as_a_gang() -> None:
    cluster = JobCluster(gpus=0)
    cluster.submit()
    await cluster.go(5)
    assert (cluster.phase(), cluster.status().workers) == ("Starting", 1)


@scenario
async def test_workers_with_slices_share_gpus() -> None:
    cluster = JobCluster()
    slices = {"limits": {"aliquot.io/vcuda-memory": 100, "aliquot.io/vcuda-core": 20}}
    container = {"name": "main", "image": "busybox", "resources": slices}
    cluster.submit(most=16, template={"spec": {"containers": [container]}})
    await cluster.round(1)
    assert cluster.status().workers == 12  # three of 25 GiB on each GPU of 80 GiB


@scenario
async def test_a_job_does_not_start_beyond_the_limit_of_its_queue() -> None:
    cluster = JobCluster()
    red = QueueObject(Meta(name="red"), QueueSpec(limit=Amounts(gpus=2)))
    cluster.allocations.queues.set_queue("red", red)
    cluster.submit(queue="red")
    await cluster.go(10)
    assert len(cluster.running()) == 2


@scenario
async def test_a_job_of_another_namespace_does_not_start_in_a_queue() -> None:
    cluster = JobCluster()
    red = QueueObject(Meta(name="red"), QueueSpec(namespaces=("theirs",)))
    cluster.allocations.queues.set_queue("red", red)
    cluster.submit(queue="red")
    await cluster.go(5)
    assert "queue 'red' does not accept pods of namespace 'ns'" in cluster.status().reason
    assert not cluster.pods()
    red = QueueObject(Meta(name="red"), QueueSpec(namespaces=("theirs", "ns")))
    cluster.allocations.queues.set_queue("red", red)
    await cluster.go(5)
    assert cluster.phase() == "Running"


@scenario
async def test_a_job_that_its_queue_no_longer_accepts_runs_on_as_it_is() -> None:
    """Workers of another size would be refused."""
    cluster = JobCluster()
    few, more = Amounts(gpus=2), Amounts(gpus=4)
    red = QueueObject(Meta(name="red"), QueueSpec(limit=few, namespaces=("ns",)))
    cluster.allocations.queues.set_queue("red", red)
    cluster.submit(queue="red")
    await cluster.go(10)
    assert len(cluster.running()) == 2
    red = QueueObject(Meta(name="red"), QueueSpec(limit=more, namespaces=("theirs",)))
    cluster.allocations.queues.set_queue("red", red)
    await cluster.go(900)
    assert (cluster.phase(), cluster.status().generation) == ("Running", 1)
    red = QueueObject(Meta(name="red"), QueueSpec(limit=more, namespaces=("ns",)))
    cluster.allocations.queues.set_queue("red", red)
    await cluster.go(900)
    assert len(cluster.running()) == 4


@scenario
async def test_each_decision_starts_only_some_of_many_jobs() -> None:
    cluster = JobCluster(gpus=8)
    names = [f"job{number}" for number in range(6)]
    for name in names:
        cluster.submit(name, most=1)
    await cluster.round(1)
    assert sum(cluster.phase(name) == "Starting" for name in names) == 4
    await cluster.go(3)
    assert {cluster.phase(name) for name in names} == {"Running"}
