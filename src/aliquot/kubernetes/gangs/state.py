"""The state of one gang: immutable values, each with its own transitions. Pure.

- `GangProgress`: what the controller remembers about the gang's pods.
- `Reservation`: the GPUs held for pods that have no node yet, and whose they still are.
- `PendingEviction`: the decision to evict the pods that have a node.
- `Retry`: what the controller avoids when it plans the gang again.
- `ElasticRequest`: the elastic jobs that were asked to shrink for the gang.
- `PlannedStart`: when and where the gang is expected to start.

`GangState` is all of them. `lifecycle` says which transition happens when.

A method that changes something returns the next value. Times are seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.cluster.elastic import LATE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.placement.core.demand import Demand

BAR_SECONDS = 300.0
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """The node of a member, and what its containers get there."""

    node: str
    parts: Parts


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """When and where a waiting gang is expected to start; `shape` is what it requested then."""

    start: float
    places: tuple[tuple[str, tuple[int, ...]], ...]
    shape: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class GangProgress:
    """What the controller remembers about a gang's pods.

    `had_nodes` are the UIDs of all pods seen with a node since the gang started. `whole_once`: all
    members had nodes, so the gang is not evicted when it loses one later. `since` is when all
    members existed. `moved` is when the gang last came closer to running, `grown` when one more
    member got a node.
    """

    had_nodes: frozenset[str] = frozenset()
    whole_once: bool = False
    since: float = 0.0
    moved: float = 0.0
    grown: float = 0.0

    def bind(self, active: Collection[str], now: float) -> GangProgress:
        """Remember the pods that have nodes."""
        if self.had_nodes.issuperset(active):
            return self
        return replace(self, had_nodes=self.had_nodes.union(active), moved=now, grown=now)

    def complete(self, wanted: int | None) -> GangProgress:
        """Remember that all `wanted` members had nodes, if they did."""
        if wanted is None or len(self.had_nodes) < wanted:
            return self
        return replace(self, whole_once=True)

    def shrink(self, active: Collection[str], now: float) -> GangProgress:
        """Some members were evicted and the others stay: what is left is incomplete."""
        return replace(
            self, whole_once=False, had_nodes=self.had_nodes.intersection(active), grown=now
        )

    def restart(self) -> GangProgress:
        """No member has a node: pods that appear now are another run of the gang."""
        return replace(self, had_nodes=frozenset(), whole_once=False)


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs held for the members that have no node yet.

    `places` are by UID; `written` are the places that the API server has. `victims` are the UIDs of
    pods that are evicted for this gang and still hold what it waits for. `victim_gangs` are the
    gangs that are evicted for it; they stay named after the gang has started, since a gang is
    evicted as a whole.
    """

    places: Mapping[str, MemberPlace] = field(default_factory=dict)
    written: Mapping[str, MemberPlace] = field(default_factory=dict)
    victims: frozenset[str] = frozenset()
    victim_gangs: frozenset[GangKey] = frozenset()

    @property
    def is_written(self) -> bool:
        """Whether the API server has all places."""
        return all(self.written.get(uid) == place for uid, place in self.places.items())

    def is_open(self, uid: str) -> bool:
        """Whether a member may be bound: its place is written, and no victim is waited for."""
        place = self.places.get(uid)
        return place is not None and self.written.get(uid) == place and not self.victims

    def without(self, uids: Collection[str]) -> Reservation:
        """Members that were bound or deleted need no place."""
        if not any(uid in self.places for uid in uids):
            return self
        left = {uid: place for uid, place in self.places.items() if uid not in uids}
        return replace(self, places=left)


