"""Whether the memory of a container can leave its GPU, and what that takes of its slice.

The process that copies memory to the host has a context on each GPU with such containers, which no
pod asks for. So each of these containers lacks that much of its own memory, and what is allocated
of a GPU is never more than it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.gpunode import OverCommit
from aliquot.kubernetes.api.plan import MOST_OVERCOMMIT, possible_overcommit
from aliquot.model import format_bytes
from aliquot.model.request import SwapDefault
from aliquot.model.units import GIB
from aliquot.placement.core.overcommit import FIXED_BYTES
from aliquot.slices.contexts import context_bytes
from aliquot.slices.turn_room import set_aside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.plan import ContainerPlan
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.model import Grant
    from aliquot.model.parking_rule import ParkingRule
    from aliquot.slices.arbiter_status import SharedGpu, Status

NO_TURNS = 1.0  # times the memory of a GPU: no slice there needs a turn


@dataclass(frozen=True, slots=True)
class NodeSwap:
    """What a node has for it: memory of the host, 0 for none, and the default of containers.

    Slices that take turns may have `overcommit` times a GPU's memory together; the label
    aliquot.io/overcommit of the Node says it before this.
    """

    host_bytes: int = 0
    default: SwapDefault = field(default_factory=SwapDefault)
    overcommit: float = 1.0


def overcommit_of(swap: NodeSwap, labels: Mapping[str, str]) -> tuple[float, str]:
    """How many times a GPU's memory slices may have, and what is wrong with the Node's label."""
    if not swap.host_bytes:
        return 1.0, ""
    said = labels.get(names.OVERCOMMIT)
    if said is None:
        return swap.overcommit, ""
    try:
        factor = float(said)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= MOST_OVERCOMMIT:
        text = (
            f"the label {names.OVERCOMMIT} of the node is {said!r}: write 1 to {MOST_OVERCOMMIT:g}"
        )
        return swap.overcommit, text
    return factor, ""


def overcommit_asked(request: ContainerRequest, plan: ContainerPlan | None) -> float | None:
    """With what a container may take turns by its plan and its annotation; None: with nothing."""
    if plan is None or not request.swap or request.alone:
        return None
    return possible_overcommit(plan.overcommit)


def overcommit_here(
    request: ContainerRequest, plan: ContainerPlan | None, default: SwapDefault
) -> float | None:
    """The same on a node where slices take turns.

    There the arbiter can move all memory that can leave its GPU. So beside a container that may
    take no turns, but swaps, nobody needs one: nothing of it moves.
    """
    asked = overcommit_asked(request, plan)
    return NO_TURNS if asked is None and asked_swap(request, default).swap else asked


def node_turns(status: Status, most: float = MOST_OVERCOMMIT) -> OverCommit | None:
    """What the node's arbiter allows slices that take turns, up to `most`; None if nothing.

    A container counts with all that it asks for, and gives a part of that to what copies its memory
    (`copier_bytes`): that part stays on the GPU too. So what fits by these figures fits by those of
    the arbiter, which has the last word.
    """
    factor = min([most, *(one.overcommit for one in status.gpus)]) if status.gpus else 1.0
    host = min((one.host_limit or 0 for one in status.gpus), default=0)
    if not (factor > 1 and host):
        return None
    stays = FIXED_BYTES + max(_copier(one) for one in status.gpus)
    used = -(-set_aside(status.grants) // GIB) * GIB  # in steps: each one is written
    return OverCommit(factor, host, min(host, used), stays)


def fixed_bytes(grant: Grant) -> int:
    """What a grant leaves on its GPU beside its copier, in steps; 0 if it says nothing."""
    return -(-grant.fixed_bytes // names.MEMORY_UNIT) * names.MEMORY_UNIT


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
