"""Queues below queues: turns level by level, limits of all above, and who gives back to whom."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Gang, Placement, Running, sliced, whole
from aliquot.placement.queues.preempt import Preemption, may_preempt, preempt
from aliquot.placement.queues.quota import (
    Bound,
    Queue,
    Resources,
    Tree,
    borrows,
    fair_share_order,
    needs,
    prefixes,
    share,
    takes,
    usage,
)
from placement.builders import GIB, cluster, gang

EIGHT = cluster(8, gpu_bytes=2 * GIB).hardware
QUICK = settings(max_examples=60, deadline=None)
NAMES = ("c", "a", "e", "b", "d")


def tree_of(*queues: Queue) -> dict[str, Queue]:
    return {one.name: one for one in queues}


def names(gangs: list[Gang]) -> list[str]:
    return [one.name for one in gangs]


def waits(queue: str, count: int = 1, gpus: int = 1) -> list[Gang]:
    return [gang(f"{queue}{i}", whole(gpus), queue=queue, submitted=i) for i in range(count)]


# --- turns ----------------------------------------------------------------------------------------


def test_fair_share_goes_level_by_level_by_weight() -> None:
    """Two teams share equally, however many queues each has; in a team its queues by weight."""
    queues = tree_of(
        Queue("left"),
        Queue("right"),
        Queue("l1", parent="left"),
        Queue("r1", parent="right", weight=1),
        Queue("r2", parent="right", weight=3),
    )
    order, _ = fair_share_order(
        [*waits("l1", 8), *waits("r1", 4), *waits("r2", 4)], queues, {}, EIGHT
    )
    first = names(order)[:8]
    assert sum(name.startswith("l") for name in first) == 4
    assert sum(name.startswith("r1") for name in first) == 1
    assert sum(name.startswith("r2") for name in first) == 3


def test_what_a_queue_has_counts_for_all_above_it() -> None:
    queues = tree_of(Queue("left"), Queue("right"), Queue("l1", parent="left"))
    waiting = [*waits("l1"), *waits("right")]
    order, _ = fair_share_order(waiting, queues, {"left": Resources(1000)}, EIGHT)
    assert names(order) == ["right0", "l10"]


def test_a_limit_holds_for_all_below_it_and_nothing_there_overtakes() -> None:
    queues = tree_of(
        Queue("top", limit=Bound(3000)),
        Queue("a", parent="top"),
        Queue("b", parent="top", limit=Bound(2000)),
    )
    big = gang("big", whole(3), queue="a", submitted=0)
    huge = gang("huge", whole(4), queue="a", submitted=0)
    waiting = [big, huge, *waits("b", 2), *waits("other")]
    order, refused = fair_share_order(waiting, queues, {"b": Resources(1000)}, EIGHT)
    assert names(order) == ["other0"]
    assert refused == {
        "huge": "queue top, which a is below, may have 3 GPUs; this gang asks for 4",
        "big": "queue top, which a is below, may have 3 GPUs; with this gang it would have 4",
        "b0": "big comes before it, and waits for the limit of queue top, which b is below",
        "b1": "big comes before it, and waits for the limit of queue top, which b is below",
    }


def test_a_queue_at_its_limit_does_not_stop_its_siblings() -> None:
    queues = tree_of(
        Queue("top", limit=Bound(3000)),
        Queue("a", parent="top", limit=Bound(1000)),
        Queue("b", parent="top"),
    )
    order, refused = fair_share_order([*waits("a", 2), *waits("b", 2)], queues, {}, EIGHT)
    assert names(order) == ["a0", "b0", "b1"]
    assert refused == {"a1": "queue a may have 1 GPU; with this gang it would have 2"}


def test_gangs_directly_in_a_parent_queue_count_as_a_child() -> None:
    queues = tree_of(Queue("top"), Queue("below", parent="top", weight=2))
    order, _ = fair_share_order([*waits("top", 2), *waits("below", 4)], queues, {}, EIGHT)
    assert names(order) == ["top0", "below0", "below1", "top1", "below2", "below3"]


def test_a_planned_start_is_charged_to_all_ancestors_first() -> None:
    queues = tree_of(
        Queue("top", limit=Bound(4000)), Queue("a", parent="top"), Queue("b", parent="top")
    )
    waiting = [gang("new", whole(2), queue="a"), gang("promised", whole(3), queue="b")]
    order, refused = fair_share_order(waiting, queues, {}, EIGHT, {"promised"})
    assert names(order) == ["promised"]
    assert set(refused) == {"new"}


def test_a_queue_is_found_below_a_parent_that_nobody_described() -> None:
    assert Tree(tree_of(Queue("a", parent="nobody"))).path("a") == ("nobody", "a")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_circle_is_cut_at_one_place(size: int) -> None:
    ring = [Queue(f"q{i}", parent=f"q{(i + 1) % size}") for i in range(size)]
    tree = Tree(tree_of(*ring, Queue("below", parent="q0")))
    assert {tree.path(one.name)[0] for one in ring} == {"q0"}
    assert tree.path("below") == ("q0", "below")


# --- what always holds ----------------------------------------------------------------------------


BOUNDS = [Bound(), Bound(0, 0), Bound(2000), Bound(4000, 6 * GIB), Bound(None, 4 * GIB)]
SHAPES = [whole(1), whole(3), sliced(500, GIB), sliced(0, 2 * GIB), sliced(250)]


@st.composite
def trees(draw: st.DrawFn, *, circular: bool = False) -> dict[str, Queue]:
    """Queues of which each may be below one before it; or below any."""
    found: dict[str, Queue] = {}
    for name in NAMES:
        above = ["", *(NAMES if circular else found)]
        found[name] = Queue(
            name,
            weight=draw(st.integers(1, 3)),
            quota=draw(st.sampled_from(BOUNDS)),
            limit=draw(st.sampled_from(BOUNDS)),
            parent=draw(st.sampled_from(above)),
        )
    return found


def gangs() -> st.SearchStrategy[list[Gang]]:
    one = st.tuples(
        st.sampled_from(SHAPES), st.sampled_from((*NAMES, "unknown")), st.integers(0, 1)
    )
    return st.lists(one, max_size=10).map(
        lambda every: [
            gang(f"g{i}", member, queue=queue, priority=priority, submitted=i)
            for i, (member, queue, priority) in enumerate(every)
        ]
    )


def uses() -> st.SearchStrategy[dict[str, Resources]]:
    has = st.sampled_from([Resources(500), Resources(2000, GIB), Resources(0, 3 * GIB)])
    return st.dictionaries(st.sampled_from(NAMES), has, max_size=3)


@QUICK
@given(trees(), gangs(), uses(), st.sets(st.sampled_from(["g0", "g2", "g5"])))
def test_no_limit_of_any_queue_above_is_passed(
    queues: dict[str, Queue], waiting: list[Gang], used: dict[str, Resources], promised: set[str]
) -> None:
    order, refused = fair_share_order(waiting, queues, used, EIGHT, promised)
    assert sorted([*names(order), *refused]) == sorted(names(waiting))
    assert promised.isdisjoint(refused)
    tree = Tree(queues)
    has = tree.summed(used)
    new: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for one in order:
        tree.add(has, one.queue, needs(one, EIGHT))
        if one.name not in promised:
            for path in prefixes(tree.path(one.queue)):
                new[path] += 1
    for path in new:
        assert tree.queue(path).limit.covers(has[path])


@QUICK
@given(trees(), gangs(), uses())
def test_at_each_level_the_smallest_weighted_share_goes_first(
    queues: dict[str, Queue], waiting: list[Gang], used: dict[str, Resources]
) -> None:
    queues = {name: Queue(name, one.weight, parent=one.parent) for name, one in queues.items()}
    order, refused = fair_share_order(waiting, queues, used, EIGHT)
    assert not refused
    tree, total = Tree(queues), Resources(EIGHT.total_milli, EIGHT.total_bytes)
    has = tree.summed(used)

    def rank(path: tuple[str, ...]) -> float:
        return share(has[path], total) / tree.queue(path).weight

    for number, one in enumerate(order):
        left = {path for other in order[number:] for path in prefixes(tree.path(other.queue))}
        for path in prefixes(tree.path(one.queue)):
            beside = [rank(other) for other in left if other[:-1] == path[:-1]]
            assert rank(path) <= min(beside)
        tree.add(has, one.queue, needs(one, EIGHT))


@QUICK
@given(trees(circular=True), gangs(), uses(), st.randoms(use_true_random=False))
def test_a_circle_never_hangs_and_the_order_of_telling_changes_nothing(
    queues: dict[str, Queue], waiting: list[Gang], used: dict[str, Resources], chance: object
) -> None:
    first = fair_share_order(waiting, queues, used, EIGHT)
    mixed, told = list(queues), list(waiting)
    for one in (mixed, told):
        chance.shuffle(one)  # type: ignore[attr-defined]
    assert fair_share_order(told, {name: queues[name] for name in mixed}, used, EIGHT) == first
    assert sorted([*names(first[0]), *first[1]]) == sorted(names(waiting))


# --- preemption -----------------------------------------------------------------------------------


def run(allocations: Allocations, queue: str, *gpus: int, name: str = "", **more: float) -> Running:
    one = gang(name or f"{queue}-{gpus[0]}", *[whole()] * len(gpus), queue=queue)
    placements = tuple(Placement(0, (gpu,)) for gpu in gpus)
    for placement, member in zip(placements, one.members, strict=True):
        allocations.take(placement, member)
    return Running(one, placements, more.get("start", 0), 1000)


def ask(
    allocations: Allocations,
    queue: str,
    gpus: int,
    running: list[Running],
    queues: dict[str, Queue],
) -> Preemption | None:
    claim = gang("claim", *[whole()] * gpus, queue=queue)
    return preempt(allocations, claim, running, queues, now=100)


def victims(found: Preemption | None) -> list[str]:
    assert found is not None
    return sorted(one.gang.name for one in found.victims)


TEAMS = tree_of(
    Queue("ours", quota=Bound(4000)),
    Queue("o1", parent="ours", quota=Bound(2000)),
    Queue("o2", parent="ours", quota=Bound(2000)),
    Queue("theirs", quota=Bound(4000)),
    Queue("t1", parent="theirs", quota=Bound(2000)),
    Queue("t2", parent="theirs", quota=Bound(2000)),
)


def test_a_sibling_that_borrows_gives_back() -> None:
    allocations = cluster(4)
    running = [run(allocations, "o2", gpu, start=gpu) for gpu in range(4)]
    found = ask(allocations, "o1", 1, running, TEAMS)
    assert victims(found) == ["o2-3"]
    assert found is not None
    assert (
        found.to_victims["o2-3"]
        == "preempted for claim: queue o2 borrows from the quota of queue o1"
    )


def test_free_quota_of_a_parent_is_for_all_its_children() -> None:
    """o1 is over its own quota, and not the team's: what o2 leaves is o1's before any other's."""
    allocations = cluster(8)
    ours = [run(allocations, "o1", gpu) for gpu in range(2)]
    theirs = [run(allocations, "t1", gpu) for gpu in range(2, 8)]
    found = ask(allocations, "o1", 2, [*ours, *theirs], TEAMS)
    assert len(victims(found)) == 2
    assert found is not None
    assert set(found.to_victims.values()) == {
        "preempted for claim: queue theirs borrows from the quota of queue ours"
    }
    assert ask(allocations, "o1", 3, [*ours, *theirs], TEAMS) is None


