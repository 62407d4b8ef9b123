"""Resource claims: what each has of which node, and which pods wait with which claims.

Where Aliquot's scheduler allocates claims (the agents run with `--scheduled`), nodes with GPUs for
claims are in an allocations table of their own (`cluster`): what fits there, and what is free, is
decided by the same code as for all other pods. A node is in one of both tables only, because it
offers its GPUs by device plugins or to claims.

A claim counts from the moment that it is about to be allocated (`assume`), by its allocation until
its node reports its grant, and then by that report. In the table of all nodes, by which queues are
charged, it counts for a pod that uses it: for another one than the node reports if that is gone,
because what a pod has that is gone counts for no queue. No input or output.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.dra import DRIVER, ResourceClaim
from aliquot.kubernetes.api.dra_devices import COMPUTE, MEMORY, amount_of, parse_device
from aliquot.kubernetes.api.dra_parameters import InvalidClaimError, parameters_of
from aliquot.kubernetes.api.gpunode import BY_ALIQUOT
from aliquot.kubernetes.api.names import CORE_UNITS
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.watch import SILENCE
from aliquot.kubernetes.cluster.cluster import Cluster
from aliquot.kubernetes.cluster.parts import Part
from aliquot.kubernetes.cluster.usable import why_no_resource_claims
from aliquot.model import Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.dra import DeviceClass, DeviceResult
    from aliquot.kubernetes.api.gpunode import NodeGpu, NodeGrant
    from aliquot.kubernetes.api.objects import GpuNode, Node
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.cluster.parts import Parts

# How long an allocation counts that no watch has reported: one of which the API server did not say
# whether it wrote it, and one that it wrote. A watch notices late that its connection is dead.
UNSURE_SECONDS = 60.0
WRITTEN_SECONDS = 2 * SILENCE

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim of a pod: the pod's name for it, and the claim, if it exists."""

    name: str
    claim: ResourceClaim | None


@dataclass(frozen=True, slots=True)
class _Assumed:
    """A claim as it is when its allocation is written, the UID of its pod, and until when.

    `written`: it surely is.
    """

    claim: ResourceClaim
    pod: str
    until: float
    written: bool = False


