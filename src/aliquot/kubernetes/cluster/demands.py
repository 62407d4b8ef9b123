"""What containers ask for, as demands of `placement`.

A share of a shared GPU, or a percentage of a GPU's memory, is more on some nodes than on others. So
one request becomes one demand for each GPU size and number of shares that nodes have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.cluster.cluster import Size
from aliquot.kubernetes.cluster.hardware import CLASS, KINDS, MIXED, milli_of
from aliquot.placement.core.demand import Demand
from aliquot.placement.core.fit import lacks_of
from aliquot.placement.core.turns import Swap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.placement.core.fit import Lack

NO_MODEL = frozenset({"\0"})
ANY_SIZE = Size(0, 1)


def demand_of(
    request: ContainerRequest, gpu_bytes: int, shares: int, models: Sequence[str]
) -> Demand:
    """A request on nodes with GPUs of this size and number of shares; `models` are all models.

    A container that is alone takes whole GPUs, though its slice is smaller.
    """
    whole = request.kind == "whole"
    kind = "whole" if request.alone else request.kind
    return Demand(
        gpus=request.gpus,
        kind=KINDS[kind],
        milli=milli_of(kind, request.reserved, shares),
        gpu_bytes=0 if whole else request.memory_of(gpu_bytes, shares),
        models=_models(request, models),
        thrifty=request.kind != "whole",
        min_strength=request.min_strength,
        wishes=request.wishes,
        swap=_swap(request),
    )


class Demands:
    """What requests cost and lack on all rows of the current allocations."""

    def __init__(self, cluster: Cluster) -> None:
        self._chooser = cluster.chooser
        self._sizes = cluster.sizes
        self._size_of = cluster.size_of
        self.size = len(self._size_of)

    def costs(self, request: ContainerRequest) -> NDArray[np.float64]:
        """What a request costs on each row; infinite if it does not fit."""
        if _is_everywhere_the_same(request):
            return self._chooser.costs(self._demand(request))
        result = np.full(self.size, np.inf)
        for demand, rows in self._demands(request):
            result[rows] = self._chooser.costs(demand)[rows]
        return result

    def gpus_on(self, request: ContainerRequest, row: int) -> tuple[int, ...]:
        """The columns of the best GPUs of a row that the request fits."""
        size = ANY_SIZE
        if not _is_everywhere_the_same(request):
            size = list(self._sizes)[self._size_of[row]]
        return self._chooser.gpus_on(row, self._demand(request, size))

    def lacks(self, request: ContainerRequest) -> list[Lack | None]:
        """What each row lacks; None if the request fits."""
        allocations = self._chooser.allocations
        if _is_everywhere_the_same(request):
            return lacks_of(allocations, self._demand(request))
        result: list[Lack | None] = [None] * self.size
        for demand, rows in self._demands(request):
            lacks = lacks_of(allocations, demand)
            for row in np.flatnonzero(rows).tolist():
                result[row] = lacks[row]
        return result

    def _demand(self, request: ContainerRequest, size: Size = ANY_SIZE) -> Demand:
        models = self._chooser.allocations.hardware.models
        return demand_of(request, size.gpu_bytes, size.shares, models)

    def _demands(self, request: ContainerRequest) -> Iterator[tuple[Demand, NDArray[np.bool_]]]:
        """The demands that the request becomes, each with the rows it is for."""
        for size, number in self._sizes.items():
            rows = self._size_of == number
            if rows.any():
                yield self._demand(request, size), rows


def _is_everywhere_the_same(request: ContainerRequest) -> bool:
    return request.kind == "whole" or (request.kind == "sliced" and not request.memory_percent)


def _swap(request: ContainerRequest) -> Swap | None:
    """Whether it may take turns with memory."""
    if request.overcommit is None or request.kind != "sliced" or request.gpus != 1:
        return None
    return Swap(request.overcommit or None)


def _models(request: ContainerRequest, models: Sequence[str]) -> frozenset[str]:
    """The models that a request may use; on a mixed node it must accept all of its models."""
    if not (request.models or request.not_models):
        return frozenset()
    allowed = (
        model
        for model in models
        if all(request.accepts(one.partition(CLASS)[0]) for one in model.split(MIXED))
    )
    return frozenset(allowed) or NO_MODEL
