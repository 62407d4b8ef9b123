"""The messages between kube-scheduler and the extender, with the field names of its Go types.

A field that is a pointer, a slice or a map in Go may be null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import msgspec

from aliquot.kubernetes.api.decode import decode_json


class PodIdentity(msgspec.Struct, frozen=True):
    """Of a pod's metadata, what names it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""


class NamedPod(msgspec.Struct):
    """A pod of which only the identity is read: `pods` says why."""

    metadata: PodIdentity = PodIdentity()


NULL = b"null"


class NodeNames(Sequence[str]):
    """The names of nodes in a message, decoded when more than one of them is wanted.

    kube-scheduler sends the names of nearly all nodes, and mostly the answer depends only on
    whether one of them is there.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __contains__(self, name: object) -> bool:
        # The names of nodes have no character that JSON would have to escape.
        return f'"{name}"'.encode() in self._raw or name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._names[index]

    @cached_property
    def _names(self) -> list[str]:
        return decode_json(self._raw, list[str])


class ExtenderArgs(msgspec.Struct, rename="pascal"):
    """A pod and the candidate nodes, by name (with `nodeCacheCapable: true`)."""

    pod: NamedPod
    node_names: msgspec.Raw = msgspec.Raw(NULL)

    @property
    def names(self) -> NodeNames | None:
        """The candidate nodes; None if kube-scheduler sent no names."""
        raw = bytes(self.node_names)
        if raw == NULL:
            return None
        if not raw.startswith(b"["):
            raise msgspec.ValidationError("NodeNames is not a list")
        return NodeNames(raw)


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

    pod: NamedPod
    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None


class PreemptionResult(msgspec.Struct, rename="pascal"):
    """The nodes on which kube-scheduler may evict them."""

    node_name_to_meta_victims: dict[str, MetaVictims]
