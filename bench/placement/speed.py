"""How fast placement decides: requests with releases, a gang of 512, starts among many gangs.

    python bench/placement/speed.py [--nodes 100,1000,5000,20000] [--runs 3] [--json] [--check]

Clusters of 8-GPU nodes in racks of 16. Requests: two thirds full of a mix of slices and whole GPUs;
each is timed from the question to the written placement, with a release of an older one after it,
so that the cluster stays as full as it is. `many`: the same with 126 shapes, which is how many the
openb list has, the most frequent 300 times as frequent as the last; `new` is the first question for
a shape. `gang512`: 512 whole GPUs on a free cluster. `plan`: a
gang runs on every two nodes, each with its own end, and takes all GPUs of them; a gang of a tenth
of the cluster has a planned start, and 8 small ones wait behind it or run before it. `replan`: of
100 mixed waiting gangs 64 have their planned starts already, and nothing has changed. `gpus16`: a
gang of two times 4 GPUs on a node of 16 with links without any order, seen for the first time.

Each run is a process of its own; the median of the runs is told, and in brackets the least and the
most. Names with `cpu` count the thread's own time, which is what a machine that does nothing else
would take. `limits.json` has what must hold.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from statistics import median, quantiles
from typing import TYPE_CHECKING

from limits import broken, read_limits

from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Placement, Running, sliced, whole
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.gangs.backfill import plan_starts
from aliquot.placement.gangs.plan import plan_gang

if TYPE_CHECKING:
    from aliquot.placement.choose.forecast import Mix

GIB = 1 << 30
REQUESTS = 3000
MIX: Mix = {
    sliced(milli, milli * 80 * GIB // 1000, cpu_milli=cpu): weight
    for milli, cpu, weight in (
        (100, 1000, 4),
        (160, 2000, 2),
        (250, 2000, 4),
        (320, 4000, 2),
        (470, 8000, 4),
        (500, 4000, 4),
        (650, 8000, 1),
        (810, 3000, 3),
    )
} | {
    whole(1, cpu_milli=10_000): 6,
    whole(2, cpu_milli=20_000): 1,
    whole(4, cpu_milli=40_000): 1,
    whole(8, cpu_milli=80_000): 0.5,
}


def cluster(count: int) -> Allocations:
    return Allocations(
        empty(
            [
                NodeHardware(
                    f"n{i}",
                    8,
                    model="H100",
                    cpu_milli=128_000,
                    ram_bytes=1024 * GIB,
                    gpu_bytes=80 * GIB,
                    rack=f"r{i // 16}",
                    block=f"b{i // 256}",
                )
                for i in range(count)
            ]
        )
    )


def many_shapes() -> Mix:
    """The mix with other needs of CPU: 126 shapes, ever rarer."""
    chance = random.Random(2)  # noqa: S311 - a mix, not a secret
    shapes = list(MIX)
    found = {
        replace(chance.choice(shapes), cpu_milli=500 * number): number**-1.2
        for number in range(1, 127)
    }
    return {shape: 1000 * weight for shape, weight in found.items()}


Measured = dict[str, float]


def measure(count: int) -> Measured:
    return {
        "nodes": count,
        **requests(count, MIX),
        **among_many_shapes(count),
        **gang_of_512(count),
        **start_among_many(count),
        **on_16_gpus(),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def requests(count: int, mix: Mix) -> Measured:
    chance = random.Random(1)  # noqa: S311 - a mix, not a secret
    shapes, weights = list(mix), list(mix.values())
    allocations = cluster(count)
    chooser = Chooser(allocations, strategy("fragmentation", allocations.hardware, mix), seed=1)
    held = filled(allocations, chance)
    for demand in shapes:
        chooser.choose(demand)
    took, cpu = [], []
    begun, begun_cpu = time.perf_counter(), time.thread_time()
    for _ in range(REQUESTS):
        demand = chance.choices(shapes, weights)[0]
        start, start_cpu = time.perf_counter(), time.thread_time()
        placement = chooser.place(demand)
        cpu.append(time.thread_time() - start_cpu)
        took.append(time.perf_counter() - start)
        if placement is not None:
            held.append((placement, demand))
        allocations.give(*held.pop(chance.randrange(len(held))))
    return {
        "p50_ms": 1e3 * median(took),
        "p99_ms": 1e3 * quantiles(took, n=100)[98],
        "p99_cpu_ms": 1e3 * quantiles(cpu, n=100)[98],
        "per_s": REQUESTS / (time.perf_counter() - begun),
        "per_cpu_s": REQUESTS / (time.thread_time() - begun_cpu),
    }


def among_many_shapes(count: int) -> Measured:
    mix = many_shapes()
    found = requests(count, mix)
    allocations = cluster(count)
    filled(allocations, random.Random(1))  # noqa: S311 - a mix, not a secret
    chooser = Chooser(allocations, strategy("fragmentation", allocations.hardware, mix), seed=1)
    unseen = iter(mix)
    new, new_cpu = timed(lambda: chooser.choose(next(unseen)), 50)
    return {
        "many_p50_ms": found["p50_ms"],
        "many_p99_ms": found["p99_ms"],
        "many_p99_cpu_ms": found["p99_cpu_ms"],
        "new_ms": new,
        "new_cpu_ms": new_cpu,
    }


def filled(allocations: Allocations, chance: random.Random) -> list[tuple[Placement, Demand]]:
    """Two thirds full, by hand: how it came to be so is not what is measured."""
    shapes, weights = list(MIX), list(MIX.values())
    held = []
    left = allocations.hardware.total_milli * 2 // 3
    while left > 0:
        demand = chance.choices(shapes, weights)[0]
        place = Placement(
            chance.randrange(allocations.hardware.size), tuple(chance.sample(range(8), demand.gpus))
        )
        if allocations.fits(place, demand):
            allocations.take(place, demand)
            held.append((place, demand))
            left -= demand.total_milli
    return held


def gang_of_512(count: int) -> Measured:
    free = cluster(count)
    took, cpu = timed(lambda: plan_gang(free, Gang("g", (whole(1, cpu_milli=8000),) * 512)), 5)
    return {"gang512_ms": took, "gang512_cpu_ms": cpu}


def start_among_many(count: int) -> Measured:
    """Gangs of two nodes run everywhere; ends are two seconds apart."""
    allocations = cluster(count)
    running = []
    for first in range(0, count - 1, 2):
        end = 3600.0 + first
        one = Gang(f"r{first}", (whole(8, cpu_milli=8000),) * 2, end)
        places = Placement(first, tuple(range(8))), Placement(first + 1, tuple(range(8)))
        running.append(Running(one, places, 0, end))
        allocations.take_gang(running[-1])
    by = strategy("fragmentation", allocations.hardware, MIX)
    big = Gang("big", (whole(8, cpu_milli=8000),) * max(1, count // 10), 3600)
    small = [Gang(f"s{i}", (sliced(100, cpu_milli=1000),), 600) for i in range(8)]
    plan = timed(lambda: plan_starts(allocations, running, (), [big, *small], 0, by=by), 3)
    mixed = [
        Gang(f"w{i}", (whole(1 + i % 8, cpu_milli=1000),) * (1 + i % 3), 600.0 * (1 + i % 7))
        for i in range(100)
    ]
    planned = plan_starts(allocations, running, (), mixed, 0, by=by).reservations
    again = timed(lambda: plan_starts(allocations, running, planned, mixed, 1, by=by), 3)
    return {
        "running": len(running),
        "plan_ms": plan[0],
        "plan_cpu_ms": plan[1],
        "replan_ms": again[0],
        "replan_cpu_ms": again[1],
    }


def on_16_gpus() -> Measured:
    chance = random.Random(1)  # noqa: S311 - links, not secrets
    table = [[0] * 16 for _ in range(16)]
    for a, b in combinations(range(16), 2):
        table[a][b] = table[b][a] = chance.choice((10, 12, 104, 118))
    allocations = Allocations(empty([NodeHardware("n", 16, links=tuple(map(tuple, table)))]))
    took, cpu = timed(lambda: plan_gang(allocations, Gang("g", (whole(4),) * 2)), 1)
    return {"gpus16_ms": took, "gpus16_cpu_ms": cpu}


def timed(act: Callable[[], object], times: int) -> tuple[float, float]:
    """The median, by the clock and of the thread's own time, in milliseconds."""
    took, cpu = [], []
    for _ in range(times):
        start, start_cpu = time.perf_counter(), time.thread_time()
        act()
        cpu.append(1e3 * (time.thread_time() - start_cpu))
        took.append(1e3 * (time.perf_counter() - start))
    return median(took), median(cpu)


