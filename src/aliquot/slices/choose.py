"""Which GPUs answer a request: a pure decision over what the arbiter told.

A GPU has left what no grant holds and no program outside every grant uses. Of those that have
enough left, the ones with the most memory really free come first, then the lower index. So equal
questions get equal answers, and nobody is put on a busy GPU beside an idle one. A whole GPU is one
that no grant holds a part of, whoever uses it outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import format_bytes
from aliquot.model.errors import NoRoomError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Gpu, Grant, Request
    from aliquot.slices.control import SharedGpu

ASK_LESS = "Ask for less with --memory, or wait until a grant ends: aliquot ps"


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
    fitting = [one for one in large if _fits(request, one)]
    if len(fitting) < request.gpus:
        raise NoRoomError(_no_room(request, gpus, grants, len(fitting)), ASK_LESS)
    fitting.sort(key=lambda one: (-really_free(one), one.gpu.index))
    return sorted((one.gpu for one in fitting[: request.gpus]), key=lambda gpu: gpu.index)


def left(one: SharedGpu) -> int:
    """What a new slice can have of a GPU."""
    return max(0, one.gpu.memory_bytes - one.granted_bytes - outside(one))


def outside(one: SharedGpu) -> int:
    """What programs outside every grant use, as far as the driver says."""
    return sum(stranger.bytes or 0 for stranger in one.strangers)


def really_free(one: SharedGpu) -> int:
    """What is left, and no more than what the driver itself says is unused."""
    return min(left(one), max(0, one.gpu.memory_bytes - one.gpu.used_bytes))


def _fits(request: Request, one: SharedGpu) -> bool:
    if request.memory is None:  # a whole GPU is one that no grant holds a part of
        return one.granted_bytes == 0
    return request.bytes_on(one.gpu) <= left(one)


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
        have = f"with {request.memory} left"
        wanted = (
            f"no GPU has {request.memory} left"
            if request.gpus == 1
            else _short(request, enough, have)
        )
    return "\n".join([f"{wanted}:", *(f"  {_figures(one, grants)}" for one in gpus)])


def _short(request: Request, enough: int, what: str) -> str:
    return f"{_count(request.gpus)} {what} asked for, and there {_is(enough)}"


def _figures(one: SharedGpu, grants: Sequence[Grant]) -> str:
    holders = [
        f"{grant.name} {format_bytes(held)}"
        for grant in grants
        if (held := grant.bytes_on(one.gpu.uuid))
    ]
    parts = [f"grants: {', '.join(holders)}"] if holders else []
    if one.strangers:
        parts.append(f"outside Aliquot: {format_bytes(outside(one))}")
    reasons = f" ({'; '.join(parts)})" if parts else ""
    return f"{one.gpu}: {format_bytes(left(one))} left{reasons}"


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _is(number: int) -> str:
    return f"{'is' if number == 1 else 'are'} {number or 'none'}"
