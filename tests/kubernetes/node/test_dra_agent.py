"""The agent with the DRA driver as a program, with a fake kubelet and a fake API server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.slices import control
from kubernetes.node.dra_objects import FakeDraKubelet, claim, parameters, result
from kubernetes.node.rig import NODE, Node, a_node
from support import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

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
        assert said["data"]["memory"] == "10240Mi"
        assert said["data"]["uuid"] == gpu
        assert said["shareID"] == device.share_id
        await node.until(lambda: {p["claim"] for p in parts(node)} == {"one", "whole"})

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

        await node.until(lambda: len(slices()) == 2)
        assert {one["spec"]["pool"]["generation"] for one in slices()} == {1}
        assert {one["spec"]["nodeName"] for one in slices()} == {NODE}
        for one in slices():  # a kubelet that starts does this
            node.api.delete("resourceslices", one["metadata"]["name"])
        await node.until(lambda: len(slices()) == 2)

        node.set_health("0 lost")

        def taints() -> dict[str, set[str]]:
            devices = [d for one in slices() for d in one["spec"].get("devices", ())]
            return {d["name"]: {t["key"] for t in d.get("taints", ())} for d in devices}

        lost = uuids(node)[0].lower()
        await node.until(
            lambda: (
                {name for name, keys in taints().items() if "aliquot.io/unhealthy" in keys}
                == {name for name in taints() if name.startswith(lost)}
            )
        )
        generations = {one["spec"]["pool"]["generation"] for one in slices()}
        assert len(generations) == 1
        assert DRIVER in json.dumps(slices())

    with_driver(example, short_tmp, "h100:2")
