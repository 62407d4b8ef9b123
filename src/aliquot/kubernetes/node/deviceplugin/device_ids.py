"""The device ids of each resource: which container has which, and how many are healthy.

The kubelet chooses ids and counts them. Which GPU a container gets has nothing to do with its ids:
the plan decides that. So an id belongs to a container or to nobody, and these rules hold:

- Healthy ids are those that containers have, and as many others as there are free units: of GPUs
  that are healthy, and unused or in use as the resource's own kind. So a GPU that is in use as one
  kind leaves the counts of the other kinds, and an id in use is never unhealthy. What a container
  has without an id is not offered twice: growth by a resize, or the GPUs of an ended pod whose ids
  the kubelet gave to another pod while its processes still end.
- Between the calls for a container's resources its grant has ids of some of them only. The ids that
  the next calls will name stay healthy: the kubelet has chosen them, or is about to, and would
  count them as lost, and reject the next pod, until it gets the next list.
- No id ever leaves the list: it only turns unhealthy.
- Where slices may take turns with memory, as many units are offered as all of them may have
  together. Which container gets some of them is the scheduler's decision and the agent's: so the
  counts need not change before the next pod comes.

Pure: derived from the allocations, where each grant has its ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.names import CORE_UNITS
from aliquot.kubernetes.api.presets import SLOTS
from aliquot.kubernetes.node.grants.allocations import UNUSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.api.presets import Preset, Role
    from aliquot.kubernetes.node.grants.allocations import HostGpu, HostGpuUsage, NodeAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant

_LETTERS: dict[Role, str] = {"whole": "g", "shared": "s", "core": "c", "memory": "m", "slot": "n"}
_KINDS: dict[Role, Kind] = {
    "whole": "whole",
    "shared": "shared",
    "core": "sliced",
    "memory": "sliced",
    "slot": "sliced",
}
_CARRIERS: tuple[Role, ...] = ("memory", "whole", "shared", "slot", "core")


@dataclass(frozen=True, slots=True)
class DeviceResource:
    """An extended resource that the kubelet counts in units, one device id each."""

    name: str
    role: Role
    prefix: str
    memory_unit: int

    def units(self, gpu: HostGpu, shares: int, factor: float = 1.0) -> int:
        """The units of an unused GPU."""
        return self.free(gpu, None, UNUSED, shares, factor)

    def free(
        self,
        gpu: HostGpu,
        kind: Kind | None,
        used: HostGpuUsage,
        shares: int,
        factor: float = 1.0,
    ) -> int:
        """The free units of a healthy GPU that is in use as this kind.

        Slices that take turns may have `factor` times its memory.
        """
        if kind not in {None, _KINDS[self.role]}:
            return 0
        memory = gpu.memory - used.memory
        match self.role:
            case "whole":
                return 1 if kind is None else 0
            case "shared":
                return min(shares - used.containers, memory // (gpu.memory // shares))
            case "core":
                return CORE_UNITS - used.reserved
            case "memory":
                return (int(factor * gpu.memory) - used.memory) // self.memory_unit
            case "slot":
                return max(0, SLOTS - used.containers)

    def id(self, number: int) -> str:
        """The device id of this number."""
        return f"{self.prefix}{number}"


def resources_of(presets: Iterable[Preset]) -> tuple[DeviceResource, ...]:
    """The resources that these presets offer. Ids are short, and unique across resources."""
    found = []
    for number, preset in enumerate(presets):
        first = preset.name[:2] if number else ""
        found += [
            DeviceResource(name, role, f"{first}{_LETTERS[role]}", preset.memory_unit)
            for name, role in preset.roles.items()
        ]
    return tuple(found)


@dataclass(slots=True)
class _InUse:
    """The ids that grants have, as of one revision of the allocations."""

    revision: int = -1
    by_resource: dict[str, set[str]] = field(default_factory=dict)
    grants: dict[str, str] = field(default_factory=dict)  # the name of the grant by id


class DeviceIds:
    """The device ids of a node's resources."""

    def __init__(self, allocations: NodeAllocations, resources: Sequence[DeviceResource]) -> None:
        self.allocations = allocations
        self.resources = {resource.name: resource for resource in resources}
        self._in_use = _InUse()
        self._most: dict[str, int] = {}  # as many ids as there ever were
        self._expected: tuple[str, Mapping[str, int]] = ("", {})  # a grant, and units by resource
        self._listed: dict[str, tuple[set[str], list[tuple[str, bool]]]] = {}  # as last listed

    def grant_with(self, id_: str) -> str | None:
        """The name of the grant that has a device id."""
        return self._used().grants.get(id_)

    def find(self, resource: str, ids: Iterable[str]) -> ContainerGrant | None:
        """The latest grant that was given for exactly these ids."""
        wanted = tuple(sorted(ids))
        grants = reversed(self.allocations.grants.values())
        return next((grant for grant in grants if grant.has(resource, wanted)), None)

    def carrier(self, resources: Iterable[str]) -> str:
        """Which of a container's resources carries its mounts; the others carry nothing."""
        return min(resources, key=lambda name: (_CARRIERS.index(self.resources[name].role), name))

    def free(self, resource: str) -> int:
        """How many units the kubelet may still give."""
        one, all_ = self.resources[resource], self.allocations
        return sum(
            max(
                0,
                one.free(
                    gpu,
                    all_.kind(gpu.uuid),
                    all_.used(gpu.uuid),
                    all_.shares,
                    all_.factor,
                ),
            )
            for gpu in all_.gpus.values()
            if gpu.healthy
        )

    def ids(self, resource: str) -> list[tuple[str, bool]]:
        """All device ids of a resource, and whether each is healthy.

        Healthy ids stay healthy while their number stays the same.
        """
        in_use = self._used().by_resource.get(resource, set())
        count = self._count(resource)
        last = self._listed.get(resource)
        if last is None or len(last[0]) != count or not in_use <= last[0]:
            names = self._all_ids(resource)
            free = (id_ for id_ in names if id_ not in in_use)
            healthy = in_use.union(islice(free, count - len(in_use)))
            last = self._listed[resource] = (healthy, [(id_, id_ in healthy) for id_ in names])
        return last[1]

    def counts(self) -> dict[str, int]:
        """How many ids of each resource are healthy: the node's allocatable units."""
        return {name: self._count(name) for name in self.resources}

    def expect(self, grant: str, units: Mapping[str, int]) -> None:
        """Say what the kubelet asks for next: the rest of a container that has its grant.

        The next container's calls replace this, and it ends with the grant.
        """
        self._expected = (grant, units)

    def expect_no_more(self, grant: str) -> None:
        """Say that the kubelet has reported all ids of the container that has this grant."""
        if self._expected[0] == grant:
            self._expected = ("", {})

    def take_away(
        self, resource: str, ids: Iterable[str], keep: Iterable[ContainerGrant] = ()
    ) -> None:
        """Take ids from all grants but `keep`: the kubelet decides, and gave them to another."""
        gone, kept = frozenset(ids), {grant.name for grant in keep}
        before = self.allocations.saved()
        after = [
            grant if grant.name in kept else _without(grant, resource, gone) for grant in before
        ]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            self.allocations.rewrite(after)

    def _count(self, resource: str) -> int:
        in_use = self._used().by_resource.get(resource, ())
        return len(in_use) + self.free(resource) + self._expected_units(resource)

    def _expected_units(self, resource: str) -> int:
        name, units = self._expected
        grant = self.allocations.grants.get(name)
        return 0 if grant is None or resource in grant.device_ids else units.get(resource, 0)

    def _used(self) -> _InUse:
        if self._in_use.revision != self.allocations.revision:
            self._in_use = _InUse(self.allocations.revision)
            for grant in self.allocations.grants.values():
                for resource, ids in grant.device_ids.items():
                    self._in_use.by_resource.setdefault(resource, set()).update(ids)
                    self._in_use.grants.update(dict.fromkeys(ids, grant.name))
        return self._in_use

    def _all_ids(self, resource: str) -> list[str]:
        """One id for each unit, and those that grants have since there were more units."""
        one = self.resources[resource]
        gpus = self.allocations.gpus.values()
        shares, factor = self.allocations.shares, self.allocations.factor
        units = sum(one.units(gpu, shares, factor) for gpu in gpus)
        units = self._most[resource] = max(units, self._most.get(resource, 0))
        in_use = self._used().by_resource.get(resource, ())
        last = max((int(id_[len(one.prefix) :]) for id_ in in_use), default=-1)
        return [one.id(number) for number in range(max(units, 1 + last))]


def _without(grant: ContainerGrant, resource: str, ids: frozenset[str]) -> ContainerGrant:
    if ids.isdisjoint(grant.device_ids.get(resource, ())):
        return grant
    rest = tuple(id_ for id_ in grant.device_ids[resource] if id_ not in ids)
    every = {**grant.device_ids, resource: rest}
    return msgspec.structs.replace(
        grant, device_ids={name: some for name, some in every.items() if some}
    )
