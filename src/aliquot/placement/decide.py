"""Who starts now, who is promised a start, who makes room for whom: the brain's word. Pure.

First comes what completes a gang of which a part has its nodes already, as near to that as there is
room. Then all that wait, in their queues' turns, by reservations with backfill. Who does not start
and has a right to what others hold is given their places, and they are to end. Where it would be
enough that elastic jobs give back what they have above their smallest size, they are asked for that
first, and nobody ends until their time for it is over. To look for a way to others' places takes
long, so only some are looked at in one decision; where there are more, those whose turn to be
looked at was longest ago, so that some without a way do not keep others from theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.core.demand import Running
from aliquot.placement.gangs.backfill import plan_starts
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.queues.quota import (
    WITH_THIS,
    Tree,
    in_turn,
    needs,
    usage,
    with_all,
    within_quota,
)
from aliquot.placement.queues.reclaim import Preemptions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Placement
    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.gangs.timeline import Timeline
    from aliquot.placement.queues.preempt import Preemption
    from aliquot.placement.queues.quota import Path, Queue, Resources


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """All that a decision is made from.

    `rests` are the missing members of gangs, each with the nodes (rows) of the members that have
    theirs. `spared` are the names of what runs and is not to make room now. `looked` is when a gang
    was last looked at for others' places, in decisions. `givers` are the elastic jobs that could
    give back, and `waited` the gangs that have waited for such for long enough.

    Who makes room for a gang already is not among those that run. `ending` is what limits count of
    them until they are gone, and `leftovers` what they have that nobody was given.
    """

    allocations: Allocations
    running: Sequence[Running]
    promised: Sequence[Running]
    waiting: Sequence[Gang]
    rests: Sequence[tuple[Gang, Collection[int]]]
    queues: Mapping[str, Queue]
    now: float
    by: Strategy | None = None
    seed: int = 0
    spared: Collection[str] = ()
    looked: Mapping[str, int] = field(default_factory=dict)
    givers: Sequence[ElasticSurplus] = ()
    waited: Collection[str] = ()
    ending: Mapping[Path, Resources] = field(default_factory=dict)
    leftovers: Sequence[Running] = ()


@dataclass(frozen=True, slots=True)
class ElasticSurplus:
    """An elastic job: what it has above its smallest size, and how long it takes to give it.

    `parts` are what each of those workers has, in the order in which they go.
    """

    job: str
    seconds: float
    parts: tuple[Running, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do: `never` are those that cannot start on this cluster, and why.

    `above_limit` are those that are larger than a limit of their queue. `looked_at` are those that
    were looked at for others' places, and `overlooked` how many were not. `line` is what is left
    for others once all is done, where something is promised. `stopped` are the first gangs that
    wait for a limit, by the queue whose limit it is. `asked` are the elastic jobs that are to give
    back for a gang, with how long that takes.
    """

    starts: tuple[Running, ...] = ()
    promises: tuple[Running, ...] = ()
    claims: tuple[tuple[Gang, Preemption], ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)
    above_limit: Mapping[str, str] = field(default_factory=dict)
    looked_at: tuple[str, ...] = ()
    overlooked: int = 0
    line: Timeline | None = None
    stopped: Mapping[Path, Gang] = field(default_factory=dict)
    asked: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)


