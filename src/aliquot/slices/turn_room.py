"""What a new slice can have of a GPU in turns with others, from the arbiter's status.

`placement.core.overcommit` decides; here a `SharedGpu` and its grants become what it decides on.
What is set aside of the host's memory elsewhere depends on all GPUs of the machine: `with_host_use`
writes it into each, so that a part of them is enough to ask about one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.model import format_bytes
from aliquot.placement.core.overcommit import GpuLoad, RoomBound, TurnSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.model import Grant
    from aliquot.placement.core.overcommit import Room
    from aliquot.slices.arbiter_status import SharedGpu

HOST_HINT = (
    "give copies more of the host's memory with host_memory in pool.toml, or aliquot arbiter"
    " --host-memory"
)


def load_of(one: SharedGpu, grants: Iterable[Grant]) -> GpuLoad:
    """The limits on a GPU. What programs outside all grants use is there all the time."""
    uuid = one.gpu.uuid
    turns = tuple(
        TurnSlice(grant.bytes_on(uuid), grant.fixed_bytes, grant.turns.most)
        for grant in grants
        if grant.turns is not None and grant.slices_on(uuid)
    )
    rigid = one.granted_bytes - sum(part.limit for part in turns) + one.unmanaged_bytes
    return GpuLoad(one.gpu.memory_bytes, rigid, turns, one.overcommit)


def with_host_use(gpus: Sequence[SharedGpu], grants: Sequence[Grant]) -> tuple[SharedGpu, ...]:
    """All GPUs of a machine, each with what is set aside of the host's memory for something else.

    That is for what must leave the other GPUs, for copies of suspended and parked grants, and for
    --spill.
    """
    if all(one.overcommit <= 1 or one.host_limit is None for one in gpus):
        return tuple(gpus)
    needs = [load_of(one, grants).host_bytes for one in gpus]
    every = sum(needs) + set_aside(grants)
    return tuple(
        replace(one, host_elsewhere=every - own) for one, own in zip(gpus, needs, strict=True)
    )


def set_aside(grants: Iterable[Grant]) -> int:
    """What the host keeps for something else than turns: other copies, and --spill."""
    return sum(
        grant.spill_bytes + (grant.away_bytes if grant.has_left or grant.turns is None else 0)
        for grant in grants
    )


def turn_room(one: SharedGpu, grants: Iterable[Grant], most: float | None = None) -> Room:
    """The largest slice that can take turns on a GPU; `most` is what its queue allows."""
    left = None if one.host_limit is None else one.host_limit - one.host_elsewhere
    return load_of(one, grants).room(left, most)


def working_set(one: SharedGpu, grants: Iterable[Grant]) -> int:
    """What all programs have allocated of a GPU, on it or on the host."""
    used = sum(
        use.used_bytes
        for grant in grants
        if grant.slices_on(one.gpu.uuid)
        for use in grant.use
        if use.gpu_uuid == one.gpu.uuid
    )
    return used + one.unmanaged_bytes


def describe_room(one: SharedGpu, room: Room, most: float | None = None) -> str:
    """What is free for a slice that takes turns, and why not more."""
    free = f"{format_bytes(room.bytes)} free"
    allowed = min((one.overcommit, *([] if most is None else [most])))
    why = {
        RoomBound.GPU: "",
        RoomBound.FACTOR: f" in turns: slices may have {allowed:g} times its memory",
        RoomBound.ALONE: " in turns: each must fit beside what does not move",
        RoomBound.HOST: " in turns: the host has no more memory for what must leave",
    }
    return f"{free}{why[room.bound]}"


def describe_overcommit(one: SharedGpu, grants: Sequence[Grant], size: int) -> str | None:
    """That a slice of this size fits only in turns, and what that means; None if it fits beside."""
    load = load_of(one, grants).beside(TurnSlice(size))
    if not load.excess:
        return None
    return (
        f"fits only with over-commit: then {describe_turns(load)}, and the host keeps"
        f" {format_bytes(load.host_bytes)} for what leaves"
    )


def describe_turns(load: GpuLoad) -> str:
    """How much more than a GPU has its slices may use."""
    return (
        f"slices have {format_bytes(load.granted)} of its {format_bytes(load.memory)} in turns"
        f" ({load.times:.2f} times)"
    )
