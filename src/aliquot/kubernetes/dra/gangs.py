"""Allocates the claims of gangs: all members get GPUs, or none.

Members are planned like those of every gang (`gang_plan`), within the limits of their queue. All
their claims count before the first one is written, and no gate is opened before the last one is.

There is no record beside the claims: a pass goes on from what they say. So if this replica dies
between two requests, or the API server refuses one, the next pass finds a gang of which some claims
are allocated. It allocates the others, near the first ones; if they do not fit, or a member is
gone, it takes back all that no pod has begun to use, and the gang waits as a whole.

Once a member has a node, nothing is taken back: members that are missing get GPUs when there are
some.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from aliquot.kubernetes.api.dra_parameters import InvalidClaimError
from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import GATE, RESOURCE_CLAIMS_GATE
from aliquot.kubernetes.cluster.membership import membership_of
from aliquot.kubernetes.cluster.workloads import GangPods
from aliquot.kubernetes.dra.asked import asked_by
from aliquot.kubernetes.dra.demand import Devices
from aliquot.kubernetes.dra.gang_plan import GangPlan, GangQuestion, plan, units_of
from aliquot.kubernetes.gangs.sizes import MemberCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aliquot.kubernetes.api.dra import ResourceClaim
    from aliquot.kubernetes.api.objects import Node, Pod
    from aliquot.kubernetes.cluster.dra import ResourceClaims
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.cluster.topology import Topology
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.dra.asked import PodDemand
    from aliquot.kubernetes.dra.waits import PodWaits
    from aliquot.kubernetes.dra.write import ClaimWriter
    from aliquot.kubernetes.gangs.single_pods import GangLimits
    from aliquot.kubernetes.gangs.sizes import SourceSizes

GATES = frozenset({GATE, RESOURCE_CLAIMS_GATE})
NAMED = 3  # nodes in a message
MOST_TOLD = 16  # members of a gang that get an event
BEING_READ = "the resource claims of its pods are being read"
ENDING = "its pods are ending"
MISSING = "some resource claims of its pods do not exist yet"
REFUSED_BY_API = "the API server refused an allocation: it is tried again"
UNSURE = "the API server did not say whether it wrote an allocation"
TAKEN_BACK = "its allocations are being taken back"
CHANGED = "its pods or their resource claims changed while these were allocated"
MIXED = (
    "some of its pods ask for GPUs by resources and others by resource claims: let all of them ask"
    " in one way"
)

Verdict = tuple[Phase, str]
_NUMBER = re.compile(r"[0-9.]+")


class GangLimiter(Protocol):
    """The limits of queues, for gangs."""

    def gang_limits(self, pods: GangPods) -> GangLimits:
        """What limits a gang."""


@dataclass(frozen=True, slots=True)
class _Gang:
    """A gang in this pass: `pods.pods` ask for GPUs by claims, as `asked` says by UID.

    `problem` is why it cannot be planned, as far as that is seen here.
    """

    pods: GangPods
    asked: Mapping[str, PodDemand]
    problem: Verdict | None = None

    @property
    def missing(self) -> list[tuple[Pod, PodDemand]]:
        """Members without a node that have claims to be allocated."""
        both = ((one, self.asked[one.metadata.uid]) for one in self.pods.unbound)
        return [(pod, asked) for pod, asked in both if asked.claims]

    @property
    def allocated(self) -> list[ResourceClaim]:
        """The allocated claims of members without a node, each once."""
        every = (self.asked[one.metadata.uid].having for one in self.pods.unbound)
        return list({claim.metadata.uid: claim for some in every for claim in some}.values())

    def has_all(self, pod: Pod) -> bool:
        """Whether all claims of a member are allocated."""
        asked = self.asked[pod.metadata.uid]
        return asked.invalid is None and not asked.claims

    @property
    def nodes(self) -> set[str]:
        """The nodes of members that have GPUs."""
        nodes = (one.node for one in self.asked.values())
        return {one for one in nodes if one is not None}


class GangAllocator:
    """Allocates the claims of gangs; `topology` is that of the nodes with GPUs for claims.

    `changed` is called if a gang's phase or its reason is new.
    """

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        claims: ResourceClaims,
        workloads: Workloads,
        *,
        topology: Topology,
        sizes: SourceSizes,
        limits: GangLimiter,
        writer: ClaimWriter,
        waits: PodWaits,
        names_resources: Callable[[Pod], bool],
        nodes: Callable[[], Mapping[str, Node]],
        changed: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._claims = claims
        self._workloads = workloads
        self._topology = topology
        self._sizes = sizes
        self._limits = limits
        self._writer = writer
        self._waits = waits
        self._names_resources = names_resources
        self._nodes = nodes
        self._changed = changed
        self._now = now
        self._devices = Devices({})  # as of the last pass
        self._tried: dict[GangKey, int] = {}  # ways to fulfil the claims of a gang
        self._gangs: dict[GangKey, _Gang] = {}  # that ask by claims
        self._verdicts: dict[GangKey, Verdict | None] = {}

    # --- answers ----------------------------------------------------------------------------------

    def verdict(self, key: GangKey) -> Verdict | None:
        """The phase of a gang whose pods ask for GPUs by claims, and why; None for all others."""
        if key in self._verdicts:
            return self._verdicts[key]
        pods = self._workloads.gangs.get(key)
        if pods is None or not any(one.spec.resource_claims for one in pods.every):
            return None
        return Phase.GATHERING, BEING_READ

    def key_of(self, pod: Pod) -> GangKey | None:
        """The gang of a pod, if it asks for GPUs by claims, or its claims were not seen yet."""
        membership = membership_of(pod)
        return membership.key if membership and self.verdict(membership.key) is not None else None

    # --- each pass --------------------------------------------------------------------------------

    async def observe(self, devices: Devices) -> None:
        """See which gangs ask by claims, and what for; read how many members they have."""
        self._devices = devices
        found: dict[GangKey, _Gang] = {}
        verdicts: dict[GangKey, Verdict | None] = {}
        for key, pods in self._workloads.gangs.items():
            if not any(one.spec.resource_claims for one in pods.every):
                continue
            gang, verdict = self._observe(pods)
            verdicts[key] = verdict
            if gang is not None:
                found[key] = gang
                verdicts[key] = verdict or self._verdicts.get(key) or (Phase.GATHERING, BEING_READ)
        news = verdicts != self._verdicts
        self._gangs, self._verdicts = found, verdicts
        self._tried = {key: count for key, count in self._tried.items() if key in found}
        if news:
            self._changed()
        gathering = [one.pods for one in found.values() if one.pods.unbound]
        await self._sizes.read([one.pods for one in found.values()], gathering)

    async def serve(self, key: GangKey) -> None:
        """Allocate the claims of a gang, if all of them can be, and let its pods go."""
        pods = self._workloads.gangs.get(key)
        gang = None if pods is None else self._observe(pods)[0]  # as it is by now
        if gang is None:
            return
        phase, reason = await self._serve(gang)
        if self._verdicts.get(key) != (phase, reason):
            self._verdicts[key] = phase, reason
            self._changed()
        if phase in {Phase.WAITING, Phase.REFUSED}:
            again = {_NUMBER.sub("", reason)}  # what is free changes all the time
            for pod in gang.pods.unbound[:MOST_TOLD]:
                self._waits.tell(pod, phase, f"gang {key.name}: {reason}", again)

    def _observe(self, pods: GangPods) -> tuple[_Gang | None, Verdict | None]:
        """A gang that asks by claims; its phase, if it is known without a plan."""
        asked: dict[str, PodDemand] = {}
        ending: set[str] = set()
        unknown = False
        for pod in pods.every:
            if not pod.spec.resource_claims:
                continue
            if pod.metadata.deletion_timestamp:
                ending.add(pod.metadata.uid)
                continue
            by = self._names_resources(pod)
            one = asked_by(pod, self._claims, self._devices, names_resources=by)
            unknown |= one is None and not pod.spec.node_name
            if one is not None and one.is_for_gpus:
                asked[pod.metadata.uid] = one
        if not asked:
            if unknown:
                return None, (Phase.GATHERING, MISSING)
            was_ours = ending and self._verdicts.get(pods.key) is not None
            return None, (Phase.GATHERING, ENDING) if was_ours else None
        every = {one.metadata.uid: one for one in pods.every}
        mine = {uid: _without_gate(every[uid]) for uid in (*asked, *ending)}
        others = {uid: one for uid, one in every.items() if uid not in mine}
        members = GangPods(pods.key, mine, others, pods.version)
        if not members.unbound and members.active:
            return _Gang(members, asked), (Phase.BOUND, "")
        problem = (Phase.GATHERING, MISSING) if unknown else None
        if any(uid not in mine for uid in pods.pods):
            problem = Phase.REFUSED, MIXED
        return _Gang(members, asked, problem), problem

    async def _serve(self, gang: _Gang) -> Verdict:
        if any(self._claims.is_unsure(one.metadata.uid) for one in gang.allocated):
            return Phase.WAITING, UNSURE
        if any(self._writer.is_taking_back(one.metadata.uid) for one in gang.allocated):
            return self._verdicts.get(gang.pods.key) or (Phase.WAITING, TAKEN_BACK)
        started = bool(gang.pods.active)
        limits = self._limits.gang_limits(gang.pods)
        why_not = self._not_ready(gang, limits, started=started)
        if why_not is None and gang.missing:
            if any(self._waits.is_later(one.metadata.uid) for one in gang.pods.unbound):
                why_not = Phase.WAITING, REFUSED_BY_API
            else:
                found = self._plan(gang, limits, started=started)
                if found.places:
                    return await self._start(gang, found)
                why_not = found.phase, f"{found.reason}{self._bars(gang)}"
        if why_not is not None:
            if started:
                await self._open([one for one in gang.pods.unbound if gang.has_all(one)])
            else:
                await self._take_back(gang)
            return why_not
        await self._open(gang.pods.every)
        before = self._verdicts.get(gang.pods.key)
        usual = f"{len(gang.pods.unbound)} pods have their places"
        return before if before and before[0] is Phase.RESERVED else (Phase.RESERVED, usual)

    # --- decide -----------------------------------------------------------------------------------

    def _not_ready(self, gang: _Gang, limits: GangLimits, *, started: bool) -> Verdict | None:
        """Why a gang, or its missing members, cannot be planned; None if they can."""
        if gang.problem is not None:
            return gang.problem
        gone = sorted(gang.nodes - self._nodes().keys())
        if gone and not started:
            return Phase.WAITING, f"it has GPUs on nodes that are gone: {', '.join(gone[:NAMED])}"
        for pod in gang.pods.unbound:
            invalid = gang.asked[pod.metadata.uid].invalid
            if invalid is not None:
                self._waits.tell(pod, *invalid)
                return Phase.REFUSED, f"pod {pod.key}: {invalid[1]}"
        count = MemberCount(gang.pods, self._sizes.of(gang.pods))
        why = count.not_ready(started=started)
        if why is not None or not gang.missing:
            return why
        if limits.problem:
            return Phase.REFUSED, limits.problem
        return (Phase.WAITING, limits.behind) if limits.behind else None

    def _plan(self, gang: _Gang, limits: GangLimits, *, started: bool) -> GangPlan:
        """What the claims of a gang get that are not allocated yet."""
        now, pods = self._now(), gang.pods
        barred = {one.metadata.uid: self._waits.barred(one.metadata.uid) for one in pods.unbound}
        names = self._claims.cluster.nodes.keys()
        try:
            units = units_of(gang.missing, barred, self._nodes(), names)
        except InvalidClaimError as error:
            return GangPlan(Phase.REFUSED, error.one_line)
        rest = gang.nodes if started or gang.allocated else None
        work = self._workloads.work_of(pods, now)
        question = GangQuestion(work, units, limits, now, rest)
        tried = self._tried.get(pods.key, 0)
        found = plan(self._topology, question, tried)
        self._tried[pods.key] = tried + found.tried
        return found

    def _bars(self, gang: _Gang) -> str:
        """That kube-scheduler did not accept nodes for a member, as a clause to append."""
        every = (self._waits.bars(one.metadata.uid) for one in gang.pods.unbound)
        return next((f";{one.rstrip('.')}" for one in every if one), "")

    # --- act --------------------------------------------------------------------------------------

    async def _start(self, gang: _Gang, found: GangPlan) -> Verdict:
        if not await self._writer.allocate(found.places):
            return Phase.WAITING, REFUSED_BY_API
        pods = self._workloads.gangs.get(gang.pods.key)
        after = None if pods is None else self._observe(pods)[0]
        if after is None or after.problem is not None or after.missing or not _same(after, gang):
            return Phase.WAITING, CHANGED  # the next pass goes on, or takes back
        await self._open(after.pods.every)
        return found.phase, found.reason

    async def _open(self, members: Iterable[Pod]) -> None:
        """Let kube-scheduler have these pods: they are looked up, since gates were left out."""
        uids = (one.metadata.uid for one in members)
        pods = (self._workloads.pods[uid] for uid in uids if uid in self._workloads.pods)
        await self._writer.open([one for one in pods if one.spec.scheduling_gates], GATES)

    async def _take_back(self, gang: _Gang) -> None:
        """Take back what only members without a node have, and none has begun to use."""
        free = [one for one in gang.allocated if not one.status.reserved_for]
        if not free:
            return
        shared = self._claims.claims_of_others({one.metadata.uid for one in gang.pods.unbound})
        await self._writer.take_back([one for one in free if one.metadata.uid not in shared])


def _same(one: _Gang, other: _Gang) -> bool:
    """Whether both have the same live members."""
    live = ({each.metadata.uid for each in gang.pods.unbound} for gang in (one, other))
    every = ({each.metadata.uid for each in gang.pods.every} for gang in (one, other))
    return next(live) == next(live) and next(every) == next(every)


def _without_gate(pod: Pod) -> Pod:
    """A pod without the gate that holds it back until its claims are allocated."""
    left = tuple(one for one in pod.spec.scheduling_gates if one.name != RESOURCE_CLAIMS_GATE)
    spec = msgspec.structs.replace(pod.spec, scheduling_gates=left)
    return msgspec.structs.replace(pod, spec=spec)
