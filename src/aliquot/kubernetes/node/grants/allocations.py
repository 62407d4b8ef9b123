"""The allocations of a node: its GPUs, and which grant has how much of which GPU.

- While a GPU is in use it has one kind: whole, shared or sliced. Grants never get more of its
  memory or compute than it has; those that take turns with memory get more where the node allows
  it, by the rule of `placement.core.overcommit`.
- An init container ends before the containers that reuse its device ids start. So such grants count
  together as the most that they use at any one time.
- Every change is all or nothing: if a grant does not fit, nothing changes.

Device ids are not counted here: `deviceplugin.device_ids` derives them from the allocations.
Pure: nothing here reads a clock, a file or the network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.names import CORE_UNITS
from aliquot.model import format_bytes
from aliquot.placement.core.turns import Swap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.node.grants.grant import ContainerGrant, GpuAllocation
    from aliquot.placement.core.overcommit import TurnSlice
    from aliquot.placement.core.turns import NodeTurns


class DoesNotFitError(Exception):
    """A grant does not fit on its GPUs; the message says why."""


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of this node. `problem` says why it is unhealthy; it is empty for a healthy GPU.

    `slot` is its PCI address; empty: an older agent recorded the GPU, without it.
    """

    uuid: str
    index: int
    memory: int
    problem: str = ""
    slot: str = ""

    @property
    def healthy(self) -> bool:
        """Whether new containers may use it."""
        return not self.problem

    def __str__(self) -> str:
        return f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class HostGpuUsage:
    """How much of a GPU is used; `containers` counts the containers that use it."""

    memory: int = 0
    reserved: int = 0
    containers: int = 0

    def __add__(self, other: HostGpuUsage) -> HostGpuUsage:
        return HostGpuUsage(
            self.memory + other.memory,
            self.reserved + other.reserved,
            self.containers + other.containers,
        )

    def __sub__(self, other: HostGpuUsage) -> HostGpuUsage:
        return HostGpuUsage(
            self.memory - other.memory,
            self.reserved - other.reserved,
            self.containers - other.containers,
        )

    def peak(self, other: HostGpuUsage) -> HostGpuUsage:
        """The larger of both, figure by figure."""
        return HostGpuUsage(
            max(self.memory, other.memory),
            max(self.reserved, other.reserved),
            max(self.containers, other.containers),
        )


UNUSED = HostGpuUsage()


@dataclass(frozen=True, slots=True)
class ChainUsage:
    """What a chain uses of each GPU. A chain: grants of one pod that reuse each other's ids.

    `peak` is the most that they use at any time; `final` is what the main containers use.
    """

    peak: dict[str, HostGpuUsage]
    final: dict[str, HostGpuUsage]


