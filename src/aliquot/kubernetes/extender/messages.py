"""What kube-scheduler and the extender say to each other, with the field names of its Go types.

A field that Go has as a pointer, a slice or a map may be null.
"""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.objects import Pod  # noqa: TC001 - msgspec reads it at run time


class ExtenderArgs(msgspec.Struct, rename="pascal"):
    """A pod and the nodes it could go to, by name: with `nodeCacheCapable: true`."""

    pod: Pod
    node_names: list[str] | None = None


class FilterResult(msgspec.Struct, rename="pascal"):
    """The nodes a pod may go to, and why not to others."""

    node_names: list[str]
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """What a node is worth, 0 to 10."""

    host: str
    score: int


class BindingArgs(msgspec.Struct, rename="pascal"):
    """A pod and the node it is to get."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class BindingResult(msgspec.Struct, rename="pascal"):
    """Why it was not bound; nothing where it was."""

    error: str = ""


class MetaPod(msgspec.Struct):
    """A pod by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, rename="pascal"):
    """Pods that would end."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, rename="pascal"):
    """A pod, and who would end for it on each node."""

    pod: Pod
    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None


class PreemptionResult(msgspec.Struct, rename="pascal"):
    """The nodes on which that may be done."""

    node_name_to_meta_victims: dict[str, MetaVictims]
