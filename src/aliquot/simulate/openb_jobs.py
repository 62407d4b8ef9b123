"""Jobs under pressure, made of the openb list: it has times, but its cluster is never full.

The rule, in this order:

1. Pods with GPUs that were scheduled and have ended, and ran for a minute at least and 12 hours at
   most (what runs longer is taken for a service), of the last 30 days of the list (nine tenths of
   all come in them).
2. Pods of one shape (GPUs, thousandths, CPU and memory), each created within 15 minutes of the one
   before, are one gang, of up to 16 workers. A pod of several GPUs is as many workers with one GPU
   each. A gang runs for the mean of its pods' times, by their GPUs: the GPU time is the list's.
3. The seed draws some of the gangs, and for each a declared duration: up to twice as long as it
   runs.
4. The times between arrivals are scaled by one factor, so that the work of all gangs is `load` of
   what the GPUs could do until the last arrival.
5. The cluster is some nodes of the list, evenly spaced in it. CPU and memory of nodes do not count
   here, nor do GPU models.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.placement.core.demand import Demand, Gang
from aliquot.simulate.openb import PODS, TIMED_PODS, TIMES, demand_of
from aliquot.simulate.rows import MOST_SECONDS, read_rows, refuse_again
from aliquot.simulate.trace import Arrival

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from aliquot.placement.core.snapshot import NodeHardware
    from aliquot.simulate.rows import CsvRow

HOUR = 3600.0
SHORTEST, LONGEST = 60.0, 12 * HOUR
LAST = 30 * 24 * HOUR
TOGETHER = 900.0
WORKERS = 16

Shape = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Ran:
    name: str
    shape: Shape
    worker: Demand
    workers: int
    created: float
    seconds: float


def read_jobs(path: Path) -> list[Arrival]:
    """All gangs of the list in the order in which they come."""
    rows = read_rows(path, TIMED_PODS)
    refuse_again(rows, "name")
    ran = [one for row in rows if (one := _ran(row))]
    if not ran:
        raise InvalidValueError(
            f"{path} has no pod with GPUs that ran for {SHORTEST:g} s to {LONGEST / HOUR:g} h",
            "Give openb's list of pods, with its times.",
        )
    last = max(one.created for one in ran)
    recent = [one for one in ran if one.created > last - LAST]
    gangs = [_gang(group) for group in _groups(recent)]
    return sorted(gangs, key=lambda one: (one.gang.submitted, one.gang.name))


def some_of(jobs: Sequence[Arrival], count: int, seed: int) -> list[Arrival]:
    """`count` random jobs in their order, declared to run 1 to 2 times as long as they do."""
    chance = random.Random(seed)  # noqa: S311 - a draw, not a secret
    kept = sorted(chance.sample(range(len(jobs)), min(count, len(jobs))))
    return [
        replace(job, gang=replace(job.gang, seconds=job.ran / chance.uniform(0.5, 1.0)))
        for job in (jobs[number] for number in kept)
    ]


def pressed(jobs: Sequence[Arrival], capacity_milli: int, load: float) -> list[Arrival]:
    """The jobs with arrival times from 0 on, scaled by one factor so that the mean load is `load`.

    The load is the work of all jobs by the GPU time until the last arrival.
    """
    if not jobs:
        return []
    first = min(job.gang.submitted for job in jobs)
    length = max(job.gang.submitted for job in jobs) - first
    work = sum(job.gang.milli * job.ran for job in jobs)
    factor = work / (load * max(1, capacity_milli)) / length if length else 0.0
    return [
        replace(job, gang=replace(job.gang, submitted=(job.gang.submitted - first) * factor))
        for job in jobs
    ]


def some_nodes(nodes: Sequence[NodeHardware], count: int) -> list[NodeHardware]:
    """`count` nodes, evenly spaced in the list, with their CPU and memory set to 0."""
    if not 0 < count <= len(nodes):
        raise InvalidValueError(
            f"there are {len(nodes)} nodes, and {count} of them cannot be taken",
            f"Write a number from 1 to {len(nodes)}.",
        )
    kept = (nodes[number * len(nodes) // count] for number in range(count))
    return [replace(node, cpu_milli=0, ram_bytes=0) for node in kept]


def _ran(row: CsvRow) -> _Ran | None:
    demand = demand_of(row)
    if not demand.gpus or not row.text("scheduled_time") or not row.text("deletion_time"):
        return None
    created, ended, began = (row.number(name, most=MOST_SECONDS) for name in TIMES)
    if not SHORTEST <= ended - began <= LONGEST:
        return None
    return _Ran(
        name=row.name("name"),
        shape=tuple(row.text(name) for name in PODS.needed[1:]),
        worker=Demand(gpus=1, kind=demand.kind, milli=demand.milli),
        workers=demand.gpus,
        created=created,
        seconds=ended - began,
    )


def _groups(pods: Iterable[_Ran]) -> Iterator[list[_Ran]]:
    group: list[_Ran] = []
    for pod in sorted(pods, key=lambda one: (one.shape, one.created, one.name)):
        joins = (
            group
            and group[-1].shape == pod.shape
            and pod.created - group[-1].created <= TOGETHER
            and sum(one.workers for one in group) + pod.workers <= WORKERS
        )
        if group and not joins:
            yield group
            group = []
        group.append(pod)
    if group:
        yield group


def _gang(group: Sequence[_Ran]) -> Arrival:
    workers = sum(one.workers for one in group)
    seconds = sum(one.seconds * one.workers for one in group) / workers
    first = group[0]
    gang = Gang(first.name, (first.worker,) * workers, seconds, submitted=first.created)
    return Arrival(gang, seconds)
