"""Who may preempt whom: what counts as used, and by which queue."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Placement, Running
from aliquot.placement.decide import Decision, ElasticSurplus, decide
from aliquot.placement.queues.quota import Bound, Queue, Tree, usage
from kubernetes.gangs.decision_inputs import NOW, gang, nodes, parts_of, question, started

CHECKED = settings(max_examples=80, deadline=None)


def quota(name: str, gpus: int, **more: Any) -> Queue:
    return Queue(name, quota=Bound(1000 * gpus, 80 * gpus), **more)


def queues(own: int, guest: int = 0) -> dict[str, Queue]:
    return {"own": quota("own", own), "guest": quota("guest", guest)}


def preempted(decision: Decision) -> dict[str, list[str]]:
    """The victims of each gang."""
    return {
        one.name: [victim.gang.name for victim in preemption.victims]
        for one, preemption in decision.preemptions
    }


def test_a_spared_workload_uses_its_queues_quota() -> None:
    allocations = nodes(4)
    kept = started(allocations, gang("kept", 2, queue="own"))
    guest = started(allocations, gang("guest", 2, queue="guest"))
    mine = gang("mine", 2, queue="own", priority=1)
    asked: dict[str, Any] = {"running": [kept, guest], "protected": {"kept"}}
    assert not decide(question(allocations, mine, queues=queues(own=2), **asked)).preemptions
    more = decide(question(allocations, mine, queues=queues(own=4), **asked))
    assert preempted(more) == {"mine": ["guest"]}


def test_a_spared_workload_counts_for_its_queues_limit() -> None:
    allocations = nodes(4)
    limit = {"q": Queue("q", limit=Bound(3000))}
    kept = started(allocations, gang("kept", 2, queue="q"))
    other = started(allocations, gang("other", 1, queue="q"))
    mine = gang("mine", 2, queue="q", priority=1)
    asked: dict[str, Any] = {"running": [kept, other], "queues": limit}
    assert not decide(question(allocations, mine, protected={"kept"}, **asked)).preemptions
    assert preempted(decide(question(allocations, mine, **asked))) == {"mine": ["kept"]}


@pytest.mark.parametrize(("own", "ends"), [(2, {}), (4, {"second": ["rigid"]})])
def test_what_elastic_jobs_give_to_one_gang_cannot_be_reclaimed_by_another(
    own: int, ends: dict[str, list[str]]
) -> None:
    """The first has all that is its queue's own, as soon as the job has given it back."""
    allocations = nodes(6)
    job = replace(started(allocations, gang("job", 4, queue="guest")), start=NOW - 100)
    rigid = started(allocations, gang("rigid", 2, queue="guest"))
    mine = [gang(name, 2, queue="own", submitted=n) for n, name in enumerate(("first", "second"))]
    givers = [ElasticSurplus("job", 60.0, parts_of(job, 2))]
    asked: dict[str, Any] = {"running": [job, rigid], "surpluses": givers, "queues": queues(own)}
    decision = decide(question(allocations, *mine, **asked))
    assert decision.shrink_requests == {"first": {"job": 60.0}}
    assert preempted(decision) == ends


def test_what_a_job_gives_back_is_not_borrowed_any_more() -> None:
    """The guests have two more than their own, and that is what the job gives back."""
    allocations = nodes(6)
    job = replace(started(allocations, gang("job", 4, queue="guest")), start=NOW - 100)
    rigid = started(allocations, gang("rigid", 2, queue="guest"))
    mine = [gang(name, 2, queue="own", submitted=n) for n, name in enumerate(("first", "second"))]
    givers = [ElasticSurplus("job", 60.0, parts_of(job, 2))]
    asked: dict[str, Any] = {"running": [job, rigid], "surpluses": givers}
    decision = decide(question(allocations, *mine, queues=queues(4, guest=4), **asked))
    assert decision.shrink_requests == {"first": {"job": 60.0}}
    assert not decision.preemptions


