"""Slices, and the grants that hold them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from aliquot.model.compute import ComputeUse

MAX_SLICES = 16  # of one grant: ALIQUOT_MAX_GPUS in layout.h

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


class Policy(StrEnum):
    """Whether a slice may use compute that others leave idle."""

    ELASTIC = "elastic"
    HARD = "hard"


class Priority(StrEnum):
    """Whose work goes first."""

    LATENCY = "latency"
    NORMAL = "normal"
    BACKGROUND = "background"


class Life(StrEnum):
    """What a grant lives by.

    An owned one by the process that made it, a kept one by the word of who made it. An ended one
    was kept: it takes nobody in any more and goes with its last process.
    """

    OWNED = "owned"
    KEPT = "kept"
    ENDED = "ended"


class Hold(StrEnum):
    """Whether a grant has its slices now: what a program is frozen and thawed between.

    A taken one is as ever. An open one has all it has, the GPU waits for no credit of it, and
    processes wait before they come in. A parked one is the same and has nothing: others may have
    its room, and it is taken or open again only where there is room for it.
    """

    TAKEN = "taken"
    OPEN = "open"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one GPU. `compute_percent` 0 is an equal part of what the others leave."""

    gpu_uuid: str
    memory_bytes: int
    compute_percent: int = 0
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL

    @property
    def reserved_percent(self) -> int:
        """The compute time that no other slice can have; a background one gets what is left."""
        return 0 if self.priority is Priority.BACKGROUND else self.compute_percent


@dataclass(frozen=True, slots=True)
class SliceUse:
    """What is used of one slice.

    `counted_bytes` is what programs allocated, `driver_bytes` what the driver took by itself for
    them (contexts, modules). Both count against the slice's limit.
    """

    gpu_uuid: str
    counted_bytes: int
    driver_bytes: int

    @property
    def used_bytes(self) -> int:
        """All that counts against the limit."""
        return self.counted_bytes + self.driver_bytes


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a grant, by the kernel's word. `state` is `live`, or `ending` once dead.

    `ties` are what keeps the driver from freezing it, by what it ever asked for: `managed` memory,
    memory or events that go between processes (`ipc`), memory that was exported or imported
    (`shared`). `inside`: calls that wait for the GPU, or ask it; they stop while it is frozen.
    """

    pid: int
    name: str
    state: str
    use: tuple[SliceUse, ...] = ()
    ties: tuple[str, ...] = ()
    inside: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """The slices that one process tree holds; `use[i]` and `compute[i]` are of `slices[i]`."""

    name: str
    directory: str
    owner_pid: int | None  # None: it is kept
    owner_alive: bool
    owner_uid: int
    created: float
    broken: str | None
    slices: tuple[Slice, ...]
    use: tuple[SliceUse, ...]
    compute: tuple[ComputeUse, ...]
    processes: tuple[Process, ...]
    life: Life = Life.OWNED
    hold: Hold = Hold.TAKEN

    def slices_on(self, gpu_uuid: str) -> tuple[Slice, ...]:
        """What this grant has of a GPU now: nothing while it is parked."""
        if self.hold is Hold.PARKED:
            return ()
        return tuple(part for part in self.slices if part.gpu_uuid == gpu_uuid)

    def bytes_on(self, gpu_uuid: str) -> int:
        """What this grant holds of a GPU, used or not."""
        return sum(part.memory_bytes for part in self.slices_on(gpu_uuid))

    def reserved_percent_on(self, gpu_uuid: str) -> int:
        """What this grant has of a GPU's compute time that no other can have."""
        return sum(part.reserved_percent for part in self.slices_on(gpu_uuid))


def check_name(name: str) -> str:
    """A grant's name as it is, or InvalidValueError."""
    if _NAME.fullmatch(name) is None:
        raise InvalidValueError(
            f"{name!r} is no name for a grant",
            "A name has 1 to 63 of A-Z a-z 0-9 . _ - and begins with a letter or a digit.",
        )
    return name