def in_a_process(count: int) -> Measured:
    """So that the peak of memory is of this size alone."""
    command = [sys.executable, __file__, "--one", str(count)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    found: Measured = json.loads(answer.stdout)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nodes", default="100,1000,5000,20000")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options.add_argument("--json", action="store_true")
    options.add_argument("--check", action="store_true", help="fail where limits.json is passed")
    chosen = options.parse_args()
    if chosen.one is not None:
        print(json.dumps(measure(chosen.one)))
        return 0
    sizes = [int(count) for count in chosen.nodes.split(",")]
    runs = [[in_a_process(count) for _ in range(chosen.runs)] for count in sizes]
    rows = [{name: median(run[name] for run in of_size) for name in of_size[0]} for of_size in runs]
    if chosen.json:
        print(json.dumps(rows, indent=1))
    else:
        for row, of_size in zip(rows, runs, strict=True):
            print(f"{row['nodes']:g} nodes")
            for name in list(row)[1:]:
                found = [run[name] for run in of_size]
                print(f"  {name:15} {row[name]:10.2f}  ({min(found):.2f} to {max(found):.2f})")
    return check(rows) if chosen.check else 0


def check(rows: list[Measured]) -> int:
    found = [
        f"{row['nodes']:g} nodes: {one}"
        for row in rows
        for one in broken(read_limits(f"{row['nodes']:g}"), row)
    ]
    print(*found, sep="\n", end="\n" * bool(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
