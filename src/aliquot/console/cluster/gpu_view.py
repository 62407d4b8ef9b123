"""Nodes, GPUs and grants as the API shows them to one user. Pure.

GPUs and the sizes of all grants are shown to users who may list GPUNodes, which have them. Whose a
grant is, is shown only in namespaces whose pods the user may list. What Kubernetes does not know,
like the memory that programs use, is null.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aliquot.kubernetes.api.times import seconds_at
from aliquot.placement.core.demand import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.console.cluster.rights import Sees
    from aliquot.console.cluster.watched import Watched
    from aliquot.kubernetes.api.gpunode import NodeGpu
    from aliquot.kubernetes.api.objects import GpuNode

LATE_SECONDS = 180.0  # agents write once a minute

_SALT = secrets.token_bytes(16)  # so that ids of other users' grants say nothing of their pods


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose a grant is: `running` once its node reports it, before that it is planned."""

    node: str
    uid: str
    namespace: str
    pod: str
    container: str
    claim: str = ""
    running: bool = True


def cluster_view(watched: Watched, sees: Sees, now: float) -> dict[str, Any]:
    """All that a page shows of GPUs."""
    nodes = watched.gpu_nodes if sees.gpu_nodes else []
    silence = watched.silence
    notes = []
    if silence is not None:
        notes.append(f"the API server has said nothing for {silence:.0f} s: this may be old")
    return {
        "time": now,
        "notes": notes,
        "lacks": sees.lacks,
        "nodes": [_node(one, watched, sees, now) for one in nodes],
        "gpus": [gpu for one in nodes for gpu in _gpus(one, watched)],
        "grants": [grant for one in nodes for grant in _grants(one, watched, sees)],
    }


def _node(one: GpuNode, watched: Watched, sees: Sees, now: float) -> dict[str, Any]:
    name, status = one.metadata.name, one.status
    reported = seconds_at(status.reported)
    late = reported is not None and now - reported > LATE_SECONDS
    return {
        "name": name,
        "driver_version": status.driver_version or None,
        "problem": status.problem or None,
        "unusable": watched.view.cluster.why_unusable(name) if sees.nodes else None,
        "reported": reported,
        "late": late,
    }


def _gpus(one: GpuNode, watched: Watched) -> Iterator[dict[str, Any]]:
    name, cluster = one.metadata.name, watched.view.cluster
    known = cluster.nodes.get(name)
    free = None if known is None else cluster.free_on(name)
    columns = {} if known is None else {gpu.uuid: at for at, gpu in enumerate(known.status.gpus)}
    for gpu in one.status.gpus:
        at = columns.get(gpu.uuid)
        left = (free.bytes[at], free.milli[at]) if free and at is not None and gpu.healthy else None
        yield {
            "node": name,
            "index": gpu.index,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "memory_bytes": gpu.memory,
            "used_bytes": None,
            "granted_bytes": min(gpu.memory, sum(grant.memory for grant in gpu.grants)),
            "free_bytes": left[0] if left else None,
            "free_percent": left[1] * 100 // WHOLE_MILLI if left else None,
            "healthy": gpu.healthy,
            "why": gpu.why or None,
            "kind": gpu.kind,
            "strength": gpu.strength or None,
            "telemetry": None,
        }


def _grants(one: GpuNode, watched: Watched, sees: Sees) -> list[dict[str, Any]]:
    """The grants on a node: those that it reports, and those of pods that are about to start."""
    found: dict[_Owner, list[dict[str, Any]]] = {}
    for gpu in one.status.gpus:
        weights = _weights(gpu)
        for grant, weight in zip(gpu.grants, weights, strict=True):
            owner = _Owner(
                one.metadata.name,
                grant.pod_uid,
                grant.namespace,
                grant.pod,
                grant.container,
                grant.claim,
            )
            part = _part(gpu, grant.memory, grant.compute, weight)
            part |= {"policy": grant.policy, "priority": grant.priority}
            found.setdefault(owner, []).append(part)
    for owner, parts in _planned(one, watched):
        found.setdefault(owner, []).extend(parts)
    return [_grant(owner, parts, sees) for owner, parts in found.items()]


def _planned(one: GpuNode, watched: Watched) -> Iterator[tuple[_Owner, list[dict[str, Any]]]]:
    node, gpus = one.metadata.name, {gpu.uuid: gpu for gpu in one.status.gpus}
    for uid, parts in watched.view.cluster.unreported(node):
        pod = watched.view.workloads.pods.get(uid)
        if pod is None:
            continue
        meta = pod.metadata
        for part in parts:
            owner = _Owner(node, uid, meta.namespace, meta.name, part.container, running=False)
            known = [gpus[uuid] for uuid in part.gpus if uuid in gpus]
            yield (
                owner,
                [
                    {
                        **_part(gpu, part.memory, part.compute, None),
                        "policy": None,
                        "priority": None,
                    }
                    for gpu in known
                ],
            )


def _part(gpu: NodeGpu, memory: int, compute: int, weight: int | None) -> dict[str, Any]:
    return {
        "gpu": gpu.uuid,
        "gpu_index": gpu.index,
        "memory_bytes": min(memory, gpu.memory),
        "used_bytes": None,
        "compute_percent": 100 if gpu.kind == "whole" else compute or None,
        "weight_percent": weight,
        "got_ratio": None,
    }


def _weights(gpu: NodeGpu) -> list[int]:
    """The part of a GPU's compute that each grant on it has: what it asks for, or an equal part."""
    if gpu.kind == "whole":
        return [100] * len(gpu.grants)
    asked = [grant.compute for grant in gpu.grants]
    equal = max(0, 100 - sum(asked)) // max(1, asked.count(0))
    return [one or equal for one in asked]


def _grant(owner: _Owner, parts: list[dict[str, Any]], sees: Sees) -> dict[str, Any]:
    hidden = owner.namespace not in sees.pods
    own = owner.uid or owner.namespace  # a claim that no pod uses has no UID here
    name = f"{owner.node} {own} {owner.container} {owner.claim} {owner.running}"
    return {
        "id": hashlib.blake2b(name.encode(), digest_size=12, key=_SALT).hexdigest(),
        "node": owner.node,
        "namespace": None if hidden else owner.namespace,
        "pod": None if hidden else owner.pod,
        "container": None if hidden else owner.container or None,
        "claim": None if hidden else owner.claim or None,
        "hidden": hidden,
        "state": "running" if owner.running else "starting",
        "slices": parts,
    }
