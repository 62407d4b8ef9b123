"""How long one decision about elastic jobs takes: who starts, who grows, who gives back.

    python bench/placement/elastic.py [--jobs 150] [--nodes 200] [--pictures 7] [--json] [--check]

Nodes of 8 GPUs, as the job controller checks them. Two thirds of the jobs run and have all
GPUs, unevenly; the others wait. Each has up to 16 sizes and speeds at some of them, or none; they
are of 4 queues, one with a quota and one with a limit. `even`: workers of one whole GPU. `mixed`:
of 1, 2, 4 or 8, and two jobs in seven of slices. `calm`: the same jobs as `even` after decisions
were carried out until none was left to make, which is what is decided most of the time.

Told is the median and the most of some pictures, each drawn by its own seed, in milliseconds; names
with `cpu` count the thread's own time. Then how often the check was asked, and how many jobs the
decision starts or resizes. `limits.json` has what must hold.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from limits import broken, read_limits

from aliquot.model.job import Sizes
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Running, sliced, whole
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.feasibility import ClusterCapacity, Feasibility, JobWorkers
from aliquot.placement.elastic.job import Elastic
from aliquot.placement.elastic.resize import Rules, decide
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.queues.quota import Bound, Queue

if TYPE_CHECKING:
    from aliquot.placement.elastic.resize import SizeDecision

NOW = 10_000.0
RULES = Rules(settle_seconds=0.0)
MEMBERS = {
    "even": [whole(1)],
    "mixed": [whole(1), whole(1), whole(2), whole(4), whole(8), sliced(250), sliced(500)],
}
CALM_AFTER = 20  # decisions at most

Measured = dict[str, float]


@dataclass
class Asked(Feasibility[Running]):
    """The check, and how often it was asked."""

    times: int = 0

    def fits(self, sizes: Mapping[str, int]) -> bool:
        self.times += 1
        return super().fits(sizes)


@dataclass
class Snapshot:
    """All that is decided about: jobs, and where those that run are."""

    jobs: list[Elastic]
    allocations: Allocations
    queues: dict[str, Queue]
    held: dict[str, tuple[Running, ...]]

    def check(self) -> Asked:
        parties = {
            one.name: JobWorkers(
                one.name, (one.member,), self.held.get(one.name, ()), one.size or None
            )
            for one in self.jobs
        }
        by = strategy("fragmentation", self.allocations.hardware)
        return Asked(ClusterCapacity(self.allocations, by), parties)

    def decide(self, check: Feasibility[Running]) -> SizeDecision:
        hardware = self.allocations.hardware
        return decide(self.jobs, check, self.queues, hardware, NOW, RULES, {})

    def resize(self, place: int, size: int) -> bool:
        """Another size for a job, placed anew, where that is possible."""
        job = self.jobs[place]
        for one in self.held.get(job.name, ()):
            self.allocations.give_gang(one)
        found = plan_gang(self.allocations, Gang(job.name, (job.member,) * size))
        if found is not None:
            each = Gang(job.name, (job.member,))
            self.held[job.name] = tuple(Running(each, (one,), 0.0, 1.0) for one in found)
            self.jobs[place] = replace(job, size=size)
        for one in self.held.get(job.name, ()):
            self.allocations.take_gang(one)
        return found is not None

    def carry_out(self, decision: SizeDecision) -> None:
        sizes = {name: size for name, (size, _) in decision.resizes.items()} | decision.starts
        order = sorted(
            enumerate(self.jobs), key=lambda one: sizes.get(one[1].name, 0) - one[1].size
        )
        for place, job in order:
            if job.name in sizes:
                self.resize(place, sizes[job.name])


def drawn(nodes: int, count: int, members: list[Demand], seed: int) -> Snapshot:
    """So many jobs, of which two thirds run."""
    chance = random.Random(seed)  # noqa: S311 - the same each time
    specs = [NodeHardware(f"n{i}", 8, gpu_bytes=80 << 30, rack=f"r{i // 16}") for i in range(nodes)]
    queues = {
        "own": Queue("own", weight=2, quota=Bound(nodes * 1500)),
        "small": Queue("small", limit=Bound(nodes * 1000)),
    }
    fair = max(1, nodes * 8 * 3 // (2 * count))
    jobs = [job(chance, number, chance.choice(members), fair) for number in range(count)]
    snapshot = Snapshot(jobs, Allocations(empty(specs)), queues, {})
    running = range(count * 2 // 3)
    for place in running:
        allowed = jobs[place].sizes.allowed
        first = chance.randrange(len(allowed))
        any(snapshot.resize(place, size) for size in reversed(allowed[: first + 1]))
    for place in running:
        for size in jobs[place].sizes.allowed:
            if size > snapshot.jobs[place].size and not snapshot.resize(place, size):
                break
    return snapshot


def job(chance: random.Random, number: int, member: Demand, fair: int) -> Elastic:
    """It can have up to three times its fair part."""
    most = max(2, 3000 * fair // member.total_milli)
    step = -(-most // 16)
    allowed = chance.choice((range(step, most + 1, step), [1 << n for n in range(9)]))
    sizes = Sizes(tuple(one for one in allowed if one <= most))
    power = chance.uniform(0.5, 1.0)
    measured = chance.sample(sizes.allowed, min(len(sizes.allowed), chance.randrange(4)))
    return Elastic(
        name=f"job-{number}",
        sizes=sizes,
        member=member,
        queue=chance.choice(("own", "small", "c", "d")),
        submitted=NOW - 100 + number / 100,
        resized_at=0.0,
        speeds={size: 100 * size**power for size in measured},
    )


def measure(kind: str, snapshot: Snapshot) -> Measured:
    if kind == "calm":
        for _ in range(CALM_AFTER):
            decision = snapshot.decide(snapshot.check())
            if not decision.resizes and not decision.starts:
                break
            snapshot.carry_out(decision)
    check = snapshot.check()
    begun, begun_cpu = time.perf_counter(), time.thread_time()
    decision = snapshot.decide(check)
    return {
        "ms": 1e3 * (time.perf_counter() - begun),
        "cpu_ms": 1e3 * (time.thread_time() - begun_cpu),
        "asked": check.times,
        "changes": len(decision.resizes) + len(decision.starts),
    }


def summed_up(found: list[Measured]) -> Measured:
    return {
        **{name: median(one[name] for one in found) for name in found[0]},
        "most_ms": max(one["ms"] for one in found),
        "most_cpu_ms": max(one["cpu_ms"] for one in found),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--jobs", type=int, default=150)
    options.add_argument("--nodes", type=int, default=200)
    options.add_argument("--snapshots", type=int, default=7)
    options.add_argument("--json", action="store_true")
    options.add_argument("--check", action="store_true", help="fail where limits.json is passed")
    chosen = options.parse_args()
    rows: dict[str, Measured] = {}
    for kind in ("even", "mixed", "calm"):
        members = MEMBERS["even" if kind == "calm" else kind]
        snapshots = (
            drawn(chosen.nodes, chosen.jobs, members, seed) for seed in range(chosen.snapshots)
        )
        rows[kind] = summed_up([measure(kind, one) for one in snapshots])
    if chosen.json:
        print(json.dumps(rows, indent=1))
    else:
        for kind, row in rows.items():
            print(kind, "  ".join(f"{name} {value:.1f}" for name, value in row.items()))
    return check(rows) if chosen.check else 0


def check(rows: dict[str, Measured]) -> int:
    found = [
        f"{kind}: {one}"
        for kind, row in rows.items()
        for one in broken(read_limits("elastic", kind), row)
    ]
    print(*found, sep="\n", end="\n" * bool(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
