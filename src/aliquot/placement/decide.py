"""Decide which gangs start now, when the others are planned to start, and who is preempted. Pure.

The gang controller and the simulator both call `decide`; nothing else composes these steps:

1. Complete gangs that have some members running, as near to those as possible.
2. Order the waiting gangs by fair share, and plan starts with backfill.
3. Preempt for gangs that do not start and may reclaim quota or go before lower priorities. If it is
   enough that elastic jobs shrink, they are asked to, and nobody is evicted until their time is up.

Searching for victims is slow, so one decision searches for a few gangs only. If more may preempt,
those whose last search is longest ago come first: a gang without a way does not block the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.model.strength import UNKNOWN, format_strength
from aliquot.placement.core.demand import Running
from aliquot.placement.gangs.backfill import plan_starts
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.queues.question import DecisionInput, DisruptionBudget, ElasticSurplus
from aliquot.placement.queues.quota import (
    WITH_THIS,
    Tree,
    add_all,
    fair_share_order,
    needs,
    usage,
    within_quota,
)
from aliquot.placement.queues.reclaim import Preemptions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Placement
    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.gangs.timeline import Timeline
    from aliquot.placement.queues.preempt import Preemption
    from aliquot.placement.queues.quota import Path, Resources

__all__ = ["Decision", "DecisionInput", "DisruptionBudget", "ElasticSurplus", "decide"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do.

    `preemptions` are gangs with the victims that end for them. `reasons` says why gangs wait,
    `never` why gangs can never start on this cluster, and `above_limit` why gangs are larger than a
    limit of their queue. `delays` says why planned starts moved back. `searched` are the gangs that
    victims were searched for, and `skipped` how many more may preempt. `timeline` is what stays
    free for other work, if any start is planned. `at_limit` is the first gang that waits for each
    limit, by its queue; `limited` are all that wait for one. `shrink_requests` are the elastic jobs
    that are to shrink for a gang, each with how long that takes. `disruption_protected` are the
    victims that disruption budgets keep from a gang, by its name.
    """

    starts: tuple[Running, ...] = ()
    planned: tuple[Running, ...] = ()
    preemptions: tuple[tuple[Gang, Preemption], ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)
    above_limit: Mapping[str, str] = field(default_factory=dict)
    delays: Mapping[str, str] = field(default_factory=dict)
    searched: tuple[str, ...] = ()
    skipped: int = 0
    timeline: Timeline | None = None
    at_limit: Mapping[Path, Gang] = field(default_factory=dict)
    limited: frozenset[str] = frozenset()
    shrink_requests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    disruption_protected: Mapping[str, Sequence[str]] = field(default_factory=dict)


def decide(question: DecisionInput) -> Decision:
    """Decide for all waiting gangs."""
    now, hardware = question.now, question.allocations.hardware
    tree, every = Tree(question.queues), question.waiting
    never = {one.name: why for one in every if (why := _too_large(one, hardware))}
    above = {one.name: why for one in every if (why := _above_limit(one, tree, hardware))}
    waiting = [one for one in every if one.name not in never | above]
    allocations = question.allocations.copy()
    completed, unplaced, too_much = _complete(allocations, question)
    running = [*question.running, *question.releasing, *completed]
    planned = {one.gang.name for one in question.planned}
    used = usage(running, hardware)
    order, over = fair_share_order(
        waiting, question.queues, used, hardware, planned, ending=question.ending
    )
    covered = within_quota(order, question.queues, used, hardware)
    plan = plan_starts(
        allocations,
        running,
        question.planned,
        [*unplaced, *order],
        now,
        by=question.by,
        seed=question.seed,
        own=covered | {one.name for one in unplaced},
    )
    for one in plan.starts:
        allocations.take_gang(one, known_to_fit=True)
    running += plan.starts
    search = Preemptions(allocations, running, list(plan.reservations), covered, question)
    started = {one.gang.name for one in plan.starts}
    refused = [one for one in waiting if one.name in over]
    delayed = [one for one in order if one.name not in started]
    preemptions = search.find([*delayed, *refused])
    served = {gang.name for gang, _ in preemptions}
    return Decision(
        starts=tuple(one for one in (*completed, *plan.starts) if one not in search.victims),
        planned=tuple(search.planned),
        preemptions=tuple((gang, _of_running(each, question)) for gang, each in preemptions),
        reasons={**over, **too_much, **plan.reasons, **_put_off(preemptions, question)},
        never=never,
        above_limit=above,
        delays=plan.delays,
        searched=search.searched,
        skipped=search.skipped,
        timeline=search.timeline(),
        at_limit=_at_limit(
            [one for one in refused if one.name not in served], order, used, question
        ),
        limited=frozenset({*over, *above, *too_much}),
        shrink_requests=search.shrink_requests,
        disruption_protected=search.disruption_protected,
    )


