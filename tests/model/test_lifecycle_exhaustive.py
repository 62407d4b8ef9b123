"""Every way that small jobs can go, with a controller that dies and messages that do not arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aliquot.model.job import State
from aliquot.model.status import Phase, Seen, Sight, Slot, Verb
from model import model_check
from model.model_check import Budget, World, check, explore, fair, small_job

if TYPE_CHECKING:
    from aliquot.model.job import Job
    from model.model_check import Point

STEPS = 200  # more than any fair way needs

BUDGETS = {
    "its worker fails": Budget(2, failures=1, refusals=0, wishes=1, late=0),
    "there is no room after all": Budget(2, failures=0, refusals=1, wishes=1, late=0),
    "a deed comes late or twice, and it is resized": Budget(
        2, failures=0, refusals=0, wishes=0, late=1
    ),
    "a deed comes late or twice, and its user speaks": Budget(
        1, failures=0, refusals=0, wishes=1, late=1
    ),
    "it is resized again": Budget(3, failures=0, refusals=0, wishes=1, late=0),
    "its user changes his mind": Budget(2, failures=0, refusals=0, wishes=2, late=0),
    "it is frozen, and its user changes his mind": Budget(
        3, failures=0, refusals=0, wishes=3, late=0, freezes=True
    ),
    "it is frozen, and its GPUs are not free": Budget(
        3, failures=0, refusals=1, wishes=2, late=0, freezes=True
    ),
    "it is frozen, and a worker fails": Budget(
        2, failures=1, refusals=0, wishes=1, late=0, freezes=True
    ),
    "it cannot be frozen, or thawed": Budget(
        2, failures=0, refusals=0, wishes=2, late=0, stuck=1, freezes=True
    ),
    "it is frozen, and a deed comes late or twice": Budget(
        2, failures=0, refusals=0, wishes=1, late=1, freezes=True
    ),
}
CASES = [
    pytest.param(live, budget, id=f"{'live' if live else 'restarted'}: {name}")
    for name, budget in BUDGETS.items()
    for live in (False, True)
    if not (live and budget.freezes)  # all workers stand still, whichever way it is resized
]


def ends_well(job: Job, point: Point, known: set[Point]) -> None:
    """Follow the fair way to its end, or to where one was that is known to end."""
    way: list[Point] = []
    while not point.record.state.final and point not in known:
        way.append(point)
        assert len(way) < STEPS, f"it does not end: {way[-1]}"
        point = fair(job, point)
    known.update(way)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("live", "budget"), CASES)
def test_no_worker_is_lost_or_doubled_no_gpu_is_kept_and_every_job_ends(
    budget: Budget, *, live: bool
) -> None:
    job = small_job(live=live, retries=min(1, budget.failures))
    reached = explore(job, budget)
    known: set[Point] = set()
    for point in reached:
        check(point, budget)
        ends_well(job, point, known)


def test_the_search_comes_to_every_state() -> None:
    budget = Budget(2, failures=1, refusals=0, wishes=1, late=0)
    reached = explore(small_job(live=False, retries=0), budget)
    assert {point.record.state for point in reached} == set(State)


def search(budget: Budget) -> None:
    for point in explore(small_job(live=False, retries=0), budget):
        check(point, budget)


def test_it_would_find_a_place_given_away_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search itself is tried on a machine that does not wait for workers to be gone."""
    monkeypatch.setattr(Seen, "closed", lambda seen, slot: slot in seen.slots)
    monkeypatch.setattr(model_check, "_look", model_check._look.__wrapped__)
    with pytest.raises(AssertionError):
        search(Budget(2, failures=0, refusals=0, wishes=1, late=0))


def test_it_would_find_a_slot_that_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And on a world in which a slot that was voided can still be taken."""
    deliver = World.deliver

    def forgetful(world: World, verb: Verb, slots: tuple[Slot, ...]) -> World:
        sight = world.sight(slots[0])
        if verb is Verb.START and sight is not None and sight.phase is Phase.VOID:
            return world.put(slots[0], Sight(Phase.ALIVE))
        return deliver(world, verb, slots)

    monkeypatch.setattr(World, "deliver", forgetful)
    with pytest.raises(AssertionError):
        search(Budget(1, failures=0, refusals=0, wishes=1, late=1))
