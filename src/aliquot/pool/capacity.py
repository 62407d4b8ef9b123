"""What fits on one machine: plans over the arbiter's status, without asking it for anything."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.model import ComputeUse, Grant, GrantState, MemoryTurns, SliceUse
from aliquot.model.errors import NoCapacityError
from aliquot.model.neighbours import Neighbours, why_not_beside
from aliquot.slices.gpu_choice import (
    WAIT,
    describe_free,
    find_gpus,
    fits,
    usable_gpus,
    why_choice_waits,
)
from aliquot.slices.grant_creation import without_grants
from aliquot.slices.turn_room import with_host_use

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.model import Request, Slice
    from aliquot.placement.core.demand import Demand
    from aliquot.placement.elastic.feasibility import JobWorkers
    from aliquot.slices.arbiter_status import SharedGpu, Status

_NOBODY = -1
SWAP_WAIT_SECONDS = 15.0  # as the arbiter has it


@dataclass
class MachinePlan:
    """The machine with some grants taken out and others put in."""

    gpus: tuple[SharedGpu, ...]
    grants: tuple[Grant, ...]

    def __post_init__(self) -> None:
        self.gpus = with_host_use(self.gpus, self.grants)

    @classmethod
    def of(cls, seen: Status) -> MachinePlan:
        """The machine as it is."""
        return cls(seen.gpus, seen.grants)

    @classmethod
    def of_running(cls, seen: Status) -> MachinePlan:
        """The machine as it is; a grant that is parked because it is idle has what it has left."""
        return cls(seen.gpus, tuple(map(_as_left, seen.grants)))

    @classmethod
    def of_empty(cls, seen: Status) -> MachinePlan:
        """The machine with no grants and nobody else on it."""
        return cls(tuple(without_grants(seen.gpus)), ())

    def without(self, names: Iterable[str]) -> MachinePlan:
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
        return MachinePlan(tuple(gpus), tuple(kept))

    def without_grant(self, gone: Grant) -> MachinePlan:
        """The same after this grant, here or planned, has ended."""
        gpus = (
            replace(one, granted_bytes=one.granted_bytes - gone.bytes_on(one.gpu.uuid))
            for one in self.gpus
        )
        kept = (grant for grant in self.grants if grant is not gone)
        return MachinePlan(tuple(gpus), tuple(kept))

    def put(self, request: Request, count: int) -> tuple[MachinePlan, list[list[Slice]]]:
        """The plan with `count` more workers, and their slices; NoCapacityError, with figures."""
        plan, placed = self, []
        for _ in range(count):
            gpus = find_gpus(request, plan.gpus, plan.grants)
            slices = [request.slice_of(gpu) for gpu in gpus]
            plan = plan._with(_planned(slices, request))
            placed.append(slices)
        return plan, placed

    def added_since(self, before: MachinePlan) -> list[str]:
        """The GPUs of the slices that this plan has and that one had not."""
        old = {id(grant) for grant in before.grants}
        new = (grant for grant in self.grants if id(grant) not in old)
        return [part.gpu_uuid for grant in new for part in grant.slices]

    def why_choice_waits(self, request: Request, count: int) -> str | None:
        """Why `count` more workers do not fit, if that is their choice of GPUs or neighbours."""
        plan = self
        for _ in range(count):
            try:
                plan = plan.put(request, 1)[0]
            except NoCapacityError:
                return why_choice_waits(request, plan.gpus, plan.grants)
        return None

    def put_back(self, parked: Iterable[Grant]) -> MachinePlan:
        """The same with parked grants on the GPUs they had; NoCapacityError, with figures."""
        plan = self
        for grant in parked:
            plan = plan._without_left(grant)
            plan._check_is_free(grant)  # noqa: SLF001 - of this class
            plan = plan._with(_planned(grant.slices, grant))  # noqa: SLF001
        return plan

    def _without_left(self, parked: Grant) -> MachinePlan:
        """The same without what a parked grant has left on its GPU: it counts when it returns."""
        if parked not in self.grants:
            return self
        gpus = (
            replace(one, granted_bytes=one.granted_bytes - parked.bytes_on(one.gpu.uuid))
            for one in self.gpus
        )
        nothing = replace(parked, staying_bytes=0)
        return MachinePlan(
            tuple(gpus), tuple(nothing if one == parked else one for one in self.grants)
        )

    def without_idle(self) -> MachinePlan:
        """The same after idle grants that give up their room have done so; itself if none does."""
        plan = self
        for grant in self.grants:
            if grant.parking is not None and grant.parking.is_due:
                left = replace(grant, state=GrantState.PARKED, staying_bytes=grant.fixed_bytes)
                plan = plan.without_grant(grant)._with(left)  # noqa: SLF001 - of this class
        return plan

    def take_back(self, grant: Grant) -> MachinePlan:
        """The same with a grant that was taken out of it; NoCapacityError, with figures."""
        self._check_is_free(grant)
        return self._with(grant)

    def _check_is_free(self, grant: Grant) -> None:
        for part in grant.slices:
            one = next((one for one in self.gpus if one.gpu.uuid == part.gpu_uuid), None)
            if one is None:
                raise NoCapacityError(f"{part.gpu_uuid}, which {grant.name} had, is gone")
            if not fits(part, one, self.grants, turns=grant.turns):
                left = describe_free(one, self.grants, with_compute=True)
                raise NoCapacityError(f"what {grant.name} had is not free: {left}", WAIT)
            there = (other for other in self.grants if other.slices_on(part.gpu_uuid))
            why = why_not_beside(grant.occupant, (one.occupant for one in there))
            if why is not None:
                raise NoCapacityError(f"{grant.name} cannot return to {one.gpu}: {why}", WAIT)

    def put_with_parked(self, request: Request, count: int) -> list[list[Slice]]:
        """Slices for `count` more workers, if possible such that parked grants can still return.

        NoCapacityError, with figures.
        """
        plan = self
        for grant in self.grants:
            if grant.state is GrantState.PARKED:
                with suppress(NoCapacityError):
                    plan = plan.put_back([grant])
        with suppress(NoCapacityError):
            return plan.put(request, count)[1]
        return self.put(request, count)[1]

    def holds(self, request: Request, count: int) -> bool:
        """Whether `count` more workers fit."""
        try:
            self.put(request, count)
        except NoCapacityError:
            return False
        return True

    def _with(self, grant: Grant) -> MachinePlan:
        gpus = (
            replace(one, granted_bytes=one.granted_bytes + grant.bytes_on(one.gpu.uuid))
            for one in self.gpus
        )
        return MachinePlan(tuple(gpus), (*self.grants, grant))


def _as_left(grant: Grant) -> Grant:
    """An idle grant as one with smaller slices: its job runs, and others use the rest."""
    if not grant.is_idle_parked:
        return grant
    slices = tuple(
        replace(
            part,
            memory_bytes=grant.bytes_on(part.gpu_uuid),
            compute_percent=part.compute_percent if grant.slices_on(part.gpu_uuid) else 0,
        )
        for part in grant.slices
    )
    return replace(grant, state=GrantState.ACTIVE, slices=slices, parking=None, turns=None)


def held_gpus(grant: Grant, gpus: Iterable[SharedGpu]) -> float:
    """How many GPUs a grant counts as: of each the part of memory or compute that is more."""
    if grant.state is GrantState.PARKED:
        return 0.0
    if grant.neighbours.alone:
        return float(len(grant.slices))
    sizes = {one.gpu.uuid: one.gpu.memory_bytes for one in gpus}
    parts = (
        max(one.memory_bytes / max(1, sizes.get(one.gpu_uuid, 0)), one.compute_percent / 100)
        for one in grant.slices
    )
    return sum(min(1.0, part) for part in parts)


class MachineCapacity:
    """The GPUs of one machine, for `placement.elastic.feasibility`: what a worker has is a grant.

    `requests` says what each job's workers ask for. `parked` are the grants that the frozen workers
    of a job return to.
    """

    def __init__(
        self,
        plan: MachinePlan,
        requests: Mapping[str, Request],
        parked: Mapping[str, Collection[Grant]],
    ) -> None:
        self._plan = plan
        self._requests = requests
        self._parked = parked

    def copy(self) -> MachineCapacity:
        """The same, to be changed without changing this one."""
        return MachineCapacity(self._plan, self._requests, self._parked)

    def free(self, worker: Grant) -> None:
        """Free what a worker has."""
        self._plan = self._plan.without_grant(worker)

    def take_back(self, worker: Grant) -> bool:
        """Allocate what a worker had, if all of it is free; return whether it was."""
        try:
            self._plan = self._plan.take_back(worker)
        except NoCapacityError:
            return False
        return True

    def place(self, job: JobWorkers[Grant], count: int) -> tuple[Grant, ...] | None:
        """Allocate `count` more workers of a job; parked ones return to the GPUs they had."""
        before = len(self._plan.grants)
        try:
            self._plan = place(self._plan, self._requests[job.name], count, self._parked[job.name])
        except NoCapacityError:
            return None
        return self._plan.grants[before:]

    def count(self, member: Demand) -> None:  # noqa: ARG002 - it depends on which GPUs are cut
        """Workers cannot be counted here: which of them fit depends on the others."""
        return

    def is_intact(self, worker: Grant) -> bool:
        """Whether all GPUs of a worker are still there."""
        present = {one.gpu.uuid for one in self._plan.gpus}
        return all(part.gpu_uuid in present for part in worker.slices)

    def free_milli(self) -> float:
        """Infinite: what is free is not counted."""
        return math.inf


def place(
    plan: MachinePlan, request: Request, size: int, parked: Collection[Grant] = ()
) -> MachinePlan:
    """The plan with a job's workers: parked ones on the GPUs they had, else new ones.

    NoCapacityError if they do not fit.
    """
    return plan.put_back(parked) if parked and size else plan.put(request, size)[0]


@dataclass
class RequestKinds:
    """Tells which requests can have the same GPUs. `named` are the labels that slices ask about."""

    plan: MachinePlan
    named: frozenset[str]
    _usable: dict[Request, frozenset[str] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, requests: Iterable[Request], plan: MachinePlan) -> RequestKinds:
        """The kinds of these requests on this machine."""
        asked = [*(one.neighbours for one in requests), *(one.neighbours for one in plan.grants)]
        apart = {label for one in asked for label in one.apart_from}
        beside = {one.beside for one in asked if one.beside is not None}
        return cls(plan, frozenset(apart | beside))

    def usable(self, request: Request) -> frozenset[str] | None:
        """The GPUs that the request may use, by `usable_gpus`."""
        kind = self.kind(request)
        if kind not in self._usable:
            self._usable[kind] = usable_gpus(request, self.plan.gpus, self.plan.grants)
        return self._usable[kind]

    def choice(self, request: Request) -> float:
        """How many GPUs the request may use; infinite if it may use all."""
        usable = self.usable(request)
        return math.inf if usable is None else len(usable)

    def kind(self, request: Request) -> Request:
        """The request without what does not decide where its slices can be.

        That is most of all its label, which is the name of its job: it counts if a slice asks to be
        with it or apart from it. Whose request it is counts with it, and with labels that it names.
        """
        asks = request.neighbours
        label = asks.label if asks.label in self.named else None
        owner = request.owner if label or asks.beside or asks.apart_from else None
        seen = Neighbours(label, asks.beside, asks.apart_from, asks.alone)
        turns = bool(request.swap) and any(one.overcommit > 1 for one in self.plan.gpus)
        return replace(
            request,
            together=None,
            neighbours=seen,
            owner=owner,
            swap=turns,
            park_after=None,
            swap_wait=0.0,
            overcommit=request.overcommit if turns else 0.0,
        )


def _planned(slices: Iterable[Slice], asked: Request | Grant) -> Grant:
    """A grant that does not exist, as its neighbours would see it."""
    seen = asked.occupant
    slices = tuple(slices)
    return Grant(
        name="",
        directory="",
        owner_pid=None,
        owner_alive=False,
        owner_uid=_NOBODY if seen.owner is None else seen.owner,
        neighbours=replace(asked.neighbours, label=seen.label or None),
        created=0.0,
        broken=None,
        slices=slices,
        use=tuple(SliceUse(part.gpu_uuid, 0, 0) for part in slices),
        compute=tuple(ComputeUse() for _ in slices),
        processes=(),
        turns=_turns(asked),
    )


def _turns(asked: Request | Grant) -> MemoryTurns | None:
    """Its turns, on a GPU whose slices take some."""
    if isinstance(asked, Grant):
        return asked.turns
    if not asked.swap:
        return None
    return MemoryTurns(SWAP_WAIT_SECONDS, most=asked.overcommit or None)
