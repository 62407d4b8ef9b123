"""Which node a single pod gets, with which GPUs, and the reasons if none fits.

`filter` answers with the best node and reserves its GPUs for a while, so that the next pod does not
get them. If it may offer more nodes it adds the next best, and `scores` keeps them in this order.
For a pod with one container that asks for GPUs, the strategy of `placement` chooses. The containers
of other pods are placed together on one node after the other, in the order of the sum of their
costs. If a pod fits nowhere, the answer has the reason for every node.

All decisions depend only on the pod and the cluster's allocations. No input or output, no waiting.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.names import MIN_STRENGTH
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import (
    InvalidRequestError,
    in_turns,
    names_resources,
    requests_of,
)
from aliquot.kubernetes.cluster.cluster import Reserved
from aliquot.kubernetes.cluster.demands import Demands
from aliquot.kubernetes.cluster.membership import check_duration
from aliquot.kubernetes.cluster.neighbours import why_unwelcome
from aliquot.kubernetes.cluster.offered import NO_ROW, rows_of
from aliquot.kubernetes.cluster.parts import part_of
from aliquot.kubernetes.extender.containers import place
from aliquot.model import format_bytes
from aliquot.model.strength import format_strength
from aliquot.placement.choose.explain import count_nodes
from aliquot.placement.core.demand import Kind
from aliquot.placement.core.fit import Lack
from aliquot.placement.core.overcommit import RoomBound

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.offered import OfferedNodes
    from aliquot.kubernetes.cluster.parts import Parts

TRIED = 100  # nodes on which several containers are tried together
RESERVED_SECONDS = 30.0
BEST_SCORE = 10
REMEMBERED = 1 << 14  # pods whose requests are remembered
MOST_NAMED = 3  # nodes in a message, of those that are unusable for one reason
PERMANENT = {Lack.MODEL, Lack.WEAK, Lack.TOO_FEW, Lack.NAMED, Lack.TOO_SMALL}
BOUNDS = {
    RoomBound.GPU: "it would take no turns",
    RoomBound.FACTOR: "slices have as many times the memory as node and queues allow",
    RoomBound.ALONE: "each slice must fit beside what does not move",
    RoomBound.HOST: "the host has no more memory for what must leave (node.hostMemory)",
}
NOT_TOGETHER = "its containers do not fit together"
BY_NEIGHBOURS = {Lack.SHARED, Lack.SLICED, Lack.GPU, Lack.NEIGHBOURS, NOT_TOGETHER}


@dataclass(frozen=True, slots=True)
class Answer:
    """The nodes for a pod, the best first; or why there are none, for each node and as a message.

    `reason` is the reason of its event. `invalid`: the request itself is invalid. `by_gang`: the
    gang controller reports this to the pod and wakes it.
    """

    names: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    invalid: bool = False
    by_gang: bool = False


class Planner:
    """Decides for one pod after the other.

    `overcommit` is how many times a GPU's memory slices may have beside a pod that takes turns with
    memory, by its queue; 0: as the nodes say.
    """

    def __init__(
        self,
        cluster: Cluster,
        presets: Sequence[Preset] = (ALIQUOT,),
        *,
        offer: int = 1,
        overcommit: Callable[[Pod], float] = lambda _: 0.0,
    ) -> None:
        self.cluster = cluster
        self._presets = presets
        self._offer = offer
        self._overcommit = overcommit
        self._asked: dict[str, tuple[str, tuple[ContainerRequest, ...]]] = {}  # by UID: as of when
        self._last: tuple[ContainerRequest, ...] = ()

    def requests(self, pod: Pod) -> tuple[ContainerRequest, ...]:
        """What a pod asks for; InvalidRequestError if that or its duration is invalid."""
        uid, version = pod.metadata.uid, pod.metadata.resource_version
        known = self._asked.get(uid)
        if version and known is not None and known[0] == version:
            return self._in_turns(pod, known[1])
        found = requests_of(pod, self._presets)
        if found:
            check_duration(pod)
        if len(self._asked) >= REMEMBERED:
            self._asked.clear()
        self._asked[uid] = version, found
        return self._in_turns(pod, found)

    def _in_turns(
        self, pod: Pod, requests: tuple[ContainerRequest, ...]
    ) -> tuple[ContainerRequest, ...]:
        if not any(one.swap for one in requests):
            return requests
        return in_turns(requests, self._overcommit(pod))

    def names_resources(self, pod: Pod) -> bool:
        """Whether kube-scheduler asks about a pod, also if the pod asks for 0 GPUs."""
        return names_resources(pod, self._presets)

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """The best of these nodes for a pod; GPUs of the first one are reserved for it."""
        try:
            requests = self.requests(pod)
        except InvalidRequestError as error:
            text = str(error)
            return Answer((), dict.fromkeys(names, text), error.reason, text, invalid=True)
        if not requests:
            return Answer(tuple(names))
        return self.place(pod, requests, names)

    def place(
        self, pod: Pod, requests: tuple[ContainerRequest, ...], names: Sequence[str]
    ) -> Answer:
        """The best of these nodes for a pod that asks for this; reserved as by `filter`."""
        uid = pod.metadata.uid
        self.cluster.forget(uid)
        found = self._best(requests, names, self._offer)
        if not found:
            return self._refusal(requests, names)
        best, parts = found[0]
        until, version = self.cluster.now() + RESERVED_SECONDS, self.cluster.node_version(best)
        self.cluster.reserve(
            uid, Reserved(pod.key, best, parts, until, requests=requests, node_version=version)
        )
        self._last = requests
        return Answer(tuple(name for name, _ in found))

    def prepare(self) -> None:
        """Compute ahead what the next answer needs if that pod asks for the same as the last.

        kube-scheduler waits for an answer, and not for this.
        """
        if self._last:
            self._costs(self._last)

    def being_bound(self, pod: Pod, names: Sequence[str]) -> Answer | None:
        """The answer for a pod that is being bound; None if it is not.

        The API server may have bound it already, without an answer.
        """
        kept = self.cluster.reserved(pod.metadata.uid)
        if kept is None or not kept.binding:
            return None
        if kept.node in names:
            return Answer((kept.node,))
        why = f"it may be bound to node {kept.node} already"
        return Answer((), dict.fromkeys(names, why), "BindingUnderWay", why)

    def fits(
        self, pod: Pod, offered: OfferedNodes | None = None, without: Collection[str] = ()
    ) -> bool:
        """Whether a waiting pod would fit one of these nodes now (None: any), `without` some."""
        try:
            requests = self.requests(pod)
        except InvalidRequestError:
            return False
        costs = self._costs(requests)
        among = np.isfinite(costs)
        if offered is not None:
            among &= offered.rows(self.cluster)
        among[[row for name in without if (row := self.cluster.rows.get(name)) is not None]] = False
        rows = np.flatnonzero(among)
        if len(requests) == 1:
            return bool(rows.size)
        name_of = self.cluster.chooser.allocations.hardware.names
        cheapest = rows[np.argsort(costs[rows], kind="stable")][:TRIED]
        return any(self.plan(requests, name_of[row]) is not None for row in cheapest)

    def scores(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        """The score of each of these nodes for a pod; 10 is the best."""
        try:
            requests = self.requests(pod)
        except InvalidRequestError:
            requests = ()
        if not requests:
            return [(name, 0) for name in names]
        reserved = self.cluster.reserved(pod.metadata.uid)
        best = reserved.node if reserved else ""
        costs = self._costs(requests)
        rows = self.cluster.rows
        cost = {name: costs[rows[name]] if name in rows else np.inf for name in names}
        order = sorted(names, key=lambda name: (name != best, cost[name], name))
        rank = {name: number for number, name in enumerate(order)}
        return [(name, max(0, BEST_SCORE - 2 * rank[name])) for name in names]

    def plan(
        self, requests: Sequence[ContainerRequest], node: str, without: Collection[str] = ()
    ) -> Parts | None:
        """What a pod would get on a node without these pods, by UID; None if it does not fit."""
        wishes = any(one.wishes is not None for one in requests)
        chooser = self.cluster.chooser_on(node, without, wishes=wishes)
        if chooser is None:
            return None
        return place(chooser, requests, self.cluster.nodes[node].status)

    def plan_again(
        self, uid: str, requests: tuple[ContainerRequest, ...], node: str
    ) -> Parts | None:
        """What a pod gets on a node that `filter` may have offered it; None if it does not fit.

        Its reservation there is used if the pod still asks for the same and the node has not
        changed, or if the pod may have been bound with it.
        """
        kept = self.cluster.reserved(uid)
        basis = node, requests, self.cluster.node_version(node)
        if kept is not None and (kept.node, kept.requests, kept.node_version) == basis:
            return kept.parts
        if kept is not None and kept.binding and kept.node == node:
            return kept.parts
        return self.plan(requests, node, {uid})

    def _costs(self, requests: Sequence[ContainerRequest]) -> NDArray[np.float64]:
        """What a pod costs on each node; infinite if a container does not fit even alone."""
        demands = Demands(self.cluster)
        if len(requests) == 1:
            return demands.costs(requests[0])
        together = np.zeros(demands.size)
        for request in requests:
            cost = demands.costs(request)
            together = together + np.where(np.isfinite(cost), 0.0 if request.init else cost, np.inf)
        return together

    def _best(
        self, requests: Sequence[ContainerRequest], names: Sequence[str], count: int
    ) -> list[tuple[str, Parts]]:
        """The best nodes, and what the pod would get on the first one."""
        costs = self._costs(requests)
        if len(requests) == 1:
            best = self._cheapest(costs, names, count)
            return [
                (name, self._part(requests[0], name) if name == best[0] else ()) for name in best
            ]
        found: list[tuple[str, Parts]] = []
        for name in self._cheapest(costs, names, TRIED):
            parts = self.plan(requests, name)
            if parts is not None:
                found.append((name, parts))
            if len(found) == count:
                break
        return found

    def _cheapest(self, costs: NDArray[np.float64], names: Sequence[str], count: int) -> list[str]:
        """The cheapest of these nodes, the cheapest first; of equal ones the one in an earlier row.

        kube-scheduler sends the names of nearly all nodes, and to look them all up would take most
        of the time of a decision. If one node is wanted, the cheapest of all is tried first.
        """
        name_of = self.cluster.chooser.allocations.hardware.names
        row = int(costs.argmin()) if len(costs) else NO_ROW
        if row == NO_ROW or costs[row] == np.inf:
            return []
        if count == 1 and name_of[row] in names:
            return [name_of[row]]
        rows = rows_of(self.cluster.rows, names)
        rows = rows[rows != NO_ROW]
        among = np.full(len(costs), np.inf)
        among[rows] = costs[rows]
        fitting = int(np.isfinite(among).sum())
        return [name_of[row] for row in _lowest(among, min(fitting, count))]

    def _part(self, request: ContainerRequest, node: str) -> Parts:
        """What a pod with one container gets on a node that it fits."""
        gpus = Demands(self.cluster).gpus_on(request, self.cluster.rows[node])
        return (part_of(request, gpus, self.cluster.nodes[node].status),)

    def _refusal(self, requests: Sequence[ContainerRequest], names: Sequence[str]) -> Answer:
        texts = [lack or NOT_TOGETHER for lack in self._lacks(requests)]
        unusable = self.cluster.unusable_among(names)
        lacks = map(texts.__getitem__, rows_of(self.cluster.rows, names).tolist())
        refused = dict(zip(names, lacks, strict=True)) | unusable
        counts = Counter(refused.values())
        parts = [
            f"{count_nodes(count)}{_named(unusable, why)}: {why}" for why, count in _sorted(counts)
        ]
        asked = "; ".join(f"{one.asker} asks for {one}" for one in requests)
        message = f"fits none of {count_nodes(len(names))} ({'; '.join(parts)}). {asked}."
        if Lack.TOO_SMALL in counts:
            message += self._at_most(requests, refused)
        if Lack.WEAK in counts:
            message += self._strongest(refused)
        if Lack.GPU in counts:
            message += self._in_turns_at_most(requests, refused)
        clash = why_unwelcome(
            self.cluster, requests, lambda name: refused.get(name) in BY_NEIGHBOURS
        )
        message += f" {clash[0].upper()}{clash[1:]}." if clash else ""
        usable = {why for name, why in refused.items() if name not in unusable}
        never = usable and usable <= PERMANENT
        return Answer((), refused, "TooLarge" if never else "InsufficientGPUs", message)

    def _at_most(self, requests: Sequence[ContainerRequest], refused: Mapping[str, str]) -> str:
        """The most memory that the pod could ask for, in the units of its request."""
        sizes, rows = self.cluster.chooser.allocations.hardware.gpu_bytes, self.cluster.rows
        most = max(int(sizes[rows[name]]) for name, why in refused.items() if why == Lack.TOO_SMALL)
        units = {preset.memory: preset.memory_unit for preset in self._presets}
        could = [
            f", {resource}: {most // units[resource] * one.gpus} for container {one.container!r}"
            f" in units of {format_bytes(units[resource])}"
            for one in requests
            if one.memory > most
            for resource, _ in one.units
            if resource in units
        ]
        return f" Such a GPU has at most {format_bytes(most)}{''.join(could)}."

    def _in_turns_at_most(
        self, requests: Sequence[ContainerRequest], refused: Mapping[str, str]
    ) -> str:
        """The largest slice that could take turns with memory, and what bounds it."""
        asked = next((one for one in requests if one.overcommit is not None), None)
        if asked is None:
            return ""
        allocations, rows = self.cluster.chooser.allocations, self.cluster.rows
        lacking = (name for name, why in refused.items() if why == Lack.GPU and name in rows)
        crowded = (name for name in lacking if allocations.turns.on(rows[name]) is not None)
        found: list[tuple[int, str]] = []
        for name in islice(crowded, TRIED):
            row, turns = rows[name], allocations.turns.on(rows[name])
            free = allocations.bytes_free[row].tolist()
            for gpu in np.flatnonzero(allocations.kind[row] == Kind.SLICED).tolist():
                if turns is None or not allocations.hardware.present[row, gpu]:
                    continue
                memory = int(allocations.hardware.gpu_bytes[row])
                room = turns.room(memory, free, gpu, asked.overcommit or None)
                found.append((room.bytes, f"GPU {gpu} of node {name}, where {BOUNDS[room.bound]}"))
        if not found:
            return ""
        size, where = max(found)
        return f" In turns with memory a slice could have {format_bytes(max(0, size))}: {where}."

    def _strongest(self, refused: Mapping[str, str]) -> str:
        """The strongest of the GPUs that are too weak, and what to do."""
        strengths, rows = self.cluster.chooser.allocations.hardware.strength, self.cluster.rows
        most = max(
            float(strengths[rows[name]]) for name, why in refused.items() if why == Lack.WEAK
        )
        there = format_strength(most) if most else "an unknown strength"
        return (
            f" The strongest of these GPUs has {there}: lower {MIN_STRENGTH}, or add such a node."
        )

    def _lacks(self, requests: Sequence[ContainerRequest]) -> list[Lack | None]:
        """What each row lacks for the first container that does not fit there."""
        demands = Demands(self.cluster)
        if len(requests) == 1:
            return demands.lacks(requests[0])
        found: list[Lack | None] = [None] * demands.size
        for request in requests:
            lacks = demands.lacks(request)
            found = [one or other for one, other in zip(found, lacks, strict=True)]
        return found


def _named(unusable: Mapping[str, str], why: str) -> str:
    """The first nodes that are unusable for that reason: " (n1, n2, n3, …)"; "" if none is."""
    names = [name for name, reason in unusable.items() if reason == why]
    more = ", …" if len(names) > MOST_NAMED else ""
    return f" ({', '.join(nsmallest(MOST_NAMED, names))}{more})" if names else ""


def _lowest(cost: NDArray[np.float64], count: int) -> list[int]:
    """The indexes of the lowest costs, the lowest first; equal ones in their order."""
    if not count:
        return []
    if count < len(cost):
        edge = np.partition(cost, count - 1)[count - 1]
        places = np.flatnonzero(cost <= edge)
    else:
        places = np.arange(len(cost))
    order = np.argsort(cost[places], kind="stable")[:count]
    return [int(place) for place in places[order]]


def _sorted(counts: Counter[str]) -> Iterable[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
