"""Which GPUs would be there: plans over what the arbiter told, without asking it for anything."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.model import ComputeUse, Grant, GrantState, SliceUse
from aliquot.model.errors import NoCapacityError
from aliquot.slices.gpu_choice import WAIT, describe_free, find_gpus, fits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.model import Request, Slice
    from aliquot.slices.control import SharedGpu, Status


@dataclass
class Plan:
    """The machine with some grants taken out and others put in."""

    gpus: tuple[SharedGpu, ...]
    grants: tuple[Grant, ...]

    @classmethod
    def of(cls, seen: Status) -> Plan:
        """The machine as it is."""
        return cls(seen.gpus, seen.grants)

    @classmethod
    def of_empty(cls, seen: Status) -> Plan:
        """The machine with no grants and nobody else on it."""
        gpus = (replace(one, granted_bytes=0, strangers=()) for one in seen.gpus)
        return cls(tuple(gpus), ())

    def without(self, names: Iterable[str]) -> Plan:
        """The same after these grants have ended."""
        gone = set(names)
        given = [grant for grant in self.grants if grant.name in gone]
        gpus = (
            replace(
                one,
                granted_bytes=one.granted_bytes - sum(g.bytes_on(one.gpu.uuid) for g in given),
            )
            for one in self.gpus
        )
        kept = (grant for grant in self.grants if grant.name not in gone)
        return Plan(tuple(gpus), tuple(kept))

    def put(self, request: Request, count: int) -> tuple[Plan, list[list[Slice]]]:
        """The same with so many workers more, and their slices; NoCapacityError, with figures."""
        plan, placed = self, []
        for _ in range(count):
            gpus = find_gpus(request, plan.gpus, plan.grants)
            slices = [request.slice_of(gpu) for gpu in gpus]
            plan = plan._with(slices)
            placed.append(slices)
        return plan, placed

    def put_back(self, parked: Iterable[Grant]) -> Plan:
        """The same with parked grants on the GPUs they had; NoCapacityError, with figures."""
        plan = self
        for grant in parked:
            for part in grant.slices:
                one = next((one for one in plan.gpus if one.gpu.uuid == part.gpu_uuid), None)
                if one is None:
                    raise NoCapacityError(f"{part.gpu_uuid}, which {grant.name} had, is gone")
                if not fits(part, one, plan.grants):
                    left = describe_free(one, plan.grants, with_compute=True)
                    raise NoCapacityError(f"what {grant.name} had is not free: {left}", WAIT)
            plan = plan._with(grant.slices)
        return plan

    def put_beside_parked(self, request: Request, count: int) -> list[list[Slice]]:
        """Slices for so many workers more, where it can be so where frozen ones were not."""
        plan = self
        for grant in self.grants:
            if grant.state is GrantState.PARKED:
                with suppress(NoCapacityError):
                    plan = plan.put_back([grant])
        with suppress(NoCapacityError):
            return plan.put(request, count)[1]
        return self.put(request, count)[1]

    def holds(self, request: Request, count: int) -> bool:
        """Whether so many workers more have a place."""
        try:
            self.put(request, count)
        except NoCapacityError:
            return False
        return True

    def _with(self, slices: Collection[Slice]) -> Plan:
        sizes: dict[str, int] = defaultdict(int)
        for part in slices:
            sizes[part.gpu_uuid] += part.memory_bytes
        gpus = (
            replace(one, granted_bytes=one.granted_bytes + sizes[one.gpu.uuid]) for one in self.gpus
        )
        return Plan(tuple(gpus), (*self.grants, _planned(slices)))


@dataclass
class MachineRoom:
    """The room of `placement.elastic`, on one machine.

    `grants` names what each job holds; `now` is the size it holds them for. `parked` is what frozen
    workers come back to.
    """

    plan: Plan
    requests: Mapping[str, Request]
    grants: Mapping[str, list[str]]
    now: Mapping[str, int]
    parked: Mapping[str, Collection[Grant]] = field(default_factory=dict)
    _known: dict[tuple[tuple[str, int], ...], bool] = field(default_factory=dict)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is a place for all; jobs that keep their size stay where they are."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            self._known[key] = self._holds(sizes)
        return self._known[key]

    def _holds(self, sizes: Mapping[str, int]) -> bool:
        moved = [name for name, size in sizes.items() if size != self.now.get(name)]
        plan = self.plan.without(one for name in moved for one in self.grants.get(name, []))
        try:
            for name in sorted(moved, key=self._in_order):
                plan = place(plan, self.requests[name], sizes[name], self.parked.get(name, ()))
        except NoCapacityError:
            return False
        return True

    def _in_order(self, name: str) -> tuple[bool, bool, str]:
        """Those that have no choice first, then whole GPUs."""
        return not self.parked.get(name), self.requests[name].memory is not None, name


def place(plan: Plan, request: Request, size: int, parked: Collection[Grant] = ()) -> Plan:
    """The same with a job's workers, which come back to what they had where they are frozen."""
    return plan.put_back(parked) if parked and size else plan.put(request, size)[0]


def _planned(slices: Iterable[Slice]) -> Grant:
    return Grant(
        name="",
        directory="",
        owner_pid=None,
        owner_alive=False,
        owner_uid=0,
        created=0.0,
        broken=None,
        slices=tuple(slices),
        use=tuple(SliceUse(part.gpu_uuid, 0, 0) for part in slices),
        compute=tuple(ComputeUse() for _ in slices),
        processes=(),
    )