def _too_large(gang: Gang, hardware: Hardware) -> str:
    """Why a gang is larger than the cluster; empty if it is not."""
    found = [hardware.nodes_for(one) for one in dict.fromkeys(gang.members)]
    masks = [one for one in found if one is not None]
    every = len(masks) == len(found)
    rows = np.logical_or.reduce(masks) if every else np.ones(hardware.size, dtype=bool)
    total = 1000 * int(hardware.present[rows].sum())
    if gang.milli <= total:
        return ""
    where = "on the nodes that it may go to" if every else "in the cluster"
    text = f"it asks for {gang.milli / 1000:g} GPUs, and there are {total / 1000:g} {where}"
    return f"{text}{_strongest(gang, hardware)}"


def _strongest(gang: Gang, hardware: Hardware) -> str:
    """The strength that a gang asks for, the most there is, what to do; empty if it asks none."""
    least = max(one.min_strength for one in gang.members)
    if not least:
        return ""
    most = float(hardware.strength[hardware.present.any(axis=1)].max(initial=UNKNOWN))
    there = format_strength(most) if most else "an unknown strength"
    return (
        f": it asks for strength {format_strength(least)} or more, and the strongest GPU has"
        f" {there}; ask for less, or add such GPUs"
    )


def _above_limit(gang: Gang, tree: Tree, hardware: Hardware) -> str:
    """Why a gang is larger than a limit of its queue; empty if it is not."""
    more = needs(gang, hardware)
    path = tree.over(gang.queue, more, tree.summed({}))
    if path is None:
        return ""
    limit = tree.limit_message(path, gang.queue, more, "this gang asks for")
    return f"{limit}. Ask for less, or raise the limit"


def _at_limit(
    refused: Iterable[Gang],
    order: Iterable[Gang],
    used: Mapping[str, Resources],
    question: DecisionInput,
) -> dict[Path, Gang]:
    """The first gang that waits for each limit."""
    tree, hardware = Tree(question.queues), question.allocations.hardware
    charged = add_all(tree.summed(used), question.ending)
    for gang in order:
        tree.add(charged, gang.queue, needs(gang, hardware))
    found: dict[Path, Gang] = {}
    for gang in sorted(refused, key=lambda one: (-one.priority, one.submitted, one.name)):
        full = tree.over(gang.queue, needs(gang, hardware), charged)
        if full is not None:
            found.setdefault(full, gang)
    return found


def _complete(
    allocations: Allocations, question: DecisionInput
) -> tuple[list[Running], list[Gang], dict[str, str]]:
    """Place the missing members of incomplete gangs.

    Returns what was placed, what fits nowhere, and messages by gang for what exceeds a limit.
    """
    found, unplaced, too_much = [], [], {}
    tree = Tree(question.queues)
    used = add_all(tree.summed(usage(question.running, allocations.hardware)), question.ending)
    for gang, nodes in question.incomplete:
        more = needs(gang, allocations.hardware)
        full = tree.over(gang.queue, more, used)
        if full is not None:
            too_much[gang.name] = tree.limit_message(full, gang.queue, used[full] + more, WITH_THIS)
            continue
        placements = _near(allocations, gang, nodes, question)
        if placements is None:
            unplaced.append(gang)
            continue
        one = Running(gang, placements, question.now, question.now + gang.seconds)
        allocations.take_gang(one, known_to_fit=True)
        tree.add(used, gang.queue, more)
        found.append(one)
    return found, unplaced, too_much


def _near(
    allocations: Allocations, gang: Gang, nodes: Collection[int], question: DecisionInput
) -> tuple[Placement, ...] | None:
    """Placements near these nodes: on them, in their racks, in their blocks, or anywhere."""
    hardware = allocations.hardware
    here = np.zeros(hardware.size, dtype=bool)
    here[list(nodes)] = True
    racks, blocks = np.unique(hardware.rack[here]), np.unique(hardware.block[here])
    rings = (here, np.isin(hardware.rack, racks), np.isin(hardware.block, blocks))
    for ring in rings:
        part = allocations.copy()
        part.hardware = replace(hardware, present=hardware.present & ring[:, None])
        found = plan_gang(part, gang, question.by, seed=question.seed)
        if found is not None:
            return found
    return plan_gang(allocations, gang, question.by, seed=question.seed)


def _put_off(
    preemptions: Iterable[tuple[Gang, Preemption]], question: DecisionInput
) -> dict[str, str]:
    """Why gangs that do not run yet start later than they would have."""
    reasons = {name: why for _, each in preemptions for name, why in each.to_victims.items()}
    running = {one.gang.name for one in question.running}
    return {name: why for name, why in reasons.items() if name not in running}


def _of_running(preemption: Preemption, question: DecisionInput) -> Preemption:
    """Without victims that were only about to start: they have nothing to end."""
    names = {one.gang.name for one in preemption.victims}
    running = [one for one in question.running if one.gang.name in names]
    victims = tuple(one for one in preemption.victims if one in running)
    return replace(preemption, victims=victims)
