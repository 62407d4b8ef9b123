"""Gangs that lack a member: a budget protects the others, or members have finished."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.gangs import sizes, state
from aliquot.kubernetes.gangs.sizes import size_in
from kubernetes.builders import make_pod
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import FakeApi, until
from kubernetes.gangs.world import World, is_bound, played


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "READ_FINISHED_SOON", 0.05)
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
        assert lists(world.api) == 1
        assert not world.bound("a")
        world.delete("launcher")
        world.pod("launcher", annotations=notes)
        world.succeed("launcher")
        await until(lambda: world.phase("a") == "Bound")

    played(World(2), play)


def lists(api: FakeApi) -> int:
    """How often the pods of the namespace were listed."""
    return api.requests.count(("GET", "/api/v1/namespaces/ns/pods"))


def test_succeeded_pods_are_listed_when_a_member_has_gone_and_seldom_else() -> None:
    """A namespace may have thousands of them."""

    async def run() -> None:
        async with FakeApi().serving() as api, api.client() as client:
            now = 1000.0
            finished = sizes.FinishedMembers(client, asks, lambda: now)
            for second in range(60):
                now = 1000.0 + second
                await finished.read({"ns"})
            assert lists(api) == 1
            finished.pod_gone(make_pod("worker", gpu=1))
            await finished.read({"ns"})
            assert lists(api) == 1
            finished.pod_gone(make_pod("launcher"))
            await finished.read({"ns"})
            await finished.read({"ns"})
            assert lists(api) == 2
            now += 600.0
            await finished.read({"ns"})
            assert lists(api) == 3

    asyncio.run(run())


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