@dataclass(frozen=True, slots=True)
class PendingEviction:
    """The decision to evict all pods of a gang that have nodes, not before `at`.

    `preemptor` is the gang that gets their GPUs; None if the gang is evicted because it could not
    be completed. `pods` is how many had nodes when this was decided. `notified`: the controller of
    an elastic job tells its workers, and stops them itself at `at`. `written`: the API server has
    this decision.
    """

    why: str
    at: float
    pods: int
    preemptor: GangKey | None = None
    notified: bool = False
    written: bool = False

    @property
    def ends_at(self) -> float:
        """When pods are evicted; workers that were notified have been stopped by then."""
        return self.at + LATE if self.notified else self.at

    def is_due(self, now: float) -> bool:
        """Whether pods may be evicted now: the decision is written, and its time has come."""
        return self.written and now >= self.ends_at

    def has_begun(self, active: int) -> bool:
        """Whether some of the pods are gone already."""
        return active < self.pods


@dataclass(frozen=True, slots=True)
class Retry:
    """What the controller avoids when it plans a gang again.

    `barred` are nodes that kube-scheduler did not accept, `spared` workloads that a disruption
    budget protects; both by name, until a time.
    """

    not_before: float = 0.0
    tries: int = 0
    barred: Mapping[str, float] = field(default_factory=dict)
    spared: Mapping[str, float] = field(default_factory=dict)

    def back_off(self, now: float) -> Retry:
        """Wait before the next try: twice as long as the last time, up to `LONGEST_PAUSE`."""
        pause = min(FIRST_PAUSE * 2 ** min(self.tries, MOST_DOUBLINGS), LONGEST_PAUSE)
        return replace(self, not_before=now + pause, tries=self.tries + 1)

    def at_once(self, now: float) -> Retry:
        """Try again now."""
        return replace(self, not_before=now)

    def bar(self, node: str, now: float) -> Retry:
        """Avoid a node for a while, and try again now."""
        return replace(self.at_once(now), barred={**self.barred, node: now + BAR_SECONDS})

    def spare(self, names: Collection[str], until: float) -> Retry:
        """Do not choose these workloads as victims until then."""
        return replace(self, spared={**self.spared, **dict.fromkeys(names, until)})

    def expire(self, now: float) -> Retry:
        """Nodes and victims may be tried again after a while."""
        if all(until > now for some in (self.barred, self.spared) for until in some.values()):
            return self
        return replace(
            self,
            barred={name: until for name, until in self.barred.items() if until > now},
            spared={name: until for name, until in self.spared.items() if until > now},
        )

    def reset(self) -> Retry:
        """The gang runs: the next pause is the first one again."""
        return replace(self, not_before=0.0, tries=0)


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """Elastic jobs that were asked to shrink for a gang, by name.

    The gang waits for them until `until`, which the first request sets and later ones do not move.
    """

    jobs: frozenset[str] = frozenset()
    until: float = 0.0

    def ask(self, jobs: Mapping[str, float], now: float) -> ElasticRequest:
        """Ask these jobs; each with the seconds that it takes to shrink."""
        return ElasticRequest(frozenset(jobs), self.until or now + max(jobs.values()))

    def has_expired(self, now: float) -> bool:
        """Whether the gang has waited for them long enough."""
        return 0 < self.until <= now


@dataclass(frozen=True, slots=True)
class GangState:
    """One gang. `reason` says why it is in its phase, `topology` how close its members are.

    `blocked_by` says why an eviction of its pods was abandoned: a disruption budget protects them.
    """

    key: GangKey
    phase: Phase = Phase.GATHERING
    reason: str = ""
    topology: str = ""
    progress: GangProgress = field(default_factory=GangProgress)
    reservation: Reservation = field(default_factory=Reservation)
    eviction: PendingEviction | None = None
    blocked_by: str = ""
    retry: Retry = field(default_factory=Retry)
    elastic: ElasticRequest = field(default_factory=ElasticRequest)
    planned: PlannedStart | None = None

    @property
    def has_places(self) -> bool:
        """Whether GPUs are reserved for some of its members."""
        return bool(self.reservation.places)

    @property
    def why_blocked(self) -> str:
        """Why its eviction is blocked, as a clause to append."""
        return f"; {self.blocked_by}" if self.blocked_by else ""
