"""Jobs and commands that are with, apart from, or alone: in plans, in the schedule and for real."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from aliquot.model import Amount, Grant, GrantState, Life, Request
from aliquot.model.actions import Action, Verb
from aliquot.model.errors import ArbiterError, InvalidValueError, NoCapacityError
from aliquot.model.job import ArrayIndex, Job, Sizes
from aliquot.model.job_state import Slot
from aliquot.model.neighbours import Neighbours
from aliquot.model.owner import Owner
from aliquot.model.selection import GpuSelection
from aliquot.placement.core.demand import Demand, Kind
from aliquot.placement.elastic.feasibility import Feasibility, JobWorkers
from aliquot.placement.elastic.resize import Rules
from aliquot.placement.elastic.sizes import TRIES
from aliquot.placement.queues.quota import Bound
from aliquot.pool.capacity import MachineCapacity, MachinePlan, RequestKinds, held_gpus
from aliquot.pool.decision_names import run_name
from aliquot.pool.directory import PoolDirectory
from aliquot.pool.encoding import Submission, decode_submission, encode_submission
from aliquot.pool.peers import this_user
from aliquot.pool.pool_cgroup import WorkerCgroups
from aliquot.pool.runs import Waiting
from aliquot.pool.schedule import PoolScheduler, UserShares
from aliquot.pool.workers import LocalWorkers, Runtime, job_label
from aliquot.slices import StateDirectory
from aliquot.slices.arbiter_status import Status
from pool.test_batch import FOREVER
from pool.test_run_schedule import ALICE, BOB, NOW, job, run
from slices.played import Played, gpu_words, status_words
from support import GIB, make_grant, make_shared

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.pool.store import StoredJob
    from pool.conftest import PoolUp

pytestmark = pytest.mark.timeout(300)

ONE = Sizes((1,))


def asked(owner: int = 7, **says: object) -> Request:
    neighbours = Neighbours(**says)  # type: ignore[arg-type]
    return Request(memory=Amount(bytes=8 * GIB), neighbours=neighbours, owner=owner)


def empty(gpus: int) -> MachinePlan:
    return MachinePlan(tuple(make_shared(index) for index in range(gpus)), ())


class TestPlans:
    def test_workers_of_one_label_that_are_apart_have_different_gpus(self) -> None:
        web = asked(label="web", apart_from=("web",))
        _, placed = empty(3).put(web, 3)
        assert len({part.gpu_uuid for parts in placed for part in parts}) == 3
        with pytest.raises(NoCapacityError, match="GPU 0 has the slice web, which web asks to be"):
            empty(3).put(web, 4)

    def test_what_is_planned_counts_for_what_comes_later(self) -> None:
        plan, _ = empty(2).put(asked(label="train"), 1)
        plan, _ = plan.put(asked(label="eval", apart_from=("train",)), 1)
        with pytest.raises(NoCapacityError) as caught:
            plan.put(asked(label="bench", alone=True), 1)
        assert caught.value.message == (
            "no GPU takes it beside the slices there:\n"
            "  GPU 0 has the slice train, and bench asks to be alone\n"
            "  GPU 1 has the slice eval, and bench asks to be alone"
        )
        assert "--alone" in str(caught.value.hint)
        plan, [[part]] = plan.put(asked(label="x", beside="eval"), 1)
        assert part.gpu_uuid == make_shared(1).gpu.uuid
        assert plan.holds(asked(owner=8, label="train", apart_from=("eval", "train")), 1)

    def test_a_parked_grant_returns_only_beside_slices_that_it_accepts(self) -> None:
        parked = replace(
            make_grant("frozen", gpu0=8 * GIB),
            owner_uid=7,
            state=GrantState.PARKED,
            neighbours=Neighbours(apart_from=("train",)),
        )
        plan = MachinePlan((make_shared(0),), (parked,))
        assert len(plan.put_back([parked]).grants) == 2
        plan, _ = plan.put(asked(label="train"), 1)
        with pytest.raises(NoCapacityError, match="frozen cannot return to GPU 0: it has the"):
            plan.put_back([parked])

    def test_what_a_parked_grant_left_on_its_gpu_counts_once(self) -> None:
        parked = replace(
            make_grant("swapped", gpu0=70 * GIB), state=GrantState.PARKED, staying_bytes=10 * GIB
        )
        plan = MachinePlan((make_shared(0, granted=10 * GIB),), (parked,))
        large = Request(memory=Amount(bytes=71 * GIB))
        assert not plan.holds(large, 1)
        assert plan.without(["swapped"]).holds(large, 1)
        back = plan.put_back([parked])
        assert (back.gpus[0].granted_bytes, len(back.grants)) == (70 * GIB, 2)
        assert back.put_back([]).holds(Request(memory=Amount(bytes=10 * GIB)), 1)
        plan, _ = plan.put(Request(memory=Amount(bytes=11 * GIB)), 1)
        with pytest.raises(NoCapacityError, match="what swapped had is not free"):
            plan.put_back([parked])

    def test_workers_that_an_earlier_version_started_have_the_label_of_their_job(self) -> None:
        worker = replace(make_grant("train.3.1.0", gpu0=8 * GIB), owner_uid=7, life=Life.KEPT)
        plan = MachinePlan((make_shared(0, granted=8 * GIB), make_shared(1)), (worker,))
        for says, gpu in (({"apart_from": ("train",)}, 1), ({"beside": "train"}, 0)):
            _, ((part,),) = plan.put(asked(**says), 1)
            assert part.gpu_uuid == make_shared(gpu).gpu.uuid

    def test_a_grant_that_is_alone_counts_as_its_whole_gpus(self) -> None:
        grant = make_grant("a", gpu0=8 * GIB, gpu1=8 * GIB)
        gpus = [make_shared(0), make_shared(1)]
        assert held_gpus(grant, gpus) == pytest.approx(0.2)
        assert held_gpus(replace(grant, neighbours=Neighbours(alone=True)), gpus) == 2


def test_the_label_of_a_job_is_its_name_or_that_of_its_array() -> None:
    job = Job(3, "train", ("true",), Request())
    assert job_label(job) == "train"
    assert job_label(replace(job, name="train-2", array=ArrayIndex("train", 2, None))) == "train"


def test_a_job_keeps_what_it_says_about_its_neighbours() -> None:
    says = Neighbours("web", "cache", ("train", "eval"))
    job = Job(3, "a", ("true",), Request(neighbours=says))
    one = Submission(Owner(1000, 1000, "alice"), job, "/bin/true", "/")
    assert decode_submission(json.loads(json.dumps(encode_submission(one))), one.owner) == one
    forged = encode_submission(one)
    forged["request"]["owner"] = 0  # whose labels count is not for the request to say
    assert decode_submission(forged, one.owner).job.request.owner is None
    plain = replace(one, job=replace(job, request=Request()))
    assert "neighbours" not in encode_submission(plain)["request"]
    for value in ({"label": 7}, {"apart_from": "web"}, {"alone": 1}, {"later": 1}):
        forged["request"]["neighbours"] = value
        with pytest.raises(InvalidValueError):
            decode_submission(forged, one.owner)


def decided(shares: UserShares, gpus: int, *says: Neighbours) -> PoolScheduler:
    """Which commands of Bob start on GPUs of which one has a slice of Alice that is alone."""
    alone = replace(
        make_grant("a", gpu0=8 * GIB), owner_uid=ALICE.uid, neighbours=Neighbours(alone=True)
    )
    others = (make_shared(index) for index in range(1, gpus))
    status = Status(1, (make_shared(0, granted=8 * GIB), *others), (alone,), {})
    part = Request(memory=Amount(bytes=8 * GIB))
    runs = [
        replace(run(n), request=replace(part, neighbours=one).of_owner(BOB.uid, f"b{n}"))
        for n, one in enumerate(says)
    ]
    scheduler = PoolScheduler()
    list(scheduler.changes([], status, NOW, shares, runs))
    return scheduler


def test_nobody_is_scheduled_beside_a_slice_that_is_alone() -> None:
    found = decided(UserShares(), 2, Neighbours(), Neighbours(), Neighbours(alone=True))
    gpus = {run_name(one): [part.gpu_uuid for part in parts] for one, parts in found.admitted}
    assert gpus == {name: [make_shared(1).gpu.uuid] for name in ("run 0", "run 1")}
    assert [run_name(one) for one, _ in found.refused] == ["run 2"]


def test_a_command_that_is_alone_counts_as_whole_gpus_in_the_limit_of_its_user() -> None:
    shares = UserShares(limits={"bob": Bound(milli=1000)})
    found = decided(shares, 3, Neighbours(), Neighbours(alone=True))
    assert [run_name(one) for one, _ in found.admitted] == ["run 0"]
    ((_, why),) = found.refused
    assert "bob" in why
    found = decided(UserShares(), 3, Neighbours(), Neighbours(alone=True))
    assert len(found.admitted) == 2


PART = Request(memory=Amount(bytes=40 * GIB))
ON_GPU_0 = GpuSelection(named=(make_shared(0).gpu.uuid,))


def stored(
    number: int, request: Request, owner: Owner = BOB, waited: float = 10.0, sizes: Sizes = ONE
) -> StoredJob:
    """A job that waits."""
    made = job(number, 1, NOW - waited)
    wanted = replace(made.job, name=f"j{number}", request=request, sizes=sizes)
    return replace(made, submission=replace(made.submission, owner=owner, job=wanted))


def first_gpu_is_full(owner: Owner = BOB) -> Status:
    """A machine on which the slice x of this user has the first GPU."""
    full = replace(make_grant("x", gpu0=80 * GIB), owner_uid=owner.uid, life=Life.KEPT)
    others = (make_shared(1), make_shared(2))
    return Status(1, (make_shared(0, granted=80 * GIB), *others), (full,), {})


def started(scheduler: PoolScheduler, jobs: list[StoredJob], status: Status) -> dict[int, int]:
    """The numbers of the jobs that start, and their sizes."""
    changes = scheduler.changes(jobs, status, NOW, UserShares())
    return {one.job.number: state.target_size for one, state in changes}


CHOOSY = {
    "gpu": replace(PART, which=ON_GPU_0),
    "with": replace(PART, neighbours=Neighbours(beside="x")),
    "visible": replace(PART, among=(make_shared(0).gpu.uuid,)),
    "alone": replace(PART, which=ON_GPU_0, neighbours=Neighbours(alone=True)),
}


def with_compute(grant: Grant, percent: int) -> Grant:
    slices = (replace(one, compute_percent=percent) for one in grant.slices)
    return replace(grant, slices=tuple(slices))


class TestKinds:
    @pytest.mark.parametrize("choosy", CHOOSY.values(), ids=CHOOSY)
    @pytest.mark.parametrize("plain", [PART, Request()], ids=["part", "whole"])
    def test_a_job_does_not_wait_for_gpus_that_only_an_earlier_one_asks_for(
        self, choosy: Request, plain: Request
    ) -> None:
        jobs = [stored(1, choosy, waited=20.0), stored(2, plain)]
        assert started(PoolScheduler(), jobs, first_gpu_is_full()) == {2: 1}

    def test_a_job_does_not_keep_apart_because_an_earlier_one_does(self) -> None:
        everywhere = replace(make_grant("a", gpu0=8 * GIB, gpu1=8 * GIB), owner_uid=BOB.uid)
        gpus = tuple(make_shared(index, granted=8 * GIB) for index in range(2))
        apart = replace(PART, neighbours=Neighbours(apart_from=("a",)))
        jobs = [stored(1, apart, waited=20.0), stored(2, PART)]
        assert started(PoolScheduler(), jobs, Status(1, gpus, (everywhere,), {})) == {2: 1}

    def test_a_command_does_not_wait_for_gpus_that_only_an_earlier_one_asks_for(self) -> None:
        runs = [
            replace(run(n, waits=True), request=one.of_owner(BOB.uid, f"b{n}"))
            for n, one in enumerate((CHOOSY["visible"], PART))
        ]
        scheduler = PoolScheduler()
        list(scheduler.changes([], first_gpu_is_full(), NOW, UserShares(), runs))
        assert [run_name(one) for one, _ in scheduler.admitted] == ["run 1"]

    def test_a_job_grows_although_jobs_of_another_user_cannot(self) -> None:
        small, most = Request(memory=Amount(bytes=8 * GIB)), Sizes((1, 2))
        status = Status(1, tuple(make_shared(index) for index in range(4)), (), {})

        def one_each(number: int) -> StoredJob:
            says = Neighbours(f"w{number}", apart_from=(f"w{number}",))
            return stored(number, replace(small, which=ON_GPU_0, neighbours=says), ALICE, 10, most)

        stuck = [one_each(number) for number in range(1, TRIES + 1)]
        fixed = [stored(20 + number, small) for number in range(6)]
        jobs = [*stuck, *fixed, stored(9, small, sizes=most)]
        assert started(PoolScheduler(), jobs, status)[9] == 2

    @pytest.mark.parametrize("percent", [20, 40])
    def test_workers_of_equal_memory_need_not_be_equal(self, percent: int) -> None:
        """Of the GPU's time 20 % are free."""
        worker = make_grant("a.0", gpu0=40 * GIB)
        plan = MachinePlan(
            (make_shared(0, granted=60 * GIB),),
            (worker, with_compute(make_grant("x", gpu0=20 * GIB), 80)),
        )
        requests = {"a": PART, "b": replace(PART, compute_percent=percent)}
        kinds = RequestKinds.of(requests.values(), plan)
        demand = Demand(1, Kind.SLICED, milli=500, gpu_bytes=40 * GIB)
        jobs = {
            name: JobWorkers[Grant](name, (demand,), terms=kinds.kind(one))
            for name, one in requests.items()
        }
        jobs["a"] = replace(jobs["a"], held=(worker,), size=1)
        check = Feasibility(MachineCapacity(plan, requests, {"a": (), "b": ()}), jobs)
        assert check.fits({"a": 0, "b": 1}) is (percent == 20)

    def test_names_do_not_make_kinds_unless_a_slice_asks_about_them(self) -> None:
        one, other = PART.of_owner(1, "one"), PART.of_owner(2, "other")
        plain = RequestKinds.of([one, other], empty(1))
        assert plain.kind(one) == plain.kind(other)
        apart = replace(PART, neighbours=Neighbours("x", apart_from=("one",))).of_owner(1, "x")
        kinds = RequestKinds.of([one, other, apart], empty(1))
        assert len({kinds.kind(asking) for asking in (one, other, apart)}) == 3
        assert kinds.kind(one) != kinds.kind(replace(one, owner=2)), "labels are per user"