@pytest.mark.parametrize(
    ("seconds", "own", "ends"),
    [(7200.0, 2, {}), (60.0, 2, {"small": ["guest"]}), (7200.0, 3, {"small": ["guest"]})],
    ids=["both at once", "one after the other", "enough for both"],
)
def test_quota_planned_for_an_earlier_gang_cannot_be_reclaimed(
    seconds: float, own: int, ends: dict[str, list[str]]
) -> None:
    """The wide gang cannot preempt now; its start is planned for when the node is free."""
    allocations = nodes(2, 1)
    kept = started(allocations, gang("kept", 1, gpus=2, queue="other"), 3600.0)
    guest = started(allocations, gang("guest", 1, queue="guest"), 9000.0)
    wide = gang("wide", 1, gpus=2, queue="own", seconds=3600.0)
    small = gang("small", 1, queue="own", seconds=seconds, submitted=1.0)
    known = {**queues(own), "other": quota("other", 2)}
    decision = decide(question(allocations, wide, small, running=[kept, guest], queues=known))
    assert {one.gang.name for one in decision.planned} >= {"wide"}
    assert preempted(decision) == ends


@CHECKED
@given(
    running=st.lists(
        st.tuples(
            st.sampled_from(["own", "guest"]),
            st.integers(1, 4),
            st.sampled_from(["rigid", "spared", "elastic"]),
        ),
        min_size=1,
        max_size=6,
    ),
    waiting=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    quotas=st.tuples(st.integers(0, 8), st.integers(0, 4)),
)
def test_a_quota_is_reclaimed_once_and_from_borrowers(
    running: list[tuple[str, int, str]], waiting: list[int], quotas: tuple[int, int]
) -> None:
    """The cluster is full, and all of one queue ask; in their turns, against plain sums."""
    allocations = nodes(sum(size for _, size, _ in running))
    own, guest = quotas
    runs, givers, spared = [], [], set()
    for number, (queue, size, how) in enumerate(running):
        runs.append(started(allocations, gang(f"{how}{number}", size, queue=queue)))
        if how == "protected":
            spared.add(runs[-1].gang.name)
        if how == "elastic" and size > 1:
            givers.append(ElasticSurplus(f"job{number}", 60.0, parts_of(runs[-1], 1)))
    mine = [gang(f"y{n}", size, queue="own", submitted=n) for n, size in enumerate(waiting)]
    asked: dict[str, Any] = {
        "running": runs,
        "surpluses": givers,
        "queues": queues(own, guest),
        "protected": spared,
    }
    decision = decide(question(allocations, *mine, **asked))
    assert not decision.starts
    claims = {one.name: preemption.victims for one, preemption in decision.preemptions}
    sizes = {one.name: len(one.members) for one in mine}
    used = {name: sum(s for queue, s, _ in running if queue == name) for name in queues(0)}
    free = 0
    for name in decision.searched:
        if name not in claims and name not in decision.shrink_requests:
            continue
        used["own"] += sizes[name]
        assert used["own"] <= own, "it is not its queue's own"
        if name in decision.shrink_requests:
            assert used["guest"] > guest
            used["guest"] -= max(0, sizes[name] - free)
            continue
        for victim in sorted(claims[name], key=lambda one: len(one.gang.members)):
            assert victim.gang.queue == "guest"
            assert victim.gang.name not in spared
            assert used["guest"] > guest, "it borrows nothing any more"
            used["guest"] -= len(victim.gang.members)
            free += len(victim.gang.members)
        free -= sizes[name]


# --- victims that terminate -----------------------------------------------------------------------


def test_a_gang_that_fits_when_victims_are_gone_preempts_nobody_else() -> None:
    allocations = nodes(1, 1)
    stays = started(allocations, gang("stays", 1, queue="guest"))
    left = started(allocations, gang("gone (ending)", 1), 5.0)
    mine = gang("mine", 1, queue="own")
    asked: dict[str, Any] = {"running": [stays], "queues": queues(4)}
    decision = decide(question(allocations, mine, releasing=[left], **asked))
    assert not decision.preemptions
    (planned,) = decision.planned
    assert (planned.placements, planned.start) == (left.placements, left.end)
    both = gang("both", 2, queue="own")
    found = decide(question(allocations, both, releasing=[left], **asked))
    assert not found.preemptions, "it is not all there yet"
    assert preempted(decide(question(allocations, mine, **asked))) == {"mine": ["stays"]}


