"""Which instance of a GPU (MIG) answers a request, and what becomes of instances: pure decisions.

Of the profiles that are large enough, the smallest one that has a free place is taken, and of its
places the one that costs the others the fewest places. An instance that somebody else has made and
nobody uses is as good as a new one of its profile, if the policy adopts such instances.

Aliquot destroys only instances that it has made itself. Each has an entry, which is written before
the instance is made and removed after it is destroyed; so an instance without an entry is not
Aliquot's, and an entry without an instance is a request that was interrupted. An instance that
appears at a place which an entry reserves counts as the entry's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.instance import COMPUTE_SLICES, MEMORY_SLICES, Instance, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aliquot.model import Request
    from aliquot.model.instance import DividedGpu, Profile


@dataclass(frozen=True, slots=True)
class Entry:
    """An instance for a thread of that start time, which Aliquot has made or is about to make.

    `adopted`: somebody else has made it, so it is never destroyed here. `granted`: its grant has
    been made, so it is needed only as long as something uses it.
    """

    place: Place
    pid: int
    started: int
    adopted: bool = False
    granted: bool = False


@dataclass(frozen=True, slots=True)
class ChosenPlace:
    """The place for a request; `instance` is there already, None: it must be made."""

    place: Place
    instance: Instance | None = None


def is_enough(profile: Profile, request: Request) -> bool:
    """Whether an instance of the profile has what the request asks for of a GPU."""
    amount = request.amount
    if amount is None:
        return profile.slices == COMPUTE_SLICES
    if profile.slices * 100 < request.compute_percent * COMPUTE_SLICES:
        return False
    if amount.percent is not None:
        return profile.size * 100 >= amount.percent * MEMORY_SLICES
    return profile.memory_bytes >= amount.of(profile.memory_bytes)


def choose(
    request: Request,
    gpus: Sequence[DividedGpu],
    reserved: Sequence[Place],
    unused: Sequence[Instance],
) -> ChosenPlace | None:
    """The place for a request, on one of the gpus or in an unused instance; None: there is none.

    `reserved` are places of requests that are just being answered.
    """
    found = []
    for divided in gpus:
        for profile in divided.profiles:
            if is_enough(profile, request):
                found += [
                    ((profile.order, 0, 0), ChosenPlace(one.place, one))
                    for one in unused
                    if (one.place.gpu, one.place.profile) == (divided.uuid, profile.id)
                ]
                found += [
                    ((profile.order, 1, _cost(divided, place, reserved)), ChosenPlace(place))
                    for place in divided.free_places(profile, reserved)
                ]
    return min(found, key=lambda one: one[0])[1] if found else None


def _cost(divided: DividedGpu, place: Place, reserved: Sequence[Place]) -> int:
    """How much of the room of other profiles an instance at the place takes, in memory slices."""
    before, after = (
        sum(
            profile.size * sum(1 for _ in divided.free_places(profile, taken))
            for profile in divided.profiles
        )
        for taken in (reserved, (*reserved, place))
    )
    return before - after


def lost(
    entries: Iterable[Entry], gpus: Sequence[DividedGpu], is_alive: Callable[[Entry], bool]
) -> list[Entry]:
    """The entries that nobody needs: nothing uses their instance, and nobody is about to.

    Of a GPU that is not among the `gpus`, because it did not answer, nothing is known.
    """
    known = {divided.uuid for divided in gpus}
    used = {one.place for divided in gpus for one in divided.instances if one.is_used}
    return [
        one
        for one in entries
        if one.place.gpu in known and one.place not in used and (one.granted or not is_alive(one))
    ]


def instance_at(place: Place, gpus: Iterable[DividedGpu]) -> Instance | None:
    """The instance that is exactly there, with that profile."""
    found = (one for divided in gpus for one in divided.instances if one.place == place)
    return next(found, None)


def unknown(entries: Iterable[Entry], gpus: Iterable[DividedGpu]) -> list[Instance]:
    """The unused instances that somebody else has made and that programs could use."""
    known = {one.place for one in entries}
    return [
        one
        for divided in gpus
        for one in divided.instances
        if one.place not in known and one.device and one.is_whole and not one.is_used
    ]
