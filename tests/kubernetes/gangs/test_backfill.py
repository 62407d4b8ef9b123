"""Backfill of single pods: whatever is placed, every planned start stays possible."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api.names import DURATION
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
from aliquot.kubernetes.cluster.cluster import Cluster, Reserved
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.offered import OfferedNodes
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
from aliquot.kubernetes.cluster.topology import Labels, Topology
from aliquot.kubernetes.cluster.workloads import Workloads
from aliquot.kubernetes.extender.planner import Planner
from aliquot.kubernetes.gangs.backfill import BackfillWindow, Spot
from aliquot.placement.core.demand import Gang
from aliquot.placement.decide import DecisionInput, decide
from aliquot.placement.gangs.timeline import Timeline
from kubernetes.builders import make_node, make_pod

NOW = 1000.0
LATE = 5.0  # a line is used until the next decision
KINDS: tuple[dict[str, Any], ...] = (
    {"gpu": 1},
    {"gpu": 2},
    {"memory": 20, "core": 30},
    {"memory": 40, "core": 60},
    {"sgpu": 1},
    {"memory": 8, "core": 10},
)
SMALL = 5
WORK = st.lists(
    st.tuples(st.sampled_from([SMALL, SMALL, 0, 1, 2, 3, 4]), st.sampled_from([20, 1000])),
    max_size=8,
)


class Stage:
    """Nodes with GPUs, and single pods that come, one after the other."""

    def __init__(self, *gpus: int) -> None:
        self.cluster = Cluster(now=lambda: NOW)
        self.planner = Planner(self.cluster)
        self.names = [f"n{number}" for number in range(len(gpus))]
        for name, count in zip(self.names, gpus, strict=True):
            self.cluster.set_node(name, make_node(name, count))
        queues = Queues()
        self.workloads = Workloads(queues.queue_of, lambda pod: asks(pod, (ALIQUOT,)), 60.0)
        self.allocations = WorkloadAllocations(self.cluster, self.workloads, queues)
        self._count = 0

    def pod(self, kind: int, seconds: int) -> Any:
        self._count += 1
        pod = make_pod(f"p{self._count}", annotations={DURATION: f"{seconds}s"}, **KINDS[kind])
        started = msgspec.structs.replace(pod.status, start_time="1970-01-01T00:16:40Z")
        pod = msgspec.structs.replace(pod, status=started)
        self.workloads.change(pod.metadata.uid, pod, NOW)
        return pod

    def window(self, wanted: list[tuple[int, int]]) -> tuple[BackfillWindow, Any] | None:
        """The window and planned starts for gangs of these, each of some pods of a kind."""
        picture = ClusterSnapshot(Topology(self.cluster, dict, Labels()), [NodeConstraints()])
        waiting = [
            Gang(f"g{n}", (picture.demand(self.requests(kind), NodeConstraints()),) * count, 100.0)
            for n, (kind, count) in enumerate(wanted)
        ]
        running = self.allocations.running(NOW)
        question = DecisionInput(picture.allocations, running, [], waiting, [], {}, NOW, picture.by)
        decision = decide(question)
        if decision.timeline is None or decision.starts:
            return None
        return BackfillWindow(
            self.cluster, picture, decision.timeline, decision.planned
        ), decision.planned

    def requests(self, kind: int) -> Any:
        return self.planner.requests(make_pod(**KINDS[kind]))


@settings(max_examples=200, deadline=None)
@given(
    gpus=st.lists(st.integers(1, 2), min_size=1, max_size=2),
    before=st.lists(st.sampled_from([0, 2, 3]), min_size=1, max_size=3),
    first=st.sampled_from([3, 0]),
    wanted=st.lists(st.integers(0, 4), max_size=2),
    after=WORK,
)
def test_backfill_delays_no_planned_start(
    gpus: list[int], before: list[int], first: int, wanted: list[int], after: list[tuple[int, int]]
) -> None:
    stage = Stage(*gpus)
    for kind in before:
        stage.planner.filter(stage.pod(kind, 200), stage.names)
    made = stage.window([(first, sum(gpus)), *((kind, 2) for kind in wanted)])
    if made is None:
        return
    window, planned = made
    offered = OfferedNodes.of(stage.cluster, stage.names)
    placed: dict[str, Spot] = {}
    for kind, seconds in after:
        pod = stage.pod(kind, seconds)
        requests = stage.planner.requests(pod)
        spot = window.find(pod.metadata.uid, requests, stage.names, seconds, NOW + LATE)
        assert spot is None or window.has_place(requests, offered, seconds, NOW + LATE)
        anew = BackfillWindow(stage.cluster, window._snapshot, window._line, planned)
        for uid, one in placed.items():
            anew.take(uid, one)
        assert spot == anew.find(pod.metadata.uid, requests, stage.names, seconds, NOW + LATE)
        if spot is None:
            continue
        placed[pod.metadata.uid] = spot
        if kind == SMALL and placed:  # one that was placed before ends
            stage.cluster.forget(next(iter(placed)))
        place = Reserved(pod.key, spot.node, spot.parts, math.inf)
        stage.cluster.reserve(pod.metadata.uid, place)
        window.take(pod.metadata.uid, spot)
    allocations = stage.cluster.chooser.allocations.copy()
    allocations.hardware = window._snapshot.hardware
    line = Timeline(allocations, stage.allocations.running(NOW), planned, NOW)
    assert not line.broken