GONE = replace(PART, which=GpuSelection(named=("GPU-0dead",)))
WAITED_LONG = Rules().patience_seconds + 1


LARGE = Request(memory=Amount(bytes=60 * GIB))


class TestChoice:
    """On a machine with two GPUs that nobody uses."""

    STATUS = Status(1, (make_shared(0), make_shared(1)), (), {})

    @pytest.mark.parametrize("choosy", [LARGE, Request()], ids=["part", "whole"])
    def test_a_job_leaves_the_gpu_that_another_asks_for_to_it(self, choosy: Request) -> None:
        jobs = [stored(1, LARGE, waited=20.0), stored(2, replace(choosy, which=ON_GPU_0))]
        assert started(PoolScheduler(), jobs, self.STATUS) == {1: 1, 2: 1}

    def test_a_command_leaves_the_gpu_that_another_asks_for_to_it(self) -> None:
        runs = [
            replace(run(n, waits=True), request=one.of_owner(BOB.uid, f"b{n}"))
            for n, one in enumerate((LARGE, replace(LARGE, which=ON_GPU_0)))
        ]
        scheduler = PoolScheduler()
        list(scheduler.changes([], self.STATUS, NOW, UserShares(), runs))
        gpus = {run_name(one): part.gpu_uuid for one, (part,) in scheduler.admitted}
        assert gpus == {f"run {n}": make_shared(1 - n).gpu.uuid for n in range(2)}

    def test_the_one_whose_turn_it_is_starts_if_only_one_can(self) -> None:
        full = replace(make_grant("x", gpu1=80 * GIB), owner_uid=BOB.uid)
        status = Status(1, (make_shared(0), make_shared(1, granted=80 * GIB)), (full,), {})
        jobs = [stored(1, LARGE, waited=20.0), stored(2, replace(LARGE, which=ON_GPU_0))]
        assert started(PoolScheduler(), jobs, status) == {1: 1}


