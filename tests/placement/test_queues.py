"""Queues and preemption: whose turn it is and who makes room."""

from __future__ import annotations

import pytest

from aliquot.model.errors import InvalidValueError
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Gang, Placement, Running, whole
from aliquot.placement.core.snapshot import empty
from aliquot.placement.queues.preempt import preempt
from aliquot.placement.queues.quota import Bound, Queue, Resources, fair_share_order, needs, usage
from placement.builders import GIB, cluster, gang, node

EIGHT = cluster(8).hardware


def run(allocations: Allocations, one: Gang, start: float, *gpus: int) -> Running:
    placements = tuple(Placement(0, (gpu,)) for gpu in gpus)
    for placement, member in zip(placements, one.members, strict=True):
        allocations.take(placement, member)
    return Running(one, placements, start, start + one.seconds)


def test_the_queue_with_the_smaller_weighted_share_goes_first() -> None:
    queues = {"a": Queue("a", weight=1), "b": Queue("b", weight=3)}
    used = {"a": Resources(1000), "b": Resources(2000)}
    waiting = [gang(f"{q}{i}", whole(), queue=q, submitted=i) for q in "ab" for i in (1, 2)]
    order, _ = fair_share_order(waiting, queues, used, EIGHT)
    assert [one.name for one in order] == ["b1", "a1", "b2", "a2"]


def test_memory_counts_where_it_is_the_larger_share() -> None:
    queues = {"a": Queue("a"), "b": Queue("b")}
    used = {"a": Resources(1000, 70), "b": Resources(3000, 10)}
    waiting = [gang("a", whole(), queue="a"), gang("b", whole(), queue="b")]
    hardware = Allocations(empty([node("n", 8, gpu_bytes=12)])).hardware
    order, _ = fair_share_order(waiting, queues, used, hardware)
    assert [one.name for one in order] == ["b", "a"]


def test_a_whole_gpu_counts_with_all_its_memory() -> None:
    nodes = [node("a", 2, gpu_bytes=80 * GIB, model="H100"), node("b", 2, gpu_bytes=16 * GIB)]
    allocations = Allocations(empty(nodes))
    waits = gang("waits", whole(2))
    assert needs(waits, allocations.hardware) == Resources(2000, 160 * GIB)
    runs = Running(waits, (Placement(1, (0, 1)),), 0, 10)
    assert usage([runs], allocations.hardware) == {"": Resources(2000, 32 * GIB)}


def test_a_limit_of_memory_holds_for_whole_gpus_and_one_of_compute_says_nothing_of_it() -> None:
    hardware = Allocations(empty([node("n", 8, gpu_bytes=80 * GIB)])).hardware
    waiting = [gang(f"g{i}", whole(), queue="q", submitted=i) for i in range(3)]
    for limit, allowed in ((Bound(None, 160 * GIB), 2), (Bound(1000), 1), (Bound(), 3)):
        order, _ = fair_share_order(waiting, {"q": Queue("q", limit=limit)}, {}, hardware)
        assert len(order) == allowed


def test_a_queue_without_weight_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="'q' cannot have the weight 0"):
        Queue("q", weight=0)


def test_in_a_queue_priority_comes_before_age() -> None:
    waiting = [gang("old", whole(), submitted=1), gang("high", whole(), submitted=9, priority=5)]
    order, _ = fair_share_order(waiting, {}, {}, EIGHT)
    assert [one.name for one in order] == ["high", "old"]


def test_the_reason_says_that_a_queue_is_at_its_limit() -> None:
    queues = {"a": Queue("a", limit=Bound(1000))}
    order, refused = fair_share_order(
        [gang("one", whole(), queue="a"), gang("two", whole(), queue="a", submitted=1)],
        queues,
        {},
        EIGHT,
    )
    assert [one.name for one in order] == ["one"]
    assert refused == {"two": "queue a may have 1 GPU; with this gang it would have 2"}


def test_the_reason_of_a_memory_limit_is_in_memory() -> None:
    hardware = Allocations(empty([node("n", 8, gpu_bytes=80 * GIB)])).hardware
    queues = {"a": Queue("a", limit=Bound(4000, 200 * GIB))}
    used = {"a": Resources(1000, 80 * GIB)}
    _, refused = fair_share_order([gang("g", whole(2), queue="a")], queues, used, hardware)
    assert refused == {
        "g": "queue a may have 200 GiB of GPU memory; with this gang it would have 240 GiB"
    }


def test_small_work_does_not_overtake_what_waits_for_its_queues_limit() -> None:
    queues = {"a": Queue("a", limit=Bound(4000))}
    used = {"a": Resources(2000)}
    waiting = [
        gang("huge", whole(5), queue="a"),
        gang("big", whole(3), queue="a", submitted=1),
        gang("small", whole(), queue="a", submitted=2),
        gang("other", whole(), queue="b", submitted=3),
    ]
    order, refused = fair_share_order(waiting, queues, used, EIGHT)
    assert [one.name for one in order] == ["other"]
    assert refused == {
        "huge": "queue a may have 4 GPUs; this gang asks for 5",
        "big": "queue a may have 4 GPUs; with this gang it would have 5",
        "small": "big comes before it, and waits for the limit of queue a",
    }


