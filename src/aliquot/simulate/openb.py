"""Replay of the openb trace: requests come one by one and stay.

Pods are sorted by name and shuffled by the seed, each comes once; then uniform draws with
replacement follow, until the next one's GPU demand would pass `arrive` times the nodes' GPUs (the
list itself is used whole, even if it asks for more than that). Each is placed when it arrives or
refused for good: never retried, moved or removed. The strategy knows the list's mix of shapes and
not the order.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.model.units import MIB
from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.forecast import outlook
from aliquot.placement.choose.strategies import Fragmentation, strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.core.fit import all_rows
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.simulate.rows import MOST_GPUS, Columns, read_rows, refuse_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from aliquot.placement.choose.forecast import Mix
    from aliquot.simulate.rows import CsvRow

NODES = Columns("nodes", ("sn", "cpu_milli", "memory_mib", "gpu", "model"))
TIMES = ("creation_time", "deletion_time", "scheduled_time")
PODS = Columns(
    "pods",
    ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"),
    ("gpu_spec", "qos", "pod_phase", *TIMES),
)
TIMED_PODS = Columns(PODS.of, (*PODS.needed, *TIMES), PODS.others[:3])
POINTS = 200


@dataclass(frozen=True, slots=True)
class OpenbPod:
    """A request of the list."""

    name: str
    demand: Demand


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to.

    `lost` is the part of what was left in the end that nothing of the list's mix would use.
    `course` has (arrived, allocated) in parts of all GPUs, in order.
    """

    strategy: str
    seed: int
    capacity_milli: int
    placed_milli: int
    placed: int
    refused: int
    refused_milli: int
    lost: float
    seconds: float
    course: tuple[tuple[float, float], ...] = field(repr=False)

    @property
    def allocated(self) -> float:
        """The part of all GPUs' thousandths that was placed."""
        return self.placed_milli / self.capacity_milli if self.capacity_milli else 0.0


def read_nodes(path: Path) -> list[NodeHardware]:
    """The nodes of a list."""
    rows = read_rows(path, NODES)
    refuse_again(rows, "sn")
    return [
        NodeHardware(
            name=row.name("sn"),
            gpus=row.whole("gpu", most=MOST_GPUS),
            model=row.text("model"),
            cpu_milli=row.whole("cpu_milli"),
            ram_bytes=row.whole("memory_mib") * MIB,
        )
        for row in rows
    ]


def read_pods(path: Path) -> list[OpenbPod]:
    """The pods of a list, sorted by name."""
    rows = read_rows(path, PODS)
    refuse_again(rows, "name")
    pods = [OpenbPod(row.name("name"), demand_of(row)) for row in rows]
    return sorted(pods, key=lambda pod: pod.name)


def demand_of(row: CsvRow) -> Demand:
    """What the pod of a line asks for."""
    gpus = row.whole("num_gpu", most=MOST_GPUS)
    milli = row.whole("gpu_milli", least=min(1, gpus), most=WHOLE_MILLI)
    return Demand(
        gpus=gpus,
        kind=_kind(gpus, milli),
        milli=_milli(gpus, milli),
        cpu_milli=row.whole("cpu_milli"),
        ram_bytes=row.whole("memory_mib") * MIB,
        models=frozenset(filter(None, row.text("gpu_spec").split("|"))),
    )


def mix_of(pods: Sequence[OpenbPod]) -> Mix:
    """How often each shape is in a list."""
    return {demand: float(n) for demand, n in Counter(pod.demand for pod in pods).items()}


def stream(
    pods: Sequence[OpenbPod], capacity_milli: int, arrive: float, seed: int
) -> Iterator[OpenbPod]:
    """The pods in the order in which they come."""
    if not pods:
        return
    chance = random.Random(seed)  # noqa: S311 - a shuffle, not a secret
    order = list(pods)
    chance.shuffle(order)
    limit = arrive * capacity_milli
    arrived = sum(pod.demand.total_milli for pod in pods)
    yield from order
    while arrived:
        pod = pods[chance.randrange(len(pods))]
        arrived += pod.demand.total_milli
        if arrived > limit:
            return
        yield pod


def replay(  # noqa: PLR0913 - one for each option of the command
    nodes: Sequence[NodeHardware],
    pods: Sequence[OpenbPod],
    *,
    by: str = "fragmentation",
    arrive: float = 1.3,
    seed: int = 42,
    progress: Callable[[float], None] | None = None,
) -> Replay:
    """Let the pods come, and place them by this strategy."""
    begun = time.perf_counter()
    start = empty(nodes)
    capacity = start.hardware.total_milli
    mix = mix_of(pods)
    chooser = Chooser(Allocations(start), strategy(by, start.hardware, mix), seed=seed)
    arriving = list(stream(pods, capacity, arrive, seed))
    every = max(1, len(arriving) // POINTS)
    placed = refused = placed_milli = refused_milli = arrived_milli = 0
    course = [(0.0, 0.0)]
    for number, pod in enumerate(arriving, 1):
        milli = pod.demand.total_milli
        arrived_milli += milli
        if chooser.place(pod.demand) is None:
            refused += 1
            refused_milli += milli
        else:
            placed += 1
            placed_milli += milli
        if number % every == 0 or number == len(arriving):
            course.append((arrived_milli / (capacity or 1), placed_milli / (capacity or 1)))
            if progress is not None:
                progress(number / len(arriving))
    return Replay(
        strategy=by,
        seed=seed,
        capacity_milli=capacity,
        placed_milli=placed_milli,
        placed=placed,
        refused=refused,
        refused_milli=refused_milli,
        lost=_lost(chooser.allocations, mix),
        seconds=time.perf_counter() - begun,
        course=tuple(course),
    )


def _lost(allocations: Allocations, mix: Mix) -> float:
    return Fragmentation(outlook(mix, allocations.hardware)).lost(all_rows(allocations))


def _kind(gpus: int, milli: int) -> Kind:
    if not gpus:
        return Kind.FREE
    return Kind.SLICED if gpus == 1 and milli < WHOLE_MILLI else Kind.WHOLE


def _milli(gpus: int, milli: int) -> int:
    if not gpus:
        return 0
    return milli if gpus == 1 else WHOLE_MILLI
