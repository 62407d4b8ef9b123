"""How much of a GPU one CUDA context takes: a slice with less memory can run no CUDA program.

The arbiter measures it when the first program of a GPU makes a context, and keeps the figure for
the GPUs of that model while the driver stays the same. Until then it is the usual size for the
model, as simulated GPUs have it too, or for other models a figure that is rather too small: a
context has stacks for every thread that the GPU can run at once, so larger GPUs need more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model.units import MIB, format_bytes

if TYPE_CHECKING:
    from aliquot.slices.arbiter_status import SharedGpu

_USUAL = {  # by a word of the GPU's name
    "H200": 518 * MIB,
    "H100": 518 * MIB,
    "A100": 414 * MIB,
    "L40S": 396 * MIB,
    "L4": 254 * MIB,
    "T4": 102 * MIB,
}
_LARGEST_GUESS = 400 * MIB
_PART_OF_A_GPU = 200


def context_bytes(one: SharedGpu) -> int:
    """What one context takes of a GPU, as far as it is known."""
    if one.context_is_measured:
        return one.context_bytes
    words = one.gpu.name.replace("-", " ").split()
    usual = next((size for word, size in _USUAL.items() if word in words), None)
    return usual or min(_LARGEST_GUESS, one.gpu.memory_bytes // _PART_OF_A_GPU)


def describe_too_small(size: str, one: SharedGpu) -> str:
    """Why a slice of that size of a GPU is refused."""
    takes = "takes" if one.context_is_measured else "usually takes"
    return (
        f"{size} cannot hold a CUDA context: one {takes} {format_bytes(context_bytes(one))}"
        f" of {one.gpu} ({one.gpu.model})"
    )