class TestPatience:
    @pytest.mark.parametrize("choosy", [*CHOOSY.values(), GONE], ids=[*CHOOSY, "gone"])
    def test_a_job_that_other_gpus_do_not_help_does_not_hold_up_their_users(
        self, choosy: Request
    ) -> None:
        scheduler = PoolScheduler()
        jobs = [stored(1, choosy, ALICE, WAITED_LONG), stored(2, PART)]
        assert started(scheduler, jobs, first_gpu_is_full(ALICE)) == {2: 1}
        assert list(scheduler.waiting) == ["job 1"]

    @pytest.mark.parametrize("choosy", CHOOSY.values(), ids=CHOOSY)
    def test_it_holds_up_those_that_may_use_only_its_gpus(self, choosy: Request) -> None:
        large = replace(choosy, memory=Amount(bytes=60 * GIB))
        jobs = [stored(1, large, waited=WAITED_LONG), stored(2, replace(PART, which=ON_GPU_0))]
        used = replace(make_grant("x", gpu0=30 * GIB), owner_uid=BOB.uid, life=Life.KEPT)
        gpus = (make_shared(0, granted=30 * GIB), make_shared(1))
        scheduler = PoolScheduler()
        assert started(scheduler, jobs, Status(1, gpus, (used,), {})) == {}
        assert scheduler.waiting["job 2"] == "job j1 (1) has waited longer, and is not overtaken"

    @pytest.mark.parametrize(
        "request_",
        [
            Request(),
            replace(PART, neighbours=Neighbours(alone=True)),
            Request(which=GpuSelection(models=("H100",))),
        ],
        ids=["whole", "alone", "model"],
    )
    def test_a_job_that_may_use_every_gpu_is_not_overtaken(self, request_: Request) -> None:
        gpus = tuple(make_shared(index, granted=8 * GIB) for index in range(2))
        used = replace(make_grant("a", gpu0=8 * GIB, gpu1=8 * GIB), owner_uid=BOB.uid)
        jobs = [stored(1, request_, ALICE, WAITED_LONG), stored(2, PART)]
        assert started(PoolScheduler(), jobs, Status(1, gpus, (used,), {})) == {}

    def test_a_job_that_needs_more_gpus_than_there_are_holds_up_nobody(self) -> None:
        jobs = [stored(1, Request(gpus=4), ALICE, WAITED_LONG), stored(2, PART)]
        assert started(PoolScheduler(), jobs, first_gpu_is_full()) == {2: 1}