def test_planned_starts_are_charged_to_the_limit_first() -> None:
    queues = {"a": Queue("a", limit=Bound(4000))}
    waiting = [
        gang("new", whole(2), queue="a", priority=1),
        gang("promised", whole(3), queue="a"),
    ]
    order, refused = fair_share_order(waiting, queues, {}, EIGHT, {"promised"})
    assert [one.name for one in order] == ["promised"]
    assert set(refused) == {"new"}


def test_nobody_is_evicted_for_a_gang_that_fits_or_never_would() -> None:
    allocations = cluster(3)
    running = [
        run(allocations, gang("low", whole()), 0, 0),
        run(allocations, gang("lower", whole()), 0, 1),
    ]
    assert preempt(allocations, gang("fits", whole(), priority=5), running, {}, now=1) is None
    assert preempt(allocations, gang("four", whole(4), priority=5), running, {}, now=1) is None
    assert preempt(allocations, gang("two", whole(2), priority=5), running, {}, now=1) is not None


def test_a_queue_gets_its_quota_back_from_the_one_that_borrowed_it() -> None:
    allocations = cluster(4)
    queues = {
        "own": Queue("own", quota=Bound(2000)),
        "guest": Queue("guest", quota=Bound(2000)),
    }
    running = [
        run(allocations, gang("early", whole(), whole(), queue="guest"), 0, 0, 1),
        run(allocations, gang("late", whole(), queue="guest"), 80, 2),
        run(allocations, gang("later", whole(), queue="guest"), 90, 3),
    ]
    found = preempt(allocations, gang("back", whole(), queue="own"), running, queues, now=100)
    assert found is not None
    assert [one.gang.name for one in found.victims] == ["later"]
    assert "borrows" in found.to_victims["later"]
    assert "later" in found.to_gang


def test_a_queue_within_its_quota_loses_nothing() -> None:
    allocations = cluster(1)
    queues = {"own": Queue("own", quota=Bound(1000)), "other": Queue("other", quota=Bound(8000))}
    running = [run(allocations, gang("runs", whole(), queue="other"), 0, 0)]
    assert preempt(allocations, gang("new", whole(), queue="own"), running, queues, now=1) is None


def test_a_higher_priority_evicts_whole_gangs_with_the_least_work_lost() -> None:
    allocations = cluster(4)
    running = [
        run(allocations, gang("pair", whole(), whole()), 0, 0, 1),
        run(allocations, gang("fresh", whole()), 95, 2),
        run(allocations, gang("same", whole(), priority=5), 99, 3),
    ]
    urgent = gang("urgent", whole(), whole(), whole(), priority=5)
    found = preempt(allocations, urgent, running, {}, now=100)
    assert found is not None
    assert {one.gang.name for one in found.victims} == {"pair", "fresh"}
    small = preempt(allocations, gang("small", whole(), priority=5), running, {}, now=100)
    assert small is not None
    assert [one.gang.name for one in small.victims] == ["fresh"]


def test_with_many_candidates_those_not_needed_are_spared() -> None:
    allocations = cluster(14)
    running = [run(allocations, gang(f"g{i}", whole()), i, i) for i in range(14)]
    found = preempt(allocations, gang("urgent", whole(), whole(), priority=1), running, {}, now=100)
    assert found is not None
    assert {one.gang.name for one in found.victims} == {"g13", "g12"}


@pytest.mark.parametrize("starts", [(0, 50), (90, 0)])
def test_victims_do_not_depend_on_the_order_of_running_gangs(
    starts: tuple[float, float],
) -> None:
    """Both must go, the queue keeps its quota until the last of them, whichever that is."""
    allocations = cluster(4)
    queues = {"own": Queue("own", quota=Bound(4000)), "guest": Queue("guest", quota=Bound(2000))}
    running = [
        run(
            allocations, gang("three", whole(), whole(), whole(), queue="guest"), starts[0], 0, 1, 2
        ),
        run(allocations, gang("one", whole(), queue="guest"), starts[1], 3),
    ]
    found = preempt(
        allocations, gang("back", *[whole()] * 4, queue="own"), running, queues, now=100
    )
    assert found is not None
    assert {one.gang.name for one in found.victims} == {"three", "one"}


def test_a_queue_gives_no_more_than_it_borrows() -> None:
    allocations = cluster(4)
    queues = {"own": Queue("own", quota=Bound(4000)), "guest": Queue("guest", quota=Bound(2000))}
    running = [run(allocations, gang(f"g{i}", whole(), queue="guest"), 0, i) for i in range(4)]
    asked = [gang(f"back{n}", *[whole()] * n, queue="own") for n in (2, 3)]
    two = preempt(allocations, asked[0], running, queues, now=100)
    assert two is not None
    assert len(two.victims) == 2
    assert preempt(allocations, asked[1], running, queues, now=100) is None
