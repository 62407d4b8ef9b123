"""Preemption beside promises, at limits, and among many: who makes room, and nobody needlessly."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Placement, Running, sliced, whole
from aliquot.placement.gangs.backfill import plan_starts
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.gangs.timeline import Timeline
from aliquot.placement.queues import eviction_trial
from aliquot.placement.queues import preempt as preemption
from aliquot.placement.queues.preempt import Preemption, may_preempt, preempt, preemptible
from aliquot.placement.queues.quota import Bound, Queue, Tree, fair_share_order, needs, usage
from placement.builders import cluster, gang

DAY = 86_400.0
QUICK = settings(max_examples=60, deadline=None)
OWN_AND_GUEST = {"own": Queue("own", quota=Bound(4000)), "guest": Queue("guest")}


def run(allocations: Allocations, one: Gang, start: float, *gpus: int) -> Running:
    running = Running(one, (Placement(0, gpus),), start, start + one.seconds)
    allocations.take_gang(running)
    return running


def promise(one: Gang, start: float, *gpus: int) -> Running:
    return Running(one, (Placement(0, gpus),), start, start + one.seconds)


def names(some: tuple[Running, ...]) -> list[str]:
    return [one.gang.name for one in some]


# --- promises -------------------------------------------------------------------------------------


def test_a_borrowers_planned_start_does_not_block_a_reclaim() -> None:
    """Two GPUs are free: the owner starts on them now, and not when the guest's four have ended."""
    allocations = cluster(4)
    runs = run(allocations, gang("g1", whole(2), queue="guest", seconds=DAY), 0, 0, 1)
    later = promise(gang("g2", whole(4), queue="guest", seconds=DAY), DAY, 0, 1, 2, 3)
    claim = gang("mine", whole(2), queue="own", seconds=2 * DAY)
    found = preempt(allocations, claim, [runs], OWN_AND_GUEST, 2.0, planned=[later])
    assert found is not None
    assert found.victims == ()
    assert found.placements == (Placement(0, (2, 3)),)
    assert found.withdrawn == (later,)
    assert found.to_gang == "starts before g2"
    assert found.to_victims == {
        "g2": "its planned start was withdrawn for mine:"
        " queue guest borrows from the quota of queue own"
    }
    assert may_preempt([claim], [runs], OWN_AND_GUEST, allocations.hardware, [later]) == [claim]


def test_a_planned_start_of_lower_priority_does_not_block_a_higher_one() -> None:
    allocations = cluster(4)
    runs = run(allocations, gang("runs", whole(2), priority=9, seconds=DAY), 0, 0, 1)
    later = promise(gang("low", whole(4)), DAY, 0, 1, 2, 3)
    claim = gang("urgent", whole(2), priority=5, seconds=2 * DAY)
    found = preempt(allocations, claim, [runs], {}, 2.0, planned=[later])
    assert found is not None
    assert (names(found.victims), names(found.withdrawn)) == ([], ["low"])
    same = gang("same", whole(2), seconds=2 * DAY)
    assert preempt(allocations, same, [runs], {}, 2.0, planned=[later]) is None


def test_a_planned_start_within_quota_is_kept() -> None:
    """The other queue is within its quota when it starts: what it has now has ended by then."""
    allocations = cluster(4)
    queues = {"own": Queue("own", quota=Bound(4000)), "guest": Queue("guest", quota=Bound(2000))}
    runs = run(allocations, gang("g1", whole(2), queue="guest", seconds=DAY), 0, 0, 1)
    theirs = promise(gang("g2", whole(2), queue="guest"), DAY, 2, 3)
    claim = gang("mine", whole(2), queue="own", seconds=2 * DAY)
    assert preempt(allocations, claim, [runs], queues, 2.0, planned=[theirs]) is None
    short = gang("short", whole(2), queue="own", seconds=100)
    assert preempt(allocations, short, [runs], queues, 2.0, planned=[theirs]) is None