class TestReasons:
    @pytest.mark.parametrize(
        ("choosy", "why"),
        [
            (replace(PART, which=GpuSelection(named=("0",))), "by --gpu 0, none have 40 GiB free"),
            (replace(CHOOSY["alone"], memory=None), "none are whole"),
            (CHOOSY["visible"], "by CUDA_VISIBLE_DEVICES, none have 40 GiB free"),
            (CHOOSY["with"], "GPU 1 has no slice x, which it asks to be with"),
            (GONE, "no GPU is allowed by --gpu GPU-0dead"),
        ],
        ids=["gpu", "whole", "visible", "with", "gone"],
    )
    def test_a_job_says_that_its_choice_keeps_it_waiting(self, choosy: Request, why: str) -> None:
        scheduler = PoolScheduler()
        assert started(scheduler, [stored(1, choosy)], first_gpu_is_full()) == {}
        assert scheduler.waiting["job 1"].endswith(why)
        asks = replace(run(1, asks=True), request=choosy.of_owner(BOB.uid, "b"))
        now = replace(run(2), request=asks.request)
        list(scheduler.changes([], first_gpu_is_full(), NOW, UserShares(), [asks, now]))
        ((_, place),) = scheduler.previewed
        assert isinstance(place, Waiting)
        assert place.why.endswith(why)
        ((_, said),) = scheduler.refused
        assert said == place.why

    @pytest.mark.parametrize("owner", [ALICE, BOB])
    def test_a_job_says_which_neighbour_keeps_it_waiting(self, owner: Owner) -> None:
        train = replace(make_grant("train", gpu0=8 * GIB), owner_uid=owner.uid)
        alone = replace(train, neighbours=Neighbours(alone=True))
        gpus = (make_shared(0, granted=8 * GIB),)
        apart = replace(PART, neighbours=Neighbours(apart_from=("train",)))
        scheduler = PoolScheduler()
        found = started(scheduler, [stored(1, apart)], Status(1, gpus, (train,), {}))
        assert found == ({} if owner is BOB else {1: 1})
        if owner is BOB:
            told = "GPU 0 has the slice train, which it asks to be apart from"
            assert scheduler.waiting == {"job 1": told}
        started(scheduler, [stored(1, PART)], Status(1, gpus, (alone,), {}))
        told = "the slice train" if owner is BOB else "another user's slice"
        assert scheduler.waiting == {"job 1": f"GPU 0 has {told}, which is alone on it"}

    def test_a_job_whose_choice_changes_nothing_says_what_has_the_gpus(self) -> None:
        full = replace(make_grant("x", gpu0=80 * GIB, gpu1=80 * GIB), owner_uid=BOB.uid)
        gpus = tuple(make_shared(index, granted=80 * GIB) for index in range(2))
        scheduler = PoolScheduler()
        started(scheduler, [stored(1, CHOOSY["gpu"])], Status(1, gpus, (full,), {}))
        told = "it does not fit beside what runs: 1 grant of aliquot run"
        assert scheduler.waiting == {"job 1": told}

    def test_a_job_is_not_told_that_gpus_are_given_back_if_nobody_does(self) -> None:
        used = replace(make_grant("x", gpu0=8 * GIB), owner_uid=BOB.uid)
        status = Status(1, (make_shared(0, granted=8 * GIB), make_shared(1)), (used,), {})
        pinned = Request(memory=Amount(bytes=60 * GIB), which=GpuSelection(named=("0",)))
        scheduler = PoolScheduler()
        jobs = [stored(1, replace(PART, which=ON_GPU_0), waited=20.0), stored(2, pinned)]
        assert started(scheduler, jobs, status) == {1: 1}
        told = "of the GPUs allowed by --gpu 0, none have 60 GiB free"
        assert scheduler.waiting == {"job 2": told}


