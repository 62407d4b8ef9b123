"""Resizing by a running pod's annotations, with a fake kubelet and a fake API server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.admission import AdmittedSize
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.model import Priority
from kubernetes.builders import make_pod
from kubernetes.node.rig import Node, at_work, grant_of, on_node

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.kubernetes.api.objects import Pod

UNITS = 58  # of a T4


def test_a_running_pod_is_resized_by_its_annotations(short_tmp: Path) -> None:
    async def resize(node: Node) -> None:
        pod, other = make_pod("a", memory=10, core=20), make_pod("b", memory=20)
        await node.run(pod)
        await node.run(other)
        name = grant_of(node, pod)

        async def answered(reason: str, text: str) -> None:
            await node.until(
                lambda: any(why == reason and text in message for why, message in node.events(pod))
            )

        node.annotate(pod, memory="5GiB", compute="50", priority="latency")
        await answered("Resized", "memory 2.5 GiB to 5 GiB, compute 20% to 50%")
        (part,) = node.grants()[name].slices
        assert (part.memory_bytes, part.compute_percent) == (20 * MEMORY_UNIT, 50)
        assert part.priority is Priority.LATENCY
        await node.until(lambda: node.counts()["vcuda-memory"] == 4 * UNITS - 10)
        node.annotate(pod, memory=str(UNITS))
        await answered("ResizeRefused", "of memory free")
        node.annotate(pod, memory="lots")
        await answered("InvalidAnnotation", "'lots', which is invalid")
        (part,) = node.grants()[name].slices
        assert part.memory_bytes == 20 * MEMORY_UNIT
        node.annotate(pod, memory="4")
        await answered("Resized", "memory 5 GiB to 1 GiB")
        await node.until(lambda: node.counts()["vcuda-memory"] == 4 * UNITS)
        await node.until(
            lambda: [size for _, size in node.holders().get("a", ())] == [10 * MEMORY_UNIT]
        )

    on_node(resize, short_tmp)


def test_a_shared_gpu_is_not_advised_to_ask_for_compute(short_tmp: Path) -> None:
    async def shared(node: Node) -> None:
        pod = make_pod("a", sgpu=1)
        await node.run(pod)
        node.annotate(pod, policy="hard", priority="latency")
        await node.until(lambda: "HardWithoutCompute" in dict(node.events(pod)))
        message = dict(node.events(pod))["HardWithoutCompute"]
        assert "Leave the policy out" in message
        assert "Ask for compute" not in message
        assert message.endswith("Until then no annotation changes container 'main'.")
        (part,) = node.grants()[grant_of(node, pod)].slices
        assert part.priority is Priority.NORMAL

    on_node(shared, short_tmp)


def test_a_shrink_below_the_used_memory_is_refused_with_the_reason(
    short_tmp: Path, native_dir: Path
) -> None:
    program = (
        "import ctypes, sys\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "context, address = ctypes.c_void_p(), ctypes.c_void_p()\n"
        "assert cuda.cuInit(0) == 0\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(5 << 30)) == 0\n"
        "print('here', flush=True)\n"
        "sys.stdin.read()\n"
    )

    async def shrink(node: Node) -> None:
        def refused(pod: Pod, *texts: str) -> bool:
            texts = "container 'main' stays as it is: ", *texts
            return any(
                reason == "ResizeRefused" and all(text in message for text in texts)
                for reason, message in node.events(pod)
            )

        pod = make_pod("a", memory=32)
        await node.run(pod)
        env = {
            "LD_LIBRARY_PATH": str(native_dir / "lib"),
            "ALIQUOT_DRIVER_DIR": str(native_dir / "sim"),
            "ALIQUOT_GRANT": str(node.state / "kept" / grant_of(node, pod)),
            "ALIQUOT_SIMULATE": "t4:4",
            "ALIQUOT_SIMULATE_STATE": str(node.state / "machine"),
        }
        with at_work(program, env):
            node.annotate(pod, memory="4GiB")
            await node.until(lambda: refused(pod, " MiB of GPU 0", "cannot be 4096 MiB"))

    on_node(shrink, short_tmp)


def test_growth_does_not_take_what_is_planned_for_other_pods(short_tmp: Path) -> None:
    async def growth(node: Node) -> None:
        pod = make_pod("a", memory=10)
        await node.run(pod)
        await node.until(node.holders)
        uuid = node.gpunode()["gpus"][0]["uuid"]
        plan = Plan({"main": ContainerPlan("sliced", (uuid,), (UNITS - 20) * MEMORY_UNIT)})
        notes = {"aliquot.io/plan": plan.encode()}
        bound = make_pod("b", memory=UNITS - 20, annotations=notes)
        node.bind(bound)

        async def answered(reason: str, text: str) -> None:
            await node.until(
                lambda: any(why == reason and text in message for why, message in node.events(pod))
            )

        node.annotate(pod, memory="100%")
        await answered("ResizeRefused", "other pods are about to start here")
        node.annotate(pod, memory="20")
        await answered("Resized", "memory 2.5 GiB to 5 GiB")
        await node.kubelet.admit(bound)
        await node.kubelet.start_container(bound, "main")
        assert len(node.grants()) == 2

    on_node(growth, short_tmp, shape="t4:1")


def test_growth_waits_for_the_schedulers_permission(short_tmp: Path) -> None:
    async def growth(node: Node) -> None:
        pod = make_pod("a", memory=10, core=20)
        await node.run(pod)
        name = grant_of(node, pod)
        await node.until(node.holders)

        def permit(uid: str, until: float, **sizes: str) -> str:
            named = {f"aliquot.io/{key}": value for key, value in sizes.items()}
            return AdmittedSize(uid, until, named).encode()

        def size() -> tuple[int, int | None]:
            (part,) = node.grants()[name].slices
            return part.memory_bytes // MEMORY_UNIT, part.compute_percent

        node.annotate(pod, allowed=False, memory="20", compute="10")
        now, uid = time.time(), pod.metadata.uid
        worthless = (
            permit(uid, now - 1, memory="20", compute="10"),
            permit("uid-b", now + 60, memory="20", compute="10"),
            permit(uid, now + 60, memory="30", compute="10"),
            permit(uid, now + 60, memory="20"),
            "{",
        )
        for text in worthless:
            node.annotate(pod, allowed=False, **{"admitted-size": text})
        other = make_pod("b", memory=4)
        await node.run(other)
        node.annotate(other, allowed=False, memory="2")
        await node.until(lambda: "Resized" in dict(node.events(other)))  # it has seen all of that
        assert not node.events(pod)
        assert size() == (10, 20)
        node.annotate(pod, memory="20", compute="10")
        await node.until(lambda: size() == (20, 10))
        node.annotate(pod, allowed=False, memory="12", priority="latency")
        await node.until(lambda: size() == (12, 10))  # a shrink needs none

    on_node(growth, short_tmp)
