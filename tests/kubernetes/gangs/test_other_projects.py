"""Gangs of LeaderWorkerSet, KubeRay and Job, from pods as their controllers create them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aliquot.kubernetes.api.names import GATE
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.cluster.membership import GangKey, Source, membership_of
from aliquot.kubernetes.gangs import sizes
from aliquot.kubernetes.gangs.sizes import size_in
from kubernetes.builders import pod_of
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import Json, until
from kubernetes.gangs.world import SOON, World, led, played

LWS = "leaderworkerset.sigs.k8s.io"
SET = Source("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", "vllm")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "READ_SOURCE_AGAIN", 0.05)


def template(**limits: int) -> Json:
    resources = {"limits": {f"aliquot.io/{name}": count for name, count in limits.items()}}
    return {"spec": {"containers": [{"name": "main", "resources": resources}]}}


# --- LeaderWorkerSet ------------------------------------------------------------------------------


def group_meta(group: int, worker: int, size: int) -> dict[str, Any]:
    """Labels and annotations of a pod of a group; the leader is worker 0."""
    labels = {
        f"{LWS}/name": "vllm",
        f"{LWS}/group-index": str(group),
        f"{LWS}/group-key": f"5c5fcdfb44cca2a2d8a0e0a8a0b1f5e7b1b0f1{group:02}",
        f"{LWS}/worker-index": str(worker),
        f"{LWS}/template-revision-hash": "7d4b8c9f6",
    }
    notes = {f"{LWS}/size": str(size)}
    if worker:
        notes[f"{LWS}/leader-name"] = f"vllm-{group}"
    return {"labels": labels, "annotations": notes}


def name_of(group: int, worker: int) -> str:
    return f"vllm-{group}-{worker}" if worker else f"vllm-{group}"


def put_set(world: World, size: int, policy: str = "LeaderCreated") -> None:
    spec = {
        "replicas": 1,
        "startupPolicy": policy,
        "leaderWorkerTemplate": {"size": size, "workerTemplate": template(gpu=1)},
    }
    world.api.put(
        "leaderworkersets", {"metadata": {"name": "vllm", "namespace": "ns"}, "spec": spec}
    )


def put_pods(world: World, size: int, *workers: int, group: int = 0, **asked: Any) -> None:
    for worker in workers:
        meta = group_meta(group, worker, size)
        world.pod(name_of(group, worker), gated=True, **meta, **(asked or {"gpu": 1}))


def gates_of(world: World, name: str) -> list[str]:
    spec = world.api.objects["pods", "ns", name]["spec"]
    return [one["name"] for one in spec.get("schedulingGates", ())]


def test_each_group_of_a_leader_worker_set_is_a_gang() -> None:
    def found(group: int, worker: int) -> Any:
        return membership_of(
            pod_of({"metadata": {"name": "p", "namespace": "ns", **group_meta(group, worker, 3)}})
        )

    leader, worker, other = found(0, 0), found(0, 1), found(1, 0)
    assert leader.key == worker.key == GangKey("ns", "vllm-0")
    assert other.key == GangKey("ns", "vllm-1")
    assert (leader.size, leader.source) == (3, SET)
    assert leader.leads
    assert not worker.leads


def test_a_group_starts_when_all_its_pods_exist() -> None:
    async def play(world: World, _: Replica) -> None:
        put_set(world, 3)
        put_pods(world, 3, 0, 1)
        await until(lambda: world.why("vllm-0") == "2 of its 3 pods exist")
        put_pods(world, 3, 0, 1, 2, group=1)
        await until(lambda: world.phase("vllm-1") == "Bound")
        assert world.bound().keys() == {"vllm-1", "vllm-1-1", "vllm-1-2"}
        put_pods(world, 3, 2)
        await until(lambda: world.phase("vllm-0") == "Bound")

    played(World(3, 3), play)


def test_a_group_keeps_the_size_of_its_pods_while_the_set_is_changed() -> None:
    async def play(world: World, _: Replica) -> None:
        put_set(world, 8)
        put_pods(world, 2, 0, 1)
        await until(lambda: world.phase("vllm-0") == "Bound")

    played(World(2), play)


def test_a_group_starts_without_the_right_to_read_its_set() -> None:
    async def play(world: World, _: Replica) -> None:
        world.api.faults.refuse = lambda _, path: 403 if "leaderworkersets" in path else None
        put_pods(world, 2, 0, 1)
        await until(lambda: world.phase("vllm-0") == "Bound")

    played(World(2), play)


def test_the_leader_of_a_leader_ready_set_goes_alone_and_the_workers_together() -> None:
    async def play(world: World, _: Replica) -> None:
        put_set(world, 3, "LeaderReady")
        put_pods(world, 3, 0)
        await until(lambda: world.phase("vllm-0") == "Bound")
        put_pods(world, 3, 1)
        await until(lambda: world.why("vllm-0") == "its leader runs; 2 of its 3 pods exist")
        assert world.bound().keys() == {"vllm-0"}
        put_pods(world, 3, 2)
        await until(lambda: len(world.bound()) == 3)
        await until(lambda: world.phase("vllm-0") == "Bound")

    played(World(3), play)


def test_workers_that_do_not_all_fit_wait_beside_their_leader() -> None:
    async def play(world: World, _: Replica) -> None:
        put_set(world, 3, "LeaderReady")
        put_pods(world, 3, 0)
        await until(lambda: world.phase("vllm-0") == "Bound")
        put_pods(world, 3, 1, 2)
        await until(lambda: "2 GPUs requested; 1 free" in world.why("vllm-0"))
        await asyncio.sleep(3 * SOON.times.grace)  # the others of a usual gang would be late now
        assert world.bound().keys() == {"vllm-0"}
        assert not world.eviction_reason("vllm-0")

    played(World(2), play)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_whose_workers_started_by_half_is_evicted(*, restarted: bool) -> None:
    async def run() -> None:
        world = World(3)
        async with world.api.serving():
            async with led(world):
                put_set(world, 3, "LeaderReady")
                put_pods(world, 3, 0)
                await until(lambda: world.phase("vllm-0") == "Bound")
                if not restarted:
                    await start_by_half(world)
            if restarted:
                began = json.loads(json.dumps(world.api.objects["pods", "ns", "vllm-0"]))
                began["status"] = {"startTime": "2026-11-15T12:00:00Z"}  # long ago
                world.api.put("pods", began)
                world.revive()
                async with led(world):
                    await start_by_half(world)

    async def start_by_half(world: World) -> None:
        def refuse(_: str, path: str) -> int | None:
            return 403 if path.endswith("vllm-0-2/binding") else None

        world.api.faults.refuse = refuse
        put_pods(world, 3, 1, 2)
        await until(lambda: world.bound().keys() == {"vllm-0", "vllm-0-1"})
        await until(lambda: not world.bound())
        texts = [text for _, text in world.events("vllm-0")]
        assert any("only 2 of 3 of its pods got their nodes" in one for one in texts), texts

    asyncio.run(run())


def test_workers_that_another_gate_holds_back_are_not_placed() -> None:
    async def play(world: World, _: Replica) -> None:
        put_set(world, 2, "LeaderReady")
        put_pods(world, 2, 0)
        await until(lambda: world.phase("vllm-0") == "Bound")
        gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
        world.pod("vllm-0-1", spec=gates, gpu=1, **group_meta(0, 1, 2))
        text = "other gates hold its pods back: kueue.x-k8s.io/admission"
        await until(lambda: world.why("vllm-0") == text)

    played(World(2), play)


def test_a_leader_without_gpus_goes_first_and_its_workers_start_together() -> None:
    async def play(world: World, _: Replica) -> None:
        put_set(world, 3, "LeaderReady")
        world.pod("vllm-0", gated=True, **group_meta(0, 0, 3))
        await until(lambda: gates_of(world, "vllm-0") == [])
        put_pods(world, 3, 1)
        await until(lambda: world.why("vllm-0") == "2 of its 3 pods exist")
        put_pods(world, 3, 2)
        await until(lambda: {"vllm-0-1", "vllm-0-2"} <= world.bound().keys())

    played(World(2), play)


def test_a_leader_without_gpus_waits_for_its_workers_if_they_are_created_with_it() -> None:
    async def play(world: World, _: Replica) -> None:
        put_set(world, 3)
        world.pod("vllm-0", gated=True, **group_meta(0, 0, 3))
        put_pods(world, 3, 1)
        await until(lambda: world.why("vllm-0") == "2 of its 3 pods exist")
        assert gates_of(world, "vllm-0") == [GATE]

    played(World(2), play)


def test_a_new_scheduler_does_not_evict_a_leader_whose_workers_wait() -> None:
    async def run() -> None:
        world = World(2)
        async with world.api.serving():
            async with led(world):
                put_set(world, 3, "LeaderReady")
                put_pods(world, 3, 0)
                await until(lambda: len(world.bound()) == 1)
            gang = world.api.objects.get(("gangs", "ns", "vllm-0"))
            if gang is not None:  # the leader died before it wrote that the gang was whole
                gang["status"].pop("wholeOnce", None)
                world.api.put("gangs", gang)
            world.revive()
            put_pods(world, 3, 1, 2)
            async with led(world):
                await until(lambda: "2 GPUs requested; 1 free" in world.why("vllm-0"))
                await asyncio.sleep(3 * SOON.times.grace)
                assert not world.eviction_reason("vllm-0")
                assert world.bound().keys() == {"vllm-0"}

    asyncio.run(run())


# --- RayCluster -----------------------------------------------------------------------------------


def ray_labels(kind: str, group: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/created-by": "kuberay-operator",
        "app.kubernetes.io/name": "kuberay",
        "ray.io/cluster": "ray",
        "ray.io/group": group,
        "ray.io/identifier": f"ray-{kind}",
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": kind,
    }


def ray_spec(**group: Any) -> Json:
    return {
        "headGroupSpec": {"rayStartParams": {}, "template": template()},
        "workerGroupSpecs": [{"groupName": "gpus", "template": template(gpu=1), **group}],
    }


def test_the_pods_of_a_ray_cluster_are_a_gang() -> None:
    meta = {"name": "p", "namespace": "ns", "labels": ray_labels("worker", "gpus")}
    membership = membership_of(pod_of({"metadata": meta}))
    assert membership is not None
    assert membership.key == GangKey("ns", "ray")
    assert membership.source == Source("ray.io/v1", "RayCluster", "rayclusters", "ray")
    meta["labels"] = ray_labels("redis-cleanup", "headgroup")
    assert membership_of(pod_of({"metadata": meta})) is None


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (ray_spec(replicas=5, minReplicas=2, maxReplicas=8), 2),
        (ray_spec(replicas=2), 0),
        (ray_spec(minReplicas=2, numOfHosts=4), 8),
        (ray_spec(minReplicas=2, suspend=True), 0),
        ({"headGroupSpec": {"template": template(gpu=1)}}, 1),
        (
            {
                "headGroupSpec": {"template": template(gpu=1)},
                "workerGroupSpecs": [
                    {"minReplicas": 2, "template": template(gpu=1)},
                    {"minReplicas": 3, "template": template()},
                ],
            },
            3,
        ),
        ({}, None),
        (ray_spec(minReplicas="?"), None),
    ],
)
def test_a_ray_cluster_needs_its_head_and_its_least_workers(spec: Json, size: int | None) -> None:
    assert size_in("RayCluster", spec, lambda pod: asks(pod, (ALIQUOT,))) == size


def test_a_ray_cluster_starts_with_its_least_workers_and_grows() -> None:
    async def play(world: World, _: Replica) -> None:
        spec = ray_spec(replicas=2, minReplicas=2, maxReplicas=4)
        world.api.put("rayclusters", {"metadata": {"name": "ray", "namespace": "ns"}, "spec": spec})
        world.pod("ray-head", gated=True, labels=ray_labels("head", "headgroup"))
        worker = ray_labels("worker", "gpus")
        world.pod("ray-gpus-worker-a", gated=True, labels=worker, gpu=1)
        await until(lambda: world.why("ray") == "1 of its 2 pods exist")
        world.pod("ray-gpus-worker-b", gated=True, labels=worker, gpu=1)
        await until(lambda: world.phase("ray") == "Bound")
        await until(lambda: gates_of(world, "ray-head") == [])
        world.pod("ray-gpus-worker-c", gated=True, labels=worker, gpu=1)
        await until(lambda: "ray-gpus-worker-c" in world.bound())

    played(World(3), play)


# --- Jobs -----------------------------------------------------------------------------------------


def test_an_indexed_job_is_a_gang_only_by_label() -> None:
    labels = {
        "batch.kubernetes.io/controller-uid": "2d3f",
        "batch.kubernetes.io/job-completion-index": "1",
        "batch.kubernetes.io/job-name": "sweep",
        "job-name": "sweep",
    }
    meta = {"name": "sweep-1-x", "namespace": "ns", "labels": labels}
    assert membership_of(pod_of({"metadata": meta})) is None
    meta["labels"] = {**labels, "aliquot.io/gang": "sweep", "aliquot.io/gang-size": "4"}
    membership = membership_of(pod_of({"metadata": meta}))
    assert membership is not None
    assert (membership.key.name, membership.size) == ("sweep", 4)
