"""Servers of the node die while two pods train: no result differs."""

from __future__ import annotations

import pytest

from cluster.gpu.gpu_node import GpuNode
from cluster.tenants import limits

pytestmark = [pytest.mark.cluster, pytest.mark.shares, pytest.mark.timeout(900)]

FOREVER = 1_000_000
SEEDS = {"small": 1, "large": 2}
ASKED = {
    "small": limits(vcuda_memory=80, vcuda_core=30),
    "large": limits(vcuda_memory=80, vcuda_core=70),
}
BETWEEN = 5  # steps of each


def test_no_loss_differs_when_the_servers_of_the_node_are_killed(node: GpuNode) -> None:
    for name, seed in SEEDS.items():
        node.train(name, FOREVER, seed, ASKED[name])
    for kill in (node.kill_agent, node.kill_arbiter, node.kill_kubelet, node.kill_containerd):
        for name in SEEDS:
            node.wait_for_steps(name, BETWEEN)
        kill()
    for name in SEEDS:
        node.wait_for_steps(name, BETWEEN)
    # containerd writes the logs: one that is killed may lose lines, but no step.
    disturbed = {name: losses(node, name) for name in SEEDS}
    node.delete(*SEEDS)
    for name, seed in SEEDS.items():
        node.train(name, max(disturbed[name]), seed, ASKED[name])
    for name in SEEDS:
        node.wait_for_phase(name, "Succeeded")
        found = losses(node, name)
        assert {step: found[step] for step in disturbed[name]} == disturbed[name]
        node.report(
            f"{name}: {len(disturbed[name])} losses equal, up to step {max(disturbed[name])}"
        )


def losses(node: GpuNode, name: str) -> dict[int, str]:
    """The loss of each step of a pod's program, as far as its log has them."""
    return {one.number: one.loss for one in node.steps(name)}
