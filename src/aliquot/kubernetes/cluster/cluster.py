"""The GPUs of all nodes, and what is allocated or reserved on them.

Four things make up a node's row in the allocations: its GPUNode, the pods bound to it that have a
plan, reservations for pods that are about to be bound (`reserve`), and resource claims that its
agent does not report yet (`set_claimed`). A change of one of these marks the row, and the row is
computed again before the next question. So the allocations always equal what a full recount would
give, and a change costs the same on five nodes and on five thousand. All rows are computed again
only for a GPU model that no node had before, for a node with more GPUs than any other, or if many
nodes were added.

No input or output; the clock is a parameter.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.presets import ALIQUOT, SLOTS
from aliquot.kubernetes.cluster.hardware import Ranked, ranked, spec_of, strength_ranks
from aliquot.kubernetes.cluster.node_usage import NodeUsage
from aliquot.kubernetes.cluster.parts import planned_parts
from aliquot.kubernetes.cluster.usable import NO_AGENT
from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations, NodeFree
from aliquot.placement.core.snapshot import NodeHardware, empty

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from aliquot.kubernetes.api.objects import GpuNode, Pod
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.node_usage import GpuUsage
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.snapshot import Snapshot

SPARE = 0.1  # spare rows, as a part of all nodes: a new node needs no new table
NOTHING_FREE = NodeFree((), (), (), ())
NO_SIZE = -1
UNREPORTED_SECONDS = 10.0  # within which an agent reports a pod after its binding, or its end
EMPTY_NODES = 256  # different kinds of nodes, of which an empty snapshot is cached


@dataclass(frozen=True, slots=True)
class Reserved:
    """GPUs reserved for a pod until the time `until`.

    `pod` is its name, for messages. `binding`: the pod is being bound, or was bound and no watch
    has reported it yet. `requests` is what the plan was made for, and `node_version` the version of
    the node then. `ended`: the pod has ended, and its node may not know that yet.
    """

    pod: str
    node: str
    parts: Parts
    until: float
    binding: bool = False
    requests: tuple[ContainerRequest, ...] = ()
    node_version: int = -1
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of each GPU of a node, and how many containers share one of its shared GPUs."""

    gpu_bytes: int
    shares: int


@dataclass(frozen=True, slots=True)
class _Bound:
    pod: Pod
    node: str
    parts: Parts
    seen: float


