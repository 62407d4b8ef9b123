"""Where a request would go, and why not elsewhere.

Every node that is not chosen is accounted for: it costs more by the strategy, or it lacks
something that is named. The reasons are those of the decision itself, not a second opinion.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.fit import Lack, lacks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.placement.chooser import Chooser, Relation
    from aliquot.placement.demand import Demand, Placement


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to a request with its reasons.

    `runners_up` are nodes that fit and how much more they cost; `lacks` counts the nodes that do
    not fit by what they lack, and `examples` names one of each.
    """

    placement: Placement | None
    cost: float | None
    runners_up: tuple[tuple[int, float], ...]
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
    of_itself = lacks_of(chooser.books, demand)
    for node in map(int, np.flatnonzero(~np.isfinite(costs))):
        lack = of_itself[node] or Lack.TAKEN_OUT
        lacks[lack] += 1
        examples.setdefault(lack, node)
    return Explanation(
        placement=placement,
        cost=lowest,
        runners_up=tuple((node, float(costs[node]) - (lowest or 0.0)) for node in others[:top]),
        lacks=tuple(lacks.most_common()),
        examples=tuple(examples.items()),
    )


def count_nodes(count: int) -> str:
    """So many nodes, in words."""
    return "1 node" if count == 1 else f"{count} nodes"
