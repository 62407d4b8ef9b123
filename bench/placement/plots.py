"""The plots of docs/placement.md.

    python bench/placement/plots.py --into docs/images [--traces TRACES]

Without --traces, the plots of the openb lists are not written.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import Gang, whole
from aliquot.placement.core.snapshot import NodeHardware
from aliquot.simulate import generate, openb
from aliquot.simulate.engine import Discipline, simulate
from aliquot.simulate.plot import Line, draw
from aliquot.simulate.report import outcome_of
from aliquot.simulate.trace import Arrival

if TYPE_CHECKING:
    from aliquot.simulate.world import Run

HOUR = 3600.0
NAMES = ("fragmentation", "fgd", "best-fit", "random")


def course(traces: Path, pods: str) -> str:
    nodes = openb.read_nodes(traces / "openb" / "openb_node_list_gpu_node.csv")
    asked = openb.read_pods(traces / "openb" / f"openb_pod_list_{pods}.csv")
    runs = [openb.replay(nodes, asked, by=name) for name in NAMES]
    lines = [Line(f"{run.strategy} {run.allocated:.1%}", run.course) for run in runs]
    title = f"openb, {pods} list, seed 42: allocated as requests arrive"
    return draw(title, "GPUs asked for / GPUs", "% of GPUs", lines)


def used(run: Run) -> list[tuple[float, float]]:
    return [(one.time, one.allocated - one.held) for one in run.samples]


def story(title: str, jobs: list[tuple[str, int, float, float]], until: float) -> str:
    nodes = [NodeHardware("a", 2), NodeHardware("b", 2)]
    arrivals = [
        Arrival(Gang(name, (whole(),) * gpus, seconds, submitted=came), seconds)
        for name, gpus, came, seconds in jobs
    ]
    ours = used(simulate(nodes, arrivals))
    others = used(simulate(nodes, arrivals, discipline=Discipline.ONE_BY_ONE))
    lines = [
        Line("as gangs, with backfill: GPUs that run", ours, steps=True),
        Line("one by one: GPUs that run", [*others, (until, others[-1][1])], steps=True),
    ]
    return draw(title, "seconds", "% of GPUs", lines)


def day(nodes: int, load: float) -> str:
    lines = []
    for name in ("fragmentation", "spread"):
        run = simulate(generate.cluster(nodes), generate.day(nodes, load=load), by=name)
        mean = outcome_of(run.fates).wait_mean / 60
        points = [(one.time / HOUR, one.allocated) for one in run.samples]
        label = f"{name}: {run.allocated:.1%} of GPU time, mean wait {mean:.1f} min"
        lines.append(Line(label, points, steps=True))
    return draw("A day of experiments, training and inference", "hours", "% of GPUs", lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--into", type=Path, required=True)
    options.add_argument("--traces", type=Path)
    chosen = options.parse_args()
    chosen.into.mkdir(parents=True, exist_ok=True)

    def write(name: str, plot: str) -> None:
        (chosen.into / name).write_text(plot, encoding="utf-8")
        print(chosen.into / name, flush=True)

    free = [("busy", 2, 0.0, 600.0), ("four", 4, 10.0, 900.0), ("two", 2, 20.0, 500.0)]
    write("two-free-gpus.svg", story("2 free GPUs, a job of 4 and a job of 2", free, 1500))
    half = [("first", 3, 0.0, 100.0), ("second", 3, 0.0, 100.0)]
    write("half-started.svg", story("Two gangs of 3 on 4 GPUs", half, 200))
    write("day.svg", day(4, 1.0))
    for pods in ("default", "gpushare100") if chosen.traces else ():
        write(f"openb-{pods}.svg", course(chosen.traces, pods))


if __name__ == "__main__":
    main()
