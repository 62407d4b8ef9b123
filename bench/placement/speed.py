"""How fast the brain decides: one request, a gang of 512, and a stream with releases.

    python bench/placement/speed.py [--nodes 100,1000,5000,20000] [--json]

Clusters of 8-GPU nodes in racks of 16, two thirds full of a mix of slices and whole GPUs. A request
is timed from the question to the written placement, with a release of an older one after it, so
that the cluster stays as full as it is. The columns with `cpu` count this thread's own time, which
is what a machine that does nothing else would take. `limits.json` has what must hold.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from pathlib import Path
from statistics import median, quantiles

from aliquot.placement.books import Books
from aliquot.placement.chooser import Chooser
from aliquot.placement.demand import Demand, Gang, Placement, sliced, whole
from aliquot.placement.gangs import plan_gang
from aliquot.placement.snapshot import NodeSpec, empty
from aliquot.placement.strategies import strategy

GIB = 1 << 30
REQUESTS = 3000
MIX: dict[Demand, float] = {
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


def cluster(count: int) -> Books:
    return Books(
        empty(
            [
                NodeSpec(
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


def measure(count: int) -> dict[str, float]:
    chance = random.Random(1)  # noqa: S311 - a mix, not a secret
    shapes, weights = list(MIX), list(MIX.values())
    books = cluster(count)
    chooser = Chooser(books, strategy("fragmentation", books.hardware, MIX), seed=1)
    held: list[tuple[Placement, Demand]] = []
    goal = books.hardware.total_milli * 2 // 3
    used = 0
    while used < goal:  # filled by hand: how it came to be so is not what is measured
        demand = chance.choices(shapes, weights)[0]
        node = chance.randrange(count)
        gpus = tuple(chance.sample(range(8), demand.gpus))
        if books.fits(Placement(node, gpus), demand):
            books.take(Placement(node, gpus), demand)
            held.append((Placement(node, gpus), demand))
            used += demand.total_milli
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
        books.give(*held.pop(chance.randrange(len(held))))
    stream = REQUESTS / (time.perf_counter() - begun)
    stream_cpu = REQUESTS / (time.thread_time() - begun_cpu)
    free = cluster(count)
    gangs, gangs_cpu = [], []
    for _ in range(5):
        start, start_cpu = time.perf_counter(), time.thread_time()
        plan_gang(free, Gang("g", (whole(1, cpu_milli=8000),) * 512))
        gangs_cpu.append(time.thread_time() - start_cpu)
        gangs.append(time.perf_counter() - start)
    return {
        "nodes": count,
        "p50_ms": 1e3 * median(took),
        "p99_ms": 1e3 * quantiles(took, n=100)[98],
        "p99_cpu_ms": 1e3 * quantiles(cpu, n=100)[98],
        "per_s": stream,
        "per_cpu_s": stream_cpu,
        "gang512_ms": 1e3 * median(gangs),
        "gang512_cpu_ms": 1e3 * median(gangs_cpu),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nodes", default="100,1000,5000,20000")
    options.add_argument("--json", action="store_true")
    options.add_argument("--check", action="store_true", help="fail where limits.json is passed")
    chosen = options.parse_args()
    rows = [measure(int(count)) for count in chosen.nodes.split(",")]
    if chosen.json:
        print(json.dumps(rows, indent=1))
    else:
        print("  ".join(f"{name:>14}" for name in rows[0]))
        for row in rows:
            print("  ".join(f"{value:14.2f}" for value in row.values()))
    return check(rows) if chosen.check else 0


def check(rows: list[dict[str, float]]) -> int:
    limits = json.loads(Path(__file__).with_name("limits.json").read_text(encoding="utf-8"))
    failed = 0
    for row in rows:
        for name, (low, high) in limits.get(f"{row['nodes']:g}", {}).items():
            if not low <= row[name] <= high:
                failed = 1
                print(f"{row['nodes']:g} nodes: {name} is {row[name]:.2f}, not {low} to {high}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
