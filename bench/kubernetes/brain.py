"""How fast the extender decides beside waiting gangs: single pods, and the decision over all gangs.

    python bench/kubernetes/brain.py [--nodes 5000] [--pods 2000] [--gangs 64] [--queues 20]

No HTTP and no API server: only what is computed. The cluster has nodes of 8 GPUs. Single pods of
six shapes fill a fifth of the nodes, gangs of one node run on the others but for 8, each with its
own end, and gangs of 16 to 256 GPUs wait, by turns in each queue. Then single pods come that run
for ten minutes or an hour, and older ones end. Each is timed from the question to the reserved
place, or the refusal. Told is CPU time, which is what a machine that does nothing else would take:
single pods without waiting gangs, the decision over all gangs, single pods with its planned starts,
and the memory of the process per node.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import sys
import time
from pathlib import Path
from statistics import mean, quantiles
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from aliquot.kubernetes.cluster.cluster import Cluster, Reserved
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
from aliquot.kubernetes.cluster.topology import Labels, Topology
from aliquot.kubernetes.extender.planner import Planner
from aliquot.kubernetes.gangs.backfill import BackfillWindow
from aliquot.placement.core.demand import Gang, Placement, Running, whole
from aliquot.placement.decide import DecisionInput, decide
from aliquot.placement.queues.quota import Queue
from kubernetes.builders import make_node, make_pod

if TYPE_CHECKING:
    from collections.abc import Callable

NOW, GPUS = 1000.0, 8
SHAPES: tuple[dict[str, Any], ...] = (
    {"gpu": 1},
    {"gpu": 2},
    {"memory": 20, "core": 30},
    {"memory": 40, "core": 60},
    {"sgpu": 1},
    {"memory": 8, "core": 10},
)
HELD = 200


def mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(act: Callable[[], object]) -> float:
    """Milliseconds of CPU."""
    begun = time.process_time()
    act()
    return 1e3 * (time.process_time() - begun)


class Brain:
    """What the extender computes, with its nodes and pods."""

    def __init__(self, nodes: int) -> None:
        self.chance = random.Random(1)  # noqa: S311 - a mix, not a secret
        self.cluster = Cluster(now=lambda: NOW)
        self.planner = Planner(self.cluster)
        self.names = [f"gpu-node-{number:05}.example.internal" for number in range(nodes)]
        for name in self.names:
            self.cluster.set_node(name, make_node(name, GPUS))
        self.window: BackfillWindow | None = None
        self._made = 0
        self._held: list[str] = []

    def pod(self) -> Any:
        self._made += 1
        return make_pod(f"p{self._made}", **self.chance.choice(SHAPES))

    def place(self, pod: Any) -> None:
        """Reserve a place for a pod, as the extender does."""
        if self.window is None:
            placed = bool(self.planner.filter(pod, self.names).names)
        else:
            seconds = self.chance.choice([600.0, 3600.0])
            requests, uid = self.planner.requests(pod), pod.metadata.uid
            spot = self.window.find(uid, requests, self.names, seconds, NOW + 1)
            placed = spot is not None
            if spot is not None:
                self.cluster.reserve(uid, Reserved(pod.key, spot.node, spot.parts, math.inf))
                self.window.take(uid, spot)
        if placed:
            self._held.append(pod.metadata.uid)

    def place_many(self, pods: int) -> list[float]:
        """The times of pods, with the end of an older one after each."""
        took = []
        for _ in range(pods):
            pod = self.pod()
            took.append(timed(lambda pod=pod: self.place(pod)))  # type: ignore[misc]
            if len(self._held) > HELD:
                self.cluster.forget(self._held.pop(self.chance.randrange(len(self._held))))
        return took

    def plan(self, gangs: int, queues: int) -> tuple[float, float]:
        """Decide for waiting gangs, twice: how long the first and the second decision take."""
        picture = ClusterSnapshot(Topology(self.cluster, dict, Labels()), [NodeConstraints()])
        free, running = picture.allocations, []
        rows = [row for row in range(len(self.names)) if not free.kind[row].any()]
        for number, row in enumerate(rows[:-8]):
            gang = Gang(f"r{number}", (whole(GPUS),), queue=f"q{number % queues}")
            place = (Placement(row, tuple(range(GPUS))),)
            one = Running(gang, place, NOW - 10, NOW + 600 + 7 * (number % 500))
            running.append(one)
            for allocations in (free, self.cluster.chooser.allocations):
                allocations.take_gang(one)
        member = picture.demand(self.planner.requests(make_pod(gpu=1)), NodeConstraints())
        waiting = [
            Gang(
                f"w{number}",
                (member,) * self.chance.choice([16, 64, 128, 256]),
                queue=f"q{number % queues}",
                submitted=float(number),
            )
            for number in range(gangs)
        ]
        of = {f"q{number}": Queue(f"q{number}", weight=1 + number % 3) for number in range(queues)}
        took, planned = [], ()
        for _ in range(2):
            begun = time.process_time()
            decision = decide(
                DecisionInput(free, running, planned, waiting, [], of, NOW, picture.by)
            )
            took.append(1e3 * (time.process_time() - begun))
            planned = decision.planned
        if decision.timeline is not None:
            self.window = BackfillWindow(self.cluster, picture, decision.timeline, planned)
        return took[0], took[1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nodes", type=int, default=5000)
    options.add_argument("--pods", type=int, default=2000)
    options.add_argument("--gangs", type=int, default=64)
    options.add_argument("--queues", type=int, default=20)
    chosen = options.parse_args()
    before = mebibytes()
    brain = Brain(chosen.nodes)
    brain.place(brain.pod())
    print(f"memory        {1024 * (mebibytes() - before) / chosen.nodes:8.1f} KiB a node")
    for _ in range(3 * chosen.nodes // 2):
        brain.place(brain.pod())
    tell("without gangs", brain.place_many(chosen.pods))
    first, again = brain.plan(chosen.gangs, chosen.queues)
    print(f"decision      {first:8.1f} ms, again {again:.1f} ms")
    tell("beside gangs", brain.place_many(chosen.pods))


def tell(name: str, took: list[float]) -> None:
    edges = quantiles(took, n=100)
    print(
        f"{name:13} {1e3 / mean(took):8.0f} pods a second, p50 {edges[49]:.2f} ms,"
        f" p99 {edges[98]:.2f} ms, at most {max(took):.1f} ms"
    )


if __name__ == "__main__":
    main()
