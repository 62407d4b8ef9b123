"""Gangs that lack a member: a budget protects the others, or members have finished."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.gangs import sizes, state
from aliquot.kubernetes.gangs.sizes import size_in
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, played


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "READ_FINISHED_AGAIN", 0.05)
    monkeypatch.setattr(state, "FIRST_PAUSE", 0.1)


def test_a_protected_incomplete_gang_is_completed_later() -> None:
    async def play(world: World, _: Replica) -> None:
        def refuse(_: str, path: str) -> int | None:
            return 403 if path.endswith("a-1/binding") else None

        world.api.faults.refuse = refuse
        world.api.faults.budgets = {"a-0": "keep-it"}
        world.gang("a", 2)
        await until(lambda: len(world.bound("a")) == 1)
        await until(lambda: "disruption budget keep-it" in world.why("a"))
        await until(lambda: "EvictionBlocked" in {reason for reason, _ in world.events("a-0")})
        assert set(world.bound("a")) == {"a-0"}
        world.api.faults.refuse = lambda *_: None
        await is_bound(world, "a", 2)
        assert not world.why("a")

    played(World(2), play)


def test_the_status_says_what_protects_an_incomplete_gang() -> None:
    async def play(world: World, _: Replica) -> None:
        world.api.faults.refuse = lambda _, path: 403 if path.endswith("a-1/binding") else None
        world.api.faults.budgets = {"a-0": "keep-it"}
        world.gang("a", 2)
        await until(lambda: len(world.bound("a")) == 1)
        world.delete("a-1")
        text = "1 of 2 of its pods have nodes, and the others do not exist"
        await until(lambda: text in world.why("a"))
        await until(lambda: "disruption budget keep-it" in world.why("a"))

    played(World(2), play)


def test_a_finished_member_without_a_gpu_counts() -> None:
    async def play(world: World, _: Replica) -> None:
        launcher = {"aliquot.io/gang": "a", "aliquot.io/gang-size": "3"}
        world.pod("launcher", annotations=launcher)
        world.gang("a", 3, pods=1)
        await until(lambda: world.why("a") == "2 of its 3 pods exist")
        world.succeed("launcher")
        world.gang("a", 3, pods=1, first=1)
        await until(lambda: world.phase("a") == "Bound")
        assert {"a-0", "a-1"} <= world.bound("a").keys()

    played(World(2), play)


def test_a_launcher_of_an_earlier_run_does_not_count() -> None:
    async def play(world: World, _: Replica) -> None:
        notes = {"aliquot.io/gang": "a", "aliquot.io/gang-size": "3"}
        world.pod("launcher", annotations=notes)
        body = world.api.objects["pods", "ns", "launcher"]
        body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        world.api.put("pods", body)
        world.succeed("launcher")
        world.gang("a", 3, pods=2)
        await until(lambda: world.why("a") == "2 of its 3 pods exist")
        reads = [path for _, path in world.api.requests].count("/api/v1/namespaces/ns/pods")
        await until(
            lambda: (
                [path for _, path in world.api.requests].count("/api/v1/namespaces/ns/pods")
                > reads + 2
            )
        )
        assert not world.bound("a")

    played(World(2), play)


def test_a_gang_whose_launcher_finishes_early_is_complete() -> None:
    async def play(world: World, _: Replica) -> None:
        world.api.faults.refuse = lambda _, path: 503 if path.endswith("a-1/binding") else None
        notes = {"aliquot.io/gang": "a", "aliquot.io/gang-size": "3"}
        world.pod("launcher", annotations=notes)
        world.gang("a", 3, pods=2)
        await until(lambda: "a-0" in world.bound("a"))
        world.succeed("launcher")
        world.api.faults.refuse = lambda *_: None
        await until(lambda: world.phase("a") == "Bound")
        found = world.status("a")
        assert found is not None
        assert found.status.whole_once

    played(World(2), play)


def template(**limits: int) -> dict[str, Any]:
    resources = {"limits": {f"aliquot.io/{name}": count for name, count in limits.items()}}
    return {"spec": {"containers": [{"name": "main", "resources": resources}]}}


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        (
            "MPIJob",
            {
                "mpiReplicaSpecs": {
                    "Launcher": {"replicas": 1, "template": template()},
                    "Worker": {"replicas": 4, "template": template(gpu=8)},
                }
            },
            4,
        ),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {"template": {"spec": {"template": template()}}},
                    {
                        "replicas": 2,
                        "template": {"spec": {"parallelism": 3, "template": template(gpu=1)}},
                    },
                ]
            },
            6,
        ),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"template": template()}}}, 0),
    ],
)
def test_the_size_of_a_job_counts_templates_that_request_gpus(
    kind: str, spec: dict[str, Any], size: int
) -> None:
    assert size_in(kind, spec, lambda pod: asks(pod, (ALIQUOT,))) == size