def decide(question: DecisionInput) -> Decision:
    """Decide for all that wait."""
    now, by, hardware = question.now, question.by, question.allocations.hardware
    tree, every = Tree(question.queues), question.waiting
    never = {one.name: why for one in every if (why := _too_large(one, hardware))}
    above = {one.name: why for one in every if (why := _above_limit(one, tree, hardware))}
    waiting = [one for one in every if one.name not in never | above]
    allocations = question.allocations.copy()
    first, left, too_much = _complete(allocations, question)
    running = [*question.running, *question.leftovers, *first]
    promised = {one.gang.name for one in question.promised}
    used = usage(running, hardware)
    order, over = in_turn(
        waiting, question.queues, used, hardware, promised, ending=question.ending
    )
    covered = within_quota(order, question.queues, used, hardware)
    own = covered | {one.name for one in left}
    plan = plan_starts(
        allocations,
        running,
        question.promised,
        [*left, *order],
        now,
        by=by,
        seed=question.seed,
        own=own,
    )
    for one in plan.starts:
        allocations.take_gang(one, known_to_fit=True)
    running += plan.starts
    asking = Preemptions(allocations, running, list(plan.reservations), covered, question)
    started = {one.gang.name for one in plan.starts}
    refused = [one for one in waiting if one.name in over]
    behind = [one for one in order if one.name not in started]
    claims = asking.made([*behind, *refused])
    claimed = {gang.name for gang, _ in claims}
    return Decision(
        starts=tuple(one for one in (*first, *plan.starts) if one not in asking.ended),
        promises=tuple(asking.promised),
        claims=tuple((gang, _of_those_that_run(claim, question)) for gang, claim in claims),
        waits={**over, **too_much, **plan.reasons, **_told(claims, question)},
        never=never,
        above_limit=above,
        looked_at=asking.looked_at,
        overlooked=asking.overlooked,
        line=asking.line(),
        stopped=_stopped(
            [one for one in refused if one.name not in claimed], order, used, question
        ),
        asked=asking.asked,
        moved=plan.moved,
    )


def _too_large(gang: Gang, hardware: Hardware) -> str:
    """Why a gang is larger than the cluster; nothing where it is not."""
    models = frozenset[str]().union(*(one.models for one in gang.members))
    every = all(one.models for one in gang.members)
    rows = hardware.models_allowed(models) if every else np.ones(hardware.size, dtype=bool)
    total = 1000 * int(hardware.present[rows].sum())
    if gang.milli <= total:
        return ""
    where = "on the nodes that it may go to" if every else "in the cluster"
    return f"it asks for {gang.milli / 1000:g} GPUs, and there are {total / 1000:g} {where}"


def _above_limit(gang: Gang, tree: Tree, hardware: Hardware) -> str:
    """Why a gang is larger than a limit of its queue; nothing where it is not."""
    more = needs(gang, hardware)
    path = tree.over(gang.queue, more, tree.summed({}))
    if path is None:
        return ""
    told = tree.limit_told(path, gang, more, "this gang asks for")
    return f"{told}. Ask for less, or raise the limit"


def _stopped(
    refused: Iterable[Gang],
    order: Iterable[Gang],
    used: Mapping[str, Resources],
    question: DecisionInput,
) -> dict[Path, Gang]:
    """The first that waits for each limit."""
    tree, hardware = Tree(question.queues), question.allocations.hardware
    charged = with_all(tree.summed(used), question.ending)
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
    """The missing members that find room, which is taken; those that do not; those over a limit."""
    found, left, too_much = [], [], {}
    tree = Tree(question.queues)
    used = with_all(tree.summed(usage(question.running, allocations.hardware)), question.ending)
    for gang, nodes in question.rests:
        more = needs(gang, allocations.hardware)
        full = tree.over(gang.queue, more, used)
        if full is not None:
            too_much[gang.name] = tree.limit_told(full, gang, used[full] + more, WITH_THIS)
            continue
        placements = _near(allocations, gang, nodes, question)
        if placements is None:
            left.append(gang)
            continue
        one = Running(gang, placements, question.now, question.now + gang.seconds)
        allocations.take_gang(one, known_to_fit=True)
        tree.add(used, gang.queue, more)
        found.append(one)
    return found, left, too_much


def _near(
    allocations: Allocations, gang: Gang, nodes: Collection[int], question: DecisionInput
) -> tuple[Placement, ...] | None:
    """Places near these nodes: on them, in their racks, in their blocks, anywhere."""
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


def _told(claims: Iterable[tuple[Gang, Preemption]], question: DecisionInput) -> dict[str, str]:
    """What those are told that start later than they would have."""
    told = {name: why for _, claim in claims for name, why in claim.to_victims.items()}
    run = {one.gang.name for one in question.running}
    return {name: why for name, why in told.items() if name not in run}


def _of_those_that_run(claim: Preemption, question: DecisionInput) -> Preemption:
    """Who was to start now and does not has nothing to end."""
    return replace(claim, victims=tuple(one for one in claim.victims if one in question.running))
