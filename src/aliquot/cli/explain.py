"""`aliquot explain`: where a request would go on these nodes, and why not elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aliquot.cli.simulate_source import check_strategies, has_nodes_of_openb, has_pods_of_openb
from aliquot.cli.tables import print_json, print_text
from aliquot.model.errors import InvalidValueError
from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.explain import AS_GOOD, count_nodes, explain, unit_of_cost
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.snapshot import empty
from aliquot.simulate import openb, trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aliquot.cli.simulate_source import TraceSource
    from aliquot.placement.choose.explain import Explanation
    from aliquot.placement.core.demand import Demand
    from aliquot.placement.core.snapshot import Hardware, Snapshot

ARRIVE = 0.5


def explain_request(source: TraceSource, demand: Demand, *, by: str, seed: int, json: bool) -> bool:
    """Say where a request would go on these nodes, after a list has come; whether it fits."""
    check_strategies([by])
    if source.nodes is None:
        raise InvalidValueError("there are no nodes", "Give --nodes NODES.csv.")
    reader = openb.read_nodes if has_nodes_of_openb(source.nodes) else trace.read_nodes
    start = empty(reader(source.nodes))
    _check_nodes(source.nodes, start.hardware, demand)
    chooser = _after_the_list(source, start, by, seed)
    said = explain(chooser, demand)
    names = start.hardware.names
    unit = unit_of_cost(by)
    if json:
        print_json(_words(said, names, unit))
    else:
        print_text("\n".join((f"{demand}: {_where(said, names)}", *_others(said, names, unit), "")))
    return said.placement is not None


def _after_the_list(source: TraceSource, start: Snapshot, by: str, seed: int) -> Chooser:
    """The nodes after so much of the list as `arrive` says."""
    if source.pods is None:
        if source.arrive is not None:
            raise InvalidValueError(
                "--arrive says how much of a list comes before, and there is none",
                "Leave out --arrive, or give --pods PODS.csv.",
            )
        return Chooser(Allocations(start), strategy(by, start.hardware, {}), seed=seed)
    if has_pods_of_openb(source.pods) is False:
        raise InvalidValueError(
            f"{source.pods} is in our format; explain accepts only openb's list of pods",
            "Leave out --pods, or give openb's list.",
        )
    pods = openb.read_pods(source.pods)
    arrive = source.arrive or ARRIVE
    chooser = Chooser(
        Allocations(start), strategy(by, start.hardware, openb.mix_of(pods)), seed=seed
    )
    come = 0
    for pod in openb.stream(pods, 0, arrive, seed):
        come += pod.demand.total_milli
        if come > arrive * start.hardware.total_milli:
            break
        chooser.place(pod.demand)
    return chooser


def _words(said: Explanation, names: Sequence[str], unit: str) -> dict[str, Any]:
    place = said.placement
    return {
        "node": None if place is None else names[place.node],
        "gpus": [] if place is None else list(place.gpus),
        "others": [{"node": names[n], "costs_more": more} for n, more in said.runners_up],
        "unit_of_cost": unit,
        "more_as_good": said.as_good,
        "more_dearer": said.dearer,
        "refused": {str(lack): count for lack, count in said.lacks},
    }


def _where(said: Explanation, names: Sequence[str]) -> str:
    place = said.placement
    if place is None:
        return "nowhere"
    gpus = ", ".join(map(str, place.gpus)) or "none"
    return f"{names[place.node]}, GPU{'s' * (len(place.gpus) > 1)} {gpus}"


def _others(said: Explanation, names: Sequence[str], unit: str) -> Iterator[str]:
    """A line for each node that is next, and one for each group of the others."""
    for node, more in said.runners_up:
        costs = f"fits, and costs {_plain(more)} {unit} more"
        yield f"  {names[node]} {'is as good' if more <= AS_GOOD else costs}"
    if said.as_good:
        are = "1 more node is" if said.as_good == 1 else f"{said.as_good} more nodes are"
        yield f"  {are} as good"
    if said.dearer:
        fit = "1 more node fits" if said.dearer == 1 else f"{said.dearer} more nodes fit"
        yield f"  {fit} as well, and would cost more"
    example = dict(said.examples)
    for lack, count in said.lacks:
        yield f"  {count_nodes(count)}: {lack} (such as {names[example[lack]]})"


def _plain(number: float) -> str:
    """To four decimals, and never as nothing."""
    text = f"{number:.4f}".rstrip("0").rstrip(".")
    return "less than 0.0001" if text == "0" else text


def _check_nodes(path: Path, hardware: Hardware, demand: Demand) -> None:
    """Refuse what no node of the list can say anything about."""
    if demand.models and not demand.models & set(hardware.models):
        there = ", ".join(sorted(filter(None, hardware.models))) or "none: no node names its model"
        raise InvalidValueError(
            f"{path} has no GPU model {' or '.join(sorted(demand.models))}", f"There are: {there}."
        )
    if demand.gpu_bytes and not hardware.gpu_bytes.any():
        raise InvalidValueError(
            f"no node of {path} says how much memory its GPUs have",
            "Leave out --memory, or add the column gpu_memory_mib to a list in our format.",
        )
