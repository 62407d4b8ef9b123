"""What a node is still worth: how much of the work that is likely to come will fit on it.

The model. Work comes as random draws from a known mix of demands. A hole of r thousandths in a GPU
is offered a number of draws, one after the other, and takes each that fits: `fill[r]` is what it
holds in the end, on average, and `cpu[r]`, `ram[r]` are what that takes of the node. GPUs that are
still free are worth more together where the mix has work that needs several: `Forecast.idle`. A
node's worth is the fill of all its holes, less what its CPU and memory cannot carry: the factor
x / (1 + x^6)^(1/6), which is a smooth minimum of x and 1, with x the ratio of what is left to what
the fill needs. The ratio is taken with some slack, since the draws that need less are those that
still fit when little is left.

The tables are made once from the mix, with draws of their own seed; looking up is all that is done
afterwards. Equal mixes give equal tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind, sliced, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from aliquot.placement.core.snapshot import Hardware, Ints

    Floats = NDArray[np.float64]

SAMPLES = 400
DRAWS_PER_GPU = 20
SLACK = 1.6

Mix = dict[Demand, float]

# Where nobody says what is likely to come: some of everything.
ANYTHING: Mix = {
    whole(1): 4.0,
    whole(2): 1.0,
    whole(4): 0.5,
    whole(8): 0.5,
    sliced(500): 3.0,
    sliced(250): 3.0,
    sliced(100): 2.0,
}


@dataclass(frozen=True, slots=True)
class Table:
    """Thousandths, CPU and memory that come to a hole by its size, or to free GPUs by number."""

    fill: Floats
    cpu: Floats
    ram: Floats


@dataclass(frozen=True, slots=True)
class Forecast:
    """The tables, a row for each GPU model. `uses`: whether likely work needs CPU, and memory."""

    holes: Table
    idle: Table
    uses: tuple[bool, bool]

    def worth(self, fill: Floats, needs: tuple[Floats, Floats], left: tuple[Ints, Ints]) -> Floats:
        """The fill that CPU and memory can carry."""
        for uses, need, there in zip(self.uses, needs, left, strict=True):
            fill = fill * (carried(there, need) if uses else np.sign(there))
        return fill


def carried(left: Ints, need: Floats) -> Floats:
    """A smooth minimum of the ratio and 1: x / (1 + x^6)^(1/6), without the slow powers."""
    ratio: Floats = np.multiply(left, SLACK)
    ratio /= np.maximum(need, 1e-9)
    np.minimum(ratio, 1e6, out=ratio)
    power = ratio * ratio
    power *= ratio
    power *= power
    power += 1
    np.cbrt(power, out=power)
    np.sqrt(power, out=power)
    ratio /= power
    return ratio


def outlook(mix: Mix, hardware: Hardware) -> Forecast:
    """The tables for what is likely to come to these nodes."""
    holes, idle = [], []
    suiting = {demand: hardware.suiting_models(demand) for demand in mix}
    for model in range(len(hardware.models)):
        memory = int(hardware.gpu_bytes[hardware.model == model].max(initial=0))
        usable = (demand for demand in mix if demand.gpus and demand.gpu_bytes <= memory)
        offers = tuple(
            _Offer.of(demand, mix[demand], memory) for demand in usable if suiting[demand][model]
        )
        tables = _tables(offers, hardware.present.shape[1])
        holes.append(tables[0])
        idle.append(tables[1])
    of_holes, of_idle = _stack(holes), _stack(idle)
    return Forecast(
        holes=of_holes,
        idle=of_idle,
        uses=(
            bool(of_holes.cpu.any() or of_idle.cpu.any()),
            bool(of_holes.ram.any() or of_idle.ram.any()),
        ),
    )


@lru_cache(maxsize=64)
def _tables(offers: tuple[_Offer, ...], widest: int) -> tuple[Table, Table]:
    holes = _fill_of_holes(offers)
    return holes, _fill_of_idle(offers, holes, widest)


@dataclass(frozen=True, slots=True)
class _Offer:
    """A demand as the draws see it."""

    gpus: int
    size: int
    cpu: float
    ram: float
    weight: float
    several_whole: bool

    @classmethod
    def of(cls, demand: Demand, weight: float, gpu_bytes: int) -> _Offer:
        memory = -(-demand.gpu_bytes * WHOLE_MILLI // gpu_bytes) if gpu_bytes else 0
        is_whole = demand.kind is Kind.WHOLE
        size = WHOLE_MILLI if is_whole else max(demand.milli, memory)
        several = is_whole and demand.gpus > 1
        parts = 1 if several else demand.gpus
        return cls(
            gpus=demand.gpus if several else 1,
            size=size,
            cpu=demand.cpu_milli / parts,
            ram=demand.ram_bytes / parts,
            weight=weight * parts,
            several_whole=several,
        )


def _draws(offers: Sequence[_Offer], shape: tuple[int, ...]) -> Ints:
    weights = np.array([offer.weight for offer in offers])
    random = np.random.default_rng(0)
    return random.choice(len(offers), size=shape, p=weights / weights.sum())


def _columns(offers: Sequence[_Offer]) -> tuple[Ints, Floats, Floats]:
    return (
        np.array([offer.size for offer in offers], dtype=np.int64),
        np.array([offer.cpu for offer in offers]),
        np.array([offer.ram for offer in offers]),
    )


def _fill_of_holes(offers: Sequence[_Offer]) -> Table:
    """For a hole of each size in one GPU."""
    sizes = np.arange(WHOLE_MILLI + 1)
    singles = [offer for offer in offers if not offer.several_whole]
    if not singles:
        return Table(*(np.zeros(WHOLE_MILLI + 1) for _ in range(3)))
    size, cpu, ram = _columns(singles)
    left = np.broadcast_to(sizes, (SAMPLES, WHOLE_MILLI + 1)).copy()
    used_cpu, used_ram = np.zeros(left.shape), np.zeros(left.shape)
    for drawn in _draws(singles, (DRAWS_PER_GPU, SAMPLES)):
        taken = size[drawn][:, None] <= left
        left -= taken * size[drawn][:, None]
        used_cpu += taken * cpu[drawn][:, None]
        used_ram += taken * ram[drawn][:, None]
    return Table((sizes - left).mean(axis=0), used_cpu.mean(axis=0), used_ram.mean(axis=0))


def _fill_of_idle(offers: Sequence[_Offer], holes: Table, widest: int) -> Table:
    """The forecast for each number of free GPUs on one node.

    If no work needs several GPUs, free GPUs count as separate holes. If some does, what the same
    draws place more is added; the larger its part of the mix, the more the draws alone decide.
    """
    total = sum(o.weight * o.gpus * o.size for o in offers)
    several = sum(o.weight * o.gpus * o.size for o in offers if o.several_whole)
    columns = [np.arange(widest + 1) * one[WHOLE_MILLI] for one in _parts(holes)]
    if not several:
        return Table(*columns)
    part = several / total
    for count in range(1, widest + 1):
        drawn = _draws(offers, (DRAWS_PER_GPU * count, SAMPLES))
        together = _place_draws(offers, drawn, count, several=True)
        apart = _place_draws(offers, drawn, count, several=False)
        for column, with_several, without in zip(columns, together, apart, strict=True):
            alone = column[count] + with_several - without
            column[count] = part * with_several + (1 - part) * alone
    return Table(*columns)


def _place_draws(
    offers: Sequence[_Offer], drawn: Ints, count: int, *, several: bool
) -> tuple[float, float, float]:
    """What a node with `count` free GPUs takes of the draws, the tightest GPU first."""
    size, cpu, ram = _columns(offers)
    need = np.array([offer.gpus for offer in offers], dtype=np.int64)
    left = np.full((SAMPLES, count), WHOLE_MILLI, dtype=np.int64)
    milli, used_cpu, used_ram = np.zeros(SAMPLES), np.zeros(SAMPLES), np.zeros(SAMPLES)
    for row in drawn:
        fits = left >= size[row][:, None]
        wanted = need[row]
        placed = fits.sum(axis=1) >= wanted
        if not several:
            placed &= wanted == 1
        order = np.argsort(np.where(fits, left, 2 * WHOLE_MILLI), axis=1, kind="stable")
        rank = np.argsort(order, axis=1, kind="stable")
        chosen = placed[:, None] & (rank < wanted[:, None])
        left -= chosen * size[row][:, None]
        milli += placed * wanted * size[row]
        used_cpu += placed * cpu[row]
        used_ram += placed * ram[row]
    return float(milli.mean()), float(used_cpu.mean()), float(used_ram.mean())


def _parts(table: Table) -> tuple[Floats, Floats, Floats]:
    return table.fill, table.cpu, table.ram


def _stack(tables: Sequence[Table]) -> Table:
    return Table(*(np.stack(parts) for parts in zip(*map(_parts, tables), strict=True)))