def test_a_queue_within_its_quota_loses_nothing_while_a_sibling_borrows() -> None:
    allocations = cluster(8)
    running = [
        *(run(allocations, "t1", gpu, start=99) for gpu in range(2)),
        *(run(allocations, "t2", gpu) for gpu in range(2, 8)),
    ]
    assert all(name.startswith("t2") for name in victims(ask(allocations, "o1", 2, running, TEAMS)))


def test_where_nobody_below_borrows_the_one_above_still_gives_back() -> None:
    """The queues below have more quota than the one above them: that one's counts outside."""
    queues = tree_of(
        Queue("ours", quota=Bound(2000)),
        Queue("theirs", quota=Bound(2000)),
        Queue("t1", parent="theirs", quota=Bound(4000)),
    )
    allocations = cluster(4)
    running = [run(allocations, "t1", gpu) for gpu in range(4)]
    assert len(victims(ask(allocations, "ours", 2, running, queues))) == 2
    assert ask(allocations, "ours", 3, running, queues) is None


def test_gangs_directly_in_a_parent_go_before_its_children() -> None:
    allocations = cluster(4)
    queues = tree_of(Queue("top", quota=Bound(4000)), Queue("a", parent="top", quota=Bound(2000)))
    running = [run(allocations, "top", gpu) for gpu in range(4)]
    assert len(victims(ask(allocations, "a", 2, running, queues))) == 2
    assert ask(allocations, "a", 3, running, queues) is None
    running = [*running[:2], run(cluster(4), "a", 2), run(cluster(4), "a", 3)]
    assert ask(allocations, "top", 1, running, queues) is None