def test_victims_are_enough_with_all_kept_planned_starts() -> None:
    """The one that loses less work would free a GPU that is promised to somebody else."""
    allocations = cluster(2)
    running = [
        run(allocations, gang("old", whole(), seconds=DAY), 0, 0),
        run(allocations, gang("fresh", whole(), seconds=200), 99, 1),
    ]
    kept = promise(gang("other", whole(), queue="other", seconds=DAY), 299, 1)
    claim = gang("urgent", whole(), priority=1, seconds=1000)
    without = preempt(allocations, claim, running, {}, 100.0)
    beside = preempt(allocations, claim, running, {}, 100.0, planned=[kept])
    assert without is not None
    assert names(without.victims) == ["fresh"]
    assert beside is not None
    assert names(beside.victims) == ["old"]
    assert beside.withdrawn == ()


def test_what_was_to_start_now_does_not_and_loses_nothing() -> None:
    allocations = cluster(4)
    running = [
        run(allocations, gang("old", whole(2), queue="guest"), 0, 0, 1),
        run(allocations, gang("new", whole(2), queue="guest"), 100, 2, 3),
    ]
    claim = gang("mine", whole(2), queue="own")
    found = preempt(allocations, claim, running, OWN_AND_GUEST, 100.0)
    assert found is not None
    assert names(found.victims) == ["new"]
    assert (found.lost, found.to_gang) == (0, "starts before new")


# --- limits ---------------------------------------------------------------------------------------


def test_at_the_limit_a_higher_priority_preempts_lower_ones_of_its_queue() -> None:
    allocations = cluster(8)
    queues = {"q": Queue("q", limit=Bound(4000))}
    running = [
        run(allocations, gang("low", whole(2), queue="q"), 0, 0, 1),
        run(allocations, gang("fresh", whole(2), queue="q"), 50, 2, 3),
    ]
    urgent = gang("urgent", whole(2), queue="q", priority=9)
    order, refused = fair_share_order(
        [urgent], queues, usage(running, allocations.hardware), allocations.hardware
    )
    assert (order, list(refused)) == ([], ["urgent"])
    found = preempt(allocations, urgent, running, queues, 100.0)
    assert found is not None
    assert names(found.victims) == ["fresh"]
    large = gang("large", whole(5), queue="q", priority=9)
    assert preempt(allocations, large, running, queues, 100.0) is None


def test_a_limit_of_a_queue_above_is_kept_too() -> None:
    """What the one beside it borrowed comes back to the limit of both."""
    queues = {
        "top": Queue("top", limit=Bound(4000)),
        "a": Queue("a", parent="top", quota=Bound(2000)),
        "b": Queue("b", parent="top"),
    }
    allocations = cluster(8)
    running = [run(allocations, gang(f"b{i}", whole(), queue="b"), i, i) for i in range(4)]
    found = preempt(allocations, gang("mine", whole(2), queue="a"), running, queues, 100.0)
    assert found is not None
    assert sorted(names(found.victims)) == ["b2", "b3"]


def test_a_planned_start_of_lower_priority_does_not_use_up_the_limit() -> None:
    allocations = cluster(8)
    queues = {"q": Queue("q", limit=Bound(4000))}
    low = [promise(gang(f"low{i}", whole(2), queue="q"), 50, 2 * i, 2 * i + 1) for i in range(2)]
    claim = gang("urgent", whole(2), queue="q", priority=1)
    found = preempt(allocations, claim, [], queues, 0.0, planned=low)
    assert found is not None
    assert names(found.withdrawn) == ["low1"]
    assert found.victims == ()


# --- what counts ----------------------------------------------------------------------------------


def test_a_protected_gang_is_not_evicted_and_counts_for_its_quota() -> None:
    allocations = cluster(6)
    running = [
        run(allocations, gang("mine", whole(2), queue="own"), 0, 0, 1),
        run(allocations, gang("old", whole(2), queue="guest"), 0, 2, 3),
        run(allocations, gang("fresh", whole(2), queue="guest"), 99, 4, 5),
    ]
    claim = gang("claim", whole(2), queue="own", priority=1)
    found = preempt(allocations, claim, running, OWN_AND_GUEST, 100.0, protected={"fresh", "mine"})
    assert found is not None
    assert names(found.victims) == ["old"]
    large = gang("large", whole(3), queue="own", priority=1)
    assert preempt(allocations, large, running, OWN_AND_GUEST, 100.0, protected={"mine"}) is None
    assert preemptible(allocations, large, running, OWN_AND_GUEST, 100.0, protected={"mine"}) == {}


