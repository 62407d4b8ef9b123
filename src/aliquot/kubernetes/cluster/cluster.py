"""All nodes with GPUs and who has what of them, kept up to date by what the API server tells.

Three things make a node's row in the allocations: its `GPUNode`, the pods bound to it that have a
plan, and what is reserved on it for pods that are on their way (`reserve`). A change of one of them
marks the row; the row alone is made anew before the next question. So the allocations are at any
time what they would be if all were read from scratch, and a change costs the same on five nodes and
on five thousand. Only a GPU model that no node had before, a node with more GPUs than any other, or
many more nodes make all rows anew.

No input or output, no clock but the one that is given.
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
from aliquot.kubernetes.cluster.hardware import spec_of
from aliquot.kubernetes.cluster.node_usage import NodeUsage
from aliquot.kubernetes.cluster.parts import planned_parts
from aliquot.kubernetes.cluster.usable import NO_AGENT
from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations, NodeFree
from aliquot.placement.core.snapshot import NodeSpec, empty

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from aliquot.kubernetes.api.objects import GpuNode, Pod
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.node_usage import GpuUsage
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.snapshot import Snapshot

SPARE = 0.1  # rows more than nodes, so that a new node does not make all rows anew
NOTHING_LEFT = NodeFree((), (), (), ())
NO_SIZE = -1
UNNAMED_SECONDS = 10.0  # from the bind until an agent has named a pod, or let go of one that ended
ALIKE = 256  # nodes that differ, whose empty pictures are kept


@dataclass(frozen=True, slots=True)
class Reserved:
    """What a pod that is on its way will have; forgotten at `until`.

    `pod` is for people. `sure`: it is being bound, or is bound and not yet seen so. `asked` is what
    it was planned for, and `news` how often the node had told anything new by then. `over`: the pod
    has ended, and its node may not have heard of that.
    """

    pod: str
    node: str
    parts: Parts
    until: float
    sure: bool = False
    asked: tuple[ContainerRequest, ...] = ()
    news: int = -1
    over: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a node's GPUs, and into how many shares a shared one is cut."""

    gpu_bytes: int
    shares: int


@dataclass(frozen=True, slots=True)
class _Bound:
    node: str
    parts: Parts
    seen: float


