"""The GPUs that --gpu and --not-gpu name: found on this machine, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.model.errors import NoGpuError
from aliquot.model.selection import names_gpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.model import Gpu, Request

_SEE = "To see the GPUs of this machine: aliquot gpus"


def with_named_gpus(request: Request, gpus: Iterable[Gpu]) -> Request:
    """The request with the UUIDs of the GPUs that it names or excludes.

    NoGpuError if a name means no GPU of this machine, or several.
    """
    which = request.which
    if not (which.named or which.excluded):
        return request
    here = list(gpus)
    named = tuple(_uuid("--gpu", word, here) for word in which.named)
    excluded = tuple(_uuid("--not-gpu", word, here) for word in which.excluded)
    return replace(request, which=replace(which, named=named, excluded=excluded))


def _uuid(option: str, word: str, gpus: Sequence[Gpu]) -> str:
    found = [gpu for gpu in gpus if names_gpu(word, gpu)]
    if len(found) == 1:
        return found[0].uuid
    if found:
        several = " and ".join(f"{gpu} ({gpu.uuid})" for gpu in found[:2])
        raise NoGpuError(f"{option} {word} is not one GPU: it means {several}", "Write more of it.")
    indexes = ", ".join(str(gpu.index) for gpu in gpus)
    here = f"GPU{'s' * (len(gpus) > 1)} {indexes}" if gpus else "none"
    raise NoGpuError(
        f"{option} {word} names no GPU of this machine, which has {here}",
        f"Name a GPU by its index or by its UUID (GPU-…). {_SEE}",
    )