class ResourceClaims:
    """All resource claims and device classes, and the pods that name claims.

    `counted` is the table of all nodes. `cluster` is that of the nodes whose GPUs Aliquot's
    scheduler allocates to claims.
    """

    def __init__(
        self,
        counted: Cluster,
        presets: Sequence[Preset],
        by: str,
        now: Callable[[], float],
    ) -> None:
        self.cluster = Cluster(presets=presets, by=by)
        self.classes: dict[str, DeviceClass] = {}
        self._counted = counted
        self._now = now
        self._gpu_nodes: dict[str, GpuNode] = {}
        self._claims: dict[str, ResourceClaim] = {}  # by UID
        self._uids: dict[Key, str] = {}
        self._pods: dict[str, Pod] = {}
        self._assumed: dict[str, _Assumed] = {}
        self._on_node: defaultdict[str, set[str]] = defaultdict(set)  # UIDs of allocated claims
        self._node_of: dict[str, str] = {}

    # --- what watches report ----------------------------------------------------------------------

    def set_claim(self, before: ResourceClaim | None, claim: ResourceClaim | None) -> None:
        """A claim was created or changed; None: it is gone."""
        for one in (before, claim):
            if one is not None:
                self._uids.pop(_key(one), None)
                self._claims.pop(one.metadata.uid, None)
        if claim is not None:
            self._uids[_key(claim)] = claim.metadata.uid
            self._claims[claim.metadata.uid] = claim
            if claim.status.allocation is not None:
                self._assumed.pop(claim.metadata.uid, None)
        elif before is not None:
            self._assumed.pop(before.metadata.uid, None)
        for one in (before, claim):
            if one is not None:
                self._place(one.metadata.uid)

    def set_class(self, name: str, one: DeviceClass | None) -> None:
        """A device class was created or changed; None: it is gone."""
        if one is None:
            self.classes.pop(name, None)
        else:
            self.classes[name] = one

    def set_pod(self, uid: str, pod: Pod | None) -> None:
        """A pod was created or changed; None: it is gone."""
        before = self._pods.pop(uid, None)
        if pod is not None and not pod.ended and pod.spec.resource_claims:
            self._pods[uid] = pod
        if (before is None) != (uid not in self._pods):
            self._recount((pod or before or Pod()).spec.node_name)

    def set_node(self, name: str, node: Node | None, gpu_node: GpuNode | None) -> None:
        """A Node or its GPUNode was created or changed; None: it is gone."""
        if gpu_node is None:
            self._gpu_nodes.pop(name, None)
        else:
            self._gpu_nodes[name] = gpu_node
        ours = gpu_node is not None and gpu_node.status.allocator == BY_ALIQUOT
        there = ours and node is not None
        self.cluster.set_node(name, _for_resource_claims(gpu_node) if there and gpu_node else None)
        self.cluster.set_unusable(name, why_no_resource_claims(node, gpu_node) if ours else None)
        self._recount(name)

    # --- allocations that are being written -------------------------------------------------------

    def assume(self, claim: ResourceClaim, pod: str) -> None:
        """Count a claim for the pod of this UID as it is about to be allocated."""
        uid = claim.metadata.uid
        self._assumed[uid] = _Assumed(claim, pod, self._now() + UNSURE_SECONDS)
        self._place(uid)

    def confirm(self, uid: str) -> None:
        """The allocation of a claim was surely written."""
        if (one := self._assumed.get(uid)) is not None:
            until = self._now() + WRITTEN_SECONDS
            self._assumed[uid] = replace(one, until=until, written=True)

    def drop(self, uid: str) -> None:
        """The allocation of a claim was surely not written."""
        if self._assumed.pop(uid, None) is not None:
            self._place(uid)

    def drop_old(self) -> None:
        """Drop assumed allocations that no watch has reported for long."""
        now = self._now()
        for uid in [uid for uid, one in self._assumed.items() if one.until <= now]:
            self.drop(uid)

    # --- answers ----------------------------------------------------------------------------------

    def waiting(self) -> list[Pod]:
        """Pods with claims and without a node: a higher priority first, then the older one."""
        pods = (
            one
            for one in self._pods.values()
            if not one.spec.node_name and not one.metadata.deletion_timestamp
        )
        return sorted(pods, key=_precedence)

    def of_pod(self, pod: Pod) -> list[PodClaim]:
        """The claims of a pod. One that is made from a template must be the pod's own."""
        made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
        found = []
        for one in pod.spec.resource_claims:
            name = one.resource_claim_name or made.get(one.name)
            if name is None and one.name in made:
                continue  # none is needed
            claim = self.get(pod.metadata.namespace, name or "")
            foreign = claim is not None and not one.resource_claim_name
            if foreign and claim is not None and _owner(claim) != pod.metadata.uid:
                claim = None
            found.append(PodClaim(one.name, claim))
        return found

    def get(self, namespace: str, name: str) -> ResourceClaim | None:
        """A claim as it is, or as it is when its allocation is written."""
        uid = self._uids.get((namespace, name), "")
        return self._effective(uid)

    def is_unsure(self, uid: str) -> bool:
        """Whether nobody knows if the allocation of a claim was written."""
        one = self._assumed.get(uid)
        return one is not None and not one.written

    def claims_of_others(self, uids: Collection[str]) -> set[str]:
        """The UIDs of all claims that pods have whose UIDs are not among these."""
        others = (pod for uid, pod in self._pods.items() if uid not in uids)
        every = (one.claim for pod in others for one in self.of_pod(pod))
        return {one.metadata.uid for one in every if one is not None}

    def on_node(self, node: str) -> Iterator[ResourceClaim]:
        """The claims that are allocated on a node, or about to be."""
        every = (self._effective(uid) for uid in self._on_node.get(node, ()))
        return (one for one in every if one is not None)

    def unused(self) -> Iterator[ResourceClaim]:
        """Claims that are allocated on our nodes and that no pod uses, or will use.

        Nobody else takes an allocation back that was never reserved for a pod.
        """
        named = {
            (pod.metadata.namespace, one.resource_claim_name)
            for pod in self._pods.values()
            for one in pod.spec.resource_claims
        }
        for uid, node in self._node_of.items():
            claim = self._claims.get(uid)
            if claim is None or uid in self._assumed or node not in self.cluster.nodes:
                continue
            reserved, meta = claim.status.reserved_for, claim.metadata
            is_free = claim.status.allocation is not None and not reserved
            owned = any(one.controller for one in meta.owner_references)
            if is_free and not owned and not meta.deletion_timestamp and _key(claim) not in named:
                yield claim

    # --- inside -----------------------------------------------------------------------------------

    def _effective(self, uid: str) -> ResourceClaim | None:
        assumed = self._assumed.get(uid)
        return assumed.claim if assumed is not None else self._claims.get(uid)

    def _place(self, uid: str) -> None:
        """Count again the nodes on which a claim was allocated, and is."""
        claim = self._effective(uid)
        before, now = self._node_of.pop(uid, None), None if claim is None else node_of(claim)
        if before is not None:
            self._on_node[before].discard(uid)
        if now is not None:
            self._on_node[now].add(uid)
            self._node_of[uid] = now
        for node in dict.fromkeys((before, now)):
            if node is not None:
                self._recount(node)

    def _recount(self, node: str) -> None:
        """Count the claims that a node does not report yet."""
        gpu_node = self._gpu_nodes.get(node)
        gpus = gpu_node.status.gpus if gpu_node is not None else ()
        shares = gpu_node.status.shares if gpu_node is not None else 1
        reported = {(grant.claim_uid, gpu.uuid) for gpu in gpus for grant in gpu.grants}
        by_claim: dict[str, Parts] = {}
        by_pod: dict[str, Parts] = {}
        for claim in self.on_node(node):
            uid, every = claim.metadata.uid, parts_of(claim, gpus, shares)
            parts = tuple(one for one in every if (uid, *one.gpus) not in reported)
            if parts:
                by_claim[uid] = parts
                pod = self._pod_of(claim)
                by_pod[pod] = (*by_pod.get(pod, ()), *parts)
        self.cluster.set_claimed(node, by_claim)
        self._counted.set_claimed(node, by_pod)
        counted = self._counted.nodes.get(node)
        if gpu_node is not None and counted is not None:
            now = self._for_pods_that_are_there(gpu_node)
            if now != counted:
                self._counted.set_node(node, now)

    def _for_pods_that_are_there(self, gpu_node: GpuNode) -> GpuNode:
        """A node whose grants of claims count for pods that still use them."""
        now = msgspec.structs.replace
        gpus = tuple(
            now(gpu, grants=tuple(now(one, pod_uid=self._user_of(one)) for one in gpu.grants))
            for gpu in gpu_node.status.gpus
        )
        return now(gpu_node, status=now(gpu_node.status, gpus=gpus))

    def _user_of(self, grant: NodeGrant) -> str:
        """The UID of the pod that a grant counts for."""
        claim = self._claims.get(grant.claim_uid)
        if claim is None or grant.pod_uid in self._pods:
            return grant.pod_uid
        return self._pod_of(claim)

    def _pod_of(self, claim: ResourceClaim) -> str:
        """The UID of the pod that a claim counts for; the claim's own if no pod is known."""
        uid = claim.metadata.uid
        if uid in self._assumed:
            return self._assumed[uid].pod
        reserved = [one.uid for one in claim.status.reserved_for if one.resource == "pods"]
        there = (one for one in reserved if one in self._pods)
        found = next(there, "") or next(iter(reserved), "")
        return found or _owner(claim) or self._named_by(claim) or uid

    def _named_by(self, claim: ResourceClaim) -> str:
        """The UID of a pod that names a claim; empty if there is none."""
        namespace, name = _key(claim)
        return next(
            (
                pod.metadata.uid
                for pod in self._pods.values()
                if pod.metadata.namespace == namespace
                and any(one.resource_claim_name == name for one in pod.spec.resource_claims)
            ),
            "",
        )


