"""Plans of the pool with over-commit: whatever comes and goes, nothing is over any limit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.model import Amount, Request
from aliquot.model.errors import NoCapacityError
from aliquot.pool.capacity import MachinePlan, RequestKinds
from aliquot.slices.turn_room import load_of
from support import GIB, make_shared

HOST, FACTOR = 90 * GIB, 1.5
REQUESTS = st.builds(
    Request,
    memory=st.integers(1, 79).map(lambda gib: Amount(bytes=gib * GIB)),
    swap=st.booleans(),
    overcommit=st.sampled_from([0.0, 0.0, 1.0, 1.2]),
)
STEPS = st.lists(st.one_of(REQUESTS, st.integers(0, 20)), max_size=25)


def machine() -> MachinePlan:
    gpus = (make_shared(index) for index in range(2))
    return MachinePlan(tuple(replace(one, overcommit=FACTOR, host_limit=HOST) for one in gpus), ())


def check(plan: MachinePlan) -> None:
    loads = [load_of(one, plan.grants) for one in plan.gpus]
    assert sum(load.host_bytes for load in loads) <= HOST
    for load in loads:
        assert load.granted <= FACTOR * load.memory
        for one in load.turns:
            stay = sum(other.stays for other in load.turns) - one.stays
            assert load.rigid + one.limit + stay <= load.memory
            assert not load.excess or one.most is None or load.times <= one.most
        assert not load.excess or any(one.limit > GIB for one in load.turns)
    sliced = [sum(part.limit for part in load.turns) + load.rigid for load in loads]
    assert sliced == [one.granted_bytes for one in plan.gpus]


@settings(deadline=None)
@given(STEPS)
def test_whatever_comes_and_goes_nothing_is_over_a_limit(steps: list[Request | int]) -> None:
    plan = machine()
    for step in steps:
        if isinstance(step, int):
            if plan.grants:
                plan = plan.without_grant(plan.grants[step % len(plan.grants)])
        else:
            with suppress(NoCapacityError):
                plan, _ = plan.put(step, 1)
        check(plan)


def test_a_slice_without_turns_takes_no_place_of_one_with_turns() -> None:
    plan = machine()
    part = Request(memory=Amount(bytes=50 * GIB))
    swaps = replace(part, swap=True)
    kinds = RequestKinds.of([part, swaps], plan)
    assert kinds.kind(part) != kinds.kind(swaps)
    full, _ = plan.put(swaps, 2)
    assert full.holds(swaps, 1)
    assert not full.holds(part, 1)
    alone = RequestKinds.of([part, swaps], MachinePlan((make_shared(0),), ()))
    assert alone.kind(part) == alone.kind(swaps)
