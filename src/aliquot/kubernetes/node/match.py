"""Which container an Allocate call is for. Pure.

The kubelet asks for one resource at a time, with ids and nothing else. It takes pods one after the
other, the containers of a pod in their order, and the resources of a container in any order. So a
call belongs to the container that was asked for last, if that still lacks just this; else to the
next container of the same pod; else to the first container of a pod that waits. Containers that ask
for equal amounts cannot be told from each other here, and need not: they are interchangeable. What
the kubelet says of its pods later puts the names right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.plan import decode_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.plan import ContainerPlan
    from aliquot.kubernetes.api.presets import Role
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.node.held import Held, Owner
    from aliquot.kubernetes.node.roster import Guest

CARRIERS: tuple[Role, ...] = ("memory", "whole", "shared", "slot", "core")
"""Of a container's resources the first of these brings it its mounts; the others bring nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """An Allocate call."""

    resource: str
    ids: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many ids."""
        return len(self.ids)

    def fits(self, request: ContainerRequest) -> bool:
        """Whether a container asks for that many of this resource."""
        return (self.resource, self.count) in request.units

    def touches(self, held: Held) -> bool:
        """Whether one of the ids was given for that."""
        return not set(self.ids).isdisjoint(held.units.get(self.resource, ()))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A container that is asked for, of a pod that is known."""

    guest: Guest
    request: ContainerRequest

    @property
    def units(self) -> dict[str, int]:
        """How many ids of each resource it gets."""
        return dict(self.request.units)

    @property
    def is_known(self) -> bool:
        """Whether the API server has told of its pod."""
        return self.guest.is_known

    @property
    def owner(self) -> Owner:
        """As the books name it."""
        return msgspec.structs.replace(self.guest.owner, container=self.request.container)

    @property
    def plan(self) -> ContainerPlan | None:
        """What the scheduler has chosen for it; None: nothing that makes sense."""
        text = self.guest.pod.metadata.annotations.get(names.PLAN)
        plan = decode_plan(text) if text else None
        return plan.containers.get(self.request.container) if plan else None


@dataclass(slots=True)
class Burst:
    """The calls for one container: which ids have come, and what it holds once that is decided."""

    wanted: Wanted
    ids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    held: Held | None = None

    def lacks(self, resource: str, count: int) -> bool:
        """Whether it waits for just this."""
        return resource not in self.ids and self.wanted.units.get(resource) == count

    def goes_on(self, wanted: Wanted, call: Call) -> bool:
        """Whether a call is for its container, or for one that all of it was for."""
        if call.resource in self.ids:
            return False
        return all(wanted.units.get(name) == len(ids) for name, ids in self.ids.items())

    @property
    def is_whole(self) -> bool:
        """All has come."""
        return self.ids.keys() >= self.wanted.units.keys()


def carrier(units: Mapping[str, int], roles: Mapping[str, Role]) -> str:
    """The resource whose answer carries the container's mounts."""
    return min(units, key=lambda resource: (CARRIERS.index(roles[resource]), resource))


def candidates(
    guests: Sequence[Guest], taken: Callable[[str], frozenset[str]], current: str | None
) -> Iterator[Wanted]:
    """The containers that may be asked for next, the likeliest first.

    The first of each pod; then those after it, for a pod whose first was given under another name.
    `taken` are the containers of a pod that have been given what they asked for; `current` is the
    pod whose container came last.
    """
    order = sorted(
        guests,
        key=lambda guest: (guest.uid != current, not guest.waits, bool(taken(guest.uid))),
    )
    later = []
    for guest in order:
        done = taken(guest.uid)
        rest = [one for one in guest.requests if one.container not in done and one.units]
        yield from (Wanted(guest, one) for one in rest[:1])
        later += [Wanted(guest, one) for one in rest[1:]]
    yield from later


def match(waiting: Sequence[Wanted], burst: Burst | None, call: Call) -> Wanted | None:
    """Whom a call is for, among those that wait; None: nobody that is known.

    Where a burst is open that this call does not complete, it was likely another container's: one
    that wants all of it.
    """
    come = {name: len(ids) for name, ids in burst.ids.items()} if burst else {}
    if burst and call.resource not in come:
        both = {**come, call.resource: call.count}
        for wanted in waiting:
            if all(wanted.units.get(name) == number for name, number in both.items()):
                return wanted
    return next((one for one in waiting if call.fits(one.request)), None)


def must_be_given_on(call: Call, inits: Sequence[Held]) -> bool:
    """Whether a call is not for a container of the pod whose init containers hold this.

    The kubelet gives the ids of a pod's init containers to its next ones first of all.
    """
    ids = {id_ for held in inits for id_ in held.units.get(call.resource, ())}
    return len(ids.intersection(call.ids)) < min(call.count, len(ids))
