"""A driver that is updated, hangs or is missing, GPUs that come back, and what /healthz says."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aliquot.devices import parse_shape
from aliquot.kubernetes.node.machine import NodeOptions, read_machine
from aliquot.model.strength import StrengthOverrides
from aliquot.slices import control
from kubernetes.builders import make_pod
from kubernetes.node.rig import Node, grant_of, on_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OLD, NEW = "580.159.04", "590.1.02"
MISMATCH = f"libraries have version {NEW} and its kernel module has {OLD}"
GPUS = 4


def gpus_of(node: Node) -> int | None:
    return node.counts().get("gpu")


def problems(node: Node) -> set[str]:
    """Why GPUs are unhealthy, from the GPUNode object."""
    return {gpu.get("why", "") for gpu in node.gpunode().get("gpus", ())}


def arbiter_gpus(node: Node) -> int:
    return len(control.status(node.state).gpus)


@contextmanager
def stopped(node: Node) -> Iterator[None]:
    """The arbiter's processes, guard and parent first, stopped."""
    answer = control.status(node.state).answer
    processes = [int(answer[key]) for key in ("guard_pid", "pid", "serving_pid")]
    try:
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(processes):  # a parent that runs kills an arbiter that is stopped
            os.kill(pid, signal.SIGCONT)


def test_healthz_tells_of_kubelet_api_server_and_arbiter(short_tmp: Path) -> None:
    def fails(node: Node, check: str, why: str) -> Callable[[], bool]:
        return lambda: why in (node.failed_checks() or {}).get(check, "")

    async def go(node: Node) -> None:
        await node.until(lambda: node.failed_checks() == {})
        await node.kubelet.stop()
        await node.until(fails(node, "device plugins", "does not follow"))
        await node.kubelet.start()
        await node.until(lambda: node.failed_checks() == {})
        node.api.faults.refuse = lambda method, path: (
            500 if method == "PATCH" and "gpunodes" in path else None
        )
        await node.run(make_pod("a", memory=5))
        await node.until(fails(node, "GPUNode", "cannot be written"))
        assert node.page("/readyz") == "ok\n", "pods can be served all the same"
        node.api.faults.refuse = lambda _method, _path: None
        await node.until(lambda: node.failed_checks() == {})
        with stopped(node):
            await node.until(fails(node, "arbiter", "does not answer"))
            assert node.page("/livez") == "ok\n", "a restart of the agent would not help"
        await node.until(lambda: node.failed_checks() == {})

    on_node(go, short_tmp)


def test_a_node_whose_arbiter_does_not_answer_says_so_to_the_scheduler(short_tmp: Path) -> None:
    async def go(node: Node) -> None:
        await node.until(lambda: node.gpunode().get("problem") == "")
        with stopped(node):
            await node.until(lambda: "arbiter does not answer" in node.gpunode()["problem"])
        await node.until(lambda: node.gpunode()["problem"] == "")

    on_node(go, short_tmp)


def test_an_nvml_that_hangs_makes_all_gpus_unhealthy_until_it_answers(short_tmp: Path) -> None:
    async def go(node: Node) -> None:
        node.set_health("2 hangs")
        await node.until(lambda: gpus_of(node) == 0)
        assert "NVML has not answered" in (node.failed_checks() or {})["driver"]
        node.set_health("2 recovered")
        await node.until(lambda: gpus_of(node) == GPUS)
        await node.until(lambda: node.failed_checks() == {})

    on_node(go, short_tmp)


