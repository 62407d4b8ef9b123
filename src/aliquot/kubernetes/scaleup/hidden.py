"""Which waiting pods an autoscaler does not see, or takes for pods that fit. Pure.

Asking for a pod that the autoscaler sees too would bring twice as many nodes. It sees a pod without
a gate that fits no node by the kubelets' units. It does not ask the extender: if a node has all
units of a pod free, the pod fits there for it, and it adds no node. Nor does it add one for a
resource that no node has, but for the one under which new nodes are known to offer GPUs.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.requests import quantity
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.kubernetes.api.objects import Node, Pod, Quantity


class Hidden:
    """Judges pods as an autoscaler does that counts the units of kubelets.

    `pods` are all pods that ask for GPUs, `resources` the names by which they may, and `offered` is
    the one that new nodes have. Equal pods are judged once.
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        pods: Iterable[Pod],
        resources: Collection[str],
        offered: str,
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._resources = resources
        self._offered = offered
        self._judged: dict[tuple[frozenset[tuple[str, int]], NodeConstraints], bool] = {}

    def is_hidden(self, pod: Pod) -> bool:
        """Whether the autoscaler adds no node for a pod that fits nowhere."""
        if pod.spec.scheduling_gates:
            return True
        asked, limits = self._units(pod), NodeConstraints.of(pod)
        key = frozenset(asked.items()), limits
        if key not in self._judged:
            self._judged[key] = self._is_unknown(asked) or self._seems_to_fit(asked, limits)
        return self._judged[key]

    def _is_unknown(self, asked: Iterable[str]) -> bool:
        """Whether neither a node nor, for all that is known, a new one has such a resource."""
        known = {name for there in self._free.values() for name in there} | {self._offered}
        return not known.issuperset(asked)

    def _seems_to_fit(self, asked: Mapping[str, int], limits: NodeConstraints) -> bool:
        return any(
            all(there.get(key, 0) >= count for key, count in asked.items())
            and limits.allow(name, self._nodes[name])
            for name, there in self._free.items()
        )

    @cached_property
    def _free(self) -> dict[str, dict[str, int]]:
        """The free units of each node that has some, by resource."""
        free = {
            name: units
            for name, node in self._nodes.items()
            if (units := _numbers(node.status.allocatable, self._resources))
        }
        for one in self._pods:
            there = free.get(one.spec.node_name, {})
            for key, count in self._units(one).items():
                there[key] = there.get(key, 0) - count
        return free

    def _units(self, pod: Pod) -> Counter[str]:
        """The units that a pod asks for, by resource."""
        units: Counter[str] = Counter()
        for one in (*pod.spec.containers, *pod.spec.init_containers):
            units.update(
                _numbers({**one.resources.requests, **one.resources.limits}, self._resources)
            )
        return units


def _numbers(counts: Mapping[str, Quantity], names: Collection[str]) -> dict[str, int]:
    return {name: _number(counts[name]) for name in names if name in counts}


def _number(value: Quantity) -> int:
    try:
        return int(quantity(value))
    except InvalidValueError:
        return 0