@pytest.mark.parametrize(("chosen", "told"), [(None, False), ("web", True)])
def test_an_earlier_arbiter_is_told_only_a_label_that_the_job_chose(
    short_tmp: Path, *, chosen: str | None, told: bool
) -> None:
    """It knows none: it makes the grant of a job without a choice, and refuses the other."""
    refusal = {"error": "unknown argument label=web", "code": "invalid"}

    def answer(line: str) -> object:
        if line == "status":
            return status_words(gpus=[{**gpu_words(), "granted_bytes": 0}])
        return refusal if " label=" in line else {"grant": "/g#1", "name": "x", "directory": "/g"}

    played = Played(short_tmp, answer)
    directory = PoolDirectory(short_tmp / "pool", StateDirectory(short_tmp))
    runtime = Runtime(short_tmp, MagicMock(), short_tmp)
    workers = LocalWorkers(directory, runtime, MagicMock(), WorkerCgroups(None))
    one = stored(1, replace(PART, neighbours=Neighbours(chosen)), this_user())
    reserve = Action(Verb.RESERVE, (Slot(1, 0),))
    try:
        if told:
            with pytest.raises(ArbiterError, match="label"):
                workers.apply(reserve, one)
        else:
            workers.apply(reserve, one)
    finally:
        played.end()
    (made,) = (line for line in played.questions if line.startswith("make"))
    assert (f" label={chosen} " in made) is told


