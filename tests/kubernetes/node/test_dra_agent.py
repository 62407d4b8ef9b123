"""The agent with the DRA driver as a program, with a fake kubelet and a fake API server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.api.dra_devices import device_name
from aliquot.kubernetes.api.objects import Container, Pod, PodResourceClaim, PodSpec
from aliquot.kubernetes.node.dra.devices import OCCUPIED
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint
from aliquot.slices import control
from kubernetes.builders import make_pod
from kubernetes.node.dra_objects import FakeDraKubelet, claim, parameters, result
from kubernetes.node.rig import NODE, Node, a_node
from support import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from aliquot.model import Slice

OPTIONS = ("--dra", "--cdi", "always")


def with_driver(
    test: Callable[[Node, FakeDraKubelet], Coroutine[Any, Any, None]], folder: Path, shape: str
) -> None:
    async def run() -> None:
        async with a_node(folder, shape, agent=False) as node:
            kubelet = FakeDraKubelet(folder / "kubelet")
            node.start_agent(*OPTIONS)
            await kubelet.register()
            await node.until(lambda: node.page("/readyz") == "ok\n")
            await test(node, kubelet)

    asyncio.run(run())


def uuids(node: Node) -> list[str]:
    return [one.gpu.uuid for one in control.status(node.state).gpus]


def cdi_names(folder: Path) -> set[str]:
    return {path.stem.partition("-")[2] for path in folder.glob("aliquot.io-grant-*.json")}


def status_of(node: Node, name: str) -> list[Any]:
    found = node.api.objects["resourceclaims", "default", name]["status"].get("devices", [])
    return list(found)


def test_a_claim_is_prepared_once_and_survives_restarts_of_agent_and_arbiter(
    short_tmp: Path,
) -> None:
    async def example(node: Node, kubelet: FakeDraKubelet) -> None:
        gpu, other = uuids(node)
        one = claim(
            "one",
            result(gpu, memory="10Gi", compute="30"),
            config=(parameters(priority="latency"),),
        )
        whole = claim("whole", result(other, "whole"))
        for each in (one, whole):
            node.api.put("resourceclaims", each)
        first = await kubelet.prepare(one, whole)
        again = await kubelet.prepare(one, whole)
        assert first == again
        assert [answer.error for answer in first.values()] == ["", ""]
        (device,) = first["one"].devices
        assert device.share_id == one["status"]["allocation"]["devices"]["results"][0]["shareID"]
        driver, own = device.cdi_device_ids
        assert driver == "aliquot.io/driver=all"
        name = own.removeprefix("aliquot.io/grant=")
        grant = node.grants()[name]
        (slice_,) = grant.slices
        assert (slice_.memory_bytes, slice_.compute_percent) == (10 * GIB, 30)
        assert slice_.priority == "latency"
        assert len(node.grants()) == 2

        await node.until(lambda: status_of(node, "one"))
        (said,) = status_of(node, "one")
        assert said["data"]["memory"] == "10Gi"
        assert said["data"]["uuid"] == gpu
        assert said["shareID"] == device.share_id
        await node.until(lambda: {p["claim"] for p in parts(node)} == {"one", "whole"})
        assert {p["claimUID"] for p in parts(node)} == {"uid-of-one", "uid-of-whole"}
        health = await kubelet.health()
        assert health == dict.fromkeys(health, "")
        assert {device.device_name} < set(health)

        node.kill_agent()
        for path in node.cdi.iterdir():  # as a reboot does
            path.unlink()
        node.start_agent(*OPTIONS)
        await kubelet.register()
        await node.until(lambda: node.page("/readyz") == "ok\n")
        await node.until(lambda: len(cdi_names(node.cdi)) == 2)
        assert await kubelet.prepare(one, whole) == first
        assert name in node.grants()

        assert control.end(node.state, name)  # as an arbiter that has lost it
        await node.until(lambda: name in node.grants())

        ended = await kubelet.unprepare(one, claim("unknown"), whole)
        assert {answer.error for answer in ended.values()} == {""}
        assert not node.grants()
        await node.until(lambda: not cdi_names(node.cdi))
        assert {answer.error for answer in (await kubelet.unprepare(one)).values()} == {""}

    with_driver(example, short_tmp, "h100:2")


def parts(node: Node) -> list[Any]:
    return [part for gpu in node.gpunode().get("gpus", ()) for part in gpu.get("grants", ())]


def test_the_node_publishes_its_gpus_and_writes_deleted_slices_again(short_tmp: Path) -> None:
    async def example(node: Node, _: FakeDraKubelet) -> None:
        def slices() -> list[Any]:
            return node.api.all("resourceslices")

        def generations() -> set[int]:
            return {one["spec"]["pool"]["generation"] for one in slices()}

        # An arbiter that needs long to start makes another generation.
        await node.until(lambda: len(slices()) == 2 and len(generations()) == 1)
        assert {one["spec"]["nodeName"] for one in slices()} == {NODE}
        for one in slices():  # a kubelet that starts does this
            node.api.delete("resourceslices", one["metadata"]["name"])
        await node.until(lambda: len(slices()) == 2)

        node.set_health("0 lost")

        lost = uuids(node)[0].lower()
        await node.until(
            lambda: (
                {name for name, keys in tainted(node).items() if "aliquot.io/unhealthy" in keys}
                == {name for name in tainted(node) if name.startswith(lost)}
            )
        )
        await node.until(lambda: len(generations()) == 1)
        assert DRIVER in json.dumps(slices())

    with_driver(example, short_tmp, "h100:2")


def test_a_pod_makes_the_slice_of_its_claim_smaller_and_never_larger_than_that(
    short_tmp: Path,
) -> None:
    async def example(node: Node, kubelet: FakeDraKubelet) -> None:
        (gpu,) = uuids(node)
        one = claim("one", result(gpu, memory="10Gi", compute="30"), pods=("pod",))
        config = [parameters(policy="hard", priority="background")]
        one["status"]["allocation"]["devices"]["config"] = config
        node.api.put("resourceclaims", one)
        pod = pod_with_a_claim("pod")
        node.bind(pod)
        await kubelet.prepare(one)

        def slices() -> list[tuple[int, int, str]]:
            found = all_slices(node)
            return [(one.memory_bytes, one.compute_percent, one.policy) for one in found]

        assert slices() == [(10 * GIB, 30, "hard")]
        node.annotate(pod, memory="4GiB", compute="10%")
        await node.until(lambda: slices() == [(4 * GIB, 10, "hard")])
        await node.until(
            lambda: [said["data"]["memory"] for said in status_of(node, "one")] == ["4Gi"]
        )
        node.annotate(pod, memory="11GiB")
        await node.until(lambda: len(refusals(node)) == 1)
        node.annotate(pod, memory="1GiB", compute="31%")
        await node.until(lambda: len(refusals(node)) == 2)
        assert slices() == [(4 * GIB, 10, "hard")]
        node.annotate(pod, memory="10GiB", compute="30%", priority="latency", allowed=False)
        await node.until(lambda: slices() == [(10 * GIB, 30, "hard")])
        await node.until(lambda: {part.priority for part in all_slices(node)} == {"latency"})

    with_driver(example, short_tmp, "h100:1")


def pod_with_a_claim(name: str) -> Pod:
    pod = make_pod(name, Container(name="main"), uid=name)
    spec = PodSpec(resource_claims=(PodResourceClaim(name="gpu"),))
    return msgspec.structs.replace(pod, spec=spec)


def all_slices(node: Node) -> list[Slice]:
    return [part for grant in node.grants().values() for part in grant.slices]


def refusals(node: Node) -> list[str]:
    return [message for reason, message in node.events() if reason == "ResizeRefused"]


def test_a_gpu_of_a_container_without_a_claim_gets_none(short_tmp: Path) -> None:
    """After a switch from device plugins, and back."""

    async def example() -> None:
        async with a_node(short_tmp, "t4:2") as node:
            pod = make_pod("old", gpu=1)
            await node.run(pod)
            await node.end_agent()
            kubelet = FakeDraKubelet(short_tmp / "kubelet")
            node.start_agent(*OPTIONS)
            await kubelet.register()
            occupied, free = uuids(node)
            await node.until(lambda: any(OCCUPIED in keys for keys in tainted(node).values()))
            if OCCUPIED not in tainted(node)[device_name(occupied, "whole")]:
                occupied, free = free, occupied
            # All have another taint while an arbiter needs long to answer.
            await node.until(
                lambda: all(
                    keys == ({OCCUPIED} if name.startswith(occupied.lower()) else set())
                    for name, keys in tainted(node).items()
                )
            )
            late = claim("late", result(occupied, "whole"))
            fits = claim("fits", result(free, "whole"), pods=("holder",))
            holder = pod_with_a_claim("holder")
            node.bind(holder)
            for one in (late, fits):
                node.api.put("resourceclaims", one)
            answers = await kubelet.prepare(late, fits)
            assert "not free" in answers["late"].error
            assert not answers["fits"].error
            node.end(pod)
            await node.until(lambda: not any(tainted(node).values()))
            assert not (await kubelet.prepare(late))["late"].error

            await node.end_agent()
            node.start_agent()
            await node.ready()
            saved = Checkpoint(node.home / "node.json")  # no pod has the other claim
            await node.until(
                lambda: [grant.owner.pod for grant in saved.load().grants] == ["holder"]
            )
            assert len(node.grants()) == 1
            node.end(holder)
            await node.until(lambda: not node.grants())

    asyncio.run(example())


def test_devices_that_aliquot_allocates_have_a_taint_and_the_gpunode_says_so(
    short_tmp: Path,
) -> None:
    async def example(node: Node) -> None:
        node.start_agent(*OPTIONS)
        await node.until(lambda: tainted(node))
        assert not any(tainted(node).values())
        await node.until(lambda: node.gpunode().get("allocator") == "kube-scheduler")
        await node.end_agent()
        node.start_agent(*OPTIONS, "--scheduled")
        await node.until(lambda: all(tainted(node).values()))
        assert all(keys == {"aliquot.io/scheduled"} for keys in tainted(node).values())
        await node.until(lambda: node.gpunode().get("allocator") == "aliquot")

    async def run() -> None:
        async with a_node(short_tmp, "h100:1", agent=False) as node:
            await example(node)

    asyncio.run(run())


def tainted(node: Node) -> dict[str, set[str]]:
    """The taints of each device."""
    specs = [one["spec"] for one in node.api.all("resourceslices")]
    devices = [device for spec in specs for device in spec.get("devices", ())]
    return {one["name"]: {taint["key"] for taint in one.get("taints", ())} for one in devices}
