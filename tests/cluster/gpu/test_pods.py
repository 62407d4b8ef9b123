"""Pods on a GPU of this machine, or on a simulated one: memory, shares, and what is refused."""

from __future__ import annotations

import pytest

from cluster.gpu.gpu_node import GpuNode
from cluster.tenants import limits

pytestmark = [pytest.mark.cluster, pytest.mark.shares, pytest.mark.timeout(900)]

GIB = 1 << 30
UNITS = 80  # 20 GiB
FOREVER = 1_000_000


def test_the_memory_of_a_slice_holds_by_the_drivers_figures(node: GpuNode) -> None:
    node.fill("full", limits(vcuda_memory=UNITS, vcuda_core=30))
    node.cluster.wait_until(lambda: node.lines("full"), 120, "it has all it can get", every=0.2)
    total, taken = map(int, node.lines("full")[-1].split())
    assert total == 20 * GIB
    assert 18 * GIB < taken <= 20 * GIB
    [used] = node.process_bytes()
    node.report(f"20 GiB: taken {taken} bytes, NVML {used}")
    assert taken <= used <= 20 * GIB


def test_nvidia_smi_in_a_pod_shows_its_slice(node: GpuNode) -> None:
    if not node.is_real:
        pytest.skip("nvidia-smi comes with a driver, and this GPU is simulated")
    node.fill("full", limits(vcuda_memory=UNITS))
    node.wait_for_phase("full", "Running")
    assert node.smi_total("full") == str(20 * 1024)


def test_two_trainings_have_the_shares_and_the_memory_they_asked_for(node: GpuNode) -> None:
    asked = {"small": (UNITS, 30), "large": (2 * UNITS, 70)}
    for seed, (name, (units, percent)) in enumerate(asked.items()):
        node.train(name, FOREVER, seed, limits(vcuda_memory=units, vcuda_core=percent), "fill")
    for name in asked:
        node.wait_for_steps(name, 10)
    # The processors of this machine also run the cluster, and a simulated GPU.
    allowed = 0.5 if node.is_real else 4
    shares = node.shares(30, 70, seconds=10)
    used = sorted(node.process_bytes())
    node.report(f"shares in 10 s {shares}, NVML {used}, filled {[*map(node.filled, asked)]}")
    assert shares == pytest.approx([30, 70], abs=allowed)
    for name, bytes_used in zip(asked, used, strict=True):
        limit = asked[name][0] * GIB // 4
        assert limit - 3 * GIB < node.filled(name) <= limit
        assert limit // 2 < bytes_used <= limit
        if node.is_real:
            node.report(f"nvidia-smi in {name}: {node.smi_total(name)} MiB")
            assert node.smi_total(name) == str(limit >> 20)


def test_two_half_gpus_are_not_found_on_one_gpu(node: GpuNode) -> None:
    node.create("halves", ["-c", ""], limits(sgpu=2))
    node.cluster.wait_until(
        lambda: "TooLarge" in node.event_reasons("halves"), 60, "the pod is told TooLarge"
    )


def test_a_whole_gpu_is_nobody_elses(node: GpuNode) -> None:
    node.train("whole", FOREVER, 1, limits(gpu=1))
    node.wait_for_steps("whole", 2)
    assert node.free()["aliquot.io/gpu"] == 1
    node.train("slice", FOREVER, 2, limits(vcuda_memory=UNITS))
    node.cluster.wait_until(
        lambda: "FailedScheduling" in node.event_reasons("slice"), 60, "the slice waits"
    )
    node.delete("whole")
    node.wait_for_steps("slice", 2)


def test_a_pod_deleted_by_force_leaves_nothing(node: GpuNode) -> None:
    empty = node.free()
    node.train("gone", FOREVER, 1, limits(vcuda_memory=UNITS, vcuda_core=30))
    node.wait_for_steps("gone", 2)
    node.delete("gone", force=True)
    node.cluster.wait_until(lambda: node.free() == empty, 60, "all is offered again")
    node.cluster.wait_until(lambda: not node.grants(), 60, "the arbiter has no grant")
    node.cluster.wait_until(lambda: not node.process_bytes(), 60, "no process uses the GPU")