class TestPool:
    def test_jobs_are_apart_with_and_alone(self, pool: PoolUp) -> None:
        def gpu_of(name: str) -> str:
            pool.wait_for(name, "Running")
            found = json.loads(pool.ask("ps", "--json").stdout)["grants"]
            (grant,) = (one for one in found if one["name"].startswith(f"{name}."))
            return str(grant["slices"][0]["gpu"])

        part = ("--memory", "8GiB")
        pool.submit("--name", "train", *part, "--", *FOREVER)
        train = gpu_of("train")
        pool.submit("--name", "eval", *part, "--apart-from", "train", "--", *FOREVER)
        assert gpu_of("eval") != train
        pool.submit("--name", "serve", *part, "--with", "eval", "--", *FOREVER)
        assert gpu_of("serve") == gpu_of("eval")
        pool.submit("--name", "bench", *part, "--alone", "--", *FOREVER)
        bench = gpu_of("bench")
        assert bench not in {train, gpu_of("eval")}
        answer = pool.ask("explain", *part)
        assert "it has the slice bench, which is alone on it" in answer.stdout
        answer = pool.ask(
            "run", *part, "--apart-from", "train", "--dry-run", "--json", "--", "true"
        )
        (chosen,) = json.loads(answer.stdout)["slices"]
        assert chosen["gpu"] not in {train, bench}
        shown = pool.ask("describe", "eval").stdout
        assert "8 GiB of each, compute equal; --apart-from train" in shown

    def test_a_job_leaves_the_gpu_that_another_asks_for_to_it(self, pool: PoolUp) -> None:
        gate = pool.submit("--name", "gate", "--grace", "1", "--gpus", "4", "--", *FOREVER)
        after, large = ("--after", f"{gate}:any"), ("--grace", "1", "--memory", "60GiB")
        pool.submit("--name", "plain", *large, *after, "--", *FOREVER)
        pool.submit("--name", "first", *large, "--gpu", "0", *after, "--", *FOREVER)
        pool.wait_for("gate", "Running")
        pool.ask("cancel", "gate")
        for name in ("plain", "first"):
            pool.wait_for(name, "Running")

    def test_workers_that_never_fit_are_refused(self, pool: PoolUp) -> None:
        web = ("--memory", "8GiB", "--label", "web", "--apart-from", "web")
        answer = pool.ask("submit", "--workers", "5", *web, "--", *FOREVER)
        assert answer.returncode == 1
        assert "do not fit this machine: at most 4 do" in answer.stderr
