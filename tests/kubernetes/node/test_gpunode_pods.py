"""An agent that may read no pods: the scheduler writes them into its GPUNode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.node_pods import MOST_BYTES
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.node.gpunode_pods import NOT_WRITTEN
from aliquot.model import Priority
from kubernetes.builders import container, make_pod
from kubernetes.node.fake_kubelet import AdmissionError
from kubernetes.node.rig import NODE, Node, grant_of, on_node, writing_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

FLAG = "--pods-by-gpunode"


def spec(node: Node) -> dict[str, Any]:
    return node.api.objects["gpunodes", "", NODE].get("spec", {})  # type: ignore[no-any-return]


def on_such_node(
    test: Callable[[Node], Coroutine[Any, Any, None]], folder: Path, **options: Any
) -> None:
    on_node(test, folder, options=(FLAG,), **options)


def test_pods_get_what_they_ask_for_and_return_it(short_tmp: Path) -> None:
    async def life(node: Node) -> None:
        shared, sliced, whole = (
            make_pod("shared", sgpu=2),
            make_pod("sliced", memory=10),
            make_pod("whole", gpu=1),
        )
        for pod in (shared, sliced, whole):
            await node.run(pod)
        await node.until(lambda: node.holders().keys() == {"shared", "sliced", "whole"})
        node.end(sliced)
        node.set_phase(whole, "Succeeded")
        await node.until(lambda: list(node.holders()) == ["shared"])
        node.end(shared)
        await node.until(lambda: not node.grants() and not node.holders())
        assert "Refused" not in node.log()

    on_such_node(life, short_tmp)


def test_the_plan_and_the_settings_come_through_the_gpunode(short_tmp: Path) -> None:
    async def planned(node: Node) -> None:
        await node.until(lambda: len(node.gpunode().get("gpus", ())) == 4)
        plan = Plan(
            {"main": ContainerPlan("sliced", (node.gpunode()["gpus"][3]["uuid"],), 5 * MEMORY_UNIT)}
        )
        notes = {
            "aliquot.io/plan": plan.encode(),
            "aliquot.io/priority": "background",
            "aliquot.io/together": "ring",
        }
        pod = make_pod("a", memory=5, annotations=notes)
        await node.run(pod)
        await node.until(lambda: node.holders() == {"a": [(3, 5 * MEMORY_UNIT)]})
        grant = node.grants()[grant_of(node, pod)]
        assert grant.together is not None
        (part,) = grant.slices
        assert part.priority is Priority.BACKGROUND

    on_such_node(planned, short_tmp)


def test_a_running_pod_is_resized_by_its_annotations(short_tmp: Path) -> None:
    async def resized(node: Node) -> None:
        pod = make_pod("a", memory=5, core=20)
        await node.run(pod)
        node.set_phase(pod, "Running")
        node.annotate(pod, memory="10", compute="40%")
        await node.until(lambda: "Resized" in dict(node.events(pod)))
        (part,) = node.grants()[grant_of(node, pod)].slices
        assert (part.memory_bytes, part.compute_percent) == (10 * MEMORY_UNIT, 40)

    on_such_node(resized, short_tmp)


def test_pods_of_one_size_that_were_mixed_up_are_corrected(short_tmp: Path) -> None:
    async def swapped(node: Node) -> None:
        notes = {"aliquot.io/priority": "background"}
        first, second = make_pod("first", memory=7), make_pod("second", memory=7, annotations=notes)
        node.bind(first)
        node.bind(second)
        await node.kubelet.admit(second)
        await node.kubelet.admit(first)
        for pod in (first, second):
            await node.kubelet.start_container(pod, "main")
        (part,) = node.grants()[grant_of(node, second)].slices
        assert part.priority is Priority.BACKGROUND
        node.end(first)
        await node.until(lambda: list(node.holders()) == ["second"])

    on_such_node(swapped, short_tmp)


def test_a_pod_that_becomes_too_large_keeps_what_it_has(short_tmp: Path) -> None:
    """Its annotations are then not known: that must not undo them."""

    async def large(node: Node) -> None:
        notes = {"aliquot.io/priority": "background"}
        pod = make_pod("a", memory=5, annotations=notes)
        await node.run(pod)
        node.set_phase(pod, "Running")
        node.annotate(pod, memory="10")
        await node.until(lambda: "Resized" in dict(node.events(pod)))
        node.annotate(pod, together="x" * MOST_BYTES)
        await node.until(lambda: spec(node)["pods"][0].get("abridged"))
        other = make_pod("other", memory=3, annotations=notes)
        await node.run(other)  # the agent has seen the change before it
        await node.kubelet.start_container(pod, "main")
        for one, units in ((pod, 10), (other, 3)):
            (part,) = node.grants()[grant_of(node, one)].slices
            assert part.priority is Priority.BACKGROUND
            assert part.memory_bytes == units * MEMORY_UNIT

    on_such_node(large, short_tmp)


@pytest.mark.parametrize("late", [False, True], ids=["alone", "beside one of its size"])
def test_a_pod_that_is_too_large_gets_nothing(short_tmp: Path, *, late: bool) -> None:
    """Else it would escape what its annotations and the node's defaults say."""

    async def large(node: Node) -> None:
        notes = {"aliquot.io/priority": "background", "aliquot.io/together": "x" * MOST_BYTES}
        pod, beside = make_pod("a", memory=5, annotations=notes), make_pod("b", memory=5)
        if late:
            node.bind(beside)
        with pytest.raises((AdmissionError, grpc.aio.AioRpcError), match="more room than"):
            await node.run(pod)
        await node.until(lambda: "PodTooLarge" in dict(node.events(pod)))
        assert not node.grants()

    on_such_node(large, short_tmp)


