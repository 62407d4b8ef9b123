"""Where a request would go, and why not elsewhere; and why a gang can never run.

Every node that is not chosen is accounted for: it costs as much or more by the strategy, or it
lacks something that is named. The reasons are those of the decision itself, not a second opinion.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aliquot.model.strength import UNKNOWN, format_strength
from aliquot.model.units import format_bytes
from aliquot.placement.core.fit import Lack, lacks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.placement.choose.chooser import Chooser, Relation
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand, Gang, Placement
    from aliquot.placement.core.snapshot import Bools, Hardware, Ints

AS_GOOD = 1e-6  # costs that differ by less are the same


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to a request with its reasons.

    `runners_up` are nodes that fit and how much more they cost; of the others that fit, `as_good`
    cost the same as the one chosen, and `dearer` cost more. `lacks` counts the nodes that do not
    fit by what they lack, and `examples` names one of each.
    """

    placement: Placement | None
    cost: float | None
    runners_up: tuple[tuple[int, float], ...]
    as_good: int
    dearer: int
    lacks: tuple[tuple[Lack, int], ...]
    examples: tuple[tuple[Lack, int], ...]


def explain(
    chooser: Chooser, demand: Demand, relations: Sequence[Relation] = (), *, top: int = 3
) -> Explanation:
    """Decide as the chooser does, and say why. Takes nothing."""
    costs = chooser.costs(demand, relations)
    placement = chooser.choose(demand, relations)
    lowest = None if placement is None else float(costs[placement.node])
    order = (int(node) for node in np.argsort(costs, kind="stable") if np.isfinite(costs[node]))
    others = [node for node in order if placement is None or node != placement.node]
    lacks: Counter[Lack] = Counter()
    examples: dict[Lack, int] = {}
    of_itself = lacks_of(chooser.allocations, demand)
    for node in map(int, np.flatnonzero(~np.isfinite(costs))):
        lack = of_itself[node] or Lack.TAKEN_OUT
        lacks[lack] += 1
        examples.setdefault(lack, node)
    more = [(node, float(costs[node]) - (lowest or 0.0)) for node in others]
    as_good = sum(cost <= AS_GOOD for _, cost in more[top:])
    return Explanation(
        placement=placement,
        cost=lowest,
        runners_up=tuple(more[:top]),
        as_good=as_good,
        dearer=len(more[top:]) - as_good,
        lacks=tuple(lacks.most_common()),
        examples=tuple(examples.items()),
    )


def unit_of_cost(by: str) -> str:
    """What a strategy counts its costs in."""
    return "thousandths of a GPU" if by == "fragmentation" else f"points of {by}"


def never_fits(nothing_runs: Allocations, gang: Gang) -> str | None:
    """Why a gang can never run, where one of its members fits no node even if nothing runs."""
    hardware = nothing_runs.hardware
    for member in dict.fromkeys(gang.members):
        found = lacks_of(nothing_runs, member)
        if None in found:
            continue
        parts = []
        for lack, count in Counter(found).most_common():
            nodes = np.array([one is lack for one in found])
            parts.append(f"{count_nodes(count)}: {_most_there_is(lack, member, hardware, nodes)}")
        return f"a member ({member}) fits no node, even an empty one: {'; '.join(parts)}"
    return None


def _most_there_is(lack: Lack | None, demand: Demand, hardware: Hardware, nodes: Bools) -> str:
    """What these nodes lack though nothing runs, and the most that they have of it."""
    if lack is Lack.MODEL:
        there = ", ".join(sorted(filter(None, hardware.models)))
        return f"{lack} (there are: {there})" if there else "they do not name their GPU model"
    if lack is Lack.WEAK:
        return weaker_than_asked(demand.min_strength, float(hardware.strength[nodes].max()))
    if lack in {Lack.NAMED, Lack.TOO_FEW}:
        there = f"there are {int(hardware.gpu_count[nodes].max())} at most"
        return f"{lack} ({there if lack is Lack.TOO_FEW else demand.wishes})"
    if lack is Lack.TOO_SMALL:
        return _amount("GPU memory", demand.gpu_bytes, hardware.gpu_bytes[nodes], format_bytes)
    if lack is Lack.RAM:
        return _amount(
            "memory of the node", demand.ram_bytes, hardware.ram_bytes[nodes], format_bytes
        )
    return _amount("CPU", demand.cpu_milli, hardware.cpu_milli[nodes], lambda n: f"{n / 1000:.10g}")


def weaker_than_asked(asked: float, strongest: float) -> str:
    """What nodes lack whose strongest GPU is too weak."""
    if strongest == UNKNOWN:
        there = "the strength of none is known"
    else:
        there = f"the strongest has {format_strength(strongest)}"
    return f"{Lack.WEAK} (it asks for strength {format_strength(asked)}, and {there})"


def _amount(what: str, asked: int, there: Ints, write: Callable[[int], str]) -> str:
    most = int(there.max())
    if not most:
        return f"their {what} is not known, and it asks for {write(asked)}"
    return f"not enough {what} (it asks for {write(asked)}, and there is {write(most)} at most)"


def count_nodes(count: int) -> str:
    """So many nodes, in words."""
    return "1 node" if count == 1 else f"{count} nodes"
