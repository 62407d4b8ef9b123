"""What others do to elastic jobs: drains, quotas, nonsense in reports, a leader that was frozen."""

from __future__ import annotations

import asyncio
import copy
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.elasticjob import ElasticJob
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.jobs.codec import Memory
from aliquot.kubernetes.jobs.form import asked_by, job_of, pod_in
from aliquot.kubernetes.jobs.sizes import Candidate, Sizer
from aliquot.model.status import Record
from kubernetes.fake_api import Json
from kubernetes.jobs.test_jobs import scenario, started
from kubernetes.jobs.world import World


def told(world: World) -> str:
    return "; ".join(one.reason for one in world.status().history)


# --- workers that are taken away ------------------------------------------------------------------


@scenario
async def test_a_worker_that_saves_and_exits_well_when_it_is_drained_has_not_finished() -> None:
    world = await started(least=2, backoffLimit=0)
    for pod in ("train-0", "train-1"):
        world.drain(pod)
    world.run_pods()
    assert {one["status"]["phase"] for one in world.pods().values()} == {"Succeeded"}
    await world.go(8)
    assert world.running() == {"train-0": 2, "train-1": 2}
    assert world.status().restarts == 0
    assert "worker 0 was taken away: its pod was deleted" in told(world)


@scenario
async def test_one_that_had_finished_before_it_was_marked_has() -> None:
    world = await started(least=2)
    world.exit("train-1", 0)
    await world.go(1)
    marked = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    world._set("train-1", marked)
    await world.go(2)
    assert world.running() == {"train-0": 1}
    world.exit("train-0", 0)
    await world.go(2)
    assert world.phase() == "Succeeded"


@scenario
async def test_those_that_break_down_with_a_drained_one_cost_no_retry() -> None:
    world = await started(least=2, backoffLimit=0)
    world.drain("train-1")
    world.exit("train-0", 1)  # a collective without a partner
    await world.go(10)
    assert (world.phase(), world.status().restarts) == ("Running", 0)
    assert "worker 0 ended when another was taken away" in told(world)


@scenario
async def test_an_excuse_wins_over_the_failure_of_a_lower_rank() -> None:
    world = await started(least=2, backoffLimit=0)
    world.exit("train-0", 1)
    world.api.delete("pods", "train-1", "ns")
    await world.go(8)
    assert (world.phase(), world.status().restarts) == ("Running", 0)


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
def test_what_is_the_jobs_own_fault_is_not_excused(status: Json, why: str) -> None:
    async def run() -> None:
        world = await started(least=2, backoffLimit=0)
        world._set("train-0", {"phase": "Failed", **status})
        await world.go(5)
        assert world.phase() == "Failed"
        assert why in world.status().reason

    asyncio.run(run())


@pytest.mark.parametrize("reason", ["Evicted", "OutOfcpu", "UnexpectedAdmissionError"])
def test_what_the_kubelet_does_is_excused(reason: str) -> None:
    async def run() -> None:
        world = await started(least=2, backoffLimit=0)
        world._set("train-0", {"phase": "Failed", "reason": reason})
        await world.go(8)
        assert (world.phase(), world.status().restarts) == ("Running", 0)

    asyncio.run(run())


