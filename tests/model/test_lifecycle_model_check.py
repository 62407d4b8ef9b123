"""Model check of the job life cycle, with a controller that dies and actions that get lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aliquot.model.actions import Verb
from aliquot.model.job import JobPhase
from aliquot.model.job_state import ObservedJob, ObservedWorker, Slot, WorkerPhase
from model import model_check
from model.model_check import Budget, ModelWorld, check, explore, fair, small_job

if TYPE_CHECKING:
    from aliquot.model.job import Job
    from model.model_check import Point

STEPS = 200  # more than any fair run needs

BUDGETS = {
    "its worker fails": Budget(2, failures=1, refusals=0, requests=1, late=0),
    "its GPUs are refused": Budget(2, failures=0, refusals=1, requests=1, late=0),
    "an action is late or repeated during a resize": Budget(
        2, failures=0, refusals=0, requests=0, late=1
    ),
    "an action is late or repeated during a request": Budget(
        1, failures=0, refusals=0, requests=1, late=1
    ),
    "it is resized again": Budget(3, failures=0, refusals=0, requests=1, late=0),
    "its user changes the request": Budget(2, failures=0, refusals=0, requests=2, late=0),
    "it is frozen, and its user changes the request": Budget(
        3, failures=0, refusals=0, requests=3, late=0, freezes=True
    ),
    "it is frozen, and its GPUs are not free": Budget(
        3, failures=0, refusals=1, requests=2, late=0, freezes=True
    ),
    "it is frozen, and a worker fails": Budget(
        2, failures=1, refusals=0, requests=1, late=0, freezes=True
    ),
    "it cannot be frozen or thawed": Budget(
        2, failures=0, refusals=0, requests=2, late=0, stuck=1, freezes=True
    ),
    "it is frozen, and an action is late or repeated": Budget(
        2, failures=0, refusals=0, requests=1, late=1, freezes=True
    ),
    "it reaches its time limit": Budget(
        2, failures=0, refusals=0, requests=0, late=0, limited=True
    ),
    "it is frozen, and reaches its time limit": Budget(
        1, failures=0, refusals=0, requests=2, late=0, freezes=True, limited=True
    ),
}
CASES = [
    pytest.param(live, budget, id=f"{'live' if live else 'restarted'}: {name}")
    for name, budget in BUDGETS.items()
    for live in (False, True)
    if not (live and budget.freezes)  # freezing does not depend on how a job is resized
]


def ends_well(job: Job, point: Point, known: set[Point]) -> None:
    """Follow fair rounds until the job is finished or a point is known to finish."""
    way: list[Point] = []
    while not point.state.phase.final and point not in known:
        way.append(point)
        assert len(way) < STEPS, f"the job does not finish: {way[-1]}"
        point = fair(job, point)
    known.update(way)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("live", "budget"), CASES)
def test_no_worker_is_lost_or_doubled_no_gpu_leaks_and_every_job_finishes(
    budget: Budget, *, live: bool
) -> None:
    job = small_job(live=live, retries=min(1, budget.failures), limited=budget.limited)
    reached = explore(job, budget)
    known: set[Point] = set()
    for point in reached:
        check(point, budget)
        ends_well(job, point, known)


def test_the_search_reaches_every_phase() -> None:
    budget = Budget(2, failures=1, refusals=0, requests=1, late=0)
    reached = explore(small_job(live=False, retries=0), budget)
    assert {point.state.phase for point in reached} == set(JobPhase)


def search(budget: Budget) -> None:
    for point in explore(small_job(live=False, retries=0), budget):
        check(point, budget)


def test_the_check_finds_gpus_given_away_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the state machine does not wait until workers are gone."""
    monkeypatch.setattr(ObservedJob, "closed", lambda seen, slot: slot in seen.slots)
    monkeypatch.setattr(model_check, "_round", model_check._round.__wrapped__)
    with pytest.raises(AssertionError):
        search(Budget(2, failures=0, refusals=0, requests=1, late=0))


def test_the_check_finds_a_void_slot_that_starts_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: a worker can start in a slot that was voided."""
    deliver = ModelWorld.deliver

    def forgetful(world: ModelWorld, verb: Verb, slots: tuple[Slot, ...]) -> ModelWorld:
        worker = world.worker(slots[0])
        if verb is Verb.START and worker is not None and worker.phase is WorkerPhase.VOID:
            return world.put(slots[0], ObservedWorker(WorkerPhase.ALIVE))
        return deliver(world, verb, slots)

    monkeypatch.setattr(ModelWorld, "deliver", forgetful)
    with pytest.raises(AssertionError):
        search(Budget(1, failures=0, refusals=0, requests=1, late=1))
