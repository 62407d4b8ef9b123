"""Where the members of a gang go whose GPUs come through resource claims. No input or output.

The decision is `placement.decide`, as for all gangs, on the table of the nodes whose GPUs are for
claims. Members that share a claim must be on one node: together they are one demand. If claims
can be fulfilled in several ways, because all GPUs of one must have an attribute in common, the ways
are tried one after the other, as many as there is time for: a later pass tries the others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import chain, combinations_with_replacement, islice, product
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.dra_parameters import InvalidClaimError
from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
from aliquot.kubernetes.dra.asked import options_of
from aliquot.kubernetes.dra.write import ClaimPlace
from aliquot.kubernetes.gangs.apply import untolerated
from aliquot.kubernetes.gangs.events import closeness, why_later
from aliquot.placement.core.demand import Gang
from aliquot.placement.decide import DecisionInput, decide

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.dra import ResourceClaim
    from aliquot.kubernetes.api.objects import Node, Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.topology import Topology
    from aliquot.kubernetes.cluster.workloads import Work
    from aliquot.kubernetes.dra.asked import PodDemand
    from aliquot.kubernetes.dra.demand import ClaimDemand, Option
    from aliquot.kubernetes.gangs.single_pods import GangLimits
    from aliquot.placement.core.demand import Running
    from aliquot.placement.decide import Decision

MOST_CHOICES = 64  # of options of all members that are tried
MOST_SECONDS = 0.2  # after which no other one is tried in this pass: kube-scheduler waits meanwhile
NOT_TOGETHER = "not all its members fit together now"
DIFFERENT = (
    "pod {} has several resource claims that must be on one node, and they do not all ask for whole"
    " GPUs with the same selectors. In a gang, write one resource claim for each pod"
)


@dataclass(frozen=True, slots=True)
class MemberUnit:
    """Members that must be on one node, because they share claims, and what they need there.

    `claims` has each claim once. `node` is where they must be, if some have allocations already.
    `barred` are nodes that at least one of the pods does not accept now.
    """

    pods: tuple[Pod, ...]
    claims: tuple[tuple[ResourceClaim, ClaimDemand], ...]
    node: str | None = None
    barred: frozenset[str] = frozenset()

    @property
    def options(self) -> tuple[tuple[Option, ...], ...]:
        """What it can ask for: an option of each claim."""
        return tuple(options_of([demand for _, demand in self.claims]))


@dataclass(frozen=True, slots=True)
class GangPlan:
    """What each claim gets; or the phase of a gang that does not start now. `reason` is why.

    `tried` is how many ways to fulfil the claims were tried.
    """

    phase: Phase
    reason: str
    places: tuple[ClaimPlace, ...] = ()
    tried: int = 0


@dataclass(frozen=True, slots=True)
class GangQuestion:
    """A gang that is to start, or its missing members.

    `rest` are the nodes of members that have their GPUs already; None if the gang starts.
    """

    work: Work
    units: Sequence[MemberUnit]
    limits: GangLimits
    now: float
    rest: Collection[str] | None = None


def units_of(
    members: Sequence[tuple[Pod, PodDemand]],
    barred: Mapping[str, Collection[str]],
    nodes: Mapping[str, Node],
    names: Collection[str],
) -> list[MemberUnit]:
    """The members by the claims that they share; InvalidClaimError if they cannot share them.

    `barred` are nodes that are not tried, by the UID of a pod. `names` are all nodes with GPUs for
    claims.
    """
    found = []
    for group in _sharing(members):
        pods = tuple(pod for pod, _ in group)
        pinned = sorted({asked.node for _, asked in group if asked.node is not None})
        if len(pinned) > 1:
            raise InvalidClaimError(
                f"pod {pods[0].key} has resource claims that are allocated on several nodes"
                f" ({', '.join(pinned)})"
            )
        claims = {
            claim.metadata.uid: (claim, demand)
            for _, asked in group
            for claim, demand in asked.claims
        }
        not_these = set(chain.from_iterable(barred.get(pod.metadata.uid, ()) for pod in pods))
        for pod in pods[1:]:
            limits = NodeConstraints.of(pod)
            not_these |= {name for name in names if not limits.allow(name, nodes.get(name))}
        node = pinned[0] if pinned else None
        found.append(MemberUnit(pods, tuple(claims.values()), node, frozenset(not_these)))
    return found


def plan(topology: Topology, question: GangQuestion, tried: int = 0) -> GangPlan:
    """Where all units go together, or why they do not start now.

    `tried` is how many ways earlier passes have tried: this one begins with the next.
    """
    began = time.monotonic()
    choices = list(_choices(question.units))
    refused = GangPlan(Phase.REFUSED, NOT_TOGETHER)
    for number in range(len(choices)):
        found = _plan(topology, question, choices[(tried + number) % len(choices)])
        if found.places:
            return found
        if refused.phase is Phase.REFUSED:
            refused = found
        refused = replace(refused, tried=number + 1)
        if time.monotonic() - began > MOST_SECONDS:
            break
    return refused


# --- one choice of options ------------------------------------------------------------------------


def _plan(
    topology: Topology, question: GangQuestion, choice: Sequence[tuple[Option, ...]]
) -> GangPlan:
    names = frozenset(topology.cluster.nodes)
    pairs = list(zip(question.units, choice, strict=True))
    requests = [tuple(option.request for option in options) for _, options in pairs]
    limits = [_limits(unit, options, names) for unit, options in pairs]
    nodes = ClusterSnapshot(topology, limits)
    demands = []
    for unit, asked, allowed in zip(question.units, requests, limits, strict=True):
        try:
            if len({one.wishes for one in asked}) > 1:
                return GangPlan(Phase.REFUSED, DIFFERENT.format(unit.pods[0].key))
            demands.append(nodes.demand(asked, allowed))
        except InvalidRequestError:
            return GangPlan(Phase.REFUSED, DIFFERENT.format(unit.pods[0].key))
    work = question.work
    gang = Gang(
        name=work.name,
        members=tuple(demands),
        seconds=work.seconds,
        queue=work.queue,
        priority=work.priority,
        submitted=work.start,
    )
    decision = decide(_input(gang, nodes, question))
    start = next(iter(decision.starts), None)
    if start is None:
        return _refusal(gang, decision, nodes, limits, question.now)
    return _placed(start, question.units, requests, nodes)


def _input(gang: Gang, nodes: ClusterSnapshot, question: GangQuestion) -> DecisionInput:
    rest = question.rest
    rows = [row for one in rest or () if (row := nodes.row(one)) is not None]
    return DecisionInput(
        allocations=nodes.allocations,
        running=(),
        planned=(),
        waiting=[gang] if rest is None else (),
        incomplete=() if rest is None else [(gang, rows)],
        queues=question.limits.queues,
        now=question.now,
        by=nodes.by,
        ending=question.limits.charged,
    )


def _placed(
    start: Running,
    units: Sequence[MemberUnit],
    requests: Sequence[tuple[ContainerRequest, ...]],
    nodes: ClusterSnapshot,
) -> GangPlan:
    places = []
    for unit, asked, place in zip(units, requests, start.placements, strict=True):
        parts, node = nodes.parts(asked, place), nodes.node(place.node)
        for (claim, demand), part in zip(unit.claims, parts, strict=True):
            places.append(ClaimPlace(_user(unit, claim), claim, demand, node, part))
    topology = closeness(nodes.hardware, start.placements)
    count = sum(len(unit.pods) for unit in units)
    reason = f"{count} pods have their places: {topology}"
    return GangPlan(Phase.RESERVED, reason, tuple(places))


def _user(unit: MemberUnit, claim: ResourceClaim) -> Pod:
    """The pod that a claim counts for: its owner, or the first that shares it."""
    owners = {one.uid for one in claim.metadata.owner_references}
    return next((pod for pod in unit.pods if pod.metadata.uid in owners), unit.pods[0])


def _refusal(
    gang: Gang,
    decision: Decision,
    nodes: ClusterSnapshot,
    limits: Sequence[NodeConstraints],
    now: float,
) -> GangPlan:
    never = decision.above_limit.get(gang.name)
    if never is None and gang.name in decision.never:
        never = decision.never[gang.name]
        never += untolerated(nodes.untolerated_taints(limits))
    if never is not None:
        return GangPlan(Phase.REFUSED, never)
    why = decision.reasons[gang.name] if gang.name in decision.limited else NOT_TOGETHER
    text = why_later(gang, nodes.allocations, None, (), now)
    return GangPlan(Phase.WAITING, f"{text}; {why}")


def _limits(unit: MemberUnit, options: Sequence[Option], names: frozenset[str]) -> NodeConstraints:
    """The nodes that a unit may go to, with these options."""
    limits = NodeConstraints.of(unit.pods[0], unit.barred)
    allowed = names if unit.node is None else names & {unit.node}
    for option in options:
        allowed &= names if option.nodes is None else option.nodes
    return replace(limits, barred=limits.barred | (names - allowed))


def _choices(units: Sequence[MemberUnit]) -> Iterator[tuple[tuple[Option, ...], ...]]:
    """An option for each unit; units with the same options are alike, whatever their order."""
    alike: dict[tuple[tuple[Option, ...], ...], list[int]] = defaultdict(list)
    for number, unit in enumerate(units):
        alike[unit.options].append(number)
    ways = (combinations_with_replacement(options, len(mine)) for options, mine in alike.items())
    for way in islice(_product(list(ways)), MOST_CHOICES):
        chosen = dict(
            pair
            for mine, options in zip(alike.values(), way, strict=True)
            for pair in zip(mine, options, strict=True)
        )
        yield tuple(chosen[number] for number in range(len(units)))


def _product(
    ways: Sequence[Iterator[tuple[tuple[Option, ...], ...]]],
) -> Iterator[tuple[tuple[tuple[Option, ...], ...], ...]]:
    """All combinations of the first ones of each: there may be too many to make all of one."""
    return product(*(list(islice(one, MOST_CHOICES)) for one in ways))


def _sharing(members: Sequence[tuple[Pod, PodDemand]]) -> list[list[tuple[Pod, PodDemand]]]:
    """The members in groups that share claims, in the order of their first."""
    groups: list[tuple[set[str], list[tuple[Pod, PodDemand]]]] = []
    for pod, asked in members:
        uids = {claim.metadata.uid for claim, _ in asked.claims}
        mine: list[tuple[Pod, PodDemand]] = []
        apart = []
        for others, group in groups:
            if uids.isdisjoint(others):
                apart.append((others, group))
            else:
                uids |= others
                mine += group
        groups = [*apart, (uids, [*mine, (pod, asked)])]
    return [group for _, group in groups]