@scenario
async def test_the_pause_grows_with_excuses_in_a_row_and_a_long_run_ends_the_row() -> None:
    world = await started(least=2)

    async def seconds_until_it_runs_again() -> int:
        before = world.status().generation
        world.api.delete("pods", "train-1", "ns")
        for number in range(600):
            if world.phase() == "Running" and world.status().generation > before:
                return number
            await world.go(1)
        raise AssertionError(world.status())

    pauses = [await seconds_until_it_runs_again() for _ in range(6)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 10
    assert 60 < pauses[-1] < 80
    world.now += 400
    await world.go(1)
    assert await seconds_until_it_runs_again() == pauses[0]


@scenario
async def test_a_pod_that_was_bound_unseen_is_not_forgotten_when_it_is_voided() -> None:
    world = World()
    world.submit(least=2, most=2)
    await world.round(1)
    await world.round(1)
    world.tell()
    world.behind = True
    world.place()
    job = copy.deepcopy(world.api.objects["elasticjobs", "ns", "train"])
    job["spec"]["suspend"] = True
    world.api.put("elasticjobs", job)
    world._told["elasticjobs", "ns", "train"] = world.api.objects["elasticjobs", "ns", "train"]
    await world.round(1)
    await world.round(1)
    assert world.pods()
    assert all(one["metadata"].get("deletionTimestamp") for one in world.pods().values())
    assert not world.api.forgotten


@scenario
async def test_what_a_garbled_message_says_is_that_the_worker_was_ready() -> None:
    world = await started(least=1, most=1)
    world.cooperative = False
    world.change(suspend=True)
    await world.round(1)
    world.exit("train-0", 0, said='{"ready": 1}{"ready": 1}')
    await world.go(3)
    assert world.phase() == "Suspended"


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
def test_no_report_stops_decisions(report: dict[str, Any]) -> None:
    async def run() -> None:
        world = await started(most=4, live=False)
        world.exit("train-0", 1, said={"report": report})
        await world.go(10)
        assert world.phase() == "Running"
        assert "speeds" not in world.status().record
        world.submit("other", most=1)
        await world.go(20)
        assert world.phase("other") == "Running"

    asyncio.run(run())


def test_a_job_whose_part_cannot_be_built_is_left_out_of_the_decision() -> None:
    world = World()
    world.submit("good", most=1)
    one = msgspec.convert(world.api.objects["elasticjobs", "ns", "good"], ElasticJob, strict=False)
    pod = pod_in(one)
    good = Candidate("good", job_of(one), Memory(Record()), pod, asked_by(pod, (ALIQUOT,)))
    bad = Candidate("bad", job_of(one), Memory(Record()), pod, ())
    changes = asyncio.run(Sizer(world.allocations).changes([bad, good], [], 1000.0))
    assert [(change.name, change.size) for change in changes] == [("good", 1)]


# --- sizes that do not come about -----------------------------------------------------------------


def allow(world: World, pods: int) -> None:
    """A ResourceQuota for so many pods."""
    world.api.faults.refuse = lambda method, path: (
        403
        if method == "POST" and path.endswith("/pods") and len(world.api.all("pods")) >= pods
        else None
    )


@scenario
async def test_a_size_that_the_api_server_refuses_is_not_tried_for_ever() -> None:
    world = World()
    allow(world, 2)
    world.submit(most=4)
    await world.go(80)
    assert (world.phase(), len(world.running())) == ("Running", 2)
    generation = world.status().generation
    await world.go(500)
    assert (len(world.running()), world.status().generation) == (2, generation)
    allow(world, 9)
    await world.go(1200)
    assert len(world.running()) == 4


@scenario
async def test_the_same_size_is_tried_again_more_and_more_rarely() -> None:
    world = World()
    allow(world, 1)
    world.submit(most=2)
    tries = []
    for second in range(4000):
        before = world.status().workers if second else 0
        await world.go(1)
        tries += [second] if world.status().workers == 2 > before else []
    gaps = [later - sooner for sooner, later in pairwise(tries)]
    assert gaps[0] >= 300
    assert all(later > 1.5 * sooner for sooner, later in pairwise(gaps))
    assert len(tries) >= 3


@scenario
async def test_nobody_makes_room_for_growth_that_waits_in_a_restart() -> None:
    world = World(gpus=6)
    world.gang("static", 2)
    world.place()
    world.submit("giver", least=1, most=2)
    await world.go(4)
    world.submit(least=2, most=4, workers={"sizes": [2, 4]})
    await world.go(4)
    assert (len(world.running("giver")), len(world.running())) == (2, 2)
    world.end_gang("static")
    for _ in range(20):
        await world.round(1)
        world.run_pods()
        if world.status().workers == 4 and world.phase() == "Starting":
            break
    world.gang("another", 1)  # it is quicker
    world.place()
    assert world.phase() == "Starting"
    for _ in range(10):
        await world.go(1)
        assert len(world.running("giver")) == 2


@pytest.mark.parametrize("live", [False, True])
def test_a_start_that_is_not_whole_is_given_up_for_a_smaller_one(*, live: bool) -> None:
    async def run() -> None:
        world = World()
        world.stuck.add("train-3")
        world.submit(most=4, live=live)
        await world.go(290)
        assert (world.phase(), len(world.running())) == ("Starting", 3)
        assert world.status().reason == "train-3: ImagePullBackOff: no such image"
        await world.go(40)
        assert (world.phase(), len(world.running())) == ("Running", 3)
        assert "not all of 4 workers have come in 300 s: train-3: ImagePullBackOff" in told(world)
        await world.go(100)
        assert (world.phase(), len(world.running())) == ("Running", 3)

    asyncio.run(run())


@scenario
async def test_the_smallest_start_stays_and_says_why() -> None:
    world = World()
    world.stuck.add("train-0")
    world.submit(least=2, most=2)
    await world.go(400)
    assert (world.phase(), world.status().generation) == ("Starting", 1)
    assert world.status().reason == "train-0: ImagePullBackOff: no such image"


# --- who acts -------------------------------------------------------------------------------------


@scenario
async def test_a_leader_that_stood_still_writes_and_deletes_nothing() -> None:
    world = await started(least=2)
    leads = [True]
    world.begin(may=lambda: leads[0])
    world.change(suspend=True)
    leads[0] = False
    before = world.api.version
    await world.round(1)
    assert world.api.version == before
    leads[0] = True
    await world.go(6)
    assert world.phase() == "Suspended"


@scenario
async def test_a_leader_stops_between_two_requests() -> None:
    world = World()
    left = [2]

    def may() -> bool:
        left[0] -= 1
        return left[0] >= 0

    world.begin(may=may)
    world.submit(least=4, most=4)
    for _ in range(5):
        await world.round(1)
    assert not world.pods()
    world.begin()
    await world.go(5)
    assert len(world.running()) == 4


@scenario
async def test_pods_that_came_late_do_not_outlive_their_job() -> None:
    world = await started(least=2)
    late = copy.deepcopy(world.pods()["train-1"])
    for pod in ("train-0", "train-1"):
        world.exit(pod, 0)
    await world.go(2)
    assert world.phase() == "Succeeded"
    late["metadata"] |= {"name": "train-7", "uid": "late"}
    late["metadata"]["labels"] |= {"aliquot.io/job-rank": "7"}
    world.api.put("pods", late)
    waits = copy.deepcopy(late)
    waits["metadata"] |= {"name": "train-8", "uid": "waits"}
    waits["metadata"]["labels"] |= {"aliquot.io/job-rank": "8"}
    waits["spec"].pop("nodeName")
    waits["status"] = {"phase": "Pending"}
    world.api.put("pods", waits)
    await world.go(3)
    assert set(world.pods()) == {"train-0", "train-1"}
    assert world.phase() == "Succeeded"
    assert not world.controller._deeds._killed, "what is gone is still remembered"


@scenario
async def test_a_pod_of_another_namespace_is_not_the_jobs_whatever_it_says() -> None:
    world = World()
    world.submit(least=2, most=2)
    await world.go(4)
    other = copy.deepcopy(world.pods()["train-0"])
    other["metadata"] |= {"namespace": "other", "uid": "other"}
    other["status"] = {"phase": "Failed", "containerStatuses": []}
    world.api.put("pods", other)
    await world.go(4)
    assert (world.phase(), world.status().generation) == ("Running", 1)
    assert ("pods", "other", "train-0") in world.api.objects


@scenario
async def test_a_memory_that_cannot_be_read_is_told_and_nothing_is_done() -> None:
    world = await started(least=2)
    job = copy.deepcopy(world.api.objects["elasticjobs", "ns", "train"])
    job["status"]["record"] = "nonsense"
    world.api.put("elasticjobs", job)
    await world.go(3)
    assert "status.record cannot be read" in world.status().reason
    assert "Delete the job and create it again." in world.status().reason
    assert len(world.running()) == 2


@scenario
async def test_one_job_with_an_unknown_phase_does_not_stop_the_others() -> None:
    world = World()
    world.submit("odd", most=1)
    job = copy.deepcopy(world.api.objects["elasticjobs", "ns", "odd"])
    world.api.put("elasticjobs", {**job, "status": {"phase": "Dreaming"}})
    world.submit(most=1)
    await world.go(5)
    assert world.phase() == "Running"


@scenario
async def test_a_job_is_placed_when_its_gang_is() -> None:
    world = World()
    world.submit(least=2, most=2)
    await world.round(1)
    await world.round(1)
    assert world.phase() == "Starting"
    placed = {kind: so for kind, so, _ in world.conditions()}
    assert placed["Placed"] == "False"
    await world.go(4)
    assert ("Placed", "True", "Running") in world.conditions()
