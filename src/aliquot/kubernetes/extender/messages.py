"""The messages between kube-scheduler and the extender, with the field names of its Go types.

A field that is a pointer, a slice or a map in Go may be null.
"""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.objects import Pod  # noqa: TC001 - msgspec reads it at run time


class ExtenderArgs(msgspec.Struct, rename="pascal"):
    """A pod and the candidate nodes, by name (with `nodeCacheCapable: true`)."""

    pod: Pod
    node_names: list[str] | None = None


class FilterResult(msgspec.Struct, rename="pascal"):
    """The nodes that a pod may go to, and why it may not go to the others."""

    node_names: list[str]
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """The score of a node, 0 to 10."""

    host: str
    score: int


class BindingArgs(msgspec.Struct, rename="pascal"):
    """A pod and the node to bind it to."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class BindingResult(msgspec.Struct, rename="pascal"):
    """Why the pod was not bound; empty if it was."""

    error: str = ""


class MetaPod(msgspec.Struct):
    """A pod by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, rename="pascal"):
    """The victims of a preemption."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, rename="pascal"):
    """A pod, and the victims on each node that kube-scheduler would evict for it."""

    pod: Pod
    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None


class PreemptionResult(msgspec.Struct, rename="pascal"):
    """The nodes on which kube-scheduler may evict them."""

    node_name_to_meta_victims: dict[str, MetaVictims]