class Cluster:
    """The allocations of all nodes, and who is on their way to them."""

    def __init__(
        self,
        *,
        presets: Sequence[Preset] = (ALIQUOT,),
        by: str = "fragmentation",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._presets = presets
        self._most_holders = SLOTS if any(one.per_card for one in presets) else None
        self._by = by
        self.now = now
        self._nodes: dict[str, GpuNode] = {}
        self._unusable: dict[str, str] = {}
        self._bound: dict[str, _Bound] = {}
        self._reserved: dict[str, Reserved] = {}
        self._here: defaultdict[str, set[str]] = defaultdict(set)  # UIDs of both, by node
        self._named: set[str] = set()  # UIDs of those that their node has named at some time
        self._rows: dict[str, int] = {}
        self._specs: dict[str, NodeSpec] = {}
        self._free_rows: list[int] = []
        self._strengths: dict[str, float] = {}
        self._stale: set[str] = set()
        self._next_old = math.inf
        self._lefts: dict[str, NodeFree] = {}
        self._tallies: dict[str, NodeUsage] = {}
        self._helds: dict[str, Mapping[str, Mapping[int, GpuUsage]]] = {}
        self._news: Counter[str] = Counter()
        self._sizes: dict[Size, int] = {}
        self._size_of: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._empty: OrderedDict[NodeSpec, tuple[Snapshot, Strategy]] = OrderedDict()
        self._chooser = self._rebuilt()

    # --- what the API server tells ----------------------------------------------------------------

    def set_node(self, name: str, node: GpuNode | None) -> None:
        """A node's GPUs are now so; None: it has none any more."""
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
            self._named |= _named_by(node) & self._here.get(name, set())
        self._tallies.pop(name, None)
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
        """A pod is now so; None: it is gone. One that has ended holds what its node names, only.

        One that ends soon after it was bound may still be held by its node, which has not named it
        yet: its plan counts a while longer.
        """
        if pod is not None and not pod.ended and not pod.spec.node_name and uid not in self._bound:
            return
        reserved = self._reserved.get(uid)
        before = self._bound.get(uid) or reserved
        if reserved is not None and reserved.over and (pod is None or pod.ended):
            return
        now = None
        if pod is not None and not pod.ended and pod.spec.node_name:
            parts = planned_parts(pod, self._presets)
            seen = self._bound[uid].seen if uid in self._bound else self.now()
            now = _Bound(pod.spec.node_name, parts, seen) if parts else None
        if now and before and (now.node, now.parts) == (before.node, before.parts):
            self._reserved.pop(uid, None)  # its node's row stays as it is
            self._bound[uid] = now
            return
        self.forget(uid)
        self._part_with(uid, early=now is None)
        if now:
            self._bound[uid] = now
            self._come(uid, now.node, now.parts)
            self._learn(now.node)
            if now.node in self._nodes:
                self._named |= _named_by(self._nodes[now.node]) & {uid}

    # --- who is on their way ----------------------------------------------------------------------

    def reserve(self, uid: str, reserved: Reserved) -> None:
        """Count this for a pod, instead of what was reserved for it before."""
        if uid in self._bound:
            return
        before = self._reserved.get(uid)
        if before is None or (before.node, before.parts) != (reserved.node, reserved.parts):
            self.forget(uid)
            self._come(uid, reserved.node, reserved.parts)
        self._reserved[uid] = reserved
        self._next_old = min(self._next_old, reserved.until)

    def forget(self, uid: str) -> None:
        """Count no more what is reserved for a pod."""
        before = self._reserved.pop(uid, None)
        if before is not None:
            self._leave(uid, before.node)

    def release(self, uid: str) -> None:
        """Count no more what is reserved for a pod, unless it is being bound there."""
        before = self._reserved.get(uid)
        if before is not None and not before.sure:
            self.forget(uid)

    def forget_all(self) -> None:
        """Count no more what is reserved for anybody."""
        for uid in list(self._reserved):
            self.forget(uid)

    def reserved(self, uid: str) -> Reserved | None:
        """What is reserved for a pod."""
        self._forget_old()
        return self._reserved.get(uid)

    def unreported(self, node: str) -> Iterator[tuple[str, Parts]]:
        """Pods of a node of which it has not named all containers yet, with those it has not.

        Bound, or being bound; by UID.
        """
        if node not in self._nodes:
            return
        for uid, missing in self._tally(node).unnamed():
            if uid in self._bound or self._reserved[uid].sure:
                yield uid, missing

    def news(self, node: str) -> int:
        """How often anything was told of a node that is not from here."""
        return self._news[node]

    # --- the allocations --------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, GpuNode]:
        """All nodes, by name."""
        return self._nodes

    @property
    def rows(self) -> Mapping[str, int]:
        """The row of each node in the allocations; brought up to date by `chooser`."""
        return self._rows

    @property
    def sizes(self) -> Mapping[Size, int]:
        """The sizes that nodes have or had, numbered."""
        return self._sizes

    @property
    def size_of(self) -> NDArray[np.int64]:
        """The number of each row's size; brought up to date by `chooser`."""
        return self._size_of

    @property
    def chooser(self) -> Chooser:
        """The brain at work on the allocations as they are now."""
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

    @property
    def usable_nodes(self) -> int:
        """How many nodes can get new pods with GPUs."""
        return sum(self._has_gpus(name) and name not in self._unusable for name in self._nodes)

    def held(self, name: str) -> Mapping[str, Mapping[int, GpuUsage]]:
        """Who has what of a node's GPUs, or has it reserved: by UID and column."""
        found = self._helds.get(name)
        if found is None:
            found = self._helds[name] = self._tally(name).held()
        return found

    def bring_up_to_date(self, rows: int) -> None:
        """Make so many of the rows anew that have changed: fewer are left for the next question."""
        for name in list(islice(self._stale, rows)):
            if not self._write(name):
                self._chooser = self._rebuilt()
                return
            self._stale.discard(name)

    def alone(self, name: str, without: Collection[str] = ()) -> Chooser | None:
        """The brain on one node, as row 0, as it would be without what these pods have, by UID.

        None if the node is unusable.
        """
        if self.why_unusable(name) is not None:
            return None
        node = self._nodes[name]
        picture, by = self._alike(replace(self._spec(node), name=""))
        allocations = Allocations(picture)
        known = name in self._lefts and name not in self._stale and not without
        allocations.set_node(0, self._lefts[name] if known else self._left(name, without))
        return Chooser(allocations, by)

    def _alike(self, spec: NodeSpec) -> tuple[Snapshot, Strategy]:
        """A node like this, empty, and the strategy for it. There are few that differ."""
        found = self._empty.get(spec)
        if found is None:
            picture = empty([spec])
            found = picture, strategy(self._by, picture.hardware)
            self._empty[spec] = found
            if len(self._empty) > ALIKE:
                self._empty.popitem(last=False)
        return found

    def _left(self, name: str, without: Collection[str] = ()) -> NodeFree:
        return self._tally(name).left(most_holders=self._most_holders, without=without)

    def _tally(self, name: str) -> NodeUsage:
        found = self._tallies.get(name)
        if found is None:
            planned = {uid: self._parts(uid) for uid in self._here.get(name, ())}
            found = self._tallies[name] = NodeUsage(self._nodes[name].status, planned)
        return found

    def _parts(self, uid: str) -> Parts:
        bound = self._bound.get(uid)
        return bound.parts if bound else self._reserved[uid].parts

    def _write(self, name: str) -> bool:
        """Make a node's row anew; whether there is a place for it."""
        if not self._has_gpus(name):
            self._clear(name)
            return True
        node = self._nodes[name]
        allocations, spec = self._chooser.allocations, self._spec(node)
        if not allocations.hardware.has_place_for(spec):
            return False
        row = self._rows.get(name)
        if row is None:
            if not self._free_rows:
                return False
            row = self._rows[name] = self._free_rows.pop()
        same = self._specs.get(name) == spec
        self._specs[name] = spec
        self._size_of[row] = self._number(spec, node)
        left = self._lefts[name] = self._left(name)
        allocations.set_node(row, left, None if same else spec)
        return True

    def _number(self, spec: NodeSpec, node: GpuNode) -> int:
        return self._sizes.setdefault(Size(spec.gpu_bytes, node.status.shares), len(self._sizes))

    def _clear(self, name: str) -> None:
        self._specs.pop(name, None)
        self._lefts.pop(name, None)
        row = self._rows.pop(name, None)
        if row is not None:
            self._chooser.allocations.set_node(row, NOTHING_LEFT, _unused(row))
            self._size_of[row] = NO_SIZE
            self._free_rows.append(row)

    def _rebuilt(self) -> Chooser:
        """The allocations anew, with spare rows. Only stale nodes are counted again."""
        named = {name: one for name, one in self._nodes.items() if self._has_gpus(name)}
        sizes: dict[str, int] = defaultdict(int)
        for one in named.values():
            spec = spec_of(one)
            sizes[spec.model] = max(sizes[spec.model], spec.gpu_bytes)
        weakest_first = sorted(sizes, key=lambda model: (sizes[model], model))
        self._strengths = {model: float(rank) for rank, model in enumerate(weakest_first)}
        self._specs = {name: self._spec(one) for name, one in named.items()}
        self._rows = {name: row for row, name in enumerate(named)}
        spare = range(len(named), len(named) + 16 + int(SPARE * len(named)))
        self._free_rows = list(reversed(spare))
        allocations = Allocations(empty([*self._specs.values(), *map(_unused, spare)]))
        self._size_of = np.full(allocations.hardware.size, NO_SIZE)
        self._lefts = {name: left for name, left in self._lefts.items() if name in named}
        for name, row in self._rows.items():
            node = named[name]
            if name in self._stale or name not in self._lefts:
                self._lefts[name] = self._left(name)
            self._size_of[row] = self._number(self._specs[name], node)
            allocations.set_node(row, self._lefts[name])
        self._stale.clear()
        return Chooser(allocations, strategy(self._by, allocations.hardware))

    def _has_gpus(self, name: str) -> bool:
        node = self._nodes.get(name)
        return node is not None and bool(node.status.gpus)

    def _spec(self, node: GpuNode) -> NodeSpec:
        """A node for the brain; no GPU of an unusable one can be given."""
        spec = spec_of(node)
        unhealthy = spec.unhealthy
        if node.metadata.name in self._unusable:
            unhealthy = frozenset(range(spec.gpus))
        strength = self._strengths.get(spec.model, 0.0)
        return replace(spec, strength=strength, unhealthy=unhealthy)

    # --- inside -----------------------------------------------------------------------------------

    def _come(self, uid: str, node: str, parts: Parts) -> None:
        self._here[node].add(uid)
        if node in self._tallies:
            self._tallies[node].come(uid, parts)
        self._mark(node)

    def _leave(self, uid: str, node: str) -> None:
        self._here[node].discard(uid)
        self._named.discard(uid)
        if not self._here[node]:
            del self._here[node]
        if node in self._tallies:
            self._tallies[node].leave(uid)
        self._mark(node)

    def _part_with(self, uid: str, *, early: bool) -> None:
        """A pod is bound no more; `early`: its node may not have heard of it."""
        bound = self._bound.get(uid)
        if bound is None:
            return
        node = bound.node
        until = bound.seen + UNNAMED_SECONDS
        early = early and self.now() < until and uid not in self._named
        del self._bound[uid]
        self._leave(uid, node)
        if early:
            self.reserve(uid, Reserved(uid, node, bound.parts, until, over=True))

    def _learn(self, node: str) -> None:
        """Something that was not decided here."""
        self._news[node] += 1
        self._mark(node)

    def _mark(self, node: str) -> None:
        self._stale.add(node)
        self._helds.pop(node, None)

    def _forget_old(self) -> None:
        now = self.now()
        if now < self._next_old:
            return
        for uid in [uid for uid, one in self._reserved.items() if one.until <= now]:
            self.forget(uid)
        self._next_old = min((one.until for one in self._reserved.values()), default=math.inf)


def _named_by(node: GpuNode) -> set[str]:
    return {part.pod_uid for gpu in node.status.gpus for part in gpu.grants}


def _unused(row: int) -> NodeSpec:
    return NodeSpec(f"\0{row}", 0)
