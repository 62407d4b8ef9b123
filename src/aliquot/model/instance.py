"""Instances of a GPU (MIG): their profiles and their places.

A GPU in MIG mode has eight memory slices and seven compute slices. An instance of a profile takes
memory slices from one of the places at which the profile may begin; no two instances overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPUTE_SLICES, MEMORY_SLICES = 7, 8


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of instance: compute slices, memory in slices and bytes, and where it may begin."""

    id: int
    name: str
    slices: int
    size: int
    memory_bytes: int
    starts: tuple[int, ...]

    @property
    def order(self) -> tuple[int, int, int]:
        """By this, smaller profiles come first."""
        return self.size, self.slices, self.memory_bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Memory slices of a GPU, for an instance of a profile."""

    gpu: str
    profile: int
    start: int
    size: int

    def overlaps(self, other: Place) -> bool:
        """Whether a memory slice is in both."""
        apart = self.start + self.size <= other.start or other.start + other.size <= self.start
        return self.gpu == other.gpu and not apart


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance that exists; `device` is the UUID of its MIG device, None if it has not one.

    `is_used`: a program or a grant uses it. `is_whole`: it has one compute instance, which has all
    of it.
    """

    place: Place
    device: str | None = None
    is_used: bool = False
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class DividedGpu:
    """A GPU in MIG mode: its profiles and its instances."""

    uuid: str
    profiles: tuple[Profile, ...]
    instances: tuple[Instance, ...]

    def free_places(self, profile: Profile, reserved: Iterable[Place] = ()) -> Iterator[Place]:
        """Where an instance of the profile can be made."""
        taken = [*(one.place for one in self.instances), *reserved]
        for start in profile.starts:
            place = Place(self.uuid, profile.id, start, profile.size)
            if not any(place.overlaps(other) for other in taken):
                yield place
