"""What the agent's allocations let a container have, the node's arbiter grants."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
from aliquot.kubernetes.node.grants.grant import ContainerGrant, GpuAllocation, SliceSettings
from aliquot.kubernetes.node.grants.lifecycle import slices_of
from aliquot.kubernetes.node.grants.swap import copier_bytes, node_turns
from aliquot.kubernetes.node.pods import ContainerRef
from aliquot.model.errors import NoCapacityError
from aliquot.placement.core.turns import NodeTurns
from aliquot.slices import control
from arbiter.rig import GPU, OTHER_GPU
from support import GIB

if TYPE_CHECKING:
    from arbiter.rig import Arbiter


def grant(name: str, gpu: str, size: int, overcommit: float | None) -> ContainerGrant:
    settings = SliceSettings((size,))
    return ContainerGrant(
        name=name,
        owner=ContainerRef(name, "ns", name, "main"),
        kind="sliced",
        allocated=(GpuAllocation(gpu, size),),
        requested=settings,
        current=settings,
        device_ids={},
        carrier="",
        overcommit=overcommit,
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_container_that_fits_is_refused_by_the_arbiter(
    stopped_arbiter: Arbiter, seed: int
) -> None:
    """Any mix of slices, some of which end: the arbiter grants all that the allocations let in."""
    chance = random.Random(seed)  # noqa: S311 - the same work each time
    host = chance.choice([40, 120]) * GIB
    percent = chance.choice([120, 150, 200, 400])
    stopped_arbiter.start("--overcommit", str(percent), "--host-memory", str(host))
    directory = stopped_arbiter.state
    status = control.status(directory)
    sizes = {one.gpu.uuid: one.gpu.memory_bytes for one in status.gpus}
    gpus = [HostGpu(uuid, index, sizes[uuid]) for index, uuid in enumerate((GPU, OTHER_GPU))]
    allocations, crowded = NodeAllocations(gpus, 2), 0
    for number in range(60):
        status = control.status(directory)
        said = node_turns(status)
        assert said is not None
        room = said.host_memory - said.set_aside
        allocations.set_turns(NodeTurns(said.factor, room, said.stays), {})
        size = chance.randint(5, 280 if chance.random() < 0.5 else 24) * MEMORY_UNIT
        overcommit = chance.choice([None, 0.0, 0.0, 0.0, 1.1])
        one = grant(f"g{number}", chance.choice([GPU, OTHER_GPU]), size, overcommit)
        if allocations.why_not(one) is None:
            allocations.add(one)
            if overcommit is not None:
                copier = copier_bytes(one, status, said.host_memory)
                one = msgspec.structs.replace(one, copier=copier)
            try:
                control.make(
                    directory,
                    one.name,
                    slices_of(one),
                    kept=True,
                    swap=one.copier > 0,
                    overcommit=one.overcommit or 0.0,
                )
            except NoCapacityError as error:
                pytest.fail(f"{one}: {error.message}")
            crowded += any(
                allocations.used(gpu.uuid).memory > gpu.memory for gpu in allocations.gpus.values()
            )
        elif allocations.grants and chance.random() < 0.4:
            name = chance.choice(sorted(allocations.grants))
            allocations.release(name)
            control.end(directory, name)
    assert crowded
