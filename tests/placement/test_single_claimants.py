"""Single pods that preempt: gangs of one, several in one decision, against plain recounts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Running, sliced, whole
from aliquot.placement.decide import DecisionInput, DisruptionBudget, decide
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.queues.quota import Bound, Queue, needs, usage
from placement.builders import cluster

NOW = 1000.0
CHECKED = settings(max_examples=150, deadline=None)
QUEUES = {
    "own": Queue("own", quota=Bound(3000), limit=Bound(4000)),
    "guest": Queue("guest", quota=Bound(1000)),
    "other": Queue("other", quota=Bound(2000)),
}
SHAPES = [whole(1), whole(2), sliced(500), sliced(300)]


def work(number: int, shape: Demand, queue: str, priority: int, prefix: str = "r") -> Gang:
    return Gang(f"{prefix}{number}", (shape,), 3600.0, queue, priority, float(number))


RUNS, WAITS = (
    st.tuples(st.sampled_from(SHAPES), st.sampled_from(names), st.integers(0, 2))
    for names in (["guest", "guest", "other", "own"], ["own", "own", "other", "guest"])
)
BUDGETS = st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, 9), min_size=4)), max_size=3)


def full(allocations: Allocations, made: list[tuple[Demand, str, int]]) -> list[Running]:
    """As many of these as fit and as their limits allow."""
    found: list[Running] = []
    for number, (shape, queue, priority) in enumerate(made):
        one = work(number, shape, queue, priority)
        places = plan_gang(allocations, one)
        start = NOW - 10.0 * (number + 1)
        if places is None:
            continue
        running = Running(one, places, start, start + 3600.0)
        used = usage([*found, running], allocations.hardware)[queue]
        if QUEUES[queue].limit.covers(used):
            allocations.take_gang(running)
            found.append(running)
    return found


def question(
    allocations: Allocations, running: list[Running], waiting: list[Gang], **more: object
) -> DecisionInput:
    return DecisionInput(
        allocations,
        running,
        [],
        waiting,
        [],
        QUEUES,
        NOW,
        **more,  # type: ignore[arg-type]
    )


@CHECKED
@given(
    runs=st.lists(RUNS, min_size=4, max_size=10),
    waits=st.lists(WAITS, min_size=1, max_size=5),
    budgets=BUDGETS,
    protected=st.sets(st.integers(0, 9), max_size=2),
)
def test_each_preemption_starts_its_pod_within_quotas_limits_and_budgets(
    runs: list[tuple[Demand, str, int]],
    waits: list[tuple[Demand, str, int]],
    budgets: list[tuple[int, set[int]]],
    protected: set[int],
) -> None:
    allocations = cluster(2, 2)
    running = full(allocations, runs)
    mine = [
        work(n, shape, queue, priority, "w") for n, (shape, queue, priority) in enumerate(waits)
    ]
    bounds = [DisruptionBudget(most, {f"r{n}": 1 for n in of}) for most, of in budgets]
    spared = {f"r{n}" for n in protected}
    decision = decide(question(allocations, running, mine, budgets=bounds, protected=spared))
    has = {one.gang.name: one for one in (*running, *decision.starts)}
    free = allocations.copy()
    for one in decision.starts:
        free.take_gang(one)
    gone: Counter[str] = Counter()
    for gang, preemption in decision.preemptions:
        start = Running(gang, preemption.placements, NOW, NOW + gang.seconds)
        if preemption.victims:
            assert not free.fits(start.placements[0], gang.members[0])
        for victim in preemption.victims:
            assert victim.gang.name not in spared
            del has[victim.gang.name]
            free.give_gang(victim)
            gone[victim.gang.name] += 1
        free.take_gang(start)  # OverallocatedError: it would not start
        has[gang.name] = start
        used = usage(has.values(), free.hardware)[gang.queue]
        assert QUEUES[gang.queue].limit.covers(used)
        if any(victim.gang.queue != gang.queue for victim in preemption.victims):
            assert QUEUES[gang.queue].quota.covers(used), "only what the quota covers"
    assert all(count == 1 for count in gone.values())
    for bound in bounds:
        evicted = sum(bound.pods.get(name, 0) for name in gone)
        assert not evicted or evicted <= bound.allowed


def test_all_replicas_are_decided_together() -> None:
    allocations = cluster(4)
    running = [
        replace(one, start=NOW - 1) for one in full(allocations, [(whole(1), "guest", 0)] * 4)
    ]
    mine = [work(n, whole(1), "own", 0, "w") for n in range(4)]
    found = decide(question(allocations, running, mine)).preemptions
    assert [gang.name for gang, _ in found] == ["w0", "w1", "w2"]
    assert needs(mine[0], allocations.hardware).milli == 1000


def test_no_pod_is_evicted_if_a_budget_keeps_the_other_one() -> None:
    """The claimant needs both GPUs; a budget allows to evict one of the two pods."""
    allocations = cluster(2)
    running = full(allocations, [(whole(1), "guest", 0), (whole(1), "other", 0)])
    queues = {**QUEUES, "other": Queue("other", quota=Bound(0))}
    both = [work(0, whole(2), "own", 0, "w")]
    for allowed, ends in ((1, 0), (2, 2)):
        budget = DisruptionBudget(allowed, {"r0": 1, "r1": 1})
        asked = replace(question(allocations, running, both, budgets=[budget]), queues=queues)
        asked = replace(asked, queues={**queues, "guest": Queue("guest", quota=Bound(0))})
        victims = [one for _, each in decide(asked).preemptions for one in each.victims]
        assert len(victims) == ends


def test_a_budget_counts_for_all_pods_of_a_decision() -> None:
    """The second of two claimants finds the budget spent."""
    allocations = cluster(2)
    running = full(allocations, [(whole(1), "guest", 0)] * 2)
    queues = {**QUEUES, "guest": Queue("guest", quota=Bound(0))}
    mine = [work(n, whole(1), "own", 0, "w") for n in range(2)]
    budget = DisruptionBudget(1, {"r0": 1, "r1": 1})
    asked = replace(question(allocations, running, mine, budgets=[budget]), queues=queues)
    assert len(decide(asked).preemptions) == 1
    assert len(decide(replace(asked, budgets=[])).preemptions) == 2
