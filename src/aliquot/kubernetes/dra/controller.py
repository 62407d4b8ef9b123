"""Decides for pods that wait with resource claims, and writes the allocations of their claims.

One pod after the other: choose a node and GPUs, count them, write finalizer and allocation of each
of its claims, and remove the pod's gate. kube-scheduler then reserves the claims and binds the pod.
If it took an allocation back, because the pod does not fit that node, the pod gets another one.

A crash between two requests loses nothing: an allocated claim keeps its node, and the next leader
allocates the pod's other claims there. If the API server does not say whether it wrote an
allocation, that counts until a watch shows the claim, or for a while.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Protocol

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.dra import RESOURCE_CLAIMS
from aliquot.kubernetes.api.dra_parameters import InvalidClaimError
from aliquot.kubernetes.api.names import RESOURCE_CLAIMS_GATE
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.dra import node_of
from aliquot.kubernetes.cluster.membership import membership_of
from aliquot.kubernetes.dra.allocation import (
    NoDeviceError,
    allocated,
    devices_of,
    with_finalizer,
)
from aliquot.kubernetes.dra.demand import Devices, demand_of
from aliquot.kubernetes.dra.refusals import PodWait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.dra import ResourceClaim
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.objects import Node, Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.dra import ResourceClaims
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.kubernetes.dra.demand import ClaimDemand, Option
    from aliquot.kubernetes.extender.planner import Answer, Planner

PASS_SECONDS = 2.0  # at least so often, since bars and errors end with time
BURST_SECONDS = 0.05  # changes come in bursts
LONGEST_PAUSE = 5.0  # between passes; a long pass is followed by a pause as long
MOST_OPTIONS = 64  # of a pod's claims together
NO_NODE = (
    "no node that accepts the pod gives GPUs to claims of Aliquot's scheduler: look at taints,"
    " selectors and affinity, and at kubectl get gpunodes"
)

BOTH_WAYS = (
    "it asks for GPUs by resources and by resource claims, and no node offers both: ask in one way"
)

_log = structlog.get_logger(__name__)


class Limits(Protocol):
    """The limits of queues."""

    def beyond_limits(
        self, pod: Pod, requests: Sequence[ContainerRequest], names: Sequence[str]
    ) -> Answer | None:
        """Why the queue of a single pod does not let it have this too; None if it does."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The claims of a pod that are to be allocated, and the node of those that are already."""

    claims: tuple[tuple[ResourceClaim, ClaimDemand], ...] = ()
    node: str | None = None
    invalid: tuple[str, str] | None = None  # reason and message

    @property
    def options(self) -> list[tuple[Option, ...]]:
        """What the pod can ask for: an option of each claim."""
        every = product(*(demand.options for _, demand in self.claims))
        return list(islice(every, MOST_OPTIONS))


