"""The agent as a program, with a fake kubelet and a fake API server."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import time
from contextlib import suppress
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.node.agent import LOCK, NOT_SAVED, OTHER_AGENT
from aliquot.kubernetes.node.pods import GpuPod
from aliquot.model import Policy, Priority
from aliquot.model.errors import ArbiterError
from aliquot.slices import control
from kubernetes.builders import container, make_pod
from kubernetes.node.fake_kubelet import AdmissionError
from kubernetes.node.rig import NAMES, Node, at_work, grant_of, on_node

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.kubernetes.api.objects import Pod

UNITS = 58  # of a T4


def test_the_mixed_deployment_example_number_by_number(short_tmp: Path) -> None:
    async def example(node: Node) -> None:
        async def counts(gpu: int, sgpu: int, memory: int) -> None:
            wanted = {"gpu": gpu, "sgpu": sgpu, "vcuda-memory": memory}
            await node.until(lambda: wanted.items() <= node.counts().items())

        shared, sliced, whole = (
            make_pod("shared", sgpu=2),
            make_pod("sliced", memory=10),
            make_pod("whole", gpu=1),
        )
        await counts(4, 8, 344)
        await node.run(shared)
        await counts(2, 8, 172)
        await node.run(sliced)
        await counts(1, 6, 172)
        await node.run(whole)
        await counts(1, 4, 86)
        for pod in (sliced, shared, whole):
            node.end(pod)
        await counts(4, 8, 344)
        await node.until(lambda: not node.grants() and not node.holders())

    on_node(example, short_tmp, shape="rtx6000:4")


def test_a_container_gets_its_own_grant_on_different_gpus(short_tmp: Path) -> None:
    async def shares(node: Node) -> None:
        pod = make_pod("a", sgpu=3)
        await node.run(pod)
        grant = node.grants()[grant_of(node, pod)]
        assert len({part.gpu_uuid for part in grant.slices}) == 3
        assert {part.memory_bytes for part in grant.slices} == {node.gpunode_memory() // 2}
        assert node.kubelet.response(pod, "main").envs == {"NVIDIA_VISIBLE_DEVICES": "void"}
        await node.until(lambda: len(node.holders().get("a", ())) == 3)

    on_node(shares, short_tmp)


def test_slices_are_split_evenly_and_have_the_pods_settings(short_tmp: Path) -> None:
    async def slices(node: Node) -> None:
        notes = {"aliquot.io/gpus": "2", "aliquot.io/policy": "hard"}
        pod = make_pod("a", memory=20, core=60, annotations=notes)
        await node.run(pod)
        grant = node.grants()[grant_of(node, pod)]
        assert [part.memory_bytes for part in grant.slices] == [10 * MEMORY_UNIT] * 2
        assert {part.compute_percent for part in grant.slices} == {30}
        assert {part.policy for part in grant.slices} == {Policy.HARD}

    on_node(slices, short_tmp)


def test_pods_of_one_namespace_with_the_same_annotation_run_together(short_tmp: Path) -> None:
    async def together(node: Node) -> None:
        notes = {"aliquot.io/together": "ring of anything"}
        pods = {
            name: make_pod(name, memory=4, annotations=notes if name != "c" else {})
            for name in ("a", "b", "c")
        }
        groups = {}
        for name, pod in pods.items():
            await node.run(pod)
            groups[name] = node.grants()[grant_of(node, pod)].together
        assert groups["a"] == groups["b"] != groups["c"] is None
        other = msgspec.structs.replace(pods["a"].metadata, namespace="another")
        elsewhere = GpuPod(msgspec.structs.replace(pods["a"], metadata=other))
        assert elsewhere.together not in {None, groups["a"]}

    on_node(together, short_tmp)


def test_the_plan_decides_the_gpus(short_tmp: Path) -> None:
    async def planned(node: Node) -> None:
        await node.until(lambda: len(node.gpunode().get("gpus", ())) == 4)
        uuid = node.gpunode()["gpus"][3]["uuid"]
        plan = Plan({"main": ContainerPlan("sliced", (uuid,), 5 * MEMORY_UNIT)})
        pod = make_pod("a", memory=5, annotations={"aliquot.io/plan": plan.encode()})
        await node.run(pod)
        await node.until(lambda: node.holders() == {"a": [(3, 5 * MEMORY_UNIT)]})
        assert ("EqualCompute",) in [event[:1] for event in node.events(pod)]

    on_node(planned, short_tmp)


def test_pods_of_one_size_that_were_mixed_up_are_corrected(short_tmp: Path) -> None:
    async def swapped(node: Node) -> None:
        notes = {"aliquot.io/priority": "background"}
        first, second = make_pod("first", memory=7), make_pod("second", memory=7, annotations=notes)
        node.bind(first)
        node.bind(second)
        await node.kubelet.admit(second)  # the agent takes it for the first
        await node.kubelet.admit(first)
        for pod in (first, second):
            await node.kubelet.start_container(pod, "main")
        grants = node.grants()
        (part,) = grants[grant_of(node, second)].slices
        assert part.priority is Priority.BACKGROUND
        (part,) = grants[grant_of(node, first)].slices
        assert part.priority is Priority.NORMAL
        node.end(first)
        await node.until(lambda: list(node.holders()) == ["second"])
        assert list(node.grants()) == [grant_of(node, second)]

    on_node(swapped, short_tmp)


def test_an_init_containers_memory_is_reused_by_its_pod(short_tmp: Path) -> None:
    async def init(node: Node) -> None:
        first = container("first", memory=UNITS - 1, core=10)
        pod = make_pod("a", container("main", memory=UNITS, core=20), init=(first,))
        node.bind(pod)
        await node.kubelet.admit(pod)
        assert node.counts()["vcuda-memory"] == 4 * UNITS
        await node.kubelet.start_container(pod, "first")
        assert list(node.grants()) == [grant_of(node, pod, "first")]
        await node.kubelet.start_container(pod, "main")
        assert list(node.grants()) == [grant_of(node, pod, "main")]
        await node.kubelet.start_container(pod, "first")  # the pod starts again
        assert list(node.grants()) == [grant_of(node, pod, "first")]
        (part,) = node.grants()[grant_of(node, pod, "first")].slices
        assert (part.memory_bytes, part.compute_percent) == ((UNITS - 1) * MEMORY_UNIT, 10)
        other = make_pod("b", gpu=3)
        await node.run(other)

    on_node(init, short_tmp)


def test_containers_with_the_same_ids_have_one_grant(short_tmp: Path) -> None:
    async def same(node: Node) -> None:
        first = container("first", memory=9, core=10)
        pod = make_pod("a", container("main", memory=9, core=40), init=(first,))
        await node.run(pod)
        assert grant_of(node, pod, "first") == grant_of(node, pod, "main")
        (part,) = node.grants()[grant_of(node, pod)].slices
        assert (part.memory_bytes, part.compute_percent) == (9 * MEMORY_UNIT, 40)

    on_node(same, short_tmp)


def test_a_pod_that_the_watch_never_reported_is_served_by_its_resources(short_tmp: Path) -> None:
    async def alone(node: Node) -> None:
        pod = make_pod("static", memory=4, core=25)
        await node.kubelet.admit(pod)
        await node.kubelet.start_container(pod, "main")
        (part,) = node.grants()[grant_of(node, pod)].slices
        assert (part.memory_bytes, part.compute_percent) == (4 * MEMORY_UNIT, 25)
        node.bind(pod)  # its mirror
        node.set_phase(pod, "Running")
        await node.until(lambda: list(node.holders()) == ["static"])

    on_node(alone, short_tmp)


def test_an_invalid_request_is_refused_with_an_event(short_tmp: Path) -> None:
    async def refused(node: Node) -> None:
        core_alone, too_much = make_pod("core", core=30), make_pod("much", memory=UNITS + 1)
        for pod, text in (
            (core_alone, "asks for aliquot.io/vcuda-core: 30 and for no memory"),
            (too_much, "no GPU has enough free for"),
        ):
            node.bind(pod)
            with pytest.raises(AdmissionError, match=text):
                await node.kubelet.admit(pod)
            await node.until(lambda: any(text in message for _, message in node.events(pod)))  # noqa: B023
            node.end(pod)
        assert node.counts()["vcuda-memory"] == 4 * UNITS

    on_node(refused, short_tmp)


def test_restarts_of_the_kubelet_lose_nothing(short_tmp: Path) -> None:
    async def restarts(node: Node) -> None:
        pods = [make_pod("a", sgpu=1), make_pod("b", memory=3, core=5), make_pod("c", gpu=1)]
        for pod in pods:
            await node.run(pod)
        await node.until(lambda: len(node.holders()) == 3)
        before, ids = node.counts(), [node.kubelet.ids(pod) for pod in pods]
        took = []
        for _ in range(20):
            await node.kubelet.stop()
            await node.kubelet.start()
            began = time.monotonic()
            await node.kubelet.until_registered(*NAMES)
            took.append(time.monotonic() - began)
            assert node.counts() == before
        assert median(took) < 1, "a busy machine may take longer than the 100 ms of an idle one"
        assert ids == [node.kubelet.ids(pod) for pod in pods]
        another = make_pod("d", memory=2)
        await node.run(another)
        for pod in (*pods, another):
            node.end(pod)
        await node.until(lambda: node.counts()["gpu"] == 4 and not node.grants())

    on_node(restarts, short_tmp)


def test_an_agent_that_restarts_knows_the_grants_of_pods(short_tmp: Path) -> None:
    async def again(node: Node) -> None:
        pods = [make_pod("a", sgpu=2), make_pod("b", memory=30, core=10)]
        for pod in pods:
            await node.run(pod)
        await node.until(lambda: len(node.holders()) == 2)
        before, holders, grants = node.counts(), node.holders(), set(node.grants())
        node.kill_agent()
        gone = make_pod("gone", gpu=1)
        assert control.answers(node.state), "the arbiter still runs"
        node.start_agent()
        await node.ready()
        assert node.counts() == before
        assert set(node.grants()) == grants
        node.end(pods[0])
        await node.run(gone)
        await node.until(lambda: {"b", "gone"} == set(node.holders()))
        assert node.holders()["b"] == holders["b"]

    on_node(again, short_tmp)


def test_an_agent_killed_during_allocate_leaks_nothing(short_tmp: Path) -> None:
    async def killed(node: Node) -> None:
        rng = random.Random(5)  # noqa: S311 - chance, not secrets
        running: list[Pod] = []
        for number in range(6):
            pod = make_pod(f"p{number}", memory=3 + number, core=5)
            node.bind(pod)
            admission = asyncio.create_task(node.kubelet.admit(pod))
            await asyncio.sleep(rng.uniform(0, 0.008))
            node.kill_agent()
            try:
                await asyncio.wait_for(admission, 20)
                running.append(pod)
            except AdmissionError:
                node.set_phase(pod, "Failed")
            node.start_agent()
            await node.ready()
        for pod in running:
            await node.kubelet.start_container(pod, "main")
        names = {pod.metadata.name for pod in running}
        await node.until(lambda: set(node.holders()) == names)
        assert {grant_of(node, pod) for pod in running} == set(node.grants())
        grant = sum(int(pod.spec.containers[0].resources.limits[NAMES[3]]) for pod in running)
        sizes = [size for parts in node.holders().values() for _, size in parts]
        assert sum(sizes) == grant * MEMORY_UNIT
        for pod in running:
            node.end(pod)
        await node.until(lambda: node.counts()["vcuda-memory"] == 4 * UNITS and not node.grants())
        await node.until(lambda: node.counts()["gpu"] == 4)
        await node.run(make_pod("after", gpu=4))

    on_node(killed, short_tmp)


def test_an_agent_waits_until_the_one_before_has_ended(short_tmp: Path) -> None:
    """A pod that was deleted by force may still run: two agents would allocate the same GPUs."""

    async def wait(node: Node) -> None:
        await node.run(make_pod("a", memory=5))
        node.kill_agent()
        with (node.home / LOCK).open("a") as before:
            fcntl.flock(before, fcntl.LOCK_EX | fcntl.LOCK_NB)
            node.start_agent()
            await node.until(lambda: OTHER_AGENT in node.log())
            assert node.page("/livez") is None
        await node.ready()
        await node.until(lambda: set(node.holders()) == {"a"})
        with (node.home / LOCK).open("a") as next_one, pytest.raises(BlockingIOError):
            fcntl.flock(next_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert await node.end_agent() == 0

    on_node(wait, short_tmp)


def test_an_agent_whose_disk_is_full_goes_on_and_releases_later(short_tmp: Path) -> None:
    async def full(node: Node) -> None:
        stays, ends = make_pod("stays", memory=5), make_pod("ends", memory=6)
        for pod in (stays, ends):
            await node.run(pod)
        agent = node.agent_pid
        await node.until(lambda: set(node.holders()) == {"stays", "ends"})
        (node.home / "node.new").mkdir()  # no checkpoint can be written there
        node.end(ends)
        await node.until(lambda: NOT_SAVED in node.log())
        await node.kubelet.start_container(stays, "main")
        with pytest.raises(AdmissionError):
            await node.run(make_pod("new", memory=7))
        assert set(node.holders()) == {"stays", "ends"}
        (node.home / "node.new").rmdir()
        await node.until(lambda: set(node.holders()) == {"stays"})
        assert node.agent_pid == agent
        assert node.page("/readyz") == "ok\n"

    on_node(full, short_tmp)


def test_a_killed_arbiter_is_restarted_with_all_grants(short_tmp: Path) -> None:
    async def arbiter(node: Node) -> None:
        pod = make_pod("a", memory=5)
        await node.run(pod)
        seen = control.status(node.state)
        for pid in (seen.pid, int(seen.answer["serving_pid"])):
            os.kill(pid, signal.SIGSTOP)
        for pid in (seen.pid, int(seen.answer["serving_pid"])):
            os.kill(pid, signal.SIGKILL)
        await node.until(lambda: node.arbiter_pid() not in {None, seen.pid})
        await node.run(make_pod("b", memory=6))
        assert len(node.grants()) == 2
        node.end(pod)
        await node.until(lambda: len(node.grants()) == 1)

    on_node(arbiter, short_tmp)


def test_an_agent_with_another_policy_replaces_the_arbiter(short_tmp: Path) -> None:
    async def change(node: Node) -> None:
        def policy_is(wanted: str) -> bool:
            with suppress(ArbiterError):
                return bool(control.status(node.state).answer["unjoined"] == wanted)
            return False

        await node.run(make_pod("a", memory=5))
        grants = set(node.grants())
        assert policy_is("report")
        for wanted in ("end", "report"):
            node.kill_agent()
            node.start_agent("--unjoined", wanted)
            await node.until(partial(policy_is, wanted))
            await node.ready()
            assert set(node.grants()) == grants
        before = node.arbiter_pid()
        node.kill_agent()
        node.start_agent()
        await node.ready()
        assert node.arbiter_pid() == before, "the same policy"

    on_node(change, short_tmp)


def test_a_gpu_turns_unhealthy_and_recovers(short_tmp: Path) -> None:
    async def unhealthy(node: Node) -> None:
        pod = make_pod("a", memory=5)
        await node.run(pod)
        await node.until(lambda: bool(node.holders()))
        ((index, _),) = node.holders()["a"]
        node.set_health(f"{index} lost")
        await node.until(lambda: node.counts()["vcuda-memory"] == 3 * UNITS + 5)
        assert node.counts()["gpu"] == 3
        await node.until(lambda: node.gpunode()["gpus"][index].get("healthy") is False)
        assert node.holders()["a"] == [(index, 5 * MEMORY_UNIT)]
        # Events have a queue of their own: one may come after the GPUNode object.
        await node.until(lambda: "GPUUnhealthy" in dict(node.events(pod)))
        await node.kubelet.start_container(pod, "main")  # its container keeps the GPU
        node.set_health(f"{index} recovered")
        await node.until(lambda: node.counts()["vcuda-memory"] == 4 * UNITS)
        await node.until(lambda: "healthy" not in node.gpunode()["gpus"][index])

    on_node(unhealthy, short_tmp)


def test_pods_are_served_while_the_api_server_is_down(short_tmp: Path) -> None:
    async def down(node: Node) -> None:
        known = make_pod("known", memory=5)
        node.bind(known)
        await node.kubelet.admit(known)
        node.api.faults.refuse = lambda _method, _path: 503
        node.api.cut()
        await node.kubelet.start_container(known, "main")
        later = make_pod("later", sgpu=1)
        await node.kubelet.admit(later)
        await node.kubelet.start_container(later, "main")
        assert len(node.grants()) == 2
        node.bind(later)
        node.api.faults.refuse = lambda _method, _path: None
        node.set_phase(later, "Running")
        await node.until(lambda: set(node.holders()) == {"known", "later"})

    on_node(down, short_tmp)


def test_a_process_that_uses_a_gpu_without_a_grant_is_reported(
    short_tmp: Path, native_dir: Path
) -> None:
    program = (
        "import ctypes, sys\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "context = ctypes.c_void_p()\n"
        "assert cuda.cuInit(0) == 0\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "print('here', flush=True)\n"
        "sys.stdin.read()\n"
    )

    async def without_grant(node: Node) -> None:
        env = {
            "LD_LIBRARY_PATH": str(native_dir / "sim"),
            "ALIQUOT_SIMULATE": "t4:4",
            "ALIQUOT_SIMULATE_STATE": str(node.state / "machine"),
        }
        with at_work(program, env) as process:
            await node.until(
                lambda: any(
                    reason == "ProcessWithoutGrant" and f"process {process.pid}" in text
                    for reason, text in node.events()
                )
            )

    on_node(without_grant, short_tmp)


def test_a_container_that_uses_no_gpu_is_reported_once(short_tmp: Path) -> None:
    async def idle(node: Node) -> None:
        node.start_agent("--idle-after", "1s")
        await node.ready()
        pod, pending = make_pod("idle", memory=5), make_pod("pending", memory=5)
        for one in (pod, pending):
            await node.run(one)
        node.set_phase(pod, "Running")
        told = ("Idle", "container 'main' has used none of its GPUs for 1 s")
        await node.until(lambda: told in node.events(pod))
        page = await asyncio.to_thread(node.page, "/metrics")
        assert page
        found = {family.name: family for family in text_string_to_metric_families(page)}
        (value,) = (
            one.value
            for one in found["aliquot_slice_idle_seconds"].samples
            if one.labels["grant"] == grant_of(node, pod)
        )
        assert value >= 1
        assert told not in node.events(pending)
        node.set_phase(pending, "Running")
        await node.until(lambda: told in node.events(pending))
        assert node.events(pod).count(told) == 1

    on_node(idle, short_tmp, agent=False)


def test_metrics_can_be_read_by_prometheus(short_tmp: Path) -> None:
    async def metrics(node: Node) -> None:
        await node.run(make_pod("a", memory=5))
        page = await asyncio.to_thread(node.page, "/metrics")
        assert page
        found = {family.name: family for family in text_string_to_metric_families(page)}
        free = {
            one.labels["resource"]: one.value for one in found["aliquot_node_units_free"].samples
        }
        assert free["aliquot.io/vcuda-memory"] == 4 * UNITS - 5
        (info,) = found["aliquot_container_info"].samples
        assert (info.labels["pod"], info.labels["container"]) == ("a", "main")
        assert found["aliquot_arbiter_up"].samples[0].value == 1
        calls = {
            one.labels["call"]
            for one in found["aliquot_node_call_seconds"].samples
            if one.name.endswith("_count")
        }
        assert calls == {"Allocate", "PreStart"}
        assert await node.end_agent() == 0

    on_node(metrics, short_tmp)
