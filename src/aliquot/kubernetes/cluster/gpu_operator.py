"""What the labels of NVIDIA's GPU Operator say about a node. Pure.

    nvidia.com/gpu-driver-upgrade-state    how far the upgrade of its driver is
    nvidia.com/gpu.deploy.*                whether a part of the operator runs there: "true",
                                           "false", or "paused-for-..." while the driver or the MIG
                                           layout is changed

The operator cordons a node before it replaces the driver, and uncordons it when the new one works.
Pods that tolerate a cordon would still start there on a driver that is about to go. So no pod with
GPUs goes to a node from the moment that its upgrade begins until it is done.

A node has one owner of its GPUs. Where NVIDIA's device plugin gives them out too, each would give
away what the other has given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.requests import quantity

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aliquot.kubernetes.api.objects import Quantity

STATE = "nvidia.com/gpu-driver-upgrade-state"
DEPLOY = "nvidia.com/gpu.deploy."
PAUSED = "paused-for-"
PLUGIN = f"{DEPLOY}device-plugin"
GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-"

# `upgrade-required` may last for days: the node waits for its turn, and nothing happens there.
IDLE = {"", "upgrade-required", "upgrade-done"}
FAILED = "upgrade-failed"


def why_not_ours(allocatable: Mapping[str, Quantity], ours: Collection[str]) -> str | None:
    """Why NVIDIA's device plugin owns a node's GPUs; None if it does not.

    `ours` are the names under which Aliquot's agent offers devices.
    """
    for name in sorted(allocatable):
        is_theirs = name == GPU or name.startswith(MIG)
        if is_theirs and name not in ours and quantity(allocatable[name]):
            return (
                f"NVIDIA's device plugin gives out its GPUs too ({name}: {allocatable[name]}):"
                f" label the node {PLUGIN}=false"
            )
    return None


def why_driver_is_away(labels: Mapping[str, str]) -> str | None:
    """Why the operator's labels forbid new pods with GPUs; None if they do not."""
    state = labels.get(STATE, "")
    if state == FAILED:
        return (
            f"the GPU Operator failed to upgrade its driver: mend it, and label the node"
            f" {STATE}=upgrade-required for another try, or upgrade-done"
        )
    if state not in IDLE:
        return f"the GPU Operator is upgrading its driver ({STATE}: {state})"
    paused = next(
        (key for key in sorted(labels) if key.startswith(DEPLOY) and PAUSED in labels[key]), None
    )
    if paused is not None:
        return f"the GPU Operator is changing its driver or MIG layout ({paused}: {labels[paused]})"
    return None
