"""Generated clusters and days of work, the same for the same seed.

`day` is a mix of three: experiments come in the working hours, short and thrifty, parts of a GPU;
training comes all day as gangs of whole GPUs, half of all at most, that run for hours; inference
comes early, in small slices, and stays.

`diurnal` are days that are full at noon and empty at night: jobs of 1 to 8 workers with a whole GPU
each, nine times as many at 14:00 as at 2:00, that run for half an hour in the middle and 8 hours at
most.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from aliquot.model.units import GIB
from aliquot.placement.core.demand import Demand, Gang, Kind
from aliquot.placement.core.snapshot import NodeHardware
from aliquot.simulate.trace import Arrival, links

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600.0
DAY = 24 * HOUR
SWING = 0.8  # of the mean rate of arrivals, up at 14:00 and down at 2:00
GPU_BYTES = 80 * GIB


def cluster(nodes: int, *, gpus: int = 8, rack: int = 4) -> list[NodeHardware]:
    """Nodes of one model in racks, a quarter of them (at least one of two) of a weaker one."""
    weak = nodes // 4
    return [
        NodeHardware(
            name=f"node-{number:03}",
            gpus=gpus,
            model="L40S" if number < weak else "H100",
            cpu_milli=16_000 * gpus,
            ram_bytes=128 * GIB * gpus,
            gpu_bytes=GPU_BYTES // 2 if number < weak else GPU_BYTES,
            rack=f"rack-{number // rack}",
            links=() if number < weak else links("nvswitch", gpus),
            strength=0.0 if number < weak else 1.0,
        )
        for number in range(nodes)
    ]


def day(nodes: int, seed: int = 42, *, load: float = 1.0, hours: int = 24) -> list[Arrival]:
    """A day of experiments, training and inference for `nodes` nodes of 8 GPUs."""
    chance = random.Random(seed)  # noqa: S311 - a generated day, not a secret
    arrivals = [
        *_inference(chance, round(12 * nodes * load), hours),
        *_training(chance, round(4.8 * nodes * load * hours / 24), hours, 8 * nodes // 2),
        *_experiments(chance, round(42 * nodes * load * hours / 24), hours),
    ]
    return sorted(arrivals, key=lambda one: (one.gang.submitted, one.gang.name))


def plain(nodes: int, *, gpus: int = 8) -> list[NodeHardware]:
    """Nodes of which only the number of GPUs matters."""
    return [NodeHardware(f"node-{number:03}", gpus) for number in range(nodes)]


def diurnal(nodes: int, seed: int = 42, *, load: float = 0.7, days: int = 3) -> list[Arrival]:
    """Days whose jobs need `load` of all GPU time of `nodes` nodes of 8 GPUs, in the mean."""
    chance = random.Random(seed)  # noqa: S311 - generated days, not a secret
    left = load * 8 * nodes * days * DAY
    arrivals: list[Arrival] = []
    while left > 0:
        workers = chance.choice((1, 1, 1, 1, 2, 2, 4, 8))
        ran = min(8 * HOUR, max(60.0, chance.lognormvariate(math.log(HOUR / 2), 1.0)))
        came = _by_day(chance, days)
        declared = ran / chance.uniform(0.5, 1.0)
        gang = Gang(f"job-{len(arrivals)}", (Demand(),) * workers, declared, submitted=came)
        arrivals.append(Arrival(gang, ran))
        left -= workers * ran
    return sorted(arrivals, key=lambda one: (one.gang.submitted, one.gang.name))


def _by_day(chance: random.Random, days: int) -> float:
    while True:
        came = chance.uniform(0, days * DAY)
        rate = 1 - SWING * math.cos(2 * math.pi * (came - 2 * HOUR) / DAY)
        if chance.uniform(0, 1 + SWING) <= rate:
            return came


def _inference(chance: random.Random, count: int, hours: int) -> Iterator[Arrival]:
    for number in range(count):
        milli = chance.choice((100, 150, 250, 400))
        came = chance.uniform(0, 2 * HOUR)
        member = _slice(milli, thrifty=True)
        gang = Gang(f"serve-{number}", (member,), hours * HOUR, "inference", 10, came)
        yield Arrival(gang, hours * HOUR - came)


def _training(chance: random.Random, count: int, hours: int, most: int) -> Iterator[Arrival]:
    for number in range(count):
        each = Demand(gpus=min(chance.choice((2, 4, 8)), most), cpu_milli=8000)
        members = min(chance.choice((1, 1, 2, 2, 4)), most // each.gpus)
        declared = chance.choice((1, 2, 4, 6)) * HOUR
        came = chance.uniform(0, hours * HOUR)
        gang = Gang(f"train-{number}", (each,) * members, declared, "training", 5, came)
        yield Arrival(gang, declared * chance.uniform(0.5, 1.0))


def _experiments(chance: random.Random, count: int, hours: int) -> Iterator[Arrival]:
    for number in range(count):
        milli = chance.choice((200, 300, 500, 500, 1000))
        came = min(hours * HOUR, max(0.0, chance.gauss(0.55, 0.16) * hours * HOUR))
        declared = chance.choice((0.5, 1, 2)) * HOUR
        member = _slice(milli, thrifty=True)
        gang = Gang(f"try-{number}", (member,), declared, "experiments", 0, came)
        yield Arrival(gang, declared * chance.uniform(0.2, 1.0))


def _slice(milli: int, *, thrifty: bool) -> Demand:
    return Demand(
        gpus=1,
        kind=Kind.SLICED,
        milli=milli,
        gpu_bytes=GPU_BYTES // 2 * milli // 1000,
        cpu_milli=2000,
        thrifty=thrifty,
    )
