"""How much memory a GPU's slices may have together if they take turns with it. Needs no numpy.

A slice that takes turns can be off its GPU: then its memory is on the host, but for what is fixed.
All others are on the GPU all the time. A slice that takes turns may be granted if

- all limits are within `factor` times the GPU's memory, and within what the queue of each slice
  that takes turns there allows;
- each slice that takes turns fits by itself, beside what does not move and what is fixed of the
  others: all fixed memory and at least 1 GiB always fit;
- the host has room for what must leave: twice what does not fit, because while two slices exchange
  the copies of both are there.

Nothing of that counts for a slice that fits beside all others. So limits, and not what programs use
of them, decide what is granted. What they use, the working set, decides which GPU is preferred.

The arbiter holds the same rule when it makes a grant (native/arbiter/overcommit.h).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property

from aliquot.model.units import GIB

FIXED_BYTES = GIB  # what a slice that is off its GPU is expected to leave there at least
COPIES = 2  # of each byte that does not fit, while slices exchange


class RoomBound(Enum):
    """What keeps a slice from being larger."""

    GPU = auto()  # nothing is over-committed here
    FACTOR = auto()
    ALONE = auto()
    HOST = auto()


@dataclass(frozen=True, slots=True)
class TurnSlice:
    """A slice that takes turns, `fixed` of whose bytes cannot leave.

    All slices of its GPU may have `most` times its memory together; None: as the machine says.
    """

    limit: int
    fixed: int = 0
    most: float | None = None

    @property
    def stays(self) -> int:
        """What it leaves on its GPU."""
        return min(self.limit, max(self.fixed, FIXED_BYTES))


@dataclass(frozen=True, slots=True)
class Room:
    """The largest slice that may be granted, and what bounds it."""

    bytes: int
    bound: RoomBound


@dataclass(frozen=True)
class GpuLoad:
    """The limits on one GPU: `rigid` bytes are there all the time, `turns` are not.

    The machine lets slices have `factor` times its memory.
    """

    memory: int
    rigid: int = 0
    turns: tuple[TurnSlice, ...] = ()
    factor: float = 1.0

    @cached_property
    def granted(self) -> int:
        """All limits together."""
        return self.rigid + sum(one.limit for one in self.turns)

    @property
    def free(self) -> int:
        """What a slice can have that is on the GPU all the time."""
        return max(0, self.memory - self.granted)

    @property
    def excess(self) -> int:
        """What does not fit: so much is on the host if all programs use all they may."""
        return max(0, self.granted - self.memory)

    @property
    def host_bytes(self) -> int:
        """What the host must have for it."""
        return COPIES * self.excess

    @property
    def times(self) -> float:
        """How many times the GPU's memory the slices have."""
        return self.granted / max(1, self.memory)

    def beside(self, new: TurnSlice) -> GpuLoad:
        """The same with one more slice that takes turns."""
        return replace(self, turns=(*self.turns, new))

    def room(self, host_left: int | None = None, most: float | None = None) -> Room:
        """The largest slice that may take turns here.

        The host has `host_left` bytes for this GPU; None: it is not bounded. `most` is what the new
        slice's queue allows.
        """
        limits = [self.factor, most, *(one.most for one in self.turns)]
        percent = min(round(100 * one) for one in limits if one is not None)
        stay = sum(one.stays for one in self.turns)
        movable = max((FIXED_BYTES, *(one.limit - one.stays for one in self.turns)))
        spare = self.memory - self.rigid - stay - movable  # while one of the others is there
        rooms = [
            (self.memory * percent // 100 - self.granted, RoomBound.FACTOR),
            (self.memory - self.rigid - stay, RoomBound.ALONE),
        ]
        if spare < FIXED_BYTES:
            rooms.append((spare, RoomBound.ALONE))
        if host_left is not None:
            rooms.append((self.memory - self.granted + host_left // COPIES, RoomBound.HOST))
        size, bound = min(rooms, key=lambda one: one[0])
        if size <= self.free:
            return Room(self.free, bound if percent > 100 else RoomBound.GPU)
        return Room(size, bound)
