"""The checkpoint, and files that an agent must not start on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

import support
from aliquot.devices import Inventory
from aliquot.kubernetes.node.agent import CHECKPOINT
from aliquot.kubernetes.node.grants.checkpoint import (
    VERSION,
    Checkpoint,
    CheckpointData,
    CheckpointGpu,
)
from aliquot.kubernetes.node.machine import (
    NOT_FOUND,
    NodeMachine,
    NodeOptions,
    restore_allocations,
)
from aliquot.model.errors import StateError
from kubernetes.builders import make_pod
from kubernetes.node.builders import SGPU, make_grant, make_host_gpu
from kubernetes.node.rig import a_node

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.model import Gpu


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "node.json")
    assert checkpoint.load() == CheckpointData()
    gpu = make_host_gpu(0)
    grant = make_grant("shared", [gpu], units={SGPU: ["s0"]})
    data = CheckpointData(gpus=(CheckpointGpu(gpu.uuid, 0, gpu.memory),), grants=(grant,))
    checkpoint.write(data)
    assert checkpoint.load() == data


def test_a_grant_of_an_older_agent_is_read(tmp_path: Path) -> None:
    """It has no fields that came later."""
    checkpoint = Checkpoint(tmp_path / "node.json")
    grant = make_grant("shared", [make_host_gpu(0)], units={SGPU: ["s0"]})
    old = msgspec.to_builtins(CheckpointData(grants=(grant,)))
    for name in ("cdi", "minors"):
        del old["grants"][0][name]
    checkpoint.path.write_bytes(msgspec.json.encode(old))
    assert checkpoint.load().grants == (grant,)


@pytest.mark.parametrize(
    "text",
    [
        msgspec.json.encode(CheckpointData(version=VERSION + 1)),
        b'{"version": 2, "grants": {"another": "shape"}}',
        b'{"version": 1, "grants": {"another": "shape"}}',
        b'{"version": 1, "gpus": [',
        b'{"version": 1, "gpus": [{"uuid": "\xff", "index": 0, "memory": 1}]}',
        b"{}",
        b"",
    ],
)
def test_an_unreadable_checkpoint_is_refused_and_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(text)
    with pytest.raises(StateError) as caught:
        Checkpoint(path).load()
    assert str(path) in caught.value.message
    assert "drain the node" in str(caught.value.hint)
    assert path.read_bytes() == text
    assert [one.name for one in tmp_path.iterdir()] == ["node.json"]


def make_machine(*gpus: Gpu, problem: str = "") -> NodeMachine:
    return NodeMachine(None, Inventory("580.1", (13, 0), gpus), {}, problem)


def restored(machine: NodeMachine, data: CheckpointData) -> dict[str, str]:
    """The problem of each GPU, by UUID."""
    allocations = restore_allocations(NodeOptions("n1", ()), machine, data)
    return {gpu.uuid: gpu.problem for gpu in allocations.gpus.values()}


def test_a_replaced_gpu_leaves_the_list_when_no_grant_has_it(tmp_path: Path) -> None:
    old, stays = support.make_gpu(0), support.make_gpu(1)
    new = replace(old, uuid=support.uuid_of(7))
    checkpoint = Checkpoint(tmp_path / "node.json")
    options = NodeOptions("n1", ())
    checkpoint.save(
        restore_allocations(options, make_machine(old, stays), CheckpointData()),
    )
    data = checkpoint.load()
    assert restored(make_machine(new, stays), data) == {new.uuid: "", stays.uuid: ""}
    grant = make_grant("shared", [make_host_gpu(0)], units={SGPU: ["s0"]})
    granted = msgspec.structs.replace(data, grants=(grant,))
    assert restored(make_machine(new, stays), granted)[old.uuid] == NOT_FOUND


def test_a_missing_gpu_stays_in_the_list(tmp_path: Path) -> None:
    """The driver numbers the others anew, and nobody has replaced it: it is broken."""
    old, stays = support.make_gpu(0), support.make_gpu(1)
    checkpoint = Checkpoint(tmp_path / "node.json")
    checkpoint.save(
        restore_allocations(NodeOptions("n1", ()), make_machine(old, stays), CheckpointData())
    )
    data = checkpoint.load()
    renumbered = replace(stays, index=0)
    assert restored(make_machine(renumbered), data) == {old.uuid: NOT_FOUND, stays.uuid: ""}
    assert set(restored(make_machine(problem="no driver"), data).values()) == {"no driver"}
    without = tuple(msgspec.structs.replace(gpu, slot="") for gpu in data.gpus)
    older = msgspec.structs.replace(data, gpus=without)
    other = replace(old, uuid=support.uuid_of(7))
    assert restored(make_machine(other), older)[old.uuid] == NOT_FOUND, "its slot is not known"


def test_an_agent_of_another_version_ends_no_grant(short_tmp: Path) -> None:
    async def go() -> None:
        async with a_node(short_tmp, shape="t4:1") as node:
            await node.run(make_pod("a", memory=5))
            grants = set(node.grants())
            node.kill_agent()
            path = node.home / CHECKPOINT
            ours = path.read_bytes()
            path.write_bytes(ours.replace(b'"version":1', b'"version":99'))
            node.start_agent()
            assert await node.agent_ends() != 0
            assert (
                f"{path}, the checkpoint of running containers' grants, has version 99"
                in node.log()
            )
            assert set(node.grants()) == grants
            path.write_bytes(ours)
            node.start_agent()
            await node.ready()
            await node.until(lambda: set(node.holders()) == {"a"})
            assert set(node.grants()) == grants

    asyncio.run(go())
