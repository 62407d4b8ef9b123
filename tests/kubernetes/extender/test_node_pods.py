"""The pods of nodes, which the scheduler writes into their GPUNodes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from aliquot.kubernetes.api.node_pods import (
    MOST_BYTES,
    MOST_BYTES_OF_ALL,
    NodePod,
    PodRecord,
    pod_of,
    record_of,
    spec_of,
)
from aliquot.kubernetes.api.objects import PODS, GpuNode
from aliquot.kubernetes.api.presets import ALIQUOT, PRESETS, Preset
from aliquot.kubernetes.api.requests import requests_of
from aliquot.kubernetes.extender.node_pods import NodePodsWriter
from kubernetes.builders import make_node, make_pod
from kubernetes.extender.replica import put_node, put_pod, replica
from kubernetes.fake_api import FakeApi, as_json, until

if TYPE_CHECKING:
    from kubernetes.fake_api import Json


def read(one: Json) -> NodePod:
    return msgspec.json.decode(json.dumps(one), type=NodePod)


def spec(api: FakeApi, name: str = "n1") -> dict[str, Any]:
    return api.objects["gpunodes", "", name].get("spec", {})  # type: ignore[no-any-return]


def names(api: FakeApi, node: str = "n1") -> list[str] | None:
    return [one["name"] for one in spec(api, node)["pods"]] if spec(api, node) else None


def writes(api: FakeApi) -> int:
    return api.requests.count(("PATCH", "/apis/aliquot.io/v1alpha1/gpunodes/n1"))


def test_a_bound_pod_is_written_with_its_plan_and_taken_out_when_it_has_ended() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1"))
        async with api.serving(), replica(api, pods_by_gpunode=True) as one:
            await one.ready()
            await until(lambda: names(api) == [])
            status = api.objects["gpunodes", "", "n1"]["status"]
            pod = make_pod("a", memory=5)
            await one.filter(pod, "n1")
            assert await one.bind(pod, "n1") == ""
            await until(lambda: names(api) == ["a"])
            (written,) = spec(api)["pods"]
            assert "aliquot.io/plan" in written["annotations"]
            assert api.objects["gpunodes", "", "n1"]["status"] == status
            body = dict(api.objects["pods", "ns", "a"])
            api.put("pods", {**body, "status": {"phase": "Succeeded"}})
            await until(lambda: names(api) == [])

    asyncio.run(run())


def test_the_next_leader_writes_what_differs_and_nothing_else() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1"))
        put_node(api, make_node("n2"))
        for name, node in (("a", "n1"), ("b", "n2")):
            put_pod(api, make_pod(name, memory=5, node=node))
        async with api.serving():
            async with replica(api, pods_by_gpunode=True):
                await until(lambda: (names(api), names(api, "n2")) == (["a"], ["b"]))
            before = writes(api)
            api.delete("pods", "b", "ns")
            async with replica(api, pods_by_gpunode=True):
                await until(lambda: names(api, "n2") == [])
            assert (writes(api), names(api)) == (before, ["a"])

    asyncio.run(run())


def test_a_gpunode_that_was_made_again_is_written_again() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1"))
        put_pod(api, make_pod("a", memory=5, node="n1"))
        async with api.serving(), replica(api, pods_by_gpunode=True):
            await until(lambda: names(api) == ["a"])
            api.delete("gpunodes", "n1")
            put_node(api, make_node("n1"))
            await until(lambda: names(api) == ["a"])

    asyncio.run(run())


def test_a_late_write_of_a_leader_before_takes_no_pod_from_an_agent() -> None:
    """It compared with a version that is no longer the newest."""

    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1"))
        seen = msgspec.convert(api.objects["gpunodes", "", "n1"], GpuNode)
        async with api.serving(), api.client() as client, asyncio.TaskGroup() as tasks:
            put_pod(api, make_pod("a", memory=5, node="n1"))
            async with replica(api, pods_by_gpunode=True):
                await until(lambda: names(api) == ["a"])
            api.delete("pods", "a", "ns")
            before = NodePodsWriter(client, (ALIQUOT,), lambda _: seen, lambda: True)
            running = tasks.create_task(before.run())
            before.compare_all(["n1"])
            tried = writes(api)
            await until(lambda: writes(api) > tried + 1)
            running.cancel()
            assert names(api) == ["a"]

    asyncio.run(run())


def test_pods_that_come_together_are_written_together() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1"))
        async with api.serving(), replica(api, pods_by_gpunode=True):
            await until(lambda: names(api) == [])
            api.requests.clear()
            pods = [f"p{number:02}" for number in range(40)]
            for name in pods:
                put_pod(api, make_pod(name, memory=1, node="n1"))
            await until(lambda: names(api) == pods)
            assert writes(api) < len(pods)

    asyncio.run(run())


def test_without_the_option_nothing_is_written() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1"))
        put_pod(api, make_pod("a", memory=5, node="n1"))
        async with api.serving(), replica(api) as one:
            await one.ready()
        assert (spec(api), writes(api)) == ({}, 0)

    asyncio.run(run())


def test_a_record_has_what_the_agent_needs_and_nothing_secret() -> None:
    pod = as_json(PODS, make_pod("a", memory=5, core=20, node="n1"))
    pod["metadata"]["annotations"] = {"aliquot.io/policy": "hard", "team.example/token": "hidden"}
    pod["metadata"]["labels"] = {"hidden": "hidden"}
    (main,) = pod["spec"]["containers"]
    main["env"] = [
        {"name": "PASSWORD", "value": "hidden"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute"},
    ]
    main |= {"image": "hidden", "command": ["hidden"]}
    other = {"name": "hidden", "resources": {"limits": {"cpu": "1"}}}
    pod["spec"]["containers"] = [main, other]
    pod["status"] = {
        "phase": "Running",
        "containerStatuses": [{"name": main["name"], "containerID": "containerd://abc"}],
    }
    record = record_of(read(pod), (ALIQUOT,))
    assert b"hidden" not in msgspec.json.encode(record)
    again = pod_of(record, "n1")
    assert requests_of(again, (ALIQUOT,)) == requests_of(read(pod), (ALIQUOT,))
    assert again.spec.containers[0].capabilities == "compute"
    assert again.status.container_statuses[0].containerID == "containerd://abc"
    assert (again.status.phase, again.spec.node_name) == ("Running", "n1")


def test_what_is_too_large_is_abridged_and_stays_known() -> None:
    fat = as_json(PODS, make_pod("fat", memory=5, node="n1"))
    fat["metadata"]["annotations"] = {"aliquot.io/together": "x" * (MOST_BYTES + 1)}
    record = record_of(read(fat), (ALIQUOT,))
    assert (record.name, record.annotations, record.containers) == ("fat", {}, ())
    assert pod_of(record, "n1").abridged
    notes = {"aliquot.io/together": "x" * 3000}
    many = [PodRecord(f"uid-{number}", "ns", f"p{number}", "", notes) for number in range(500)]
    written = spec_of(many)
    assert {one.uid for one in written.pods} == {one.uid for one in many}
    assert len(msgspec.json.encode(written)) < MOST_BYTES_OF_ALL + (128 << 10)
    assert spec_of(reversed(many[:9])).pods_digest == spec_of(many[:9]).pods_digest


def test_large_pods_take_no_room_from_small_ones() -> None:
    """Neither from those that come later, nor from those of another order in the next leader."""
    notes = {"aliquot.io/together": "x" * 3900}
    large = [PodRecord(f"a-{number}", "one", f"p{number}", "", notes) for number in range(400)]
    small = [
        PodRecord(f"b-{number}", "two", f"p{number}", "", {"aliquot.io/swap": "true"})
        for number in range(50)
    ]
    for records in ([*large, *small], [*reversed(small), *reversed(large)]):
        written = spec_of(records)
        assert {one.namespace for one in written.pods if one.abridged} == {"one"}
        assert len(msgspec.json.encode(written)) < MOST_BYTES_OF_ALL + (1 << 10)
    assert spec_of([*large, *small]).pods_digest == spec_of([*small, *large]).pods_digest


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda one: one.name)
def test_a_record_has_all_annotations_that_requests_are_made_of(preset: Preset) -> None:
    notes = {
        preset.models: "A100",
        preset.not_models: "T4",
        preset.gpus: "GPU-1",
        preset.not_gpus: "GPU-2",
        **{one.name: one.honoured[0] for one in preset.foreign},
        "aliquot.io/label": "web",
        "aliquot.io/with": "db",
        "aliquot.io/apart-from": "batch",
        "aliquot.io/alone": "false",
    }
    pod = as_json(PODS, make_pod("a", memory=5, node="n1"))
    (main,) = pod["spec"]["containers"]
    whole = {preset.whole: 1} if preset.per_gpu else {}
    main["resources"] = {"limits": {preset.memory: 5, **whole}}
    pod["metadata"]["annotations"] = notes
    again = pod_of(record_of(read(pod), (preset,)), "n1")
    assert again.metadata.annotations == notes
    assert requests_of(again, (preset,)) == requests_of(read(pod), (preset,))