def node_of(claim: ResourceClaim) -> str | None:
    """The node whose GPUs a claim has; None if it has none of ours."""
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    return next((one.pool for one in results if one.driver == DRIVER), None)


def parts_of(claim: ResourceClaim, gpus: Collection[NodeGpu], shares: int) -> Parts:
    """What a claim has of a node's GPUs. What cannot be read counts as all of its GPU."""
    allocation = claim.status.allocation
    if allocation is None:
        return ()
    by_uuid = {one.uuid: one for one in gpus}
    try:
        requests = {one.request for one in allocation.devices.results}
        given = {parameters_of(one, allocation.devices.config) for one in requests}
        background = {one.priority for one in given} == {Priority.BACKGROUND}
    except InvalidClaimError:
        background = False
    parts = [
        _part(claim.metadata.name, one, by_uuid, shares, background=background)
        for one in allocation.devices.results
        if one.driver == DRIVER
    ]
    return tuple(one for one in parts if one is not None)


def _part(
    name: str, result: DeviceResult, gpus: Mapping[str, NodeGpu], shares: int, *, background: bool
) -> Part | None:
    found = parse_device(result.device, gpus)
    if found is None:
        return None
    uuid, kind = found
    memory = gpus[uuid].memory
    if kind == "whole":
        return Part(name, kind, (uuid,), memory, CORE_UNITS, CORE_UNITS)
    if kind == "shared":
        return Part(name, kind, (uuid,), memory // shares)
    try:
        asked = amount_of(MEMORY, result.consumed_capacity)
        compute = amount_of(COMPUTE, result.consumed_capacity) or 0
    except InvalidClaimError:
        asked, compute = None, CORE_UNITS
    size = memory if asked is None else max(0, min(asked, memory))
    compute = max(0, min(compute, CORE_UNITS))
    return Part(name, kind, (uuid,), size, compute, 0 if background else compute)


def _for_resource_claims(gpu_node: GpuNode) -> GpuNode:
    """A node on which GPUs that containers got without claims can be given to none."""
    gpus = tuple(
        msgspec.structs.replace(one, healthy=False)
        if any(not grant.claim for grant in one.grants)
        else one
        for one in gpu_node.status.gpus
    )
    status = msgspec.structs.replace(gpu_node.status, gpus=gpus)
    return msgspec.structs.replace(gpu_node, status=status)


def _precedence(pod: Pod) -> tuple[int, str, str]:
    meta = pod.metadata
    return -(pod.spec.priority or 0), meta.creation_timestamp or "", pod.key


def _owner(claim: ResourceClaim) -> str:
    """The UID of the pod that a claim was made for; empty if it was made for none."""
    owners = claim.metadata.owner_references
    return next((one.uid for one in owners if one.controller and one.kind == "Pod"), "")


def _key(claim: ResourceClaim) -> Key:
    return claim.metadata.namespace, claim.metadata.name