def test_an_init_container_is_told_from_the_others(short_tmp: Path) -> None:
    async def init(node: Node) -> None:
        pod = make_pod(
            "a",
            container("main", memory=10),
            container("beside", memory=4),
            init=(container("init", memory=20),),
        )
        await node.run(pod)
        held = node.gpunode()["gpus"]
        names = {part["container"] for gpu in held for part in gpu.get("grants", ())}
        assert names <= {"init", "main", "beside"}
        node.end(pod)
        await node.until(lambda: not node.grants() and not node.holders())

    on_such_node(init, short_tmp)


def test_an_agent_that_restarts_without_a_scheduler_ends_no_grant(short_tmp: Path) -> None:
    """Of a GPUNode that was deleted and made again nobody knows which pods are gone."""

    async def restart(node: Node) -> None:
        node.start_agent(FLAG)
        async with writing_pods(node.api):
            await node.ready()
            kept, ended = make_pod("kept", memory=5), make_pod("ended", memory=5)
            await node.run(kept)
            await node.run(ended)
            await node.until(lambda: node.holders().keys() == {"kept", "ended"})
        node.kill_agent()
        node.api.delete("gpunodes", NODE)
        node.end(ended)
        node.start_agent(FLAG)
        await node.until(lambda: node.holders().keys() == {"kept", "ended"})
        await node.until(lambda: (node.failed_checks() or {}).get("pods") == NOT_WRITTEN)
        assert len(node.grants()) == 2
        async with writing_pods(node.api):
            await node.until(lambda: node.holders().keys() == {"kept"})

    on_node(restart, short_tmp, agent=False)


def test_a_pod_that_the_scheduler_has_not_written_yet_gets_gpus_by_size(short_tmp: Path) -> None:
    async def late(node: Node) -> None:
        node.start_agent(FLAG)
        async with writing_pods(node.api):
            await node.ready()
        pod = make_pod("a", memory=5)
        await node.run(pod)
        (grant,) = node.grants().values()
        assert [part.memory_bytes for part in grant.slices] == [5 * MEMORY_UNIT]
        async with writing_pods(node.api):
            await node.until(lambda: node.holders().keys() == {"a"})

    on_node(late, short_tmp, agent=False)
