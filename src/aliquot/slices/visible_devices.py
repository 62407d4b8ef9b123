"""The GPUs that CUDA_VISIBLE_DEVICES names, if it is set for `aliquot run`.

It names GPUs of the machine: by index in the order of `aliquot gpus`, by UUID, or by the unique
beginning of a UUID. As in the driver, the list ends at the first entry that names no GPU. The
command in the grant does not get the variable: its slices are all the GPUs that it has.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from aliquot.model.errors import NoGpuError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.slices.arbiter_status import SharedGpu

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(gpus: Sequence[SharedGpu], value: str | None) -> list[SharedGpu]:
    """The GPUs that the value names, each once; all GPUs if it is None."""
    if value is None:
        return list(gpus)
    named = takewhile(len, (_named(gpus, word.strip()) for word in value.split(",")))
    if found := dict.fromkeys(one for (one,) in named):
        return list(found)
    raise NoGpuError(
        f"{VISIBLE} is {value!r}, which names no GPU of this machine",
        f"Unset it, or name GPUs by index or UUID as `aliquot gpus` does: {VISIBLE}=0",
    )


def _named(gpus: Sequence[SharedGpu], word: str) -> list[SharedGpu]:
    """The GPU that an entry names, or none."""
    if word.startswith(("GPU-", "MIG-")):
        found = [one for one in gpus if one.gpu.uuid.startswith(word)]
    else:
        found = [one for one in gpus if str(one.gpu.index) == word]
    return found if len(found) == 1 else []
