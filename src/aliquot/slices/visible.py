"""The GPUs that CUDA_VISIBLE_DEVICES names, where it is set before there is a grant.

There it speaks of the machine's GPUs: by index, in the order of `aliquot gpus`; by UUID; or by the
beginning of just one UUID. As for the driver, the list ends at the first word that names none. It
does not go into the grant, where the slices are all the GPUs there are.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from aliquot.model.errors import NoGpuError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.slices.control import SharedGpu

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible(gpus: Sequence[SharedGpu], value: str | None) -> list[SharedGpu]:
    """The GPUs that the variable's value names, each once; all of them where it is not set."""
    if value is None:
        return list(gpus)
    named = takewhile(len, (_named(gpus, word.strip()) for word in value.split(",")))
    if found := dict.fromkeys(one for (one,) in named):
        return list(found)
    raise NoGpuError(
        f"{VISIBLE} is {value!r}, and that names no GPU of this machine",
        f"Unset it, or name GPUs by index or UUID as `aliquot gpus` does: {VISIBLE}=0",
    )


def _named(gpus: Sequence[SharedGpu], word: str) -> list[SharedGpu]:
    """The one GPU that a word names, or none."""
    if word.startswith("GPU-"):
        found = [one for one in gpus if one.gpu.uuid.startswith(word)]
    else:
        found = [one for one in gpus if str(one.gpu.index) == word]
    return found if len(found) == 1 else []
