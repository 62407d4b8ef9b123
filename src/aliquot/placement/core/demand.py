"""What a request takes of a node, in numbers that can be compared.

A GPU's compute time is 1000 thousandths. A demand names how many different GPUs it needs on one
node and what it takes of each; equal demands are one shape, and get equal answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.strength import format_strength
from aliquot.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.placement.core.turns import Swap
    from aliquot.placement.core.wishes import Wishes

WHOLE_MILLI = 1000


class Kind(IntEnum):
    """What a GPU is used as. The first grant decides; it is free again when the last one ends."""

    FREE = 0
    WHOLE = 1
    SHARED = 2
    SLICED = 3


class Near(StrEnum):
    """Where a request wants to be, seen from a grant that exists."""

    SAME_GPU = "same-gpu"
    OTHER_GPU = "other-gpu"
    SAME_NODE = "same-node"
    OTHER_NODE = "other-node"


@dataclass(frozen=True, slots=True)
class Demand:
    """What one worker needs on one node.

    `milli` and `gpu_bytes` are taken of each of `gpus` different GPUs; a WHOLE one takes all of
    both. No `models` means any, and a GPU weaker than `min_strength` does not fit. `thrifty` work
    (experiments, inference) prefers GPUs that are already sliced, then weaker models. Other work
    that takes whole GPUs prefers stronger models. `wishes` choose GPUs by name and by neighbours.
    With `swap` it may take turns with memory, where the node allows that (`turns`).
    """

    gpus: int = 1
    kind: Kind = Kind.WHOLE
    milli: int = WHOLE_MILLI
    gpu_bytes: int = 0
    cpu_milli: int = 0
    ram_bytes: int = 0
    models: frozenset[str] = field(default_factory=frozenset)
    thrifty: bool = False
    min_strength: float = 0.0
    wishes: Wishes | None = None
    swap: Swap | None = None

    def __post_init__(self) -> None:
        if self.gpus < 0 or min(self.gpu_bytes, self.cpu_milli, self.ram_bytes) < 0:
            raise InvalidValueError("a demand cannot be negative")
        if not (self.min_strength >= 0 and math.isfinite(self.min_strength)):
            raise InvalidValueError(f"{self.min_strength} is no strength of a GPU")
        if self.gpus and self.kind is Kind.FREE:
            raise InvalidValueError("a demand for GPUs needs a kind: whole, shared or sliced")
        if not 0 <= self.milli <= WHOLE_MILLI:
            raise InvalidValueError(f"{self.milli} is not a part of a GPU's 1000 thousandths")
        if self.swap is not None and (self.gpus != 1 or self.kind is not Kind.SLICED):
            raise InvalidValueError("only a slice of one GPU can take turns with memory")

    @property
    def needs_strength(self) -> bool:
        """Whether some GPUs may be too weak."""
        return self.gpus > 0 and self.min_strength > 0

    @property
    def strength_sign(self) -> int:
        """1: the weaker models first; -1: the stronger first; 0: any."""
        return 1 if self.thrifty else -int(self.kind is Kind.WHOLE and self.gpus > 0)

    @property
    def joins(self) -> bool:
        """Whether it asks to be with others, so that where they are decides where it may be."""
        return self.wishes is not None and bool(self.wishes.beside)

    @property
    def turn(self) -> tuple[bool, int, int, int, int]:
        """What members of a gang are sorted by: those that join others last, the largest first."""
        return self.joins, -self.total_milli, -self.gpus, -self.gpu_bytes, -self.cpu_milli

    @property
    def total_milli(self) -> int:
        """Thousandths on all its GPUs."""
        return self.gpus * (WHOLE_MILLI if self.kind is Kind.WHOLE else self.milli)

    def __str__(self) -> str:
        if not self.gpus:
            return f"no GPU, {self.cpu_milli / 1000:g} CPU"
        count = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        is_whole = self.kind is Kind.WHOLE
        part = "whole" if is_whole else f"{self.milli / 10:g}%"
        if self.gpu_bytes:
            part += f"{',' if is_whole else ' and'} {format_bytes(self.gpu_bytes)}"
        if self.gpus > 1 and not is_whole:
            part += " of each"
        on = f" of {' or '.join(sorted(self.models))}" if self.models else ""
        if self.min_strength:
            on += f" with strength {format_strength(self.min_strength)} or more"
        if self.wishes is not None and str(self.wishes):
            on += f" {self.wishes}"
        with_cpu = f" with {self.cpu_milli / 1000:g} CPU" if self.cpu_milli else ""
        return f"{count} ({part}){on}{with_cpu}"


def whole(gpus: int = 1, *, cpu_milli: int = 0, ram_bytes: int = 0) -> Demand:
    """Whole GPUs."""
    return Demand(gpus=gpus, cpu_milli=cpu_milli, ram_bytes=ram_bytes)


def sliced(milli: int, gpu_bytes: int = 0, *, gpus: int = 1, cpu_milli: int = 0) -> Demand:
    """A part of each of some GPUs."""
    return Demand(
        gpus=gpus, kind=Kind.SLICED, milli=milli, gpu_bytes=gpu_bytes, cpu_milli=cpu_milli
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """The answer to a request: a node, and which of its GPUs."""

    node: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Gang:
    """Requests that are placed all together or not at all.

    `seconds` is how long it runs, declared or estimated. `name` tells it from all others.
    """

    name: str
    members: tuple[Demand, ...]
    seconds: float = 3600.0
    queue: str = ""
    priority: int = 0
    submitted: float = 0.0

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidValueError(f"gang {self.name!r} has no members")
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise InvalidValueError(f"gang {self.name!r} cannot run for {self.seconds:g} seconds")

    @property
    def milli(self) -> int:
        """Thousandths of all members."""
        return sum(member.total_milli for member in self.members)


@dataclass(frozen=True, slots=True)
class Running:
    """A gang that runs, or is planned to; `end` is an estimate."""

    gang: Gang
    placements: tuple[Placement, ...]
    start: float
    end: float

    def in_turn(self) -> Sequence[tuple[Placement, Demand]]:
        """The members with their places, each after those that it may ask to be with."""
        pairs = list(zip(self.placements, self.gang.members, strict=True))
        if any(member.joins for member in self.gang.members):
            pairs.sort(key=lambda pair: pair[1].turn)
        return pairs
