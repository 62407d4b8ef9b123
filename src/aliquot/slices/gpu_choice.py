"""Which GPUs satisfy a request, decided by `placement` from the arbiter's status.

Memory is free if no grant has it and no program outside all grants uses it. Compute time is free if
no slice has requested it; `background` slices reserve none. Of the GPUs with enough free capacity,
those that are shared already come first, the fullest before the others, so that whole GPUs stay
whole. A GPU that programs outside all grants use comes last, and of equal GPUs the one with the
lower index first. A whole GPU is one of which no grant has a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import format_bytes
from aliquot.model.errors import NoCapacityError
from aliquot.placement.choose.machine import GpuCapacity, choose_gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Gpu, Grant, Request, Slice
    from aliquot.slices.control import SharedGpu

WAIT = "or wait until a grant ends: aliquot ps"


def find_gpus(request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]) -> list[Gpu]:
    """The GPUs for a request, as many different ones as it asks for, or NoCapacityError."""
    if request.gpus > len(gpus):
        raise NoCapacityError(
            f"{_count(request.gpus)} requested, but there {_is(len(gpus))}",
            "Request fewer with --gpus.",
        )
    large = [one for one in gpus if request.bytes_on(one.gpu) <= one.gpu.memory_bytes]
    if len(large) < request.gpus:
        raise NoCapacityError(_too_small(request, gpus, len(large)), "Request less with --memory.")
    fitting = [one for one in large if _request_fits(request, one, grants)]
    if len(fitting) < request.gpus:
        raise NoCapacityError(
            _no_capacity(request, gpus, grants, len(fitting)), _request_less(request, large, grants)
        )
    chosen = choose_gpus(request, [_capacity(one, grants) for one in fitting])
    assert chosen is not None  # noqa: S101 - all of them fit, by the lines above
    return chosen


def _capacity(one: SharedGpu, grants: Sequence[Grant]) -> GpuCapacity:
    return GpuCapacity(
        gpu=one.gpu,
        bytes_free=free_bytes(one),
        percent_free=free_percent(one, grants),
        unused_bytes=max(0, one.gpu.memory_bytes - one.gpu.used_bytes),
        holders=_slices_on(one, grants),
        strangers=bool(one.strangers),
    )


def free_bytes(one: SharedGpu) -> int:
    """The memory of a GPU that a new slice can have."""
    return max(0, one.gpu.memory_bytes - one.granted_bytes - unmanaged_bytes(one))


def free_percent(one: SharedGpu, grants: Sequence[Grant]) -> int:
    """The percentage of a GPU's compute time that a new slice can request."""
    return max(0, 100 - sum(grant.reserved_percent_on(one.gpu.uuid) for grant in grants))


def fits(part: Slice, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    """Whether a slice fits the free capacity of its GPU; a whole GPU must have no other slice."""
    whole = part.memory_bytes >= one.gpu.memory_bytes
    memory = one.granted_bytes == 0 if whole else part.memory_bytes <= free_bytes(one)
    return memory and part.reserved_percent <= free_percent(one, grants)


def unmanaged_bytes(one: SharedGpu) -> int:
    """The memory that programs outside all grants use, as far as the driver says."""
    return sum(stranger.bytes or 0 for stranger in one.strangers)


def describe_free(one: SharedGpu, grants: Sequence[Grant], *, with_compute: bool) -> str:
    """What is free on a GPU, and which grants have the rest."""
    compute = f" and {free_percent(one, grants)}%" if with_compute else ""
    users = describe_users(one, grants, with_compute=with_compute)
    return f"{one.gpu}: {format_bytes(free_bytes(one))}{compute} free{users}"


def describe_users(one: SharedGpu, grants: Sequence[Grant], *, with_compute: bool) -> str:
    """The grants and other programs on a GPU, in brackets; empty if there are none."""
    here = [grant for grant in grants if grant.bytes_on(one.gpu.uuid)]
    named = [_slice_text(grant, one.gpu, with_compute=with_compute) for grant in here]
    parts = [f"grants: {', '.join(named)}"] if named else []
    if one.strangers:
        parts.append(f"outside Aliquot: {format_bytes(unmanaged_bytes(one))}")
    return f" ({'; '.join(parts)})" if parts else ""


def _request_fits(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    return _has_memory(request, one) and _has_compute(request, one, grants)


def _has_memory(request: Request, one: SharedGpu) -> bool:
    if request.memory is None:  # a whole GPU is one of which no grant has a part
        return one.granted_bytes == 0
    return request.bytes_on(one.gpu) <= free_bytes(one)


def _has_compute(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    return request.slice_of(one.gpu).reserved_percent <= free_percent(one, grants)


def _slices_on(one: SharedGpu, grants: Sequence[Grant]) -> int:
    return sum(len(grant.slices_on(one.gpu.uuid)) for grant in grants)


def _too_small(request: Request, gpus: Sequence[SharedGpu], enough: int) -> str:
    largest = max((one.gpu for one in gpus), key=lambda gpu: (gpu.memory_bytes, -gpu.index))
    having = "no GPU has" if enough == 0 else f"{_count(request.gpus)} requested, {enough} has"
    return (
        f"{having} {request.memory}: the largest is {largest}"
        f" ({largest.model}, {format_bytes(largest.memory_bytes)})"
    )


def _no_capacity(
    request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant], enough: int
) -> str:
    if request.memory is None:
        wanted = "no GPU is whole" if request.gpus == 1 else _short(request, enough, "whole")
    else:
        parts = f"{request.memory}{_and_compute(request)} free"
        wanted = (
            f"no GPU has {parts}" if request.gpus == 1 else _short(request, enough, f"with {parts}")
        )
    with_compute = bool(request.compute_percent)
    lines = (f"  {describe_free(one, grants, with_compute=with_compute)}" for one in gpus)
    return "\n".join([f"{wanted}:", *lines])


def _request_less(request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]) -> str:
    """The hint, by what is missing."""
    short = [one for one in gpus if not _has_memory(request, one)]
    options = ["--memory"] if short else []
    if not all(_has_compute(request, one, grants) for one in gpus):
        options.append("--compute (or leave it out for an equal part of what the others leave)")
    return f"Request less with {' or '.join(options)}, {WAIT}"


def _and_compute(request: Request) -> str:
    percent = request.compute_percent
    return f" and {percent}% of its compute time" if percent else ""


def _short(request: Request, enough: int, what: str) -> str:
    return f"{_count(request.gpus)} {what} requested, but there {_is(enough)}"


def _slice_text(grant: Grant, gpu: Gpu, *, with_compute: bool) -> str:
    percent = grant.reserved_percent_on(gpu.uuid) if with_compute else 0
    compute = f" {percent}%" if percent else ""
    return f"{grant.label} {format_bytes(grant.bytes_on(gpu.uuid))}{compute}"


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _is(number: int) -> str:
    return f"{'is' if number == 1 else 'are'} {number or 'none'}"
