"""Which commands of `aliquot run` the pool's schedule admits, without processes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from aliquot.model import Amount, GrantState, Life, Parking, Request, Slice
from aliquot.model.job import Job, JobPhase, Sizes
from aliquot.model.job_state import JobState, Slot
from aliquot.model.owner import Owner
from aliquot.placement.elastic.resize import Rules
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.pool.decision_input import AdmittedGrant
from aliquot.pool.decision_names import run_name
from aliquot.pool.encoding import Submission
from aliquot.pool.runs import RunMode, RunRequest, Waiting
from aliquot.pool.schedule import PoolScheduler, UserShares
from aliquot.pool.store import StoredJob
from aliquot.pool.workers import grant_name
from aliquot.slices.arbiter_status import Status
from support import GIB, make_grant, make_shared, uuid_of

NOW = 100_000.0
ALICE, BOB = Owner(4001, 4001, "alice"), Owner(4002, 4002, "bob")


def job(number: int, gpus: int, submitted: float, seconds: float | None = None) -> StoredJob:
    made = Job(
        number,
        "large",
        ("true",),
        Request(gpus=gpus),
        Sizes((1,)),
        submitted=submitted,
        time_seconds=seconds,
        notice_seconds=20.0,
        grace_seconds=5.0,
    )
    return StoredJob(Submission(ALICE, made, "/bin/true", "/"), JobState(), 0, {}, {})


def running(number: int, seconds: float | None, since: float) -> StoredJob:
    """A job with one worker, which began at a time."""
    state = JobState(phase=JobPhase.RUNNING, slots=(Slot(1, 0),), active_since=since)
    return replace(job(number, 1, NOW - 1000, seconds), state=state)


def run(
    number: int = 1,
    *,
    gpus: int = 1,
    waits: bool = False,
    asks: bool = False,
    owner: Owner = BOB,
    queue: str = "default",
) -> RunRequest:
    mode = RunMode.PREVIEW if asks else RunMode.WAIT if waits else RunMode.NOW
    request = Request(gpus=gpus)
    return RunRequest(number, owner, 7, 1, request, None, "x", None, mode, NOW + number, queue)


def decided(
    jobs: list[StoredJob],
    runs: list[RunRequest],
    taken: int,
    shares: UserShares | None = None,
    charged: tuple[Owner, str] | None = None,
) -> PoolScheduler:
    """The decision on a machine of four GPUs, of which the jobs that run have the first ones.

    So many are taken; the others by grants that never end, charged to this user in this queue.
    """
    gpus = tuple(make_shared(at, granted=80 * GIB if at < taken else 0) for at in range(4))
    names = [grant_name(one, slot) for one in jobs for slot in one.state.slots]
    names += [f"taken-{at}" for at in range(len(names), taken)]
    grants = tuple(
        replace(make_grant(name, **{f"gpu{at}": 80 * GIB}), life=Life.KEPT)
        for at, name in enumerate(names)
    )
    scheduler = PoolScheduler(Rules())
    status = Status(1, gpus, grants, {})
    grants_of_runs = [one for one in grants if one.name.startswith("taken-")]
    admitted = [] if charged is None else [AdmittedGrant(one, *charged) for one in grants_of_runs]
    known = shares or UserShares()
    assert not list(scheduler.changes(jobs, status, NOW, known, runs, charged=admitted))
    return scheduler


def test_a_run_gets_what_is_free() -> None:
    scheduler = decided([], [run()], taken=3)
    assert [(one.number, len(slices)) for one, slices in scheduler.admitted] == [(1, 1)]
    assert scheduler.refused == []


@pytest.mark.parametrize("mode", [RunMode.WAIT, RunMode.NOW, RunMode.PREVIEW])
def test_idle_grants_are_asked_to_give_up_what_a_run_needs(mode: RunMode) -> None:
    gpus = tuple(make_shared(at, granted=60 * GIB) for at in range(2))
    idle = Parking(600.0, if_wanted=True, is_due=True)
    busy, other = (make_grant(f"g{at}", **{f"gpu{at}": 60 * GIB}) for at in range(2))
    grants = (busy, replace(other, parking=idle))
    large = Request(memory=Amount(bytes=40 * GIB))
    scheduler = PoolScheduler(Rules())
    asked = replace(run(), mode=mode, request=large)
    list(scheduler.changes([], Status(1, gpus, grants, {}), NOW, UserShares(), [asked]))
    wanted = [] if mode is RunMode.PREVIEW else [Slice(uuid_of(1), 40 * GIB)]
    assert scheduler.wanted == wanted
    small = replace(asked, request=Request(memory=Amount(bytes=GIB)))
    list(scheduler.changes([], Status(1, gpus, grants, {}), NOW, UserShares(), [small]))
    assert scheduler.wanted == []


def test_two_runs_do_not_get_the_same_gpu() -> None:
    scheduler = decided([], [run(1), run(2)], taken=3)
    assert [one.number for one, _ in scheduler.admitted] == [1]
    assert [one.number for one, _ in scheduler.refused] == [2]


def test_a_run_does_not_overtake_a_job_that_has_waited_for_long() -> None:
    patient = job(1, 4, NOW)
    assert [one.number for one, _ in decided([patient], [run()], taken=3).admitted] == [1]
    impatient = job(1, 4, NOW - Rules().patience_seconds - 1)
    for waits in (False, True):
        scheduler = decided([impatient], [run(waits=waits)], taken=3)
        assert scheduler.admitted == []
        said = scheduler.waiting if waits else {run_name(a): b for a, b in scheduler.refused}
        assert said["run 1"] == "job 1 of alice has waited longer, and is not overtaken"


def test_a_reason_names_what_its_user_sees_in_the_list_of_jobs() -> None:
    long_ago = NOW - Rules().patience_seconds - 1

    def why(first: StoredJob | RunRequest, waits: Owner) -> str:
        jobs = [first] if isinstance(first, StoredJob) else []
        runs = [first] if isinstance(first, RunRequest) else []
        later = run(2, waits=True, owner=waits)
        return decided(jobs, [*runs, later], taken=3).waiting["run 2"]

    command = replace(run(1, gpus=4, waits=True, owner=ALICE), submitted=long_ago)
    end = "has waited longer, and is not overtaken"
    assert why(command, BOB) == f"a command of alice {end}"
    assert why(command, ALICE) == f"command x-7 {end}"
    assert why(replace(command, name="mine"), ALICE) == f"command mine {end}"
    assert why(job(1, 4, long_ago), BOB) == f"job 1 of alice {end}"
    assert why(job(1, 4, long_ago), ALICE) == f"job large (1) {end}"


def test_runs_that_wait_have_places_in_the_order_they_came() -> None:
    scheduler = decided([], [run(1, gpus=4, waits=True), run(2, gpus=4, waits=True)], taken=1)
    assert scheduler.turns == ["run 1", "run 2"]
    assert scheduler.refused == []


def test_those_that_wait_start_when_time_limits_of_running_jobs_have_passed() -> None:
    jobs = [running(1, 300, NOW - 100), running(2, 600, NOW - 100), job(3, 1, NOW, seconds=50)]
    runs = [run(1, waits=True), run(2, waits=True, owner=ALICE)]
    scheduler = decided(jobs, runs, taken=4)
    assert scheduler.turns == ["run 1", "job 3", "run 2"], "alice has more than bob"
    stops = 20 + 5
    assert scheduler.expected == {
        "run 1": NOW + 200 + stops,
        "job 3": NOW + 500 + stops,
        "run 2": NOW + 500 + stops + 50 + stops,
    }
    place = scheduler.waiting_of("run 2")
    assert place is not None
    assert (place.place, place.of, place.expected) == (3, 3, scheduler.expected["run 2"])


def test_no_start_is_known_beside_grants_without_a_time_limit() -> None:
    jobs = [running(1, None, NOW), running(2, 60, NOW)]
    scheduler = decided(jobs, [run(1, gpus=2, waits=True), run(2, waits=True)], taken=4)
    assert (scheduler.turns, scheduler.expected) == (["run 1", "run 2"], {})


def test_a_preview_says_what_a_run_would_get_and_takes_nothing() -> None:
    scheduler = decided([], [run(1, asks=True), run(2)], taken=3)
    ((asked, slices),) = scheduler.previewed
    assert isinstance(slices, list)
    assert (asked.number, [one.gpu_uuid for one in slices]) == (1, [uuid_of(3)])
    assert [one.number for one, _ in scheduler.admitted] == [2]


def test_a_preview_says_the_place_and_the_start_of_a_run_that_would_wait() -> None:
    jobs = [running(1, 300, NOW), job(2, 1, NOW, seconds=50)]
    scheduler = decided(jobs, [run(1, asks=True, owner=ALICE)], taken=4)
    ((_, place),) = scheduler.previewed
    assert isinstance(place, Waiting)
    assert (place.place, place.of) == (2, 2)
    assert place.expected == NOW + 300 + 25 + 50 + 25
    assert scheduler.turns == ["job 2"]


def limited(gpus: int) -> UserShares:
    """A queue with that limit."""
    return UserShares({"small": Queue("small", limit=Bound(milli=1000 * gpus))})


@pytest.mark.parametrize("waits", [False, True])
def test_a_queues_limit_counts_commands_that_run(waits: bool) -> None:  # noqa: FBT001
    more = run(1, waits=waits, queue="small")
    for owner in (BOB, ALICE):
        full = decided([], [more], 2, limited(2), charged=(owner, "small"))
        assert full.admitted == []
        said = full.waiting if waits else {run_name(one): why for one, why in full.refused}
        assert "may have 2 GPUs" in said["run 1"]
        assert decided([], [more], 2, limited(3), charged=(owner, "small")).admitted
        assert decided([], [more], 2, limited(2), charged=(owner, "other")).admitted


@pytest.mark.parametrize("waits", [False, True])
def test_a_users_limit_counts_that_users_commands_in_all_queues(waits: bool) -> None:  # noqa: FBT001
    shares = UserShares(limits={"bob": Bound(milli=2000)})
    more = run(1, waits=waits)
    for queue in ("default", "other"):
        assert decided([], [more], 2, shares, charged=(BOB, queue)).admitted == []
        assert decided([], [more], 1, shares, charged=(BOB, queue)).admitted
        assert decided([], [more], 2, shares, charged=(ALICE, queue)).admitted


def test_reasons_name_the_limit_of_a_user_or_of_a_queue() -> None:
    runs = [run(1, waits=True, queue="small"), run(2, waits=True, queue="small")]
    runs += [run(3, waits=True, gpus=3, queue="small")]
    assert decided([], runs, 2, limited(2), charged=(ALICE, "small")).waiting == {
        "run 1": "queue small may have 2 GPUs; with this one it would be 3",
        "run 2": "command x-7 comes before it, and waits for the limit of queue small",
        "run 3": "queue small may have 2 GPUs; this one asks for 3",
    }
    shares = UserShares(limits={"bob": Bound(milli=2000)})
    assert decided([], runs, 2, shares, charged=(BOB, "small")).waiting == {
        "run 1": "user bob may have 2 GPUs; with this one it would be 3",
        "run 2": "command x-7 comes before it, and waits for the limit of user bob",
        "run 3": "user bob may have 2 GPUs; this one asks for 3",
    }


def test_commands_that_start_together_do_not_pass_a_limit_together() -> None:
    for waits in (False, True):
        runs = [run(1, queue="small"), run(2, queue="small", waits=waits)]
        assert len(decided([], runs, 0, limited(1)).admitted) == 1


def test_commands_that_start_together_in_two_queues_do_not_pass_their_users_limit() -> None:
    shares = UserShares(limits={"bob": Bound(milli=1000)})
    for first, second in product((False, True), repeat=2):
        runs = [run(1, queue="small", waits=first), run(2, queue="large", waits=second)]
        assert len(decided([], runs, 0, shares).admitted) == 1
        others = [replace(one, owner=ALICE) for one in runs]
        assert len(decided([], others, 0, shares).admitted) == 2


def test_a_command_does_not_pass_a_limit_beside_a_job_that_grows() -> None:
    one = running(1, None, NOW - 1000)
    sizes = replace(one.job, sizes=Sizes((1, 2)))
    grows = replace(one, submission=replace(one.submission, job=sizes))
    grant = make_grant(grant_name(grows, grows.state.slots[0]), gpu0=80 * GIB)
    gpus = tuple(make_shared(at, granted=0 if at else 80 * GIB) for at in range(4))
    scheduler, status = PoolScheduler(Rules()), Status(1, gpus, (grant,), {})
    shares = UserShares(limits={"alice": Bound(milli=2000)})
    assert not list(scheduler.changes([grows], status, NOW, shares))
    later = NOW + Rules().settle_seconds
    ((_, state),) = scheduler.changes([grows], status, later, shares, [run(owner=ALICE)])
    assert (state.target_size, scheduler.admitted) == (2, [])


def test_a_parked_grant_counts_for_no_limit() -> None:
    parked = replace(make_grant("mine", gpu0=80 * GIB), state=GrantState.PARKED)
    gpus = tuple(make_shared(at) for at in range(4))
    scheduler, status = PoolScheduler(Rules()), Status(1, gpus, (parked,), {})
    charged = [AdmittedGrant(parked, BOB, "small")]
    runs = [run(1, queue="small")]
    assert not list(scheduler.changes([], status, NOW, limited(1), runs, charged=charged))
    assert [one.number for one, _ in scheduler.admitted] == [1]


def test_a_preview_does_not_take_what_is_planned_for_a_job() -> None:
    impatient = job(1, 4, NOW - Rules().patience_seconds - 1)
    ((_, place),) = decided([impatient], [run(asks=True)], taken=3).previewed
    assert isinstance(place, Waiting)
    assert place.why == "job 1 of alice has waited longer, and is not overtaken"