def test_a_gang_that_is_planned_later_does_not_wait_for_leftovers() -> None:
    allocations = nodes(1, 1)
    stays = started(allocations, gang("stays", 1, queue="guest"))
    left = started(allocations, gang("gone (ending)", 1), 5.0)
    first, second = (gang(name, 1, queue="own", submitted=n) for n, name in enumerate("ab"))
    asked: dict[str, Any] = {"running": [stays], "releasing": [left], "queues": queues(4)}
    assert preempted(decide(question(allocations, first, second, **asked))) == {"b": ["stays"]}


def test_a_gang_gets_no_gpu_of_a_victim_that_it_does_not_wait_for() -> None:
    allocations = nodes(4)
    cheap = replace(started(allocations, gang("cheap", 3, queue="guest")), start=NOW - 10)
    dear = replace(started(allocations, gang("dear", 1, queue="guest")), start=NOW - 500)
    small, large = gang("small", 1, queue="own"), gang("large", 3, queue="own", submitted=1.0)
    decision = decide(question(allocations, small, large, running=[cheap, dear], queues=queues(8)))
    places: set[tuple[int, int]] = set()
    for _, preemption in decision.preemptions:
        own = {
            (at.node, gpu) for one in preemption.victims for at in one.placements for gpu in at.gpus
        }
        wants = {(at.node, gpu) for at in preemption.placements for gpu in at.gpus}
        assert wants.isdisjoint(places - own)
        places |= own
    assert preempted(decision) == {"small": ["cheap"]}


LIMITS = {
    "top": Queue("top", limit=Bound(6000)),
    "a": quota("a", 3, parent="top", limit=Bound(4000)),
    "b": Queue("b", parent="top"),
}
PARTS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 3)), max_size=4)


@CHECKED
@given(
    runs=PARTS,
    ends=PARTS,
    heir=st.integers(1, 3),
    waiting=st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 3), st.integers(0, 2)),
        min_size=1,
        max_size=5,
    ),
)
def test_no_limit_is_passed_in_any_order_of_evictions(
    runs: list[tuple[str, int]],
    ends: list[tuple[str, int]],
    heir: int,
    waiting: list[tuple[str, int, int]],
) -> None:
    """Each preemption starts when its victims are gone; one was decided before."""
    allocations = nodes(8, 8, 8, 8)
    staying = placed(allocations, "r", runs)
    ended = placed(allocations, "e", ends)
    heirs = placed(allocations, "h", [("a", heir)] if ends else [])
    if not within(staying, ended, []) or not within(staying, heirs, []):
        return
    hardware = allocations.hardware
    before = Tree(LIMITS).excess(usage(ended, hardware), usage(heirs, hardware))
    mine = [
        gang(f"w{n}", size, queue=queue, priority=priority, submitted=n)
        for n, (queue, size, priority) in enumerate(waiting)
    ]
    spared = {one.gang.name for one in heirs}
    running = [*staying, *heirs]
    asked: dict[str, Any] = {"running": running, "ending": before, "protected": spared}
    decision = decide(question(allocations, *mine, queues=LIMITS, **asked))
    swaps = [
        (list(preemption.victims), [Running(one, preemption.placements, NOW, NOW + 1)])
        for one, preemption in decision.preemptions
    ]
    victims = [one for pair in swaps for one in pair[0]]
    assert all(one in staying for one in victims)
    always = [*(one for one in staying if one not in victims), *decision.starts]
    swaps.append((ended, heirs))
    for number in range(len(swaps) + 1):
        for opened in combinations(range(len(swaps)), number):
            now = [swap[n in opened] for n, swap in enumerate(swaps)]
            assert within(always, chain.from_iterable(now), [])


def placed(allocations: Allocations, prefix: str, some: list[tuple[str, int]]) -> list[Running]:
    found = []
    for number, (queue, size) in enumerate(some):
        free = [
            Placement(node, (gpu,))
            for node in range(allocations.hardware.size)
            for gpu in range(8)
            if allocations.milli_free[node, gpu] == 1000
        ]
        one = gang(f"{prefix}{number}", size, queue=queue)
        found.append(Running(one, tuple(free[:size]), NOW - 10, NOW + 100))
        allocations.take_gang(found[-1])
    return found


def within(*some: Any) -> bool:
    used = {"a": 0, "b": 0}
    for one in chain.from_iterable(some):
        used[one.gang.queue] += len(one.gang.members)
    return used["a"] <= 4 and sum(used.values()) <= 6