def test_quota_planned_for_an_earlier_gang_cannot_be_reclaimed() -> None:
    allocations = cluster(4)
    running = [run(allocations, gang("guest", whole(4), queue="guest"), 0, 0, 1, 2, 3)]
    claim = gang("claim", whole(2), queue="own")
    fits, too_much = gang("a", whole(2), queue="own"), gang("b", whole(3), queue="own")
    for ahead, may in (([fits], True), ([too_much], False), ([fits, fits], False)):
        found = preempt(allocations, claim, running, OWN_AND_GUEST, 100.0, ahead=ahead)
        assert (found is not None) is may
        over = preemptible(allocations, claim, running, OWN_AND_GUEST, 100.0, ahead=ahead)
        assert bool(over) is may
    other = gang("c", whole(4), queue="guest")
    assert preempt(allocations, claim, running, OWN_AND_GUEST, 100.0, ahead=[other]) is not None


# --- many -----------------------------------------------------------------------------------------


def many(nodes: int, each: int) -> tuple[Allocations, list[Running]]:
    """Nodes of 8 GPUs, each full of gangs of the same size."""
    allocations = cluster(*[8] * nodes)
    running = []
    for number in range(nodes * 8 // each):
        node, first = divmod(number * each, 8)
        one = gang(f"g{number}", whole(each))
        place = Placement(node, tuple(range(first, first + each)))
        running.append(Running(one, (place,), number % 7 + number / 1000, 1e6))
        allocations.take_gang(running[-1])
    return allocations, running


@pytest.mark.parametrize("members", [[whole(8)] * 16, [whole(8), whole(4)] * 10])
def test_among_many_few_ways_are_planned(
    members: list[Demand], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []

    def counted(*asked: object, **more: object) -> tuple[Placement, ...] | None:
        plans.append(asked)
        return plan_gang(*asked, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(eviction_trial, "plan_gang", counted)
    allocations, running = many(64, 8)
    found = preempt(allocations, gang("c", *members, priority=1), running, {}, 100.0)
    assert found is not None
    assert len(found.victims) == (16 if len(members) == 16 else 15)
    assert len(plans) <= 20


def test_a_gang_of_unlike_members_that_nothing_fits_gives_up_soon() -> None:
    """There are too few nodes for members of more than half a node: that is counted."""
    allocations, running = many(10, 8)
    claim = gang("c", *[whole(5), whole(6)] * 6, priority=1)
    assert preempt(allocations, claim, running, {}, 100.0) is None


# --- what always holds ----------------------------------------------------------------------------

SHAPES = [whole(1), whole(2), sliced(500), sliced(300)]
QUEUES = {
    "own": Queue("own", quota=Bound(3000), limit=Bound(5000)),
    "guest": Queue("guest", quota=Bound(1000)),
    "top": Queue("top", quota=Bound(2000), limit=Bound(4000)),
    "below": Queue("below", quota=Bound(1000), parent="top"),
}


@st.composite
def gangs(draw: st.DrawFn, prefix: str, *, most: int, priority: int = 0) -> list[Gang]:
    def one(number: int) -> Gang:
        return gang(
            f"{prefix}{number}",
            *[draw(st.sampled_from(SHAPES))] * draw(st.integers(1, 2)),
            queue=draw(st.sampled_from(["own", "guest", "below"])),
            priority=draw(st.integers(priority, priority + 1)),
            seconds=draw(st.sampled_from([50.0, 400.0, 1000.0])),
        )

    return [one(number) for number in range(draw(st.integers(1, most)))]


def started(allocations: Allocations, some: list[Gang]) -> list[Running]:
    found = []
    for number, one in enumerate(some):
        placements = plan_gang(allocations, one)
        if placements is not None:
            start = 7.0 * number
            found.append(Running(one, placements, start, start + one.seconds))
            allocations.take_gang(found[-1])
    return found


@QUICK
@given(gangs("r", most=6), gangs("w", most=5), gangs("c", most=1), st.sampled_from([0, 10]))
def test_kept_planned_starts_stay_possible_and_limits_hold(
    ran: list[Gang], waiting: list[Gang], claims: list[Gang], few: int
) -> None:
    allocations, claim, now = cluster(2, 2), claims[0], 40.0
    running = started(allocations, ran)
    hardware = allocations.hardware
    order, _ = fair_share_order(waiting, QUEUES, usage(running, hardware), hardware)
    plan = plan_starts(allocations, running, (), order, now)
    for one in plan.starts:
        allocations.take_gang(one)
    running += plan.starts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preemption, "WEIGHED", few)
        found = preempt(allocations, claim, running, QUEUES, now, planned=plan.reservations)
    if found is None:
        return
    assert may_preempt([claim], running, QUEUES, hardware, plan.reservations) == [claim]
    assert set(found.to_victims) == {*names(found.victims), *names(found.withdrawn)}
    left = [one for one in running if one not in found.victims]
    start = Running(claim, found.placements, now, now + claim.seconds)
    for one in found.victims:
        allocations.give_gang(one)
    allocations.take_gang(start)
    kept = [one for one in plan.reservations if one not in found.withdrawn]
    assert Timeline(allocations, [*left, start], kept, now).broken == []
    tree = Tree(QUEUES)
    has = tree.summed(usage(left, hardware))
    for one in kept:
        tree.add(has, one.gang.queue, needs(one.gang, hardware))
    assert tree.over(claim.queue, needs(claim, hardware), has) is None


@QUICK
@given(gangs("r", most=7), gangs("c", most=1, priority=1), st.sampled_from([0, 10]))
def test_no_victim_is_unneeded_and_of_few_the_least_work_is_lost(
    ran: list[Gang], claims: list[Gang], few: int
) -> None:
    """In one queue, where any lower priority may be asked: against all ways there are."""
    alone = [Gang(one.name, one.members, one.seconds, "", one.priority) for one in [*ran, *claims]]
    ran, claim, allocations, now = alone[:-1], alone[-1], cluster(3, 2), 100.0
    running = started(allocations, ran)
    lower = [one for one in running if one.gang.priority < claim.priority]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preemption, "WEIGHED", few)
        found = preempt(allocations, claim, running, {}, now)
    sizes = range(len(lower) + 1)
    ways = [
        way for size in sizes for way in combinations(lower, size) if _fits(allocations, way, claim)
    ]
    if found is None:
        assert not ways or () in ways
        return
    assert found.victims
    assert set(found.victims) in [set(way) for way in ways]
    for one in found.victims:
        assert not _fits(allocations, [other for other in found.victims if other is not one], claim)
    if few:
        assert found.lost == min(_lost(way, now) for way in ways)


def _fits(
    allocations: Allocations, ended: tuple[Running, ...] | list[Running], claim: Gang
) -> bool:
    after = allocations.copy()
    for one in ended:
        after.give_gang(one)
    return plan_gang(after, claim) is not None


def _lost(way: tuple[Running, ...], now: float) -> float:
    return sum(one.gang.milli * (now - one.start) for one in way)


def test_the_answer_for_many_is_that_of_one_by_one() -> None:
    """Doubling and halving finds the same as adding and sparing one at a time."""
    allocations, running = many(12, 4)
    claim = gang("c", *[whole(8)] * 3, priority=1)
    found = preempt(allocations, claim, running, {}, 100.0)
    assert isinstance(found, Preemption)
    victims: list[Running] = []
    for one in sorted(running, key=lambda each: -each.start):
        victims.append(one)
        if _fits(allocations, victims, claim):
            break
    for one in reversed(victims[:-1]):
        fewer = [other for other in victims if other is not one]
        if _fits(allocations, fewer, claim):
            victims = fewer
    assert list(found.victims) == victims
