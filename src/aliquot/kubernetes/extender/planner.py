"""Which nodes have room for a pod, and which GPUs it would get there.

`filter` answers with the best node, and reserves it for a while, so that the next pod sees it
taken. Asked to offer more, it adds the next best, and `scores` keeps them in this order. A pod with
one container that asks for GPUs goes where the brain says; the containers of others are placed
together on one node after the other, in the order of what they would cost there each for itself.
Where a pod fits nowhere, every node is accounted for.

Everything is decided from the pod as the API server has it and from the cluster's allocations;
nothing here waits or does input or output.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import InvalidRequestError, requests_of
from aliquot.kubernetes.cluster.cluster import Reserved
from aliquot.kubernetes.cluster.demands import Demands
from aliquot.kubernetes.cluster.membership import check_duration
from aliquot.kubernetes.cluster.parts import part_of
from aliquot.kubernetes.extender.containers import place
from aliquot.model import format_bytes
from aliquot.placement.choose.explain import count_nodes
from aliquot.placement.core.fit import Lack

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.parts import Parts

TRIED = 100  # nodes on which containers are placed together before it is said to be too hard
RESERVED_SECONDS = 30.0
BEST_SCORE = 10
NO_ROW = -1
LASTING = {Lack.MODEL, Lack.TOO_FEW, Lack.TOO_SMALL}

APART = "its containers do not fit together"


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a pod may go, the best first; or why not, for each node and in a sentence.

    `reason` is the word for its event. `bad`: what it asks for makes no sense. `told`: the pod is
    told and woken by another, so that nobody else needs to.
    """

    names: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    bad: bool = False
    told: bool = False


