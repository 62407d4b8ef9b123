"""Decisions over gangs: all or none, no GPU twice, planned starts not delayed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aliquot.placement.core.demand import Running
from aliquot.placement.decide import ElasticSurplus, decide
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.placement.queues.reclaim import SEARCHES
from kubernetes.gangs.decision_inputs import NOW, gang, nodes, parts_of, question, started

WORK = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 200), st.integers(0, 2)),
    max_size=8,
)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    before=WORK,
    after=WORK,
)
def test_gangs_start_whole_and_on_free_gpus(
    sizes: list[int],
    before: list[tuple[int, int, int, int]],
    after: list[tuple[int, int, int, int]],
) -> None:
    allocations = nodes(*sizes)
    running: list[Running] = []
    for prefix, work in (("a", before), ("b", after)):
        waiting = [
            gang(f"{prefix}{n}", members, gpus, seconds=float(s), priority=p, submitted=float(n))
            for n, (members, gpus, s, p) in enumerate(work)
        ]
        decision = decide(question(allocations, *waiting, running=running))
        told = {one.gang.name for one in decision.starts} | {
            one.gang.name for one in decision.planned
        }
        told |= set(decision.reasons) | set(decision.never)
        assert told == {one.name for one in waiting}
        total = sum(sizes)
        assert decision.never.keys() == {one.name for one in waiting if one.milli > 1000 * total}
        trial = allocations.copy()
        ended = {
            victim.gang.name
            for _, preemption in decision.preemptions
            for victim in preemption.victims
        }
        for one in decision.starts:
            assert len(one.placements) == len(one.gang.members)
            trial.take_gang(one)  # raises where it is not free
        for one in (*running, *decision.starts):
            if one.gang.name in ended:
                trial.give_gang(one)
        for preemptor, preemption in decision.preemptions:
            trial.take_gang(Running(preemptor, preemption.placements, NOW, NOW + preemptor.seconds))
        running += decision.starts
        for one in decision.starts:
            allocations.take_gang(one)


def test_missing_members_are_placed_first_and_close_to_the_others() -> None:
    allocations = nodes(2, 1, 2, 2)
    placed = started(allocations, gang("half", 2))
    here = {one.node for one in placed.placements}
    assert len(here) == 1
    rest = gang("half", 1)
    decision = decide(
        question(allocations, gang("big", 5), running=[placed], incomplete=[(rest, sorted(here))])
    )
    (first, *_) = decision.starts
    assert first.gang is rest
    rack = {int(allocations.hardware.rack[node]) for node in here}
    assert int(allocations.hardware.rack[first.placements[0].node]) in rack


def test_a_queue_reclaims_its_quota_once() -> None:
    allocations = nodes(2, 2)
    queues = {
        "a": Queue("a", quota=Bound(2000, 160)),
        "b": Queue("b", quota=Bound(2000, 160)),
    }
    taken = [started(allocations, gang(f"x{n}", 1, queue="b")) for n in range(4)]
    mine = [gang(f"y{n}", 1, queue="a", submitted=n) for n in range(3)]
    decision = decide(question(allocations, *mine, running=taken, queues=queues))
    victims = [
        one.gang.name for _, preemption in decision.preemptions for one in preemption.victims
    ]
    assert len(victims) == len(set(victims))
    assert {one.name for one, _ in decision.preemptions} <= {"y0", "y1", "y2"}
    assert 1 <= len(victims) <= 2


def test_gangs_without_victims_do_not_keep_others_from_preempting() -> None:
    allocations = nodes(1, 1, 1)
    low = started(allocations, gang("low", 1))
    kept = [started(allocations, gang(f"kept{n}", 1, priority=9)) for n in range(2)]
    hopeless = [gang(f"wide{n}", 1, gpus=2, priority=5, submitted=n) for n in range(SEARCHES)]
    last = gang("last", 1, priority=5, submitted=99.0)
    asked: dict[str, Any] = {"running": [low, *kept]}
    first = decide(question(allocations, *hopeless, last, **asked))
    assert not first.preemptions
    assert first.skipped == 1
    looked = dict.fromkeys(first.searched, 1)
    then = decide(question(allocations, *hopeless, last, searched_at=looked, **asked))
    assert [one.name for one, _ in then.preemptions] == ["last"]


def test_missing_members_wait_for_their_queues_limit() -> None:
    allocations = nodes(2, 2)
    queues = {"q": Queue("q", limit=Bound(2000, None))}
    half = started(allocations, gang("half", 1, queue="q"))
    other = started(allocations, gang("other", 1, queue="q"))
    rest = gang("half", 1, queue="q")
    running = [half, other]
    decision = decide(
        question(allocations, running=running, incomplete=[(rest, [0])], queues=queues)
    )
    assert not decision.starts
    assert decision.reasons == {"half": "queue q may have 2 GPUs; with this gang it would have 3"}


def test_two_preemptions_of_one_decision_respect_a_limit() -> None:
    allocations = nodes(2, 2)
    queues = {"q": Queue("q", quota=Bound(2000, 160), limit=Bound(2000, None))}
    taken = [started(allocations, gang(f"x{n}", 1)) for n in range(4)]
    mine = [gang(f"y{n}", 2, queue="q", submitted=n) for n in range(2)]
    decision = decide(question(allocations, *mine, running=taken, queues=queues))
    assert [one.name for one, _ in decision.preemptions] == ["y0"]


@pytest.mark.parametrize(
    ("size", "asked"), [(1, {"first", "second"}), (2, {"first"}), (4, {"first"})]
)
def test_what_an_elastic_job_gives_is_not_taken_by_a_later_gang(size: int, asked: set[str]) -> None:
    allocations = nodes(4)
    job = started(allocations, gang("job", 4))
    first = gang("first", 2, priority=10)
    second = gang("second", size, priority=5, seconds=50.0)  # it is over before the job would be
    givers = [ElasticSurplus("job", 60.0, parts_of(job, 1))]
    decision = decide(question(allocations, first, second, running=[job], surpluses=givers))
    assert decision.shrink_requests == {name: {"job": 60.0} for name in asked}
    assert not decision.preemptions


@pytest.mark.parametrize(("own", "is_asked"), [(2, False), (1, True)])
def test_a_job_shrinks_by_no_more_than_its_queue_borrows(own: int, *, is_asked: bool) -> None:
    allocations = nodes(4)
    queues = {
        "x": Queue("x", quota=Bound(1000 * own, 80 * own)),
        "y": Queue("y", quota=Bound(3000, 240)),
    }
    job = started(allocations, gang("job", 4, queue="x"))
    givers = [ElasticSurplus("job", 60.0, parts_of(job, 1))]
    mine = gang("mine", 3, queue="y")
    decision = decide(question(allocations, mine, running=[job], surpluses=givers, queues=queues))
    assert bool(decision.shrink_requests) is is_asked
    assert bool(decision.preemptions) is not is_asked


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    elastic=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4),
    sizes_waiting=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    quota=st.integers(0, 8),
)
@example([1, 2, 4, 4], [(1, 1), (3, 1), (4, 3), (3, 3)], [4, 3, 4], 7)
@example([4, 4], [(1, 1), (3, 2), (4, 3)], [3, 2], 5)
def test_elastic_jobs_are_asked_to_shrink_before_anybody_is_preempted(
    sizes: list[int], elastic: list[tuple[int, int]], sizes_waiting: list[int], quota: int
) -> None:
    allocations = nodes(*sizes)
    queues = {"a": Queue("a", quota=Bound(1000 * quota, 80 * quota))}
    running, givers = [], []
    for number, (size, least) in enumerate(elastic):
        one = gang(f"job{number}", size)
        if decide(question(allocations, one)).starts:
            running.append(started(allocations, one))
            if size > least:
                givers.append(ElasticSurplus(f"job{number}", 60.0, parts_of(running[-1], least)))
    mine = [gang(f"y{n}", size, queue="a", submitted=n) for n, size in enumerate(sizes_waiting)]
    asked: dict[str, Any] = {"running": running, "queues": queues}
    without = decide(question(allocations, *mine, **asked))
    every = {one.name for one in mine}
    after = decide(question(allocations, *mine, surpluses=givers, waited=every, **asked))
    assert (after.preemptions, after.shrink_requests) == (without.preemptions, {})
    first = decide(question(allocations, *mine, surpluses=givers, **asked))
    preempting = {one.name for one, _ in first.preemptions}
    assert preempting.isdisjoint(first.shrink_requests)
    if without.preemptions:
        assert preempting | first.shrink_requests.keys()
    preempted = allocations.copy()
    for preemptor, preemption in first.preemptions:
        for victim in preemption.victims:
            preempted.give_gang(victim)
        preempted.take_gang(Running(preemptor, preemption.placements, 0.0, preemptor.seconds))
    for name, jobs in first.shrink_requests.items():
        free = preempted.copy()
        for giver in givers:
            for part in giver.parts if giver.job in jobs else ():
                free.give_gang(part)
        one = next(each for each in mine if each.name == name)
        assert decide(question(free, one)).starts, "what they give back is not enough"
