"""Elastic jobs from their first pod to their last, by what the API server has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

from aliquot.kubernetes.api.names import DURATION
from aliquot.kubernetes.api.objects import Meta, Queue
from aliquot.kubernetes.api.queue import Amounts, QueueSpec
from kubernetes.jobs.world import TEMPLATE, World


def scenario(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type] # a test is a coroutine

    del run.__wrapped__  # pytest would look at its form
    return run


async def started(most: int = 2, **spec: Any) -> World:
    world = World()
    world.submit(most=most, **spec)
    await world.go(4)
    assert world.phase() == "Running"
    return world


# --- a job of one size ----------------------------------------------------------------------------


@scenario
async def test_a_job_becomes_a_gang_of_pods_and_a_service() -> None:
    world = await started(least=2)
    assert world.running() == {"train-0": 1, "train-1": 1}
    notes = [one["metadata"]["annotations"] for one in world.pods().values()]
    assert {(one["aliquot.io/gang"], one["aliquot.io/gang-size"]) for one in notes} == {
        ("train-1", "2")
    }
    service = world.api.objects["services", "ns", "train"]
    assert service["spec"]["clusterIP"] == "None"
    job = world.api.objects["elasticjobs", "ns", "train"]["metadata"]["uid"]
    for one in (service, *world.pods().values()):
        assert [owner["uid"] for owner in one["metadata"]["ownerReferences"]] == [job]
    status = world.status()
    assert (status.workers, status.ready, status.generation) == (2, 2, 1)
    assert status.selector == "aliquot.io/job=train"


@scenario
async def test_a_job_has_succeeded_when_all_workers_have_and_its_pods_stay_for_their_logs() -> None:
    world = await started(least=2)
    world.exit("train-1", 0)
    await world.go(2)
    assert world.phase() == "Running"
    world.exit("train-0", 0)
    await world.go(2)
    assert world.phase() == "Succeeded"
    assert set(world.pods()) == {"train-0", "train-1"}
    assert ("Complete", "True", "Succeeded") in world.conditions()


@scenario
async def test_a_worker_that_finished_is_remembered_when_its_pod_is_taken_away() -> None:
    world = await started(least=2)
    world.exit("train-1", 0)
    await world.go(1)
    world.api.delete("pods", "train-1", "ns")
    await world.go(2)
    assert world.running() == {"train-0": 1}
    world.exit("train-0", 0)
    await world.go(2)
    assert world.phase() == "Succeeded"


@scenario
async def test_a_failure_costs_a_restart_and_too_many_fail_the_job() -> None:
    world = await started(least=2, backoffLimit=1)
    world.exit("train-1", 3, reason="OOMKilled")
    await world.go(8)
    assert world.running() == {"train-0": 2, "train-1": 2}
    assert (world.status().restarts, world.status().resizes) == (1, 0)
    told = " ".join(one.reason for one in world.status().history)
    assert "worker 1 ended with exit code 3 (OOMKilled): retry 1 of 1" in told
    world.exit("train-0", 1)
    await world.go(4)
    assert world.phase() == "Failed"
    assert world.status().reason == "worker 0 ended with exit code 1 (1 of 1 retries used)"
    assert not world.running()


@scenario
async def test_a_pod_that_somebody_takes_away_costs_nothing() -> None:
    world = await started(least=2, backoffLimit=0)
    world.api.delete("pods", "train-1", "ns")
    await world.go(8)
    assert world.running() == {"train-0": 2, "train-1": 2}
    assert world.status().restarts == 0
    assert any("its pod is gone" in one.reason for one in world.status().history)


@scenario
async def test_a_command_that_does_not_exist_fails_at_once() -> None:
    world = await started(least=2, backoffLimit=6)
    world.exit("train-0", 128, reason="StartError", said='exec: "nosuch": not found in $PATH')
    await world.go(4)
    assert world.phase() == "Failed"
    assert 'worker 0 could not run: exec: "nosuch"' in world.status().reason


@scenario
async def test_suspend_takes_all_workers_away_and_resume_brings_them_back() -> None:
    world = await started(least=2)
    world.change(suspend=True)
    await world.go(4)
    assert world.phase() == "Suspended"
    assert not world.running()
    assert len(world.free()) == 4
    world.change(suspend=False)
    await world.go(8)
    assert world.running() == {"train-0": 2, "train-1": 2}
    assert world.status().restarts == 0


@scenario
async def test_a_program_that_heeds_no_notice_is_stopped_at_its_end() -> None:
    world = await started(least=2, resizeSeconds=5)
    world.cooperative = False
    world.change(suspend=True)
    await world.go(4)
    assert (world.phase(), len(world.running())) == ("Suspending", 2)
    await world.go(6)
    assert world.phase() == "Suspended"
    assert not world.pods()


# --- what cannot be -------------------------------------------------------------------------------


@scenario
async def test_a_job_that_no_node_can_hold_is_told_so_and_holds_nothing() -> None:
    world = World()
    world.submit(least=5, most=6)
    await world.go(5)
    assert world.phase() == "Starting"
    assert world.status().reason == "refused: 5 GPUs asked"
    assert ("Placed", "False", "Refused") in world.conditions()
    words = [one.reason for one in world.status().history]
    assert words == ["submitted", "begins at its smallest size, 5 workers, and waits for room"]
    assert len(world.free()) == 4


@scenario
async def test_a_job_says_that_there_is_room_only_where_there_is() -> None:
    world = World()
    world.gang("static", 3)
    world.place()
    world.submit(least=2, most=4)
    await world.go(2)
    assert "and waits for room" in world.status().history[-1].reason
    world.submit("small", most=1)
    await world.go(4)
    assert "there is room for 1 worker" in [one.reason for one in world.status("small").history]


@scenario
async def test_a_job_that_is_suspended_while_it_waits_waits_for_no_places() -> None:
    world = World()
    world.submit(least=5, most=6)
    await world.go(5)
    world.change(suspend=True)
    seen = set()
    for _ in range(4):
        await world.round(1)
        seen |= {(world.phase(), *one) for one in world.conditions() if one[0] == "Placed"}
        world.run_pods()
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
        ({"template": {"spec": "nonsense"}}, "spec.template is no pod"),
        ({"queue": "nowhere"}, "queue 'nowhere' does not exist"),
    ],
)
def test_what_makes_no_sense_is_told_and_nothing_is_made(spec: dict[str, Any], why: str) -> None:
    async def run() -> None:
        world = World()
        world.submit()
        world.change(**spec)
        await world.go(5)
        assert world.phase() == "Pending"
        assert why in world.status().reason
        assert ("Accepted", "False", "InvalidSpec") in world.conditions()
        assert not world.pods()
        world.change(workers={"min": 1, "max": 1}, queue="", template=TEMPLATE)
        await world.go(5)
        assert ("Accepted", "True", "Valid") in world.conditions()
        assert world.phase() == "Running"

    asyncio.run(run())


@scenario
async def test_a_pod_that_the_api_server_does_not_take_is_tried_again_later() -> None:
    world = World()
    world.api.faults.refuse = lambda method, path: (
        403 if method == "POST" and path.endswith("/pods") else None
    )
    world.submit()
    await world.go(8)
    assert world.phase() == "Pending"
    assert "as the test says" in world.status().reason
    world.api.faults.refuse = lambda _method, _path: None
    await world.go(40)
    assert world.phase() == "Running"


@scenario
async def test_a_name_that_others_have_is_told() -> None:
    world = World()
    spec = TEMPLATE["spec"]
    world.api.put("pods", {"metadata": {"name": "train-0", "namespace": "ns"}, "spec": spec})
    world.submit(most=1)
    await world.go(6)
    assert "there is a pod train-0 that is not this job's" in world.status().reason


@scenario
async def test_a_job_deleted_in_mid_resize_leaves_nothing() -> None:
    world = await started(most=4)
    world.change(replicas=2)
    await world.round(1)
    assert world.phase() == "Shrinking"
    world.remove()
    await world.go(5)
    assert not world.api.all("pods")
    assert not world.api.all("services")
    assert not world.api.all("gangs")


# --- sizes ----------------------------------------------------------------------------------------


@scenario
async def test_a_job_begins_with_all_that_is_free() -> None:
    world = await started(most=4)
    assert len(world.running()) == 4


@scenario
async def test_kubectl_scale_makes_a_job_smaller_with_notice() -> None:
    world = await started(most=4)
    world.change(replicas=2)
    await world.round(1)
    assert {"train-0", "train-3"} <= set(world.running())
    await world.go(6)
    assert world.running() == {"train-0": 2, "train-1": 2}
    assert (world.status().restarts, world.status().resizes) == (0, 1)


@pytest.mark.parametrize("live", [False, True])
def test_a_gang_that_waits_is_made_room_for_and_the_job_grows_back(*, live: bool) -> None:
    async def run() -> None:
        world = await started(most=4, live=live)
        assert len(world.running()) == 4
        await world.go(5)
        world.gang("static", 2)
        await world.go(10)
        assert len(world.running()) == 2
        assert set(world.running().values()) == ({1} if live else {2})
        assert set(world.running()) == {"train-0", "train-1"}
        assert all(one["status"]["phase"] == "Running" for one in world.pods("static").values())
        world.end_gang("static")
        await world.go(20)
        assert len(world.running()) == 4
        status = world.status()
        assert (status.restarts, status.resizes) == (0, 2)

    asyncio.run(run())


@scenario
async def test_a_single_pod_that_waits_is_made_room_for() -> None:
    world = await started(most=4)
    await world.go(5)
    spec = TEMPLATE["spec"]
    meta = {"name": "single", "namespace": "ns", "creationTimestamp": "1970-01-01T00:16:40Z"}
    world.api.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    await world.go(6)
    assert len(world.running()) == 3


@scenario
async def test_a_live_job_is_told_its_size_and_only_the_highest_ranks_come_and_go() -> None:
    world = await started(most=4, live=True)
    before = {name: one["metadata"]["uid"] for name, one in world.pods().items()}
    world.change(replicas=3)
    await world.go(6)
    after = {name: one["metadata"]["uid"] for name, one in world.pods().items()}
    assert after == {name: before[name] for name in ("train-0", "train-1", "train-2")}
    sizes = {one["metadata"]["annotations"]["aliquot.io/size"] for one in world.pods().values()}
    assert sizes == {'{"generation":2,"size":3}'}


@scenario
async def test_growth_that_finds_no_room_after_all_is_given_up() -> None:
    world = World()
    world.gang("static", 2)
    world.place()
    world.submit(most=4, live=True)
    await world.go(4)
    assert len(world.running()) == 2
    world.end_gang("static")
    for _ in range(9):
        await world.round(1)
        world.run_pods()
    assert world.phase() == "Growing"
    world.gang("another", 2)  # it is quicker
    world.place()
    await world.go(15)
    assert (world.phase(), len(world.running())) == ("Running", 2)
    assert set(world.pods()) == {"train-0", "train-1"}


@scenario
async def test_what_workers_report_is_remembered_by_their_number() -> None:
    world = await started(most=4)
    world.change(replicas=2)
    await world.go(6)
    assert '"speeds":{"2":9.0}' in world.status().record


@scenario
async def test_two_jobs_end_with_equal_parts() -> None:
    world = await started(most=4)
    world.submit("other", most=4)
    await world.go(40)
    assert (len(world.running()), len(world.running("other"))) == (2, 2)


@scenario
async def test_nobody_grows_while_a_gang_has_a_promise() -> None:
    world = World()
    world.gang("static", 2)
    world.place()
    world.submit(most=4)
    await world.go(4)
    world.gang("promised", 4)
    world.place()
    gang = world.api.objects["gangs", "ns", "promised"]
    gang["status"]["plannedStart"] = "2026-11-15T15:00:00Z"
    world.end_gang("static")
    for _ in range(20):
        await world.round(1)
    assert (world.phase(), len(world.running())) == ("Running", 2)


@scenario
async def test_without_any_gpu_a_job_waits_as_a_gang() -> None:
    world = World(gpus=0)
    world.submit()
    await world.go(5)
    assert (world.phase(), world.status().workers) == ("Starting", 1)


@scenario
async def test_workers_of_slices_share_cards() -> None:
    world = World()
    slices = {"limits": {"aliquot.io/vcuda-memory": 100, "aliquot.io/vcuda-core": 20}}
    container = {"name": "main", "image": "busybox", "resources": slices}
    world.submit(most=16, template={"spec": {"containers": [container]}})
    await world.round(1)
    assert world.status().workers == 12  # three of 25 GiB on each card of 80 GiB


@scenario
async def test_a_job_does_not_begin_beyond_the_limit_of_its_queue() -> None:
    world = World()
    red = Queue(Meta(name="red"), QueueSpec(limit=Amounts(gpus=2)))
    world.allocations.queues.set_queue("red", red)
    world.submit(queue="red")
    await world.go(10)
    assert len(world.running()) == 2


@scenario
async def test_of_many_jobs_at_once_some_begin_in_each_decision() -> None:
    world = World(gpus=8)
    names = [f"job{number}" for number in range(6)]
    for name in names:
        world.submit(name, most=1)
    await world.round(1)
    assert sum(world.phase(name) == "Starting" for name in names) == 4
    await world.go(3)
    assert {world.phase(name) for name in names} == {"Running"}
