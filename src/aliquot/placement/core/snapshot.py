"""An immutable snapshot of nodes and GPUs as arrays: one row a node, one column a GPU.

Rows have as many columns as the node with the most GPUs; `present` says which are there and
healthy. What is free of one that is not is -1, so that nothing fits it, not even a demand of 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from aliquot.placement.core.demand import WHOLE_MILLI, Kind
from aliquot.placement.core.marks import Marks
from aliquot.placement.core.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from aliquot.placement.core.demand import Demand
    from aliquot.placement.core.links import Links

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

_Value = TypeVar("_Value")

ABSENT = -1
CHANGING = ("milli_free", "bytes_free", "kind", "holders", "cpu_free", "ram_free")


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """A node as it is before anything runs on it.

    `links[i][j]` is how good the way between two of its GPUs is, more is better; none: all equal.
    `strength` is that of its weakest GPU (`model.strength`). `rank` orders the models, so that
    thrifty work goes to the weaker; without one their strength does. `uuids` are the names of its
    GPUs; without them no GPU of it can be named.
    """

    name: str
    gpus: int
    model: str = ""
    cpu_milli: int = 0
    ram_bytes: int = 0
    gpu_bytes: int = 0
    rack: str = ""
    block: str = ""
    links: Links = ()
    strength: float = 0.0
    rank: float | None = None
    unhealthy: frozenset[int] = frozenset()
    uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hardware:
    """What does not change while work comes and goes. Read-only.

    `link_tables` are those that differ, and `link_table` says which of them a node has.
    """

    names: tuple[str, ...]
    models: tuple[str, ...]
    model_bytes: tuple[int, ...]
    links: tuple[Links, ...]
    uuids: tuple[tuple[str, ...], ...]
    link_tables: tuple[Links, ...]
    link_table: Ints
    gpu_count: Ints
    model: Ints
    rack: Ints
    block: Ints
    gpu_bytes: Ints
    cpu_milli: Ints
    ram_bytes: Ints
    strength: NDArray[np.float64]
    rank: NDArray[np.float64]
    present: Bools

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.names)

    @property
    def total_milli(self) -> int:
        """Thousandths of all healthy GPUs."""
        return int(self.present.sum()) * WHOLE_MILLI

    @property
    def total_bytes(self) -> int:
        """Memory of all healthy GPUs."""
        return int((self.present.sum(axis=1) * self.gpu_bytes).sum())

    def largest_gpu(self, wanted: frozenset[str]) -> int:
        """The memory of the largest GPU of these models, or of any where none is named."""
        sizes = zip(self.models, self.model_bytes, strict=True)
        return max((size for model, size in sizes if not wanted or model in wanted), default=0)

    def taken_of_each(self, node: int, demand: Demand) -> tuple[int, int]:
        """Thousandths and bytes that a demand takes of each of its GPUs on this node."""
        if demand.kind is Kind.WHOLE:
            return WHOLE_MILLI, int(self.gpu_bytes[node])
        return demand.milli, demand.gpu_bytes

    def has_place_for(self, spec: NodeHardware) -> bool:
        """Whether a node like this can be in a row: its model is known, and it is not too wide."""
        return spec.model in self.models and spec.gpus <= self.present.shape[1]

    def with_node(self, node: int, spec: NodeHardware) -> Hardware:
        """The same with this node in that row, which has a place for it; rack and block stay."""
        model = self.models.index(spec.model)
        tables = self.link_tables
        if spec.links not in tables:
            tables = (*tables, spec.links)
        values = {
            "link_table": tables.index(spec.links),
            "gpu_count": spec.gpus,
            "model": model,
            "gpu_bytes": spec.gpu_bytes,
            "cpu_milli": spec.cpu_milli,
            "ram_bytes": spec.ram_bytes,
            "strength": spec.strength,
            "rank": _rank(spec),
            "present": _present(spec, self.present.shape[1]),
        }
        changed = {name: getattr(self, name).copy() for name in values}
        for name, value in values.items():
            changed[name][node] = value
        largest = max(self.model_bytes[model], spec.gpu_bytes)
        return replace(
            self,
            names=_with(self.names, node, spec.name),
            model_bytes=_with(self.model_bytes, model, largest),
            links=_with(self.links, node, spec.links),
            uuids=_with(self.uuids, node, spec.uuids),
            link_tables=tables,
            **changed,
        )

    def nodes_for(self, demand: Demand) -> Bools | None:
        """Which nodes have GPUs that the demand may use at all; None: it may use any."""
        if not (demand.models or demand.needs_strength):
            return None
        return self.right_model(demand) & ~self.too_weak(demand)

    def suits(self, node: int, demand: Demand) -> bool:
        """Whether the demand may use the GPUs of this node at all."""
        right = not demand.models or self.models[int(self.model[node])] in demand.models
        return right and not (demand.needs_strength and self.strength[node] < demand.min_strength)

    def suiting_models(self, demand: Demand) -> list[bool]:
        """Of each model whether some node with it suits the demand."""
        strongest = np.zeros(len(self.models))
        np.maximum.at(strongest, self.model, self.strength)
        return [
            (not demand.models or name in demand.models) and bool(most >= demand.min_strength)
            for name, most in zip(self.models, strongest, strict=True)
        ]

    def right_model(self, demand: Demand) -> Bools:
        """Which nodes have one of the demand's models."""
        if not demand.models:
            return np.ones(self.size, dtype=bool)
        return np.array([name in demand.models for name in self.models], dtype=bool)[self.model]

    def too_weak(self, demand: Demand) -> Bools:
        """Which nodes have GPUs that are weaker than the demand asks for."""
        return np.asarray((self.strength < demand.min_strength) & demand.needs_strength)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is free on all nodes at one moment; `holders` counts those of each GPU. Read-only.

    `marks` are those that slices leave on GPUs for others to see. `busy` is how much of the time of
    each GPU is really used, in eighths, as far as that is known: it decides between equal places.
    `turns` are the slices that take turns with memory: what is free of their GPUs may be negative.
    """

    hardware: Hardware
    milli_free: Ints
    bytes_free: Ints
    kind: NDArray[np.int8]
    holders: Ints
    cpu_free: Ints
    ram_free: Ints
    busy: NDArray[np.int8]
    marks: Marks = field(default_factory=Marks)
    turns: Turns = field(default_factory=Turns)

    @property
    def knows_use(self) -> bool:
        """Whether any GPU is known to be used."""
        return bool(self.busy.any())

    def __post_init__(self) -> None:
        for name in (*CHANGING, "busy"):
            getattr(self, name).flags.writeable = False


def empty(nodes: Sequence[NodeHardware]) -> Snapshot:
    """A snapshot of nodes on which nothing runs."""
    hardware = _hardware(nodes)
    present = hardware.present
    return Snapshot(
        hardware=hardware,
        milli_free=np.where(present, WHOLE_MILLI, ABSENT).astype(np.int64),
        bytes_free=np.where(present, hardware.gpu_bytes[:, None], ABSENT),
        kind=np.full(present.shape, Kind.FREE, dtype=np.int8),
        holders=np.zeros(present.shape, dtype=np.int64),
        cpu_free=hardware.cpu_milli.copy(),
        ram_free=hardware.ram_bytes.copy(),
        busy=np.zeros(present.shape, dtype=np.int8),
    )


def _hardware(nodes: Sequence[NodeHardware]) -> Hardware:
    widest = max((node.gpus for node in nodes), default=0) or 1
    counts = _ints(node.gpus for node in nodes)
    models = _numbered(node.model for node in nodes)
    racks = _numbered((node.block, node.rack or node.name) for node in nodes)
    blocks = _numbered(node.block for node in nodes)
    tables = _numbered(node.links for node in nodes)
    sizes = dict.fromkeys(models, 0)
    for node in nodes:
        sizes[node.model] = max(sizes[node.model], node.gpu_bytes)
    return Hardware(
        names=tuple(node.name for node in nodes),
        models=tuple(models),
        model_bytes=tuple(sizes.values()),
        links=tuple(node.links for node in nodes),
        uuids=tuple(node.uuids for node in nodes),
        link_tables=tuple(tables),
        link_table=_ints(tables[node.links] for node in nodes),
        gpu_count=counts,
        model=_ints(models[node.model] for node in nodes),
        rack=_ints(racks[node.block, node.rack or node.name] for node in nodes),
        block=_ints(blocks[node.block] for node in nodes),
        gpu_bytes=_ints(node.gpu_bytes for node in nodes),
        cpu_milli=_ints(node.cpu_milli for node in nodes),
        ram_bytes=_ints(node.ram_bytes for node in nodes),
        strength=np.array([node.strength for node in nodes], dtype=np.float64),
        rank=np.array([_rank(node) for node in nodes], dtype=np.float64),
        present=np.array([_present(node, widest) for node in nodes]).reshape(len(nodes), widest),
    )


def _rank(node: NodeHardware) -> float:
    return node.strength if node.rank is None else node.rank


def _present(node: NodeHardware, widest: int) -> list[bool]:
    return [gpu < node.gpus and gpu not in node.unhealthy for gpu in range(widest)]


def _with(values: tuple[_Value, ...], place: int, value: _Value) -> tuple[_Value, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _numbered(values: Iterable[_Value]) -> dict[_Value, int]:
    seen: dict[_Value, int] = {}
    for value in values:
        seen.setdefault(value, len(seen))
    return seen
