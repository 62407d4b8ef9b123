"""Decides for pods that wait with resource claims, and writes the allocations of their claims.

One pod or gang after the other: choose nodes and GPUs, count them, write finalizer and allocation
of each claim, and remove the gates. kube-scheduler then reserves the claims and binds the pods.
If it took an allocation back, because the pod does not fit that node, the pod gets another one.

A crash between two requests loses nothing: an allocated claim keeps its node, and the next leader
allocates the pod's other claims there. `gangs` says what that means for a gang.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

import structlog

from aliquot.kubernetes.api.names import RESOURCE_CLAIMS_GATE
from aliquot.kubernetes.api.passes import repeat
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.dra import node_of
from aliquot.kubernetes.cluster.topology import Topology
from aliquot.kubernetes.dra.asked import asked_by, options_of
from aliquot.kubernetes.dra.demand import Devices
from aliquot.kubernetes.dra.gangs import GATES, GangAllocator, GangLimiter
from aliquot.kubernetes.dra.waits import PodWaits
from aliquot.kubernetes.dra.write import ClaimPlace, ClaimWriter
from aliquot.kubernetes.gangs.sizes import SourceSizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.dra import ResourceClaim
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.gang import Phase
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.dra import ResourceClaims
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.cluster.topology import Labels
    from aliquot.kubernetes.cluster.view import ClusterView
    from aliquot.kubernetes.dra.asked import PodDemand
    from aliquot.kubernetes.dra.demand import Option
    from aliquot.kubernetes.extender.planner import Answer, Planner

NO_NODE = (
    "no node that accepts the pod gives GPUs to claims of Aliquot's scheduler: look at taints,"
    " selectors and affinity, and at kubectl get gpunodes"
)

_log = structlog.get_logger(__name__)


class Limits(GangLimiter, Protocol):
    """The limits of queues."""

    def beyond_limits(
        self, pod: Pod, requests: Sequence[ContainerRequest], names: Sequence[str]
    ) -> Answer | None:
        """Why the queue of a single pod does not let it have this too; None if it does."""


class ClaimAllocator:
    """Allocates the claims of pods; `limits` are those of queues, `labels` name racks and blocks.

    `leading` says whether this replica may decide at this moment.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        client: Client,
        claims: ResourceClaims,
        planner: Planner,
        *,
        view: ClusterView,
        recorder: Recorder,
        changes: Changes,
        limits: Limits,
        labels: Labels,
        leading: Callable[[], bool],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._claims = claims
        self._planner = planner
        self._changes = changes
        self._limits = limits
        self._view = view
        self._leading = leading
        self._waits = PodWaits(recorder, now)
        self._writer = ClaimWriter(client, claims, self._waits, leading, now)
        self._gangs = GangAllocator(
            claims,
            view.workloads,
            topology=Topology(claims.cluster, lambda: view.nodes, labels),
            sizes=SourceSizes(client, self._may_ask, now),
            limits=limits,
            writer=self._writer,
            waits=self._waits,
            names_resources=planner.names_resources,
            nodes=lambda: view.nodes,
            changed=changes.notify,
            now=now,
        )
        self._devices = Devices({})  # as of the last pass

    def gang_verdict(self, key: GangKey) -> tuple[Phase, str] | None:
        """The phase of a gang whose pods ask for GPUs by claims, and why; None for all others."""
        return self._gangs.verdict(key)

    def _may_ask(self, pod: Pod) -> bool:
        """Whether a pod asks for GPUs, as far as its template says it."""
        return bool(pod.spec.resource_claims) or self._view.asks(pod)

    # --- what the API server reports --------------------------------------------------------------

    def claim_changed(self, before: ResourceClaim | None, claim: ResourceClaim | None) -> None:
        """A claim has changed: kube-scheduler may have taken its allocation back."""
        if before is None or claim is None or claim.status.allocation is not None:
            return
        node = node_of(before)
        if node is None or self._writer.took_back(claim.metadata.uid):
            return
        reserved = {one.uid for one in before.status.reserved_for}
        for pod in self._claims.waiting():
            uid = pod.metadata.uid
            if reserved <= {uid} and any(_is(one.claim, claim) for one in self._claims.of_pod(pod)):
                self._waits.bar(uid, node)

    # --- again and again --------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at all waiting pods whenever something has changed, until cancelled."""
        await repeat(self.look, self._changes, self._leading, "resource claims")

    async def look(self) -> None:
        """Serve each waiting pod and gang once. It ends early if this replica does not lead."""
        self._claims.drop_old()
        waiting = self._claims.waiting()
        statuses = {name: one.status for name, one in self._claims.cluster.nodes.items()}
        self._devices = Devices(statuses)
        self._waits.keep({one.metadata.uid for one in waiting})
        await self._gangs.observe(self._devices)
        served: set[GangKey] = set()
        for pod in waiting:
            if not self._leading():
                return
            key = self._gangs.key_of(pod)
            try:
                if key is None:
                    await self._serve(pod)
                elif key not in served:
                    served.add(key)
                    await self._gangs.serve(key)
            except Exception:  # noqa: BLE001 - one pod must not stop all others
                _log.exception("the resource claims of a pod cannot be allocated", pod=pod.key)
            await asyncio.sleep(0)
        if self._leading():
            await self._writer.take_back(list(self._claims.unused()))

    async def _serve(self, pod: Pod) -> None:
        if self._waits.is_later(pod.metadata.uid):
            return
        by = self._planner.names_resources(pod)
        asked = asked_by(pod, self._claims, self._devices, names_resources=by)
        if asked is None:
            return
        if asked.invalid is not None:
            self._waits.tell(pod, *asked.invalid)
            return
        if any(one.name not in GATES for one in pod.spec.scheduling_gates):
            return  # somebody else does not let it start yet
        if asked.claims:
            places = self._place(pod, asked)
            if places is None or not await self._writer.allocate(places):
                return
        await self._writer.open([pod], {RESOURCE_CLAIMS_GATE})

    # --- decide -----------------------------------------------------------------------------------

    def _place(self, pod: Pod, asked: PodDemand) -> list[ClaimPlace] | None:
        """What the claims of a pod get on a node; None if it waits, and is told why."""
        uid, options = pod.metadata.uid, options_of([demand for _, demand in asked.claims])
        names = self._names(pod, asked)
        answer = self._limits.beyond_limits(pod, [one.request for one in options[0]], names)
        for option in options if answer is None else ():
            if among := _among(names, option):
                answer = self._planner.place(pod, tuple(one.request for one in option), among)
            if answer is not None and answer.names:
                break
        if answer is None:
            self._waits.tell(pod, "NoNodeForClaims", NO_NODE + self._waits.bars(uid))
            return None
        reserved = self._planner.cluster.reserved(uid)
        self._planner.cluster.forget(uid)  # what is allocated counts as `assume` has it
        if answer.names and reserved is not None:
            parts = {one.container: one for one in reserved.parts}
            return [
                ClaimPlace(pod, claim, demand, reserved.node, parts[demand.name])
                for claim, demand in asked.claims
            ]
        reasons = frozenset(answer.refused.values())
        self._waits.tell(pod, answer.reason, answer.message + self._waits.bars(uid), reasons)
        return None

    def _names(self, pod: Pod, asked: PodDemand) -> list[str]:
        """The nodes that a pod may go to, as far as that is known here."""
        cluster, nodes = self._claims.cluster, self._view.nodes
        limits = NodeConstraints.of(pod, self._waits.barred(pod.metadata.uid))
        names = cluster.nodes if asked.node is None else [asked.node]
        return [
            name for name in names if name in cluster.nodes and limits.allow(name, nodes.get(name))
        ]


def _among(names: list[str], option: Sequence[Option]) -> list[str]:
    """Those of these nodes that have GPUs for all claims of a pod."""
    limits = [one.nodes for one in option if one.nodes is not None]
    return [name for name in names if all(name in one for one in limits)]


def _is(one: ResourceClaim | None, other: ResourceClaim) -> bool:
    return one is not None and one.metadata.uid == other.metadata.uid