def test_may_preempt_names_exactly_the_gangs_that_can() -> None:
    allocations = cluster(8)
    running = [run(allocations, "t1", gpu) for gpu in range(7)]
    waiting = [
        *waits("nobody"),
        *waits("t1"),
        *waits("t2"),
        *waits("o1", gpus=2),
        gang("large", whole(5), queue="o1"),
        gang("urgent", whole(), queue="t1", priority=1),
    ]
    found = may_preempt(waiting, running, TEAMS, allocations.hardware)
    assert names(found) == ["t20", "o10", "urgent"]


@QUICK
@given(
    trees(),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=5),
    st.sampled_from(NAMES),
    st.integers(1, 3),
)
def test_nobody_gives_what_is_its_own(
    queues: dict[str, Queue], owners: list[str], claimant: str, gpus: int
) -> None:
    allocations = cluster(len(owners))
    running = [
        run(allocations, queue, gpu, name=f"r{gpu}", start=gpu) for gpu, queue in enumerate(owners)
    ]
    claim = gang("claim", *[whole()] * gpus, queue=claimant)
    found = preempt(allocations, claim, running, queues, now=100)
    if found is None:
        return
    assert may_preempt([claim], running, queues, allocations.hardware) == [claim]
    tree = Tree(queues)
    ours = tree.path(claimant)
    used = tree.summed(usage(running, allocations.hardware))
    given: defaultdict[tuple[str, ...], list[Resources]] = defaultdict(list)
    for one in found.victims:
        theirs = tree.path(one.gang.queue)
        pairs = enumerate(zip(ours, theirs, strict=False))
        parted = next(level for level, (one_side, other) in pairs if one_side != other)
        more = needs(gang("claim", *[whole()] * gpus), allocations.hardware)
        mine = ours[: parted + 1]
        assert tree.queue(mine).quota.covers(used[mine] + more)
        given[theirs[: parted + 1]].append(takes(one, allocations.hardware))
    for path, parts in given.items():
        left = used[path]
        for part in parts:
            left -= part
        assert any(borrows(tree.queue(path), left + last) for last in parts)
