"""Choosing on one machine: which of its GPUs answer a request. Needs no numpy.

What is free of a GPU is the smaller part of its memory and its compute time. A slice goes to a GPU
that is already sliced, so whole GPUs stay whole for requests that need one; of these to the weakest
model, of these to the one with the least free that still fits it, and of equal ones to the one
whose time is used the least. Whole GPUs are taken of the strongest model. A GPU in trouble comes
last, sliced or not: one that a program outside Aliquot uses, that has less free than the
allocations say, or that admits one process at a time. A whole GPU is one that nobody holds. A GPU
on which slices would have to take turns with memory comes after those with room, and of several the
one whose programs use least of it. A request goes only beside slices that it accepts and that
accept it (`model.neighbours`). Several GPUs are chosen for the best slowest link among those that
are equally good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.grant import Isolation
from aliquot.model.neighbours import why_not_beside
from aliquot.placement.core.links import closest, rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.model import Gpu, Request
    from aliquot.model.neighbours import Occupant
    from aliquot.placement.core.links import Links


@dataclass(frozen=True, slots=True)
class GpuCapacity:
    """A GPU with what a new slice can have of it.

    `unused_bytes` is what the driver itself says nobody uses, `holders` how many slices it has,
    `strangers` whether programs outside every grant use it. `occupants` are its slices, as their
    neighbours see them. `busy` is how much of its time they really use, in eighths. With the
    request the slices would have `excess_bytes` more than the GPU, in turns, and `crowded_bytes`
    more if only what programs use counts.
    """

    gpu: Gpu
    bytes_free: int
    percent_free: int
    unused_bytes: int
    holders: int
    strangers: bool = False
    occupants: tuple[Occupant, ...] = ()
    excess_bytes: int = 0
    crowded_bytes: int = 0
    busy: int = 0


def choose_gpus(request: Request, gpus: Sequence[GpuCapacity]) -> list[Gpu] | None:
    """The GPUs for a request, by index, as many as it asks for; None if too few fit."""
    gpus = sorted(gpus, key=lambda one: one.gpu.index)
    beside = label_to_join(request, (one for gpu in gpus for one in gpu.occupants))
    fitting = {
        number: one
        for number, one in enumerate(gpus)
        if fits(request, one) and why_unwelcome(request, one.occupants, beside) is None
    }
    if len(fitting) < request.gpus:
        return None
    order = {number: _packed(request, one) for number, one in fitting.items()}
    steps = {key: step for step, key in enumerate(sorted(set(order.values())))}
    ranks = {number: steps[key] for number, key in order.items()}
    chosen = closest(_links(gpus), ranks, request.gpus)
    return sorted((gpus[number].gpu for number in chosen), key=lambda gpu: gpu.index)


def preference(request: Request, one: GpuCapacity) -> tuple[float, ...]:
    """A key by which GPUs are sorted, the best first: not in trouble, sliced, weak and tight."""
    return _packed(request, one)


def why_unsuited(request: Request, gpu: Gpu) -> str | None:
    """Why the request cannot have an instance of a GPU (MIG); None if it can."""
    if gpu.instance_of is None:
        return None
    if gpu.gone:
        return "it was destroyed"
    if request.gpus > 1:
        return "it is an instance of a GPU, and those are for requests for one GPU"
    if request.swap or request.isolation is Isolation.MPS:
        asked = "swap" if request.swap else "isolation mps"
        return f"it is an instance of a GPU, whose slices have no --{asked}"
    return None


def fits(request: Request, one: GpuCapacity) -> bool:
    """Whether a GPU may be used, is strong enough and has enough memory and compute time free."""
    if not (request.which.allows(one.gpu) and is_strong_enough(request, one.gpu)):
        return False
    if why_unsuited(request, one.gpu) is not None:
        return False
    if request.slice_of(one.gpu).reserved_percent > one.percent_free:
        return False
    if request.is_whole:
        return one.holders == 0
    return request.bytes_on(one.gpu) <= one.bytes_free


def label_to_join(request: Request, occupants: Iterable[Occupant]) -> str | None:
    """The label that the request must be with: the one it names, if a slice of its user has it."""
    beside, me = request.neighbours.beside, request.occupant
    if beside is None:
        return None
    there = any(one.label == beside and one.is_known_to(me) for one in occupants)
    return beside if there else None


def why_unwelcome(
    request: Request, occupants: Sequence[Occupant], beside: str | None
) -> str | None:
    """Why the request may not be on a GPU with these slices, as a clause; None if it may.

    `beside` is the label that it must be with, by `label_to_join` of all GPUs.
    """
    me = request.occupant
    if (why := why_not_beside(me, occupants)) is not None:
        return why
    if beside is None or any(one.label == beside and one.is_known_to(me) for one in occupants):
        return None
    return f"it has no slice {beside}, which {me.label or 'this request'} asks to be with"


def is_strong_enough(request: Request, gpu: Gpu) -> bool:
    """Whether a GPU has the strength that the request asks for; an unknown one is never enough."""
    return gpu.strength >= request.min_strength


def _packed(request: Request, one: GpuCapacity) -> tuple[float, ...]:
    """Smaller is better: no trouble, no turns, sliced, weak, tight, idle; unsliced: emptiest."""
    strength = -one.gpu.strength if request.is_whole else one.gpu.strength
    last = _in_trouble(request, one), one.excess_bytes > 0, one.crowded_bytes
    if request.is_whole or not one.holders:
        return *last, True, strength, -_spare(one)
    busy = one.busy if request.gpus == 1 else 0  # among several, the links decide
    return *last, False, strength, _spare(one), busy


def _in_trouble(request: Request, one: GpuCapacity) -> bool:
    """Whether any other GPU is better, sliced or not."""
    return one.strangers or one.gpu.exclusive or one.unused_bytes < request.bytes_on(one.gpu)


def _spare(one: GpuCapacity) -> int:
    """Percent of memory or of compute time, whichever is less."""
    free = min(one.bytes_free, one.unused_bytes)
    return min(100 * free // max(1, one.gpu.memory_bytes), one.percent_free)


def _links(gpus: Sequence[GpuCapacity]) -> Links:
    places = {one.gpu.index: number for number, one in enumerate(gpus)}
    table = [[0] * len(gpus) for _ in gpus]
    for number, one in enumerate(gpus):
        for link in one.gpu.links:
            if link.index in places:
                table[number][places[link.index]] = rank(link.kind)
    return tuple(tuple(row) for row in table)
