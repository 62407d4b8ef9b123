"""Which nodes accept a pod, by taints, selectors and affinity; and labels for racks and blocks.

kube-scheduler decides about all of these. Gangs and jobs check them beforehand only to avoid plans
that kube-scheduler would refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.names import GROUP
from aliquot.kubernetes.api.objects import Node, Taint

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aliquot.kubernetes.api.objects import (
        NodeTerm,
        NodeTerms,
        Pod,
        Toleration,
    )

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")
REPELLING = {"NoSchedule", "NoExecute"}

# The first label that a node has counts. An NVLink domain across nodes counts as a rack.
RACKS = (
    f"{GROUP}/rack",
    "nvidia.com/gpu.clique",
    "topology.kubernetes.io/rack",
    "cloud.provider.com/topology-rack",
    "network.topology.nvidia.com/leaf",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
)
BLOCKS = (
    f"{GROUP}/block",
    "topology.kubernetes.io/block",
    "cloud.provider.com/topology-block",
    "network.topology.nvidia.com/spine",
    "cloud.google.com/gce-topology-block",
    "topology.k8s.aws/network-node-layer-2",
    "topology.kubernetes.io/zone",
)


@dataclass(frozen=True, slots=True)
class NodeConstraints:
    """Which nodes accept a pod: labels that a node must have, and taints that the pod tolerates.

    `barred` are nodes that kube-scheduler has recently not offered to such a pod.
    """

    labels: tuple[tuple[str, str], ...] = ()
    terms: NodeTerms | None = None
    tolerations: tuple[Toleration, ...] = ()
    barred: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pod: Pod, barred: Collection[str] = ()) -> NodeConstraints:
        """The constraints of a pod."""
        spec = pod.spec
        near = spec.affinity.node_affinity if spec.affinity else None
        return cls(
            labels=tuple(sorted(spec.node_selector.items())),
            terms=near.required if near else None,
            tolerations=spec.tolerations,
            barred=frozenset(barred),
        )

    def allow(self, name: str, node: Node | None) -> bool:
        """Whether a node accepts the pod; an unknown node has no labels and no taints."""
        node = node or Node()
        return self._wants(name, node) and not self._untolerated(node)

    def untolerated_taints(self, name: str, node: Node) -> tuple[str, ...]:
        """The taints that alone keep the pod from a node."""
        if not self._wants(name, node):
            return ()
        return tuple(f"{_named(one)}:{one.effect}" for one in self._untolerated(node))

    def _wants(self, name: str, node: Node) -> bool:
        """Whether a node accepts the pod, taints aside."""
        labels = node.metadata.labels
        if name in self.barred or any(labels.get(key) != value for key, value in self.labels):
            return False
        return self.terms is None or any(
            _holds(term, name, labels) for term in self.terms.node_selector_terms
        )

    def _untolerated(self, node: Node) -> list[Taint]:
        taints = (*node.spec.taints, *((UNSCHEDULABLE,) if node.spec.unschedulable else ()))
        return [
            taint
            for taint in taints
            if taint.effect in REPELLING
            and not any(_tolerates(one, taint) for one in self.tolerations)
        ]


def label_of(node: Node | None, names: Collection[str]) -> str:
    """The value of the first of these labels that a node has; empty if none."""
    if node is None:
        return ""
    labels = node.metadata.labels
    return next((labels[name] for name in names if labels.get(name)), "")


def _named(taint: Taint) -> str:
    return f"{taint.key}={taint.value}" if taint.value else taint.key


def _tolerates(one: Toleration, taint: Taint) -> bool:
    if one.effect and one.effect != taint.effect:
        return False
    if one.operator == "Exists":
        return not one.key or one.key == taint.key
    return one.key == taint.key and one.value == taint.value


def _holds(term: NodeTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not (term.match_expressions or term.match_fields):
        return False
    return all(one.holds(labels) for one in term.match_expressions) and all(
        one.holds({"metadata.name": name}) for one in term.match_fields
    )
