"""Nodes of NVIDIA's GPU Operator: driver upgrades, and one owner of each GPU."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.objects import Node
from aliquot.kubernetes.api.presets import PRESETS
from aliquot.kubernetes.cluster.usable import why_unusable
from kubernetes.builders import make_node, node_json
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, played

STATE = "nvidia.com/gpu-driver-upgrade-state"
OPERATOR = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.deploy.client": "true",
    "nvidia.com/gpu.deploy.container-toolkit": "true",
    "nvidia.com/gpu.deploy.dcgm-exporter": "true",
    "nvidia.com/gpu.deploy.device-plugin": "false",
    "nvidia.com/gpu.deploy.driver": "true",
    "nvidia.com/gpu.deploy.operator-validator": "true",
}
RESOURCES = tuple(PRESETS["aliquot"].roles)


def why(
    labels: dict[str, str],
    more: dict[str, str] | None = None,
    resources: tuple[str, ...] = RESOURCES,
) -> str | None:
    units = {"aliquot.io/gpu": "8", **(more or {})}
    status = {"capacity": units, "allocatable": units}
    body: dict[str, Any] = {"metadata": {"name": "n1", "labels": labels}, "status": status}
    return why_unusable(msgspec.convert(body, Node), make_node("n1", 8), resources)


@pytest.mark.parametrize("state", ["", "upgrade-required", "upgrade-done"])
def test_a_node_whose_driver_stays_gets_pods(state: str) -> None:
    assert why({**OPERATOR, **({STATE: state} if state else {})}) is None


@pytest.mark.parametrize(
    "state",
    [
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "drain-required",
        "node-maintenance-required",
        "post-maintenance-required",
        "pod-restart-required",
        "validation-required",
        "uncordon-required",
        "a-state-of-a-later-version",
    ],
)
def test_a_node_whose_driver_is_being_upgraded_gets_no_pods(state: str) -> None:
    assert why({**OPERATOR, STATE: state}) == (
        f"the GPU Operator is upgrading its driver ({STATE}: {state})"
    )


def test_a_failed_upgrade_says_what_to_do() -> None:
    assert f"{STATE}=upgrade-required" in (why({**OPERATOR, STATE: "upgrade-failed"}) or "")


@pytest.mark.parametrize("value", ["paused-for-driver-upgrade", "paused-for-mig-change"])
@pytest.mark.parametrize("part", ["client", "operator-validator", "container-toolkit"])
def test_a_paused_part_of_the_operator_means_that_the_driver_goes(part: str, value: str) -> None:
    name = f"nvidia.com/gpu.deploy.{part}"
    assert f"{name}: {value}" in (why({**OPERATOR, name: value}) or "")


def test_a_node_whose_gpus_another_plugin_gives_out_gets_no_pods() -> None:
    for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"):
        found = why(OPERATOR, {name: "8"}) or ""
        assert f"{name}: 8" in found
        assert "nvidia.com/gpu.deploy.device-plugin=false" in found
    assert why(OPERATOR, {"nvidia.com/gpu": "0"}) is None  # it is gone, the kubelet remembers it


def test_a_preset_may_use_the_name_of_the_other_plugin() -> None:
    ours = (*RESOURCES, "nvidia.com/gpu")
    assert why(OPERATOR, {"nvidia.com/gpu": "8"}, ours) is None


def test_pods_wait_out_an_upgrade_even_if_they_tolerate_the_cordon() -> None:
    async def play(world: World, _: Replica) -> None:
        def label(state: str) -> None:
            labels = {**OPERATOR, STATE: state}
            world.api.put("nodes", node_json("n0", labels=labels))

        label("drain-required")
        tolerates = {"tolerations": [{"operator": "Exists"}]}
        world.gang("a", 2, spec=tolerates, gpu=1)
        world.pod("single", spec=tolerates, gpu=1)
        await until(lambda: world.phase("a") in {"Waiting", "Refused"})
        await until(lambda: world.events("single"))
        assert "upgrading its driver" in world.events("single")[0][1]
        assert not world.bound()
        label("upgrade-done")
        await is_bound(world, "a", 2)
        await until(lambda: "single" in world.bound())

    played(World(3), play)
