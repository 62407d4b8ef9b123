"""What is known of one gang, and what follows from it. Pure; times are seconds since the epoch.

A gang gathers until all its pods are there, waits until there is room for all of them, is reserved
a place for each, and is bound when each has its node. A reservation is given up as a whole while no
member has its node; afterwards the members that are missing are planned again, as the gang's rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.gang import GangMember, Phase
from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.elastic import LATE, told_ahead
from aliquot.kubernetes.cluster.membership import foreign_gates, membership_of, seconds_of
from aliquot.kubernetes.cluster.parts import plan_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.gang import GangStatus
    from aliquot.kubernetes.api.objects import Owner, Pod
    from aliquot.kubernetes.cluster.membership import GangKey, Membership, Source
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.kubernetes.gangs.sources import Found
    from aliquot.placement.core.demand import Demand

BAR_SECONDS = 300.0
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a member goes, and what it gets there."""

    node: str
    parts: Parts


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """The start that a gang was promised, and where; `shape` is what it asked for then."""

    start: float
    places: tuple[tuple[str, tuple[int, ...]], ...]
    shape: tuple[Demand, ...]


@dataclass(slots=True)
class GangState:
    """A gang.

    `pods` are its live ones that ask for GPUs, `others` those that do not, and `reserved` are the
    places of those on their way, by UID; `persisted` are the places that the API server has.
    `had_nodes` are all UIDs that were seen with a node, and `finished` those of members that ask
    for no GPU and have done their work.
    `whole_once`: all of it had nodes at some time. `moved` is when it last came nearer to that, and
    `grown` when one more had a node.
    `version` counts the changes of its pods. `leaving` says why those of it that have nodes are to
    end, and not before `leaves_at`: it could not be completed, or makes room, and then `leaves_for`
    is for whom. `told` is whether their controller tells them so. `leavers` is how many had nodes
    when that was decided. `leaving_known` is what the API server has of it. `kept` says who keeps
    them from it. `claimed` are the gangs that end for this one, as long as it keeps to its claim.
    `asked` are elastic jobs that are to give back for it, by name; they are waited for until
    `asked_until`, which the first of them sets, and which stays until it has places.
    """

    key: GangKey
    pods: dict[str, Pod] = field(default_factory=dict)
    others: dict[str, Pod] = field(default_factory=dict)
    phase: Phase = Phase.GATHERING
    reason: str = ""
    planned: float | None = None
    since: float = 0.0
    topology: str = ""
    reserved: dict[str, MemberPlace] = field(default_factory=dict)
    persisted: Mapping[str, MemberPlace] = field(default_factory=dict)
    making_room: frozenset[str] = frozenset()
    had_nodes: set[str] = field(default_factory=set)
    whole_once: bool = False
    finished: frozenset[str] = frozenset()
    leaving: str = ""
    leaving_known: str = ""
    leaves_at: float = 0.0
    leaves_for: GangKey | None = None
    leavers: int = 0
    told: bool = False
    claimed: set[GangKey] = field(default_factory=set)
    kept: str = ""
    moved: float = 0.0
    grown: float = 0.0
    not_before: float = 0.0
    tries: int = 0
    barred: dict[str, float] = field(default_factory=dict)
    spared: dict[str, float] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    asked_until: float = 0.0
    promise: PlannedStart | None = None
    version: int = 0
    _sorted: tuple[int, list[Pod]] = (-1, [])
    _claimed: tuple[int, list[Membership]] = (-1, [])

    # --- its pods ---------------------------------------------------------------------------------

    @property
    def members(self) -> list[Pod]:
        """In the order of their names, without those that are on their way out."""
        if self._sorted[0] != self.version:
            live = (one for one in self.pods.values() if not one.metadata.deletion_timestamp)
            order = sorted(live, key=lambda one: (len(one.metadata.name), one.metadata.name))
            self._sorted = self.version, order
        return self._sorted[1]

    @property
    def unbound(self) -> list[Pod]:
        """Those without a node."""
        return [one for one in self.members if not one.spec.node_name]

    @property
    def bound(self) -> list[Pod]:
        """Those with one, also on their way out."""
        return [one for one in self.pods.values() if one.spec.node_name]

    @property
    def staying(self) -> list[Pod]:
        """Those with one that are not on their way out."""
        return [one for one in self.members if one.spec.node_name]

    @property
    def source(self) -> Source | None:
        """Who knows its size, where its pods do not say it."""
        return next((one.source for one in self._claims() if one.source), None)

    @property
    def priority(self) -> int:
        """The highest of its pods."""
        return max((one.spec.priority or 0 for one in self.pods.values()), default=0)

    def seconds(self, assumed: float) -> float:
        """How long it runs: as long as the longest of its pods."""
        return max((seconds_of(one, assumed) for one in self.pods.values()), default=assumed)

    # --- how far it is ----------------------------------------------------------------------------

    def size(self, found: Found | None) -> tuple[int | None, str]:
        """How many pods it has, or why that is not known."""
        claims = self._claims()
        if any(one.source for one in claims):
            return (found.size, found.problem) if found else (None, "its size is being read")
        sizes = sorted({one.size for one in claims if one.size is not None})
        if len(sizes) > 1:
            return None, f"its pods say different sizes: {', '.join(map(str, sizes))}"
        if sizes:
            return sizes[0], ""
        return None, next((one.problem for one in claims if one.problem), "its pods are ending")

    def not_ready(self, found: Found | None) -> tuple[Phase, str] | None:
        """Why it cannot be planned yet, before any of it has a node; None where it can."""
        pods = self.members
        size, problem = self.size(found)
        if size is None:
            being_read = found is None and self.source is not None
            soon = being_read or not self._claims()
            return (Phase.GATHERING if soon else Phase.REFUSED), problem
        live, count = len(pods) + len(self.others), self.there(found)
        if self.source is None and live > size:
            return Phase.REFUSED, (
                f"{live} pods belong to it, and they say that it has {size}. Correct the size,"
                " or give other pods another gang's name."
            )
        if count < size:
            return Phase.GATHERING, f"{count} of its {size} pods are there"
        if not pods:
            return Phase.REFUSED, "none of its pods asks for a GPU. Take its gates away."
        every = (*pods, *self.others.values())
        gates = sorted({gate for pod in every for gate in foreign_gates(pod)})
        if gates:
            return Phase.GATHERING, f"its pods are held back by {', '.join(gates)}"
        return None

    def there(self, found: Found | None) -> int:
        """How many of its pods are there, or have done their work; as its size counts them."""
        if found is not None and found.only_gpus:
            return len(self.members)
        return len(self.members) + len({*self.others, *self.finished})

    def wanted(self, found: Found | None) -> int | None:
        """How many of its pods ask for GPUs; None where its size is not known."""
        size, _ = self.size(found)
        if size is None or (found is not None and found.only_gpus):
            return size
        return size - len({*self.others, *self.finished})

    def _claims(self) -> list[Membership]:
        if self._claimed[0] != self.version:
            every = (*self.members, *self.others.values())
            found = [one for pod in every if (one := membership_of(pod)) is not None]
            self._claimed = self.version, found
        return self._claimed[1]

    def is_open(self, uid: str) -> bool:
        """Whether a member may go to its place: the API server knows it, and it is free."""
        place = self.reserved.get(uid)
        return place is not None and self.persisted.get(uid) == place and not self.making_room

    @property
    def why_kept(self) -> str:
        """What keeps those of it from ending that were to; as the end of a sentence."""
        return f"; {self.kept}" if self.kept else ""

    @property
    def is_written(self) -> bool:
        """Whether the API server knows all its places."""
        return all(self.persisted.get(uid) == place for uid, place in self.reserved.items())

    def told_members(self) -> tuple[GangMember, ...]:
        """For its status."""
        return tuple(self._told(one) for one in self.members)

    def _told(self, pod: Pod) -> GangMember:
        meta = pod.metadata
        if pod.spec.node_name:
            return GangMember(
                meta.name, meta.uid, pod.spec.node_name, meta.annotations.get(PLAN, "")
            )
        place = self.reserved.get(meta.uid)
        if place is None:
            return GangMember(meta.name, meta.uid)
        return GangMember(meta.name, meta.uid, place.node, plan_of(place.parts).encode())

    # --- what changes it --------------------------------------------------------------------------

    def tell(self, phase: Phase, reason: str) -> None:
        """It is not planned, and this is why."""
        self.phase, self.reason, self.planned, self.promise = phase, reason, None, None

    def reserve(self, places: Mapping[str, MemberPlace], now: float) -> None:
        """Its members, or its rest, have places from now on."""
        self.reserved.update(places)
        self.ask_anew()
        self.phase, self.moved, self.promise, self.planned = Phase.RESERVED, now, None, None

    def give_up(self, why: str, now: float, *, node: str = "", pause: bool = True) -> list[str]:
        """Take its places back, of which `node` was impossible; the UIDs that had one.

        It is planned again at once where a node is known that was at fault, else after a pause.
        """
        uids = list(self.reserved)
        self.reserved.clear()
        self.persisted = {}
        self.making_room = frozenset()
        self.claimed.clear()
        self.phase, self.reason, self.topology, self.moved = Phase.WAITING, why, "", now
        if node:
            self.barred[node] = now + BAR_SECONDS
        if node or not pause:
            self.not_before = now
        else:
            self.not_before = now + min(FIRST_PAUSE * 2**self.tries, LONGEST_PAUSE)
            self.tries += 1
        return uids

    def leave(
        self, why: str, now: float, seconds: float = 0.0, claimant: GangKey | None = None
    ) -> None:
        """Those of it that have nodes are to end, after so long."""
        if not self.leaving:
            self.leaving, self.leaves_at, self.leaves_for = why, now + seconds, claimant
            self.leavers, self.told = len(self.staying), seconds > 0

    def leave_on(self, status: GangStatus, now: float, claimant: GangKey | None = None) -> None:
        """It was leaving when another led: so it is again, and its time does not begin anew."""
        if self.leaving:
            return
        until = seconds_at(status.leaves_at)
        seconds = 0.0 if until is None else told_ahead(self.staying)
        self.leave(status.leaving, now, seconds, claimant)
        if until is not None:
            self.leaves_at = min(self.leaves_at, until)
        self.leavers = max(self.leavers, status.leavers)

    def ask(self, jobs: Mapping[str, float], now: float) -> None:
        """These elastic jobs are to give back for it; the first that are asked set the time."""
        self.asked = frozenset(jobs)
        self.asked_until = self.asked_until or now + max(jobs.values())

    def has_waited(self, now: float) -> bool:
        """Whether the time of all elastic jobs that were to give back for it is over."""
        return 0 < self.asked_until <= now

    def ask_anew(self) -> None:
        """Elastic jobs may be asked again."""
        self.asked, self.asked_until = frozenset(), 0.0

    def may_end(self, now: float) -> bool:
        """Whether those of it that have nodes may be evicted now: that is written, and time."""
        return bool(self.leaving) and self.leaving_known == self.leaving and now >= self.ends_at

    @property
    def is_told_ahead(self) -> bool:
        """Whether it leaves, and its workers are told so by their controller."""
        return bool(self.leaving) and self.told

    @property
    def ends_at(self) -> float:
        """When those of it that leave are evicted: who was told has been stopped by then."""
        return self.leaves_at + LATE if self.is_told_ahead else self.leaves_at

    @property
    def is_half_gone(self) -> bool:
        """Whether some of those that were to end have."""
        return len(self.staying) < self.leavers

    def stay(self, why: str, now: float) -> None:
        """They are kept from ending: the others are to follow them, when there is room."""
        if self.is_half_gone:  # what is left is not whole, whatever it was
            self.whole_once = False
            self.had_nodes &= {one.metadata.uid for one in self.staying}
        self.leaving, self.kept, self.grown = "", why, now

    def begin_anew(self) -> None:
        """None of it has a node: who comes now is another gang of that name."""
        self.had_nodes.clear()
        self.whole_once, self.leaving, self.kept = False, "", ""

    def forget_bars(self, now: float) -> None:
        """Nodes and others are tried again after a while."""
        self.barred = {name: until for name, until in self.barred.items() if until > now}
        self.spared = {name: until for name, until in self.spared.items() if until > now}


def let_stay(gangs: Mapping[GangKey, GangState]) -> None:
    """Who was to end for a gang that has given its claim up stays, where none of it has gone."""
    wanted = {uid for gang in gangs.values() for uid in gang.making_room}
    for gang in gangs.values():
        if not gang.leaving or gang.leaves_for is None or gang.is_half_gone:
            continue
        claimant = gangs.get(gang.leaves_for)
        is_claimed = claimant is not None and gang.key in claimant.claimed
        if not is_claimed and wanted.isdisjoint(gang.pods):
            gang.leaving = ""


def owners_of(known: GangState, found: Found | None) -> tuple[Owner, ...]:
    """The object that people wrote the gang with, where there is one."""
    if found is not None and found.owner is not None:
        return (found.owner,)
    controllers = {
        owner.uid: owner
        for pod in known.pods.values()
        for owner in pod.metadata.owner_references
        if owner.controller
    }
    return tuple(controllers.values()) if len(controllers) == 1 else ()