class NodeAllocations:
    """The GPUs of a node, and its grants in the order in which they were made.

    `shares` is how many containers share a shared GPU. `revision` grows with every change of the
    grants or of a GPU's health.
    """

    def __init__(
        self, gpus: Iterable[HostGpu], shares: int, grants: Iterable[ContainerGrant] = ()
    ) -> None:
        self.gpus = {gpu.uuid: gpu for gpu in sorted(gpus, key=lambda gpu: gpu.index)}
        self.shares = shares
        self.revision = 0
        self.turns: NodeTurns | None = None
        self.fixed: Mapping[str, int] = {}
        self._by_pod: dict[str, list[ContainerGrant]] | None = None
        self.rewrite(grants)

    def set_turns(self, turns: NodeTurns | None, fixed: Mapping[str, int]) -> bool:
        """What slices that take turns may have, and what each grant leaves; whether that is new."""
        if (turns, fixed) == (self.turns, self.fixed):
            return False
        self.turns, self.fixed = turns, fixed
        self.revision += 1
        return True

    @property
    def factor(self) -> float:
        """How many times a GPU's memory slices may have that take turns with it."""
        return 1.0 if self.turns is None else self.turns.factor

    # --- reading ----------------------------------------------------------------------------------

    def kind(self, gpu: str) -> Kind | None:
        """What a GPU is in use as; None: nobody uses it."""
        return self._kinds.get(gpu)

    def used(self, gpu: str) -> HostGpuUsage:
        """What is allocated of a GPU."""
        return self._used.get(gpu, UNUSED)

    def of_pod(self, uid: str) -> list[ContainerGrant]:
        """The grants of a pod's containers."""
        if self._by_pod is None:
            self._by_pod = {}
            for grant in self.grants.values():
                self._by_pod.setdefault(grant.owner.uid, []).append(grant)
        return list(self._by_pod.get(uid, ()))

    def never_together(self, grant: ContainerGrant) -> list[ContainerGrant]:
        """The grants that reuse its ids or whose ids it reuses: they never run at the same time."""
        return [
            other
            for other in self.grants.values()
            if other.name in grant.reuses or grant.name in other.reuses
        ]

    def is_reused(self, grant: ContainerGrant) -> bool:
        """Whether another grant reuses its ids: then it is an init container's."""
        return any(grant.name in other.reuses for other in self.grants.values())

    def free_for(self, grant: ContainerGrant, gpu: str) -> HostGpuUsage:
        """What a grant could have of a GPU of the right kind.

        The init containers whose ids it reuses have ended by then, so their memory is free for it.
        """
        capacity = HostGpuUsage(self.gpus[gpu].memory, CORE_UNITS, self.shares)
        chain = self._chain(grant)
        own = usage_of(chain).peak.get(gpu, UNUSED)
        at_the_same_time = usage_of([*chain, msgspec.structs.replace(grant, allocated=())]).final
        free = capacity - (self.used(gpu) - own) - at_the_same_time.get(gpu, UNUSED)
        if grant.overcommit is None or chain:  # one that reuses ids is beside all others
            return free
        room = self.turn_room(gpu, grant.overcommit or None)
        return replace(free, memory=max(free.memory, room))

    def turn_room(self, gpu: str, most: float | None = None) -> int:
        """The largest slice that can take turns on a GPU; 0 if none can. `most`: by its queue."""
        if self.turns is None or self.kind(gpu) not in {None, "sliced"}:
            return 0
        order = list(self.gpus)
        slices = tuple(self._turn_slices(self.turns, uuid) for uuid in order)
        free = [one.memory - self.used(one.uuid).memory for one in self.gpus.values()]
        turns = replace(self.turns, gpus=slices)
        return max(0, turns.room(self.gpus[gpu].memory, free, order.index(gpu), most).bytes)

    def _turn_slices(self, turns: NodeTurns, gpu: str) -> tuple[TurnSlice, ...]:
        """The slices of a GPU that take turns, but for those that reuse each other's ids."""
        found = []
        for chain in self._chains:
            grant = chain[0]
            if len(chain) > 1 or grant.overcommit is None or grant.kind != "sliced":
                continue
            swap = Swap(grant.overcommit or None, self.fixed.get(grant.name, 0))
            sizes = [part.memory for part in grant.allocated if part.gpu == gpu]
            found += [one for size in sizes if (one := turns.slice_of(size, swap)) is not None]
        return tuple(found)

    def fits_kind(self, grant: ContainerGrant, gpu: str) -> bool:
        """Whether a grant may use a GPU, given what the GPU is in use as."""
        if self.kind(gpu) not in {None, grant.kind}:
            return False
        return grant.kind != "whole" or self.free_for(grant, gpu).containers == self.shares

    def why_not(self, grant: ContainerGrant) -> str | None:
        """Why a grant does not fit on its GPUs; None if it fits."""
        if len({part.gpu for part in grant.allocated}) != len(grant.allocated):
            return "the same GPU twice"
        return next(filter(None, (self._why_not_on(grant, part) for part in grant.allocated)), None)

    def _why_not_on(self, grant: ContainerGrant, part: GpuAllocation) -> str | None:
        gpu = self.gpus.get(part.gpu)
        if gpu is None:
            return f"there is no GPU {part.gpu}"
        if gpu.problem:
            return f"{gpu} is unhealthy: {gpu.problem}"
        if not self.fits_kind(grant, part.gpu):
            return f"{gpu} is in use as {self.kind(part.gpu)}"
        free = self.free_for(grant, part.gpu)
        if free.memory < part.memory or (grant.kind == "shared" and free.containers < 1):
            has, asked = format_bytes(max(0, free.memory)), format_bytes(part.memory)
            return f"{gpu} has {has} of memory free, and {asked} is requested"
        if grant.kind == "sliced" and free.reserved < part.reserved:
            return f"{gpu} has {free.reserved}% of compute free, {part.reserved}% is requested"
        return None

    # --- changing ---------------------------------------------------------------------------------

    def add(self, grant: ContainerGrant) -> None:
        """Add a grant; DoesNotFitError if it does not fit, and then nothing changes."""
        if why := self.why_not(grant):
            raise DoesNotFitError(why)
        if grant.reuses:
            self.rewrite([*self.grants.values(), grant])
        else:
            self._append(grant)

    def change(self, to: ContainerGrant) -> None:
        """Replace the grant of that name; growth is checked as in `add`."""
        before = self.grants[to.name]
        if (to.allocated, to.device_ids) == (before.allocated, before.device_ids):
            self._relabel(to)
            return
        grows = any(
            new.memory > old.memory or new.reserved > old.reserved
            for new, old in zip(to.allocated, before.allocated, strict=True)
        )
        saved = self.saved()
        if grows:
            self.release(to.name)
            why = self.why_not(to)
            self.rewrite(saved)
            if why:
                raise DoesNotFitError(why)
        self.rewrite(to if grant.name == to.name else grant for grant in saved)

    def release(self, name: str) -> None:
        """Remove a grant."""
        self.rewrite(grant for grant in self.saved() if grant.name != name)

    def saved(self) -> list[ContainerGrant]:
        """All grants as they are now, for `rewrite` to return to."""
        return list(self.grants.values())

    def rewrite(self, grants: Iterable[ContainerGrant]) -> None:
        """Replace all grants; nothing is checked."""
        self.revision += 1
        self.grants = {grant.name: grant for grant in grants}
        self._by_pod = None
        self._kinds: dict[str, Kind] = {}
        for grant in self.grants.values():
            self._set_kinds(grant)
        self._chains = chains_of(self.grants.values())
        self._used: dict[str, HostGpuUsage] = {}
        for chain in self._chains:
            self._add_usage(chain)

    def set_health(self, gpu: str, problem: str) -> bool:
        """Record a GPU's problem, or that it recovered (empty); whether that is new."""
        before = self.gpus[gpu]
        self.gpus[gpu] = replace(before, problem=problem)
        self.revision += 1
        return problem != before.problem

    def _append(self, grant: ContainerGrant) -> None:
        """As `rewrite` with one more grant that reuses no ids, without counting all anew."""
        self.revision += 1
        self.grants[grant.name] = grant
        self._by_pod = None
        self._set_kinds(grant)
        self._chains.append([grant])
        self._add_usage([grant])

    def _relabel(self, grant: ContainerGrant) -> None:
        """As `rewrite` where nothing has changed that counts."""
        self.revision += 1
        old = self.grants[grant.name]
        self.grants[grant.name] = grant
        self._by_pod = None
        self._chains = [[grant if one is old else one for one in chain] for chain in self._chains]

    def _set_kinds(self, grant: ContainerGrant) -> None:
        for part in grant.allocated:
            self._kinds[part.gpu] = grant.kind

    def _add_usage(self, chain: Sequence[ContainerGrant]) -> None:
        for gpu, usage in usage_of(chain).peak.items():
            self._used[gpu] = self._used.get(gpu, UNUSED) + usage

    def _chain(self, grant: ContainerGrant) -> list[ContainerGrant]:
        """The grants of its chain, in their order, without itself."""
        return [
            one
            for chain in self._chains
            if any(one.name in grant.reuses or one.name == grant.name for one in chain)
            for one in chain
            if one.name != grant.name
        ]


def usage_of(chain: Sequence[ContainerGrant]) -> ChainUsage:
    """What a chain uses, its grants in the order in which the kubelet asked for them.

    The kubelet reuses only ids of init containers, which end before the next container starts.
    """
    final: dict[str, HostGpuUsage] = {}
    peak: dict[str, HostGpuUsage] = {}
    ended = {name for grant in chain for name in grant.reuses}
    for grant in chain:
        for part in grant.allocated:
            now = final.get(part.gpu, UNUSED) + HostGpuUsage(part.memory, part.reserved, 1)
            peak[part.gpu] = peak.get(part.gpu, UNUSED).peak(now)
            if grant.name not in ended:
                final[part.gpu] = now
    return ChainUsage(peak, final)


def chains_of(grants: Iterable[ContainerGrant]) -> list[list[ContainerGrant]]:
    """All grants, those that reuse each other's ids together, each chain in its order."""
    chains: dict[str, list[ContainerGrant]] = {}
    for grant in grants:
        linked = {id(one): one for name in grant.reuses if (one := chains.get(name))}
        chain = [member for one in linked.values() for member in one] + [grant]
        for member in chain:
            chains[member.name] = chain
    return list({id(chain): chain for chain in chains.values()}.values())
