"""Which GPUs answer a request: what the arbiter told, put to the one brain (placement).

A GPU has left the memory that no grant holds and no program outside every grant uses, and the
compute time that no slice asked for; `background` slices only get what others leave, and take none
of it. Of the GPUs that have enough left, those that are cut already come first, the tightest of
them before the others, so that whole GPUs stay whole; one that programs outside every grant use
comes last. Equal questions get equal answers: of equals it is the lower index. A whole GPU is one
that no grant holds a part of, whoever uses it outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import format_bytes
from aliquot.model.errors import NoRoomError
from aliquot.placement.choose.machine import GpuCapacity, choose_gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Gpu, Grant, Request, Slice
    from aliquot.slices.control import SharedGpu

WAIT = "or wait until a grant ends: aliquot ps"


def choose(request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]) -> list[Gpu]:
    """The GPUs for a request, as many different ones as it asks for; NoRoomError, with figures."""
    if request.gpus > len(gpus):
        raise NoRoomError(
            f"{_count(request.gpus)} asked for, and there {_is(len(gpus))}",
            "Ask for fewer with --gpus.",
        )
    large = [one for one in gpus if request.bytes_on(one.gpu) <= one.gpu.memory_bytes]
    if len(large) < request.gpus:
        raise NoRoomError(_too_small(request, gpus, len(large)), "Ask for less with --memory.")
    fitting = [one for one in large if _fits(request, one, grants)]
    if len(fitting) < request.gpus:
        raise NoRoomError(
            _no_room(request, gpus, grants, len(fitting)), _ask_less(request, large, grants)
        )
    chosen = choose_gpus(request, [_card(one, grants) for one in fitting])
    assert chosen is not None  # noqa: S101 - all of them fit, by the lines above
    return chosen


def _card(one: SharedGpu, grants: Sequence[Grant]) -> GpuCapacity:
    return GpuCapacity(
        gpu=one.gpu,
        bytes_free=left(one),
        percent_free=compute_left(one, grants),
        unused_bytes=max(0, one.gpu.memory_bytes - one.gpu.used_bytes),
        holders=_slices_on(one, grants),
        strangers=bool(one.strangers),
    )


def left(one: SharedGpu) -> int:
    """What a new slice can have of a GPU."""
    return max(0, one.gpu.memory_bytes - one.granted_bytes - outside(one))


def compute_left(one: SharedGpu, grants: Sequence[Grant]) -> int:
    """The percent of a GPU's compute time that a new slice can ask for."""
    return max(0, 100 - sum(grant.reserved_percent_on(one.gpu.uuid) for grant in grants))


def has_room(part: Slice, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    """Whether a GPU has room for that very slice; a whole GPU is one that no grant has part of."""
    whole = part.memory_bytes >= one.gpu.memory_bytes
    memory = one.granted_bytes == 0 if whole else part.memory_bytes <= left(one)
    return memory and part.reserved_percent <= compute_left(one, grants)


def outside(one: SharedGpu) -> int:
    """What programs outside every grant use, as far as the driver says."""
    return sum(stranger.bytes or 0 for stranger in one.strangers)


def figures(one: SharedGpu, grants: Sequence[Grant], *, with_compute: bool) -> str:
    """What is left of a GPU, and who has the rest."""
    compute = f" and {compute_left(one, grants)}%" if with_compute else ""
    who = holders(one, grants, with_compute=with_compute)
    return f"{one.gpu}: {format_bytes(left(one))}{compute} left{who}"


def holders(one: SharedGpu, grants: Sequence[Grant], *, with_compute: bool) -> str:
    """Who has a part of a GPU, in brackets; nothing where nobody has."""
    here = [grant for grant in grants if grant.bytes_on(one.gpu.uuid)]
    held = [_holding(grant, one.gpu, with_compute=with_compute) for grant in here]
    parts = [f"grants: {', '.join(held)}"] if held else []
    if one.strangers:
        parts.append(f"outside Aliquot: {format_bytes(outside(one))}")
    return f" ({'; '.join(parts)})" if parts else ""


def _fits(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    return _has_memory(request, one) and _has_compute(request, one, grants)


def _has_memory(request: Request, one: SharedGpu) -> bool:
    if request.memory is None:  # a whole GPU is one that no grant holds a part of
        return one.granted_bytes == 0
    return request.bytes_on(one.gpu) <= left(one)


def _has_compute(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    return request.slice_of(one.gpu).reserved_percent <= compute_left(one, grants)


def _slices_on(one: SharedGpu, grants: Sequence[Grant]) -> int:
    return sum(len(grant.slices_on(one.gpu.uuid)) for grant in grants)


def _too_small(request: Request, gpus: Sequence[SharedGpu], enough: int) -> str:
    largest = max((one.gpu for one in gpus), key=lambda gpu: (gpu.memory_bytes, -gpu.index))
    having = "no GPU has" if enough == 0 else f"{_count(request.gpus)} asked for, {enough} has"
    return (
        f"{having} {request.memory}: the largest is {largest}"
        f" ({largest.model}, {format_bytes(largest.memory_bytes)})"
    )


def _no_room(
    request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant], enough: int
) -> str:
    if request.memory is None:
        wanted = "no GPU is whole" if request.gpus == 1 else _short(request, enough, "whole")
    else:
        parts = f"{request.memory}{_and_compute(request)} left"
        wanted = (
            f"no GPU has {parts}" if request.gpus == 1 else _short(request, enough, f"with {parts}")
        )
    with_compute = bool(request.compute_percent)
    lines = (f"  {figures(one, grants, with_compute=with_compute)}" for one in gpus)
    return "\n".join([f"{wanted}:", *lines])


def _ask_less(request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]) -> str:
    """The way out, by what there is too little of."""
    short = [one for one in gpus if not _has_memory(request, one)]
    options = ["--memory"] if short else []
    if not all(_has_compute(request, one, grants) for one in gpus):
        options.append("--compute (or leave it out for an equal part of what the others leave)")
    return f"Ask for less with {' or '.join(options)}, {WAIT}"


def _and_compute(request: Request) -> str:
    percent = request.compute_percent
    return f" and {percent}% of its compute time" if percent else ""


def _short(request: Request, enough: int, what: str) -> str:
    return f"{_count(request.gpus)} {what} asked for, and there {_is(enough)}"


def _holding(grant: Grant, gpu: Gpu, *, with_compute: bool) -> str:
    percent = grant.reserved_percent_on(gpu.uuid) if with_compute else 0
    compute = f" {percent}%" if percent else ""
    return f"{grant.name} {format_bytes(grant.bytes_on(gpu.uuid))}{compute}"


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _is(number: int) -> str:
    return f"{'is' if number == 1 else 'are'} {number or 'none'}"
