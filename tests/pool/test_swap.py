"""Jobs whose programs move their memory themselves (`--swap`), from the request to their return."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.model import Amount, GrantState, Request, Residence
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Desired, Job, JobPhase, Sizes
from aliquot.model.job_state import JobState, ObservedJob, ObservedWorker, WorkerPhase
from aliquot.model.lifecycle import advance, set_desired, start
from aliquot.model.owner import Owner
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.encoding import Submission, decode_submission, encode_submission
from aliquot.slices import control
from support import GIB, make_grant, make_shared, wait_until

if TYPE_CHECKING:
    from aliquot.slices.arbiter_status import SharedGpu
    from pool.conftest import PoolUp

LOOKS = Path(__file__).with_name("looks_when_asked.py")

pytestmark = pytest.mark.timeout(300)

PATTERN = Path(__file__).with_name("keeps_a_pattern.py")
EIGHT = Amount(bytes=8 * GIB)
ALIVE = ObservedWorker(WorkerPhase.ALIVE)


class TestRequest:
    def test_a_job_keeps_it(self) -> None:
        job = Job(3, "a", ("true",), Request(memory=EIGHT, swap=True))
        one = Submission(Owner(1000, 1000, "alice"), job, "/bin/true", "/")
        assert decode_submission(json.loads(json.dumps(encode_submission(one))), one.owner) == one
        forged = encode_submission(one)
        forged["request"]["swap"] = 1
        with pytest.raises(InvalidValueError):
            decode_submission(forged, one.owner)

    def test_an_earlier_pool_is_not_told_of_it(self) -> None:
        job = Job(3, "a", ("true",), Request())
        one = Submission(Owner(1000, 1000, "alice"), job, "/bin/true", "/")
        assert "swap" not in encode_submission(one)["request"]

    def test_it_is_for_one_gpu(self) -> None:
        with pytest.raises(InvalidValueError, match="--swap is for one GPU, and 2 are asked for"):
            Request(gpus=2, memory=EIGHT, swap=True)

    def test_a_whole_gpu_has_no_room_for_it(self) -> None:
        with pytest.raises(InvalidValueError, match="--swap needs --memory"):
            Request(swap=True)

    def test_the_first_on_a_gpu_needs_room_for_the_process_that_copies(self) -> None:
        swap = Request(memory=EIGHT, swap=True)
        gpu = replace(make_shared(0, memory=8 * GIB + GIB // 2), context_bytes=GIB)
        assert not MachinePlan((gpu,), ()).holds(swap, 1)
        assert MachinePlan((gpu,), ()).holds(replace(swap, swap=False), 1)
        there = replace(make_grant("a", gpu0=0), residence=Residence.GPU)
        assert MachinePlan((gpu,), (there,)).holds(swap, 1)


def test_a_job_whose_memory_cannot_leave_runs_on_and_says_why() -> None:
    job = Job(1, "a", ("true",), Request(memory=EIGHT, swap=True), Sizes((1,)))
    state = start(job, JobState(), 0, 1, 0.0)

    def follow(state: JobState, worker: ObservedWorker) -> JobState:
        slots = {state.slots[0]: worker}
        observed = ObservedJob(slots, allocated=frozenset(state.slots), unfreezable=None)
        return advance(job, state, observed, 1.0)

    state = set_desired(follow(state, ALIVE), Desired.SUSPEND)
    state = follow(state, ALIVE)
    assert (state.phase, state.frozen) == (JobPhase.SUSPENDING, True)
    state = follow(state, replace(ALIVE, confirmed=True, freeze_error="the host is full"))
    assert state.reason == "not suspended: the host is full"
    state = follow(state, ALIVE)
    assert (state.phase, state.desired, state.stopping) == (JobPhase.RUNNING, Desired.RUN, None)


class TestResumed:
    """A job whose worker is being thawed."""

    def thawing(self) -> tuple[Job, JobState]:
        job = Job(1, "a", ("true",), Request(memory=EIGHT, swap=True), Sizes((1,)))
        state = start(job, JobState(), 0, 1, 0.0)
        state = self.follow(job, state, ALIVE)
        state = self.follow(job, set_desired(state, Desired.SUSPEND), ALIVE)
        frozen = replace(ALIVE, frozen=True, confirmed=True)
        observed = ObservedJob({state.slots[0]: frozen}, unfreezable=None)
        state = advance(job, state, observed, 1.0)
        state = advance(job, set_desired(state, Desired.RUN), observed, 1.0)
        return job, start(job, state, state.generation, 1, 2.0)

    def follow(self, job: Job, state: JobState, worker: ObservedWorker) -> JobState:
        slots = {state.slots[0]: worker}
        observed = ObservedJob(slots, allocated=frozenset(state.slots), unfreezable=None)
        return advance(job, state, observed, 2.0)

    def test_it_says_why_it_is_not_back_yet(self) -> None:
        job, state = self.thawing()
        frozen = replace(ALIVE, frozen=True)
        assert self.follow(job, state, frozen) is state
        state = self.follow(job, state, replace(frozen, late="the GPU is full"))
        assert (state.phase, state.reason) == (
            JobPhase.STARTING,
            "not resumed yet: the GPU is full",
        )
        assert self.follow(job, state, replace(frozen, late="the GPU is full")) is state
        state = self.follow(job, state, replace(frozen, late="the driver refused a call"))
        assert state.reason == "not resumed yet: the driver refused a call"
        assert self.follow(job, state, ALIVE).phase is JobPhase.RUNNING

    def test_one_that_says_so_reaches_its_time_limit(self) -> None:
        job, state = self.thawing()
        late = replace(ALIVE, frozen=True, late="the GPU is full")
        state = self.follow(job, state, late)
        state = self.follow(replace(job, time_seconds=0.5), state, late)
        assert "time limit" in state.reason


MANAGED = """
import ctypes, time
cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
at = ctypes.c_uint64()
cuda.cuCtxSetCurrent(context)
assert not cuda.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(1 << 20), 1)
print('there', flush=True)
time.sleep(1000)
"""


BUSY = """
import ctypes, pathlib, sys, time
cuda, context, at = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
assert not cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20))
wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(1000))
assert not cuda.cuLaunchHostFunc(None, wait, None)
print('there', flush=True)
cuda.cuCtxSynchronize()
"""


def keeps_a_pattern(pool: PoolUp, name: str, end: Path, *options: str) -> None:
    """Submit a job that has most of GPU 0 and uses some of it."""
    command = (sys.executable, str(PATTERN), str(100 << 20), str(end))
    pool.submit("--name", name, "--gpu", "0", "--memory", "60GiB", *options, "--", *command)


def compares(pool: PoolUp, name: str) -> None:
    """Wait until the program has found its memory unchanged again."""
    before = len(pool.log(name).splitlines())
    wait_until(lambda: len(pool.log(name).splitlines()) > before + 2, 60)
    assert set(pool.log(name).splitlines()) == {"same"}


def ends_well(pool: PoolUp, end: Path, *names: str) -> None:
    """End the programs, and see that their jobs have succeeded and the machine is empty."""
    end.touch()
    for name in names:
        pool.wait_for(name, "Succeeded")
    pool.leaves_nothing()


def first_gpu(pool: PoolUp) -> SharedGpu:
    return control.status(pool.state).gpus[0]


class TestMoved:
    def test_others_use_the_gpu_meanwhile_and_every_byte_comes_back(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        keeps_a_pattern(pool, "one", tmp_path / "end", "--swap")
        compares(pool, "one")
        before = first_gpu(pool).gpu.used_bytes
        pool.ask("suspend", "one")
        pool.wait_for("one", "Suspended")
        (grant,) = control.status(pool.state).grants
        assert grant.state is GrantState.PARKED
        assert grant.away_bytes > 100 << 20
        left = first_gpu(pool)
        assert left.gpu.used_bytes <= before - (100 << 20)
        assert 0 < grant.staying_bytes <= left.granted_bytes <= left.gpu.used_bytes
        said = len(pool.log("one"))
        keeps_a_pattern(pool, "two", tmp_path / "two")
        compares(pool, "two")
        pool.ask("resume", "one")
        wait_until(lambda: "not free" in str(pool.job("one")["waiting"]))
        assert len(pool.log("one")) == said  # it waits inside a call
        (tmp_path / "two").touch()
        pool.wait_for("one", "Running")
        wait_until(lambda: control.status(pool.state).grants[0].state is GrantState.ACTIVE)
        assert control.status(pool.state).grants[0].away_bytes == 0
        compares(pool, "one")
        ends_well(pool, tmp_path / "end", "one", "two")

    def test_it_moves_again_and_again(self, pool: PoolUp, tmp_path: Path) -> None:
        keeps_a_pattern(pool, "one", tmp_path / "end", "--swap")
        for _ in range(5):
            compares(pool, "one")
            pool.ask("suspend", "one")
            pool.wait_for("one", "Suspended")
            pool.ask("resume", "one")
            pool.wait_for("one", "Running")
        compares(pool, "one")
        ends_well(pool, tmp_path / "end", "one")

    def test_the_next_pool_continues_what_a_killed_one_began(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        keeps_a_pattern(pool, "one", tmp_path / "end", "--swap")
        compares(pool, "one")
        pool.ask("suspend", "one")
        pool.kill()
        pool.up()
        pool.wait_for("one", "Suspended")
        pool.ask("resume", "one")
        pool.kill()
        pool.up()
        pool.wait_for("one", "Running")
        compares(pool, "one")
        ends_well(pool, tmp_path / "end", "one")

    def test_the_arbiter_is_not_restarted_until_it_is_resumed(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        keeps_a_pattern(pool, "one", tmp_path / "end", "--swap")
        compares(pool, "one")
        pool.ask("suspend", "one")
        pool.wait_for("one", "Suspended")
        (grant,) = control.status(pool.state).grants
        done = pool.ask("restart")
        assert done.returncode == 1
        assert f"let parked programs return or end: {grant.name}" in " ".join(done.stderr.split())
        pool.ask("resume", "one")
        pool.wait_for("one", "Running")
        compares(pool, "one")
        wait_until(lambda: not control.status(pool.state).grants[0].away_bytes)
        wait_until(lambda: pool.ask("restart").returncode == 0)
        compares(pool, "one")
        pool.ask("cancel", "one")
        pool.wait_for("one", "Cancelled")
        pool.leaves_nothing()

    def test_a_suspended_one_is_cancelled(self, pool: PoolUp, tmp_path: Path) -> None:
        keeps_a_pattern(pool, "one", tmp_path / "end", "--swap")
        compares(pool, "one")
        pool.ask("suspend", "one")
        pool.wait_for("one", "Suspended")
        before = first_gpu(pool).gpu.used_bytes
        pool.ask("cancel", "one")
        pool.wait_for("one", "Cancelled")
        pool.leaves_nothing()
        wait_until(lambda: first_gpu(pool).gpu.used_bytes < before)


def test_a_stopped_program_is_not_suspended_and_runs_on(pool: PoolUp, tmp_path: Path) -> None:
    keeps_a_pattern(pool, "one", tmp_path / "end", "--swap")
    compares(pool, "one")
    (process,) = control.status(pool.state).grants[0].processes
    os.kill(process.pid, signal.SIGSTOP)
    pool.ask("suspend", "one")
    wait_until(lambda: "not suspended: process" in str(pool.job("one")["events"]), 60)
    os.kill(process.pid, signal.SIGCONT)
    pool.wait_for("one", "Running")
    compares(pool, "one")
    ends_well(pool, tmp_path / "end", "one")


def test_a_program_that_cannot_move_its_memory_runs_on(pool: PoolUp) -> None:
    pool.submit("--name", "one", "--memory", "8GiB", "--swap", "--", sys.executable, "-c", MANAGED)
    wait_until(lambda: "there" in pool.log("one"), 60)
    (grant,) = control.status(pool.state).grants
    assert grant.is_swappable
    pool.ask("suspend", "one")
    wait_until(lambda: "not suspended" in str(pool.job("one")["events"]), 60)
    pool.wait_for("one", "Running")
    wait_until(lambda: control.status(pool.state).grants[0].state is GrantState.ACTIVE)
    pool.ask("cancel", "one")
    pool.wait_for("one", "Cancelled")
    pool.leaves_nothing()


class TestCalledOff:
    """A job is being suspended, and its GPU does not finish its work."""

    @pytest.fixture(autouse=True)
    def suspending(self, pool: PoolUp) -> None:
        busy = (sys.executable, "-c", BUSY)
        pool.submit("--name", "one", "--memory", "8GiB", "--swap", "--", *busy)
        wait_until(lambda: "there" in pool.log("one"), 60)
        pool.ask("suspend", "one")
        wait_until(lambda: control.status(pool.state).grants[0].residence is Residence.HOST)

    def test_resumed_it_runs_at_once(self, pool: PoolUp) -> None:
        pool.ask("resume", "one")
        pool.wait_for("one", "Running")
        assert "resumed: its memory had not left yet" in str(pool.job("one")["events"])
        (grant,) = control.status(pool.state).grants
        assert (grant.state, grant.residence) == (GrantState.ACTIVE, Residence.GPU)
        pool.ask("cancel", "one")
        pool.wait_for("one", "Cancelled")
        pool.leaves_nothing()

    def test_cancelled_it_ends_at_once(self, pool: PoolUp) -> None:
        pool.ask("cancel", "one")
        pool.wait_for("one", "Cancelled")
        assert "not suspended" not in str(pool.job("one")["events"])
        pool.leaves_nothing()


def test_a_job_whose_copies_are_lost_starts_again(pool: PoolUp, tmp_path: Path) -> None:
    keeps_a_pattern(pool, "one", tmp_path / "end", "--swap")
    compares(pool, "one")
    pool.ask("suspend", "one")
    pool.wait_for("one", "Suspended")
    answer = control.status(pool.state).answer
    holders = [answer[key] for key in ("pid", "guard_pid", "serving_pid")]  # all that have them
    for number in (signal.SIGSTOP, signal.SIGKILL):  # no parent may start another guard meanwhile
        for pid in holders:
            os.kill(pid, number)
    pool.ask("resume", "one")
    wait_until(lambda: "could not be thawed" in str(pool.job("one")["events"]), 60)
    assert "its copy on the host is missing" in str(pool.job("one")["events"])
    compares(pool, "one")
    ends_well(pool, tmp_path / "end", "one")


def test_a_job_says_why_its_memory_does_not_come_back(pool: PoolUp, tmp_path: Path) -> None:
    keeps_a_pattern(pool, "one", tmp_path / "end", "--swap")
    compares(pool, "one")
    pool.ask("suspend", "one")
    pool.wait_for("one", "Suspended")
    (grant,) = control.status(pool.state).grants
    (process,) = grant.processes
    os.kill(process.pid, signal.SIGSTOP)
    pool.ask("resume", "one")
    stopped = f"not resumed yet: process {process.pid} is stopped"
    wait_until(lambda: stopped in str(pool.job("one")["state"]["reason"]), 60)
    os.kill(process.pid, signal.SIGCONT)
    pool.wait_for("one", "Running")
    compares(pool, "one")
    ends_well(pool, tmp_path / "end", "one")


def test_an_admin_says_how_much_of_the_host_it_may_take(down_pool: PoolUp, tmp_path: Path) -> None:
    config = tmp_path / "pool.toml"
    config.write_text("[swap]\nhost_memory = '3GiB'\n")
    config.chmod(0o600)
    down_pool.up("--config", str(config))
    assert control.status(down_pool.state).answer["host_memory_bytes"] == 3 * GIB
    busy = (sys.executable, "-c", MANAGED)
    down_pool.submit("--name", "one", "--memory", "8GiB", "--swap", "--", *busy)
    wait_until(lambda: "there" in down_pool.log("one"), 60)
    shown = json.loads(down_pool.ask("gpus", "--json").stdout)["host_memory"]
    assert (shown["limit_bytes"], shown["used_bytes"]) == (3 * GIB, 0)
    down_pool.ask("cancel", "one")
    down_pool.wait_for("one", "Cancelled")


def test_jobs_that_want_more_than_the_gpu_has_run_in_turns(
    down_pool: PoolUp, tmp_path: Path
) -> None:
    config = tmp_path / "pool.toml"
    config.write_text("[swap]\novercommit = 2\nhost_memory = '1TiB'\n")
    config.chmod(0o600)
    down_pool.up("--config", str(config))
    names = ("one", "two")
    for name in names:
        asked = tmp_path / name
        command = (sys.executable, str(LOOKS), str(100 << 20), str(asked))
        size = ("--gpu", "0", "--memory", "60GiB", "--swap")
        down_pool.submit("--name", name, *size, "--", *command)

    def looks(name: str) -> None:
        before = down_pool.log(name).count("same")
        (tmp_path / name).touch()
        wait_until(lambda: down_pool.log(name).count("same") > before, 60)

    wait_until(lambda: all("ready" in down_pool.log(name) for name in names), 60)
    for name in (*names, *names):
        looks(name)
    down_pool.ask("suspend", "one")
    down_pool.wait_for("one", "Suspended")
    looks("two")
    down_pool.ask("resume", "one")
    down_pool.wait_for("one", "Running")
    for name in names:
        looks(name)
        (tmp_path / name).with_suffix(".end").touch()
    for name in names:
        down_pool.wait_for(name, "Succeeded")
    down_pool.leaves_nothing()
