"""`aliquot explain`: where a request would go on these nodes, and why not elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.cli.simulate import check_strategies, first_line
from aliquot.cli.tables import print_json, print_text
from aliquot.model.errors import BadValueError
from aliquot.placement.books import Books
from aliquot.placement.chooser import Chooser
from aliquot.placement.explain import count_nodes, explain
from aliquot.placement.snapshot import empty
from aliquot.placement.strategies import strategy
from aliquot.simulate import openb, trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aliquot.cli.simulate import Source
    from aliquot.placement.demand import Demand
    from aliquot.placement.snapshot import Hardware


def explain_request(  # noqa: PLR0913 - one for each option
    source: Source, demand: Demand, *, by: str, arrive: float, seed: int, json: bool
) -> bool:
    """Say where a request would go on these nodes, after a list has come; whether it fits."""
    check_strategies([by])
    if source.nodes is None:
        raise BadValueError("there are no nodes", "Give --nodes NODES.csv.")
    reader = openb.read_nodes if "sn" in first_line(source.nodes) else trace.read_nodes
    start = empty(reader(source.nodes))
    _check_nodes(source.nodes, start.hardware, demand)
    pods = [] if source.pods is None else openb.read_pods(source.pods)
    chooser = Chooser(Books(start), strategy(by, start.hardware, openb.mix_of(pods)), seed=seed)
    if pods:
        come = 0
        for pod in openb.stream(pods, 0, arrive, seed):
            come += pod.demand.total_milli
            if come > arrive * start.hardware.total_milli:
                break
            chooser.place(pod.demand)
    said = explain(chooser, demand)
    names = start.hardware.names
    place = said.placement
    if json:
        print_json(
            {
                "node": None if place is None else names[place.node],
                "gpus": [] if place is None else list(place.gpus),
                "others": [{"node": names[n], "costs_more": more} for n, more in said.runners_up],
                "refused": {str(lack): count for lack, count in said.lacks},
            }
        )
        return place is not None
    where = "nowhere" if place is None else f"{names[place.node]}, GPU {_list(place.gpus)}"
    lines = [f"{demand}: {where}"]
    for node, more in said.runners_up:
        also = "is as good" if more <= 1e-6 else f"fits, and costs {more:.4g} more"
        lines.append(f"  {names[node]} {also}")
    example = dict(said.examples)
    for lack, count in said.lacks:
        lines.append(f"  {count_nodes(count)}: {lack} (such as {names[example[lack]]})")
    print_text("\n".join(lines) + "\n")
    return place is not None


def _check_nodes(path: Path, hardware: Hardware, demand: Demand) -> None:
    """Refuse what no node of the list can say anything about."""
    if demand.models and not demand.models & set(hardware.models):
        there = ", ".join(sorted(filter(None, hardware.models))) or "none: no node names its model"
        raise BadValueError(
            f"{path} has no GPU model {' or '.join(sorted(demand.models))}", f"There are: {there}."
        )
    if demand.gpu_bytes and not hardware.gpu_bytes.any():
        raise BadValueError(
            f"no node of {path} says how much memory its GPUs have",
            "Leave out --memory, or add the column gpu_memory_mib to a list in our format.",
        )


def _list(gpus: Sequence[int]) -> str:
    return ", ".join(map(str, gpus)) or "none"