class Cluster:
    """The allocations of all nodes, and the reservations on them."""

    def __init__(
        self,
        *,
        presets: Sequence[Preset] = (ALIQUOT,),
        by: str = "fragmentation",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._presets = presets
        self._most_holders = SLOTS if any(one.per_gpu for one in presets) else None
        self._by = by
        self.now = now
        self._nodes: dict[str, GpuNode] = {}
        self._unusable: dict[str, str] = {}
        self._bound: dict[str, _Bound] = {}
        self._reserved: dict[str, Reserved] = {}
        self._claimed: dict[str, Mapping[str, Parts]] = {}  # by node and UID
        self._here: defaultdict[str, set[str]] = defaultdict(set)  # UIDs of both, by node
        self._alone: set[str] = set()  # UIDs of those that share their GPUs with nobody
        self._reported: set[str] = set()  # UIDs that their node has reported at some time
        self._rows: dict[str, int] = {}
        self._specs: dict[str, NodeHardware] = {}
        self._empty_specs: dict[str, NodeHardware] = {}  # `spec_of` each of the nodes
        self._free_rows: list[int] = []
        self._ranks: dict[Ranked, float] = {}
        self._stale: set[str] = set()
        self._next_old = math.inf
        self._free: dict[str, NodeFree] = {}
        self._usages: dict[str, NodeUsage] = {}
        self._by_pod: dict[str, Mapping[str, Mapping[int, GpuUsage]]] = {}
        self._versions: Counter[str] = Counter()
        self._sizes: dict[Size, int] = {}
        self._layout = 0
        self._size_of: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._empty: OrderedDict[NodeHardware, tuple[Snapshot, Strategy]] = OrderedDict()
        self._chooser = self._rebuilt()

    # --- what watches report ----------------------------------------------------------------------

    def set_node(self, name: str, node: GpuNode | None) -> None:
        """A GPUNode was created or changed; None: it is gone."""
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
            self._reported |= _reported_by(node) & self._here.get(name, set())
        self._usages.pop(name, None)
        self._empty_specs.pop(name, None)
        self._learn(name)

    def set_unusable(self, name: str, why: str | None) -> None:
        """Why a node can get no new pods (`usable.why_unusable`); None: it can.

        Pods that are there keep what they have, and it still counts.
        """
        if why == self._unusable.get(name):
            return
        if why is None:
            del self._unusable[name]
        else:
            self._unusable[name] = why
        self._learn(name)

    def set_pod(self, uid: str, pod: Pod | None) -> None:
        """A pod was created or changed; None: it is gone.

        A pod that has ended has only what its GPUNode still reports. If it ends before its node has
        reported it, its plan counts for a while longer: the node may be about to report it.
        """
        if pod is not None and not pod.ended and not pod.spec.node_name and uid not in self._bound:
            return
        reserved = self._reserved.get(uid)
        before = self._bound.get(uid) or reserved
        if reserved is not None and reserved.ended and (pod is None or pod.ended):
            return
        now = None
        if pod is not None and not pod.ended and pod.spec.node_name:
            known = self._bound.get(uid)
            if known is not None and _is_planned_as(pod, known.pod):
                parts = known.parts
            else:
                parts = planned_parts(pod, self._presets)
            seen = known.seen if known is not None else self.now()
            now = _Bound(pod, pod.spec.node_name, parts, seen) if parts else None
        if now and before and (now.node, now.parts) == (before.node, before.parts):
            self._reserved.pop(uid, None)  # the row of its node does not change
            self._bound[uid] = now
            return
        self.forget(uid)
        self._unbind(uid, early=now is None)
        if now:
            self._bound[uid] = now
            self._add(uid, now.node, now.parts)
            self._learn(now.node)
            if now.node in self._nodes:
                self._reported |= _reported_by(self._nodes[now.node]) & {uid}

    def set_claimed(self, node: str, parts: Mapping[str, Parts]) -> None:
        """What allocated resource claims have that their node does not report yet, by UID."""
        if parts == self._claimed.get(node, {}):
            return
        if parts:
            self._claimed[node] = parts
        else:
            del self._claimed[node]
        self._usages.pop(node, None)
        self._learn(node)

    # --- reservations -----------------------------------------------------------------------------

    def reserve(self, uid: str, reserved: Reserved) -> None:
        """Reserve this for a pod, instead of what was reserved for it before."""
        if uid in self._bound:
            return
        before = self._reserved.get(uid)
        if before is None or (before.node, before.parts) != (reserved.node, reserved.parts):
            self.forget(uid)
            self._add(uid, reserved.node, reserved.parts)
        self._reserved[uid] = reserved
        self._next_old = min(self._next_old, reserved.until)

    def forget(self, uid: str) -> None:
        """Drop the reservation of a pod."""
        before = self._reserved.pop(uid, None)
        if before is not None:
            self._remove(uid, before.node)

    def release(self, uid: str) -> None:
        """Drop the reservation of a pod, unless it is being bound there."""
        before = self._reserved.get(uid)
        if before is not None and not before.binding:
            self.forget(uid)

    def forget_all(self) -> None:
        """Drop all reservations."""
        for uid in list(self._reserved):
            self.forget(uid)

    def reserved(self, uid: str) -> Reserved | None:
        """What is reserved for a pod."""
        self._forget_old()
        return self._reserved.get(uid)

    def pod_name(self, uid: str) -> str:
        """The namespace and name of a pod that has GPUs, or its UID if they are not known."""
        bound, reserved = self._bound.get(uid), self._reserved.get(uid)
        if bound is not None:
            return bound.pod.key
        return uid if reserved is None else reserved.pod

    @property
    def nodes_with_alone(self) -> set[str]:
        """The nodes of pods that are alone on their GPUs."""
        both = (self._bound.get(uid) or self._reserved.get(uid) for uid in self._alone)
        return {one.node for one in both if one is not None}

    def parts_on(self, node: str) -> Iterator[tuple[str, Parts]]:
        """The UID of each pod on a node with its plan, bound or reserved, and its parts."""
        for uid in sorted(self._here.get(node, ())):
            yield uid, self._parts(uid)

    def unreported(self, node: str) -> Iterator[tuple[str, Parts]]:
        """The pods bound to a node, or being bound, with containers that it has not reported yet.

        Each with its UID and these containers.
        """
        if node not in self._nodes:
            return
        for uid, missing in self._usage(node).unreported():
            reserved = self._reserved.get(uid)
            if uid in self._bound or (reserved is not None and reserved.binding):
                yield uid, missing

    def node_version(self, node: str) -> int:
        """A number that grows whenever a watch reports a change of a node or of its pods."""
        return self._versions[node]

    # --- the allocations --------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, GpuNode]:
        """All GPUNodes, by name."""
        return self._nodes

    @property
    def rows(self) -> Mapping[str, int]:
        """The row of each node in the allocations; up to date after a call of `chooser`."""
        return self._rows

    @property
    def layout(self) -> int:
        """Another number whenever a row was taken from its node; a new node may get that row."""
        return self._layout

    @property
    def sizes(self) -> Mapping[Size, int]:
        """The sizes that nodes have or had, each with a number."""
        return self._sizes

    @property
    def size_of(self) -> NDArray[np.int64]:
        """The number of each row's size; up to date after a call of `chooser`."""
        return self._size_of

    @property
    def chooser(self) -> Chooser:
        """Chooses GPUs by the current allocations."""
        self._forget_old()
        self.bring_up_to_date(len(self._stale))
        return self._chooser

    @property
    def by(self) -> str:
        """The name of the strategy."""
        return self._by

    def why_unusable(self, name: str) -> str | None:
        """Why a node can get no new pods with GPUs; None if it can."""
        return self._unusable.get(name) or (None if self._has_gpus(name) else NO_AGENT)

    def unusable_among(self, names: Iterable[str]) -> dict[str, str]:
        """Those of these nodes that can get no new pods with GPUs, and why.

        Up to date after a call of `chooser`; for thousands of nodes faster than one by one.
        """
        doubtful = (name for name in names if name in self._unusable or name not in self._rows)
        return {name: why for name in doubtful if (why := self.why_unusable(name)) is not None}

    @property
    def usable_nodes(self) -> int:
        """How many nodes can get new pods with GPUs."""
        return sum(self._has_gpus(name) and name not in self._unusable for name in self._nodes)

    def usage_by_pod(self, name: str) -> Mapping[str, Mapping[int, GpuUsage]]:
        """What each pod has of a node's GPUs, or has reserved: by UID and column."""
        found = self._by_pod.get(name)
        if found is None:
            found = self._by_pod[name] = self._usage(name).by_pod()
        return found

    def bring_up_to_date(self, rows: int) -> None:
        """Compute up to so many changed rows again, so that the next question has fewer to do."""
        for name in list(islice(self._stale, rows)):
            if not self._write(name):
                self._chooser = self._rebuilt()
                return
            self._stale.discard(name)

    def chooser_on(
        self, name: str, without: Collection[str] = (), *, wishes: bool = False
    ) -> Chooser | None:
        """Chooses GPUs on one node, as row 0, as if these pods, by UID, had nothing.

        None if the node is unusable. Only demands without wishes are chosen for, unless `wishes`.
        """
        if self.why_unusable(name) is not None:
            return None
        spec = self._spec(self._nodes[name])
        snapshot, by = self._empty_node(replace(spec, name="", uuids=()))
        allocations = Allocations(snapshot)
        cached = name in self._free and name not in self._stale and not without
        allocations.set_node(0, self._free[name] if cached else self.free_on(name, without))
        if wishes:
            allocations.hardware = replace(snapshot.hardware, uuids=(spec.uuids,))
            allocations.marks.elsewhere = self._labels_besides(name, without)
        return Chooser(allocations, by)

    def _labels_besides(self, name: str, without: Collection[str]) -> frozenset[str]:
        """The labels of pods that have GPUs on other nodes, but for the pods of these UIDs."""
        allocations = self.chooser.allocations
        nodes = {allocations.hardware.names[row] for row in allocations.marks.nodes()} - {name}
        return frozenset().union(*(self._usage(one).labels(without) for one in nodes))

    def _empty_node(self, spec: NodeHardware) -> tuple[Snapshot, Strategy]:
        """An empty node like this, and the strategy for it. A cluster has few kinds of nodes."""
        found = self._empty.get(spec)
        if found is None:
            snapshot = empty([spec])
            found = snapshot, strategy(self._by, snapshot.hardware)
            self._empty[spec] = found
            if len(self._empty) > EMPTY_NODES:
                self._empty.popitem(last=False)
        return found

    def free_on(self, name: str, without: Collection[str] = ()) -> NodeFree:
        """What is free on each GPU of a node, in the order of its GPUNode."""
        return self._usage(name).free(most_holders=self._most_holders, without=without)

    def _usage(self, name: str) -> NodeUsage:
        found = self._usages.get(name)
        if found is None:
            planned = {uid: self._parts(uid) for uid in self._here.get(name, ())}
            for uid, parts in self._claimed.get(name, {}).items():
                planned[uid] = (*planned.get(uid, ()), *parts)
            found = self._usages[name] = NodeUsage(self._nodes[name].status, planned)
        return found

    def _parts(self, uid: str) -> Parts:
        bound = self._bound.get(uid)
        return bound.parts if bound else self._reserved[uid].parts

    def _write(self, name: str) -> bool:
        """Compute a node's row again; False if the table has no place for it."""
        if not self._has_gpus(name):
            self._clear(name)
            return True
        node = self._nodes[name]
        allocations, spec = self._chooser.allocations, self._spec(node)
        if not allocations.hardware.has_place_for(spec) or ranked(spec) not in self._ranks:
            return False
        row = self._rows.get(name)
        if row is None:
            if not self._free_rows:
                return False
            row = self._rows[name] = self._free_rows.pop()
        same = self._specs.get(name) == spec
        self._specs[name] = spec
        self._size_of[row] = self._number(spec, node)
        free = self._free[name] = self.free_on(name)
        allocations.set_node(row, free, None if same else spec)
        return True

    def _number(self, spec: NodeHardware, node: GpuNode) -> int:
        return self._sizes.setdefault(Size(spec.gpu_bytes, node.status.shares), len(self._sizes))

    def _clear(self, name: str) -> None:
        self._specs.pop(name, None)
        self._free.pop(name, None)
        row = self._rows.pop(name, None)
        if row is not None:
            self._chooser.allocations.set_node(row, NOTHING_FREE, _unused(row))
            self._size_of[row] = NO_SIZE
            self._free_rows.append(row)
            self._layout += 1

    def _rebuilt(self) -> Chooser:
        """A new table of allocations with spare rows. Only changed nodes are counted again."""
        nodes = {name: one for name, one in self._nodes.items() if self._has_gpus(name)}
        self._ranks = strength_ranks(spec_of(one) for one in nodes.values())
        self._specs = {name: self._spec(one) for name, one in nodes.items()}
        self._rows = {name: row for row, name in enumerate(nodes)}
        self._layout += 1
        spare = range(len(nodes), len(nodes) + 16 + int(SPARE * len(nodes)))
        self._free_rows = list(reversed(spare))
        allocations = Allocations(empty([*self._specs.values(), *map(_unused, spare)]))
        self._size_of = np.full(allocations.hardware.size, NO_SIZE)
        self._free = {name: free for name, free in self._free.items() if name in nodes}
        for name, row in self._rows.items():
            node = nodes[name]
            if name in self._stale or name not in self._free:
                self._free[name] = self.free_on(name)
            self._size_of[row] = self._number(self._specs[name], node)
            allocations.set_node(row, self._free[name])
        self._stale.clear()
        return Chooser(allocations, strategy(self._by, allocations.hardware))

    def _has_gpus(self, name: str) -> bool:
        node = self._nodes.get(name)
        return node is not None and bool(node.status.gpus)

    def _spec(self, node: GpuNode) -> NodeHardware:
        """A node as `placement` knows it; no GPU of an unusable one can be given."""
        name = node.metadata.name
        spec = self._empty_specs.get(name)
        if spec is None:
            spec = self._empty_specs[name] = spec_of(node)
        unhealthy = spec.unhealthy
        if name in self._unusable:
            unhealthy = frozenset(range(spec.gpus))
        return replace(spec, rank=self._ranks.get(ranked(spec), 0.0), unhealthy=unhealthy)

    # --- inside -----------------------------------------------------------------------------------

    def _add(self, uid: str, node: str, parts: Parts) -> None:
        self._here[node].add(uid)
        if any(one.alone for one in parts):
            self._alone.add(uid)
        if node in self._usages:
            self._usages[node].add(uid, parts)
        self._mark(node)

    def _remove(self, uid: str, node: str) -> None:
        self._here[node].discard(uid)
        self._alone.discard(uid)
        self._reported.discard(uid)
        if not self._here[node]:
            del self._here[node]
        if node in self._usages:
            self._usages[node].remove(uid)
        self._mark(node)

    def _unbind(self, uid: str, *, early: bool) -> None:
        """A pod is no longer bound; `early`: its node may not have reported it yet."""
        bound = self._bound.get(uid)
        if bound is None:
            return
        node = bound.node
        until = bound.seen + UNREPORTED_SECONDS
        early = early and self.now() < until and uid not in self._reported
        del self._bound[uid]
        self._remove(uid, node)
        if early:
            self.reserve(uid, Reserved(uid, node, bound.parts, until, ended=True))

    def _learn(self, node: str) -> None:
        """A watch has reported a change of a node, or of a pod on it."""
        self._versions[node] += 1
        self._mark(node)

    def _mark(self, node: str) -> None:
        self._stale.add(node)
        self._by_pod.pop(node, None)

    def _forget_old(self) -> None:
        now = self.now()
        if now < self._next_old:
            return
        for uid in [uid for uid, one in self._reserved.items() if one.until <= now]:
            self.forget(uid)
        self._next_old = min((one.until for one in self._reserved.values()), default=math.inf)


def _is_planned_as(pod: Pod, before: Pod) -> bool:
    """Whether nothing has changed that `planned_parts` depends on."""
    return pod.spec == before.spec and pod.metadata.annotations == before.metadata.annotations


def _reported_by(node: GpuNode) -> set[str]:
    return {part.pod_uid for gpu in node.status.gpus for part in gpu.grants}


def _unused(row: int) -> NodeHardware:
    return NodeHardware(f"\0{row}", 0)
