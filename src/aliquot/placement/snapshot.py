"""An immutable picture of nodes and GPUs as arrays: one row a node, one column a GPU.

Rows have as many columns as the node with the most GPUs; `present` says which are there and
healthy. What is left of one that is not is -1, so that nothing fits it, not even nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.demand import WHOLE_MILLI, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

ABSENT = -1
CHANGING = ("milli_left", "bytes_left", "kind", "holders", "cpu_left", "ram_left")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as it is before anything runs on it.

    `links[i][j]` is how good the way between two of its GPUs is, more is better; none: all equal.
    `strength` orders the models: thrifty work goes to the weaker.
    """

    name: str
    gpus: int
    model: str = ""
    cpu_milli: int = 0
    ram_bytes: int = 0
    gpu_bytes: int = 0
    rack: str = ""
    block: str = ""
    links: tuple[tuple[int, ...], ...] = ()
    strength: float = 0.0
    unhealthy: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Hardware:
    """What does not change while work comes and goes."""

    names: tuple[str, ...]
    models: tuple[str, ...]
    links: tuple[tuple[tuple[int, ...], ...], ...]
    gpu_count: Ints
    model: Ints
    rack: Ints
    block: Ints
    gpu_bytes: Ints
    cpu_milli: Ints
    ram_bytes: Ints
    strength: NDArray[np.float64]
    present: Bools

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.names)

    @property
    def total_milli(self) -> int:
        """Thousandths of all healthy GPUs."""
        return int(self.present.sum()) * WHOLE_MILLI

    def models_allowed(self, wanted: frozenset[str]) -> Bools:
        """Which nodes have one of these models."""
        return np.array([name in wanted for name in self.models], dtype=bool)[self.model]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is left everywhere at one moment; `holders` counts who holds each GPU. Read-only."""

    hardware: Hardware
    milli_left: Ints
    bytes_left: Ints
    kind: NDArray[np.int8]
    holders: Ints
    cpu_left: Ints
    ram_left: Ints

    def __post_init__(self) -> None:
        for name in CHANGING:
            getattr(self, name).flags.writeable = False

    @property
    def allocated_milli(self) -> int:
        """Thousandths that are taken."""
        left = self.milli_left[self.hardware.present]
        return self.hardware.total_milli - int(left.sum())


def empty(nodes: Sequence[NodeSpec]) -> Snapshot:
    """The picture of nodes on which nothing runs."""
    hardware = _hardware(nodes)
    present = hardware.present
    return Snapshot(
        hardware=hardware,
        milli_left=np.where(present, WHOLE_MILLI, ABSENT).astype(np.int64),
        bytes_left=np.where(present, hardware.gpu_bytes[:, None], ABSENT),
        kind=np.full(present.shape, Kind.FREE, dtype=np.int8),
        holders=np.zeros(present.shape, dtype=np.int64),
        cpu_left=hardware.cpu_milli.copy(),
        ram_left=hardware.ram_bytes.copy(),
    )


def _hardware(nodes: Sequence[NodeSpec]) -> Hardware:
    widest = max((node.gpus for node in nodes), default=0) or 1
    counts = _ints(node.gpus for node in nodes)
    models = _numbered(node.model for node in nodes)
    racks = _numbered((node.block, node.rack or node.name) for node in nodes)
    blocks = _numbered(node.block for node in nodes)
    return Hardware(
        names=tuple(node.name for node in nodes),
        models=tuple(str(name) for name in models),
        links=tuple(node.links for node in nodes),
        gpu_count=counts,
        model=_ints(models[node.model] for node in nodes),
        rack=_ints(racks[node.block, node.rack or node.name] for node in nodes),
        block=_ints(blocks[node.block] for node in nodes),
        gpu_bytes=_ints(node.gpu_bytes for node in nodes),
        cpu_milli=_ints(node.cpu_milli for node in nodes),
        ram_bytes=_ints(node.ram_bytes for node in nodes),
        strength=np.array([node.strength for node in nodes], dtype=np.float64),
        present=np.array(
            [
                [gpu < node.gpus and gpu not in node.unhealthy for gpu in range(widest)]
                for node in nodes
            ]
        ).reshape(len(nodes), widest),
    )


def _ints(values: object) -> Ints:
    return np.fromiter(values, dtype=np.int64)  # type: ignore[call-overload, no-any-return]


def _numbered(values: object) -> Mapping[object, int]:
    seen: dict[object, int] = {}
    for value in values:  # type: ignore[attr-defined]
        seen.setdefault(value, len(seen))
    return seen