class ClaimAllocator:
    """Allocates the claims of pods; `limits` are those of queues, `nodes` all Node objects.

    `leading` says whether this replica may decide at this moment.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        client: Client,
        claims: ResourceClaims,
        planner: Planner,
        *,
        recorder: Recorder,
        changes: Changes,
        limits: Limits,
        nodes: Callable[[], Mapping[str, Node]],
        leading: Callable[[], bool],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._claims = claims
        self._planner = planner
        self._recorder = recorder
        self._changes = changes
        self._limits = limits
        self._nodes = nodes
        self._leading = leading
        self._now = now
        self._waiting: dict[str, PodWait] = {}  # by the pod's UID
        self._devices = Devices({})  # as of the last pass

    # --- what the API server reports --------------------------------------------------------------

    def claim_changed(self, before: ResourceClaim | None, claim: ResourceClaim | None) -> None:
        """A claim has changed: kube-scheduler may have taken its allocation back."""
        if before is None or claim is None or claim.status.allocation is not None:
            return
        node = node_of(before)
        if node is None:
            return
        reserved = {one.uid for one in before.status.reserved_for}
        for pod in self._claims.waiting():
            uid = pod.metadata.uid
            if reserved <= {uid} and any(_is(one.claim, claim) for one in self._claims.of_pod(pod)):
                self._waiting[uid] = self._known(uid).bar(node, self._now())

    # --- again and again --------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at all waiting pods whenever something has changed, until cancelled."""
        seen = -1
        while True:
            if self._changes.count == seen or not self._leading():
                await self._changes.wait(PASS_SECONDS)
            await asyncio.sleep(BURST_SECONDS)
            seen = self._changes.count
            if not self._leading():
                continue
            began = time.perf_counter()
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the rest of the scheduler goes on
                _log.exception("a pass over resource claims failed; the next one comes soon")
            await asyncio.sleep(min(time.perf_counter() - began, LONGEST_PAUSE))

    async def look(self) -> None:
        """Serve each waiting pod once. It ends early if this replica does not lead any more."""
        self._claims.drop_old()
        waiting = self._claims.waiting()
        statuses = {name: one.status for name, one in self._claims.cluster.nodes.items()}
        self._devices = Devices(statuses)
        uids = {one.metadata.uid for one in waiting}
        self._waiting = {uid: one for uid, one in self._waiting.items() if uid in uids}
        for pod in waiting:
            if not self._leading():
                return
            try:
                await self._serve(pod)
            except Exception:  # noqa: BLE001 - one pod must not stop all others
                _log.exception("the resource claims of a pod cannot be allocated", pod=pod.key)
            await asyncio.sleep(0)
        for claim in list(self._claims.unused()):
            if not self._leading():
                return
            await self._take_back(claim)

    async def _serve(self, pod: Pod) -> None:
        uid, now = pod.metadata.uid, self._now()
        if now < self._known(uid).later:
            return
        asked = self._asked(pod)
        if asked is None:
            return
        if asked.invalid is not None:
            self._tell(pod, *asked.invalid)
            return
        if any(one.name != RESOURCE_CLAIMS_GATE for one in pod.spec.scheduling_gates):
            return  # somebody else does not let it start yet
        if asked.claims:
            placed = self._place(pod, asked)
            if placed is None or not await self._allocate(pod, asked, *placed):
                return
        if pod.spec.scheduling_gates:
            await self._open(pod)

    # --- decide -----------------------------------------------------------------------------------

    def _asked(self, pod: Pod) -> _Asked | None:
        """What the claims of a pod ask for; None while one does not exist yet, or is being deleted.

        An allocated claim keeps its node, also if kube-scheduler allocated it.
        """
        found = self._claims.of_pod(pod)
        claims, node = [], None
        for name, claim in ((one.name, one.claim) for one in found):
            if claim is None or claim.metadata.deletion_timestamp:
                return None
            if claim.status.allocation is not None:
                node = node_of(claim) or node
                continue
            try:
                demand = demand_of(name, claim, self._claims.classes, self._devices)
            except InvalidClaimError as error:
                text = f"resource claim {claim.metadata.name!r}: {error.one_line}"
                return _Asked(invalid=(error.reason, text))
            if demand is not None:
                claims.append((claim, demand))
        if claims and self._planner.names_resources(pod):
            return _Asked(invalid=("SeveralKinds", BOTH_WAYS))
        if claims and membership_of(pod) is not None:
            text = (
                "it belongs to a gang and asks for GPUs by resource claims: Aliquot's scheduler"
                " allocates claims of single pods only. Ask by resources on nodes with device"
                " plugins, or take the pod out of its gang"
            )
            return _Asked(invalid=("ClaimOfGang", text))
        return _Asked(tuple(claims), node)

    def _place(self, pod: Pod, asked: _Asked) -> tuple[str, Parts] | None:
        """The node of a pod, and what its claims get there; None if it waits, and is told why."""
        uid, options = pod.metadata.uid, asked.options
        names = self._names(pod, asked)
        answer = self._limits.beyond_limits(pod, [one.request for one in options[0]], names)
        for option in options if answer is None else ():
            if among := _among(names, option):
                answer = self._planner.place(pod, tuple(one.request for one in option), among)
            if answer is not None and answer.names:
                break
        if answer is None:
            self._tell(pod, "NoNodeForClaims", NO_NODE + self._bars(uid))
            return None
        reserved = self._planner.cluster.reserved(uid)
        self._planner.cluster.forget(uid)  # what is allocated counts as `assume` has it
        if answer.names and reserved is not None:
            return reserved.node, reserved.parts
        reasons = frozenset(answer.refused.values())
        self._tell(pod, answer.reason, answer.message + self._bars(uid), reasons)
        return None

    def _names(self, pod: Pod, asked: _Asked) -> list[str]:
        """The nodes that a pod may go to, as far as that is known here."""
        cluster, nodes = self._claims.cluster, self._nodes()
        limits = NodeConstraints.of(pod, self._known(pod.metadata.uid).barred_at(self._now()))
        names = cluster.nodes if asked.node is None else [asked.node]
        return [
            name for name in names if name in cluster.nodes and limits.allow(name, nodes.get(name))
        ]

    # --- write ------------------------------------------------------------------------------------

    async def _allocate(self, pod: Pod, asked: _Asked, node: str, parts: Parts) -> bool:
        """Write what a pod's claims got; whether all of them have it."""
        status = self._claims.cluster.nodes[node].status
        by_name = {one.container: one for one in parts}
        made: list[tuple[ResourceClaim, ResourceClaim]] = []
        try:
            for claim, demand in asked.claims:
                taken = devices_of(list(self._claims.on_node(node)))
                part = by_name[demand.name]
                after = allocated(claim, demand, part, node, status, taken, self._now())
                self._claims.assume(after, pod.metadata.uid)
                made.append((claim, after))
        except NoDeviceError as error:
            for claim, _ in made:
                self._claims.drop(claim.metadata.uid)
            self._tell(pod, "InsufficientGPUs", f"{error}: it is tried again")
            return False
        for number, (claim, after) in enumerate(made):
            if not await self._write(pod, claim, after):
                for other, _ in made[number + 1 :]:
                    self._claims.drop(other.metadata.uid)
                return False
        return True

    async def _write(self, pod: Pod, claim: ResourceClaim, after: ResourceClaim) -> bool:
        """Write finalizer and allocation of a claim, if nobody has changed it since."""
        meta, uid = claim.metadata, claim.metadata.uid
        same = {"uid": uid, "resourceVersion": meta.resource_version}
        patch = partial(self._client.patch, RESOURCE_CLAIMS, meta.name, namespace=meta.namespace)
        finalizers = with_finalizer(claim)
        was_sent = False
        try:
            if finalizers != meta.finalizers:
                written = await patch({"metadata": {**same, "finalizers": finalizers}})
                same["resourceVersion"] = written.metadata.resource_version
            if not self._leading():
                self._claims.drop(uid)
                return False
            was_sent = True
            await patch(
                {"metadata": same, "status": {"allocation": after.status.allocation}}, sub="status"
            )
        except ApiError as error:
            if not (was_sent and error.passing):  # else it may be written
                self._claims.drop(uid)
            self._fail(pod, claim, error)
            return False
        self._claims.confirm(uid)
        _log.info("allocated a resource claim", claim=f"{meta.namespace}/{meta.name}", pod=pod.key)
        return True

    async def _open(self, pod: Pod) -> None:
        """Let kube-scheduler have a pod, whose claims are allocated."""
        meta = pod.metadata
        same = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        patch = {"metadata": same, "spec": {"schedulingGates": None}}
        try:
            await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                _log.info("cannot open the gate of a pod", pod=pod.key, why=error.message)
                self._waiting[meta.uid] = self._known(meta.uid).fail(self._now())

    async def _take_back(self, claim: ResourceClaim) -> None:
        """Take back an allocation that no pod uses."""
        meta = claim.metadata
        same = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        patch = {"metadata": same, "status": {"allocation": None}}
        try:
            await self._client.patch(
                RESOURCE_CLAIMS, meta.name, patch, namespace=meta.namespace, sub="status"
            )
        except ApiError as error:
            if not (error.not_found or error.conflict):
                _log.info("cannot take an allocation back", claim=meta.name, why=error.message)

    # --- what pods are told -----------------------------------------------------------------------

    def _known(self, uid: str) -> PodWait:
        return self._waiting.get(uid, PodWait())

    def _bars(self, uid: str) -> str:
        """The nodes that a pod is kept from, as the end of a message; empty if there are none."""
        barred = sorted(self._known(uid).barred_at(self._now()))
        if not barred:
            return ""
        some = ", ".join(barred[:3]) + (f" and {len(barred) - 3} more" if len(barred) > 3 else "")
        return f" kube-scheduler did not accept {some} for it, which is tried again later."

    def _fail(self, pod: Pod, claim: ResourceClaim, error: ApiError) -> None:
        if error.not_found or error.conflict:
            return  # it has changed, and is looked at again
        uid = pod.metadata.uid
        self._waiting[uid] = self._known(uid).fail(self._now())
        text = f"resource claim {claim.metadata.name!r} is not allocated: {error.message}"
        self._tell(pod, "ClaimNotAllocated", text)

    def _tell(
        self, pod: Pod, reason: str, message: str, reasons: frozenset[str] | None = None
    ) -> None:
        """Record on a pod why it waits, if that is new."""
        uid = pod.metadata.uid
        why = frozenset((reason, *(reasons if reasons is not None else (message,))))
        after = self._known(uid).tell(why, self._now())
        if after is not None:
            self._waiting[uid] = after
            self._recorder.record(PODS, pod, "Warning", reason, message)


def _among(names: list[str], option: Sequence[Option]) -> list[str]:
    """Those of these nodes that have GPUs for all claims of a pod."""
    limits = [one.nodes for one in option if one.nodes is not None]
    return [name for name in names if all(name in one for one in limits)]


def _is(one: ResourceClaim | None, other: ResourceClaim) -> bool:
    return one is not None and one.metadata.uid == other.metadata.uid