def test_an_updated_driver_is_used_without_losing_a_grant(short_tmp: Path) -> None:
    async def go(node: Node) -> None:
        pod = make_pod("a", memory=5)
        await node.run(pod)
        grants, agent = set(node.grants()), node.agent_pid
        arbiter = node.arbiter_pid()
        node.install_driver(NEW, OLD)  # the package, before the module is loaded anew
        await node.until(lambda: gpus_of(node) == 0)
        await node.until(lambda: any(MISMATCH in one for one in problems(node)))
        assert MISMATCH in (node.failed_checks() or {})["driver"]
        await node.until(lambda: "GPUUnhealthy" in dict(node.events(pod)))
        assert node.arbiter_pid() == arbiter, "one that starts now could not use the driver"
        node.install_driver(NEW, NEW)
        await node.until(lambda: node.gpunode()["driverVersion"] == NEW)
        await node.ready()
        await node.until(lambda: gpus_of(node) == GPUS - 1)
        await node.until(lambda: control.status(node.state).driver_version == NEW)
        await node.until(lambda: node.failed_checks() == {})
        assert set(node.grants()) == grants
        assert node.agent_pid == agent
        assert f"replaced by version {NEW}" in dict(node.events(pod))["AgentRenewed"]
        after = make_pod("b", memory=6)
        await node.run(after)
        assert grant_of(node, after) in node.grants()

    on_node(go, short_tmp)


def test_an_agent_that_starts_without_a_usable_driver_waits_for_one(short_tmp: Path) -> None:
    async def go(node: Node) -> None:
        await node.run(make_pod("a", memory=5))
        await node.until(lambda: "a" in node.holders())
        grants, arbiter = set(node.grants()), node.arbiter_pid()
        node.kill_agent()
        node.install_driver(NEW, OLD)
        node.start_agent()
        await node.until(lambda: "mismatch" in (node.failed_checks() or {}).get("driver", ""))
        await node.until(lambda: gpus_of(node) == 0)
        await node.until(lambda: all("mismatch" in one for one in problems(node)))
        assert "DriverUnusable" in dict(node.events())
        assert set(node.holders()) == {"a"}
        assert node.arbiter_pid() == arbiter
        node.install_driver(NEW, NEW)
        await node.until(lambda: gpus_of(node) == GPUS - 1)
        await node.until(lambda: node.failed_checks() == {})
        assert set(node.grants()) == grants
        assert set(node.holders()) == {"a"}

    on_node(go, short_tmp)


def test_a_gpu_that_was_lost_when_the_agent_started_is_used_when_it_is_back(
    short_tmp: Path,
) -> None:
    async def go(node: Node) -> None:
        node.set_health("3 lost")
        node.start_agent()
        await node.ready()
        assert gpus_of(node) == GPUS - 1
        node.set_health("3 recovered")
        await node.until(lambda: gpus_of(node) == GPUS)
        await node.run(make_pod("a", gpu=GPUS))
        await node.until(lambda: len(node.holders().get("a", ())) == GPUS)

    on_node(go, short_tmp, agent=False)


def test_an_arbiter_that_started_without_a_lost_gpu_is_replaced(short_tmp: Path) -> None:
    async def go(node: Node) -> None:
        node.set_health("1 lost")
        await node.until(lambda: gpus_of(node) == GPUS - 1)
        before = int(control.status(node.state).answer["serving_pid"])
        os.kill(before, signal.SIGKILL)
        await node.until(lambda: node.arbiter_pid() and arbiter_gpus(node) == GPUS - 1)
        node.set_health("1 recovered")
        await node.until(lambda: node.arbiter_pid() and arbiter_gpus(node) == GPUS)
        await node.run(make_pod("a", gpu=GPUS))

    on_node(go, short_tmp)


def test_a_given_strength_is_that_of_the_nodes_gpus(short_tmp: Path) -> None:
    def strengths(given: StrengthOverrides) -> set[float]:
        options = NodeOptions(
            "n1", (), shape=parse_shape("h100:2"), state=short_tmp, home=short_tmp, strengths=given
        )
        return {gpu.strength for gpu in read_machine(options).inventory.gpus}

    assert strengths(StrengthOverrides()) == {286.3}
    assert strengths(StrengthOverrides(models=(("H100", 250.0),))) == {250.0}
    assert strengths(StrengthOverrides(own=50.0, models=(("H100", 250.0),))) == {50.0}