class Planner:
    """Decisions for one pod after the other."""

    def __init__(
        self, cluster: Cluster, presets: Sequence[Preset] = (ALIQUOT,), *, offer: int = 1
    ) -> None:
        self.cluster = cluster
        self._presets = presets
        self._offer = offer

    def requests(self, pod: Pod) -> tuple[ContainerRequest, ...]:
        """What a pod asks for; InvalidRequestError if that or its duration is invalid."""
        found = requests_of(pod, self._presets)
        if found:
            check_duration(pod)
        return found

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """The nodes of these that are best for a pod; the first is reserved for it."""
        uid = pod.metadata.uid
        try:
            requests = self.requests(pod)
        except InvalidRequestError as error:
            text = str(error)
            return Answer((), dict.fromkeys(names, text), error.reason, text, bad=True)
        if not requests:
            return Answer(tuple(names))
        self.cluster.forget(uid)
        found = self._best(requests, names, self._offer)
        if not found:
            return self._refusal(requests, names)
        best, parts = found[0]
        until, news = self.cluster.now() + RESERVED_SECONDS, self.cluster.news(best)
        self.cluster.reserve(uid, Reserved(pod.key, best, parts, until, asked=requests, news=news))
        return Answer(tuple(name for name, _ in found))

    def on_its_way(self, pod: Pod, names: Sequence[str]) -> Answer | None:
        """The node to which a pod is being bound: that may have come about unheard.

        None where it is not.
        """
        kept = self.cluster.reserved(pod.metadata.uid)
        if kept is None or not kept.sure:
            return None
        if kept.node in names:
            return Answer((kept.node,))
        why = f"it may be bound to node {kept.node} already"
        return Answer((), dict.fromkeys(names, why), "OnItsWay", why)

    def fits(self, pod: Pod) -> bool:
        """Whether a pod that waits would find room on some node now."""
        try:
            requests = self.requests(pod)
        except InvalidRequestError:
            return False
        return bool(self._best(requests, list(self.cluster.nodes), 1))

    def scores(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        """What each of these nodes is worth for a pod, 10 the most."""
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
        """What a pod would get on a node, were it without these pods, by UID; None: no room."""
        chooser = self.cluster.alone(node, without)
        if chooser is None:
            return None
        return place(chooser, requests, self.cluster.nodes[node].status)

    def plan_again(
        self, uid: str, requests: tuple[ContainerRequest, ...], node: str
    ) -> Parts | None:
        """What a pod gets on a node that `filter` may have offered it; None: no room.

        What was reserved for it there is nobody else's: it holds as long as the pod asks for the
        same and nothing new was told of the node; and where it may have been bound with it.
        """
        kept = self.cluster.reserved(uid)
        basis = node, requests, self.cluster.news(node)
        if kept is not None and (kept.node, kept.asked, kept.news) == basis:
            return kept.parts
        if kept is not None and kept.sure and kept.node == node:
            return kept.parts
        return self.plan(requests, node, {uid})

    def spared(self, pod: Pod, victims: Mapping[str, Collection[str]]) -> list[str]:
        """The nodes on which a pod would have GPUs once these pods are gone, by UID.

        kube-scheduler makes room for a pod by CPU and the like alone; where that does not free its
        GPUs, nobody is to end for it.
        """
        requests = self.requests(pod)
        uid = pod.metadata.uid
        return [
            node
            for node, uids in victims.items()
            if not requests or self.plan(requests, node, {uid, *uids}) is not None
        ]

    def _costs(self, requests: Sequence[ContainerRequest]) -> NDArray[np.float64]:
        """What each node would cost; infinite where a container has no room even alone."""
        demands = Demands(self.cluster)
        if len(requests) == 1:
            return demands.costs(requests[0])
        together = np.zeros(demands.size)
        for request in requests:
            cost = demands.costs(request)
            together = together + np.where(np.isfinite(cost), 0.0 if request.init else cost, np.inf)
        return together

    def _rows(self, names: Sequence[str]) -> NDArray[np.int64]:
        """The rows of these nodes."""
        rows = map(self.cluster.rows.get, names, repeat(NO_ROW))
        return np.fromiter(rows, dtype=np.int64, count=len(names))

    def _best(
        self, requests: Sequence[ContainerRequest], names: Sequence[str], count: int
    ) -> list[tuple[str, Parts]]:
        """The best nodes, and what the pod would get on the first."""
        costs = self._costs(requests)
        rows = self._rows(names)
        cost = np.where(rows == NO_ROW, np.inf, costs[rows]) if len(rows) else np.zeros(0)
        fitting = int(np.isfinite(cost).sum())
        if len(requests) == 1:
            best = [names[place_] for place_ in _lowest(cost, min(fitting, count))]
            return [
                (name, self._part(requests[0], name) if name == best[0] else ()) for name in best
            ]
        found: list[tuple[str, Parts]] = []
        for place_ in _lowest(cost, min(fitting, TRIED)):
            parts = self.plan(requests, names[place_])
            if parts is not None:
                found.append((names[place_], parts))
            if len(found) == count:
                break
        return found

    def _part(self, request: ContainerRequest, node: str) -> Parts:
        """What a pod with one container gets on a node that has room."""
        gpus = Demands(self.cluster).gpus_on(request, self.cluster.rows[node])
        return (part_of(request, gpus, self.cluster.nodes[node].status),)

    def _refusal(self, requests: Sequence[ContainerRequest], names: Sequence[str]) -> Answer:
        texts = [lack or APART for lack in self._lacks(requests)]
        refused = {
            name: self.cluster.why_unusable(name) or texts[self.cluster.rows[name]]
            for name in names
        }
        counts = Counter(refused.values())
        parts = [f"{count_nodes(count)}: {why}" for why, count in _sorted(counts)]
        asked = "; ".join(f"container {one.container!r} asks for {one}" for one in requests)
        message = f"no room on {count_nodes(len(names))} ({'; '.join(parts)}). {asked}."
        if Lack.TOO_SMALL in counts:
            message += self._at_most(requests, refused)
        usable = {why for name, why in refused.items() if not self.cluster.why_unusable(name)}
        never = usable and usable <= LASTING
        return Answer((), refused, "TooLarge" if never else "NoRoom", message)

    def _at_most(self, requests: Sequence[ContainerRequest], refused: Mapping[str, str]) -> str:
        """What could be asked for instead of more memory than GPUs have, in the asker's units."""
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

    def _lacks(self, requests: Sequence[ContainerRequest]) -> list[Lack | None]:
        """What each row lacks for the first container that has no room there."""
        demands = Demands(self.cluster)
        if len(requests) == 1:
            return demands.lacks(requests[0])
        found: list[Lack | None] = [None] * demands.size
        for request in requests:
            lacks = demands.lacks(request)
            found = [one or other for one, other in zip(found, lacks, strict=True)]
        return found


def _lowest(cost: NDArray[np.float64], count: int) -> list[int]:
    """The places of the lowest, the lowest first; equal ones in their order."""
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
