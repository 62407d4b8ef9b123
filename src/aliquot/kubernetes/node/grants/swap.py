"""Whether the memory of a container can leave its GPU, and what that takes of its slice.

The process that copies memory to the host has a context on each GPU with such containers, which no
pod asks for. So each of these containers lacks that much of its own memory, and what is allocated
of a GPU is never more than it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.kubernetes.api import names
from aliquot.model import format_bytes
from aliquot.model.request import SwapDefault
from aliquot.slices.contexts import context_bytes

if TYPE_CHECKING:
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.model.parking_rule import ParkingRule
    from aliquot.slices.arbiter_status import SharedGpu, Status


@dataclass(frozen=True, slots=True)
class NodeSwap:
    """What a node has for it: memory of the host, 0 for none, and the default of containers."""

    host_bytes: int = 0
    default: SwapDefault = field(default_factory=SwapDefault)


class CannotSwapError(Exception):
    """The memory of a container stays on its GPU; the message says why."""


def asked_swap(request: ContainerRequest, default: SwapDefault) -> SwapDefault:
    """What a container has by its annotations, or else by default where that is possible."""
    swap = request.swap
    if swap is None:
        swap = default.swap and request.kind == "sliced" and request.gpus == 1
    after = default.park_after if request.park_after is None else request.park_after
    return SwapDefault(swap, after if swap else None)


def copier_bytes(grant: ContainerGrant, status: Status, host_bytes: int) -> int:
    """What its slice lacks, in units of Kubernetes; CannotSwapError if it cannot swap here."""
    if not host_bytes:
        raise CannotSwapError("this node has no host memory for it (node.hostMemory of the chart)")
    uuid = grant.allocated[0].gpu
    gpu = next((one for one in status.gpus if one.gpu.uuid == uuid), None)
    if gpu is None:
        raise CannotSwapError("the arbiter does not know its GPU yet")
    lacks = _copier(gpu)
    if grant.current.memory[0] < lacks + context_bytes(gpu):
        size = format_bytes(grant.current.memory[0])
        raise CannotSwapError(
            f"{size} are too few: {format_bytes(lacks)} of them are for copying its memory"
        )
    return lacks


def _copier(gpu: SharedGpu) -> int:
    """A context and a quarter more, in whole units."""
    units = -(-context_bytes(gpu) * 5 // 4 // names.MEMORY_UNIT)
    return units * names.MEMORY_UNIT


def describe(parking: ParkingRule | None) -> str:
    """The annotations that hold for a container, as people write them."""
    after = f" and {names.PARK_AFTER}: {parking}" if parking else ""
    return f"{names.SWAP}: true{after}"
