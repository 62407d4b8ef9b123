"""Jobs that are suspended by freezing: the driver moves their GPU memory to the host."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from aliquot.model import GrantState
from aliquot.slices import control
from pool.conftest import PoolUp
from support import GIB, wait_until

COUNTS = Path(__file__).with_name("counts_in_gpu_memory.py")
CALLS = Path(__file__).with_name("calls_cuda_forever.py")
MANAGED = """
import ctypes, time
cuda, context, at = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
assert not cuda.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(1 << 20), 1)
print('there', flush=True)
time.sleep(1000)
"""

pytestmark = pytest.mark.timeout(300)


def train(pool: PoolUp, name: str, end: Path, *options: str) -> None:
    """Submit a job that has whole GPUs and uses a little of one."""
    command = (sys.executable, str(COUNTS), str(GIB), str(end))
    pool.submit("--name", name, *options, "--", *command)


def steps(pool: PoolUp, name: str, rank: int = 0) -> list[int]:
    return [int(line) for line in pool.log(name, rank).splitlines()]


def continues(pool: PoolUp, name: str) -> None:
    before = len(steps(pool, name))
    wait_until(lambda: len(steps(pool, name)) > before + 5, 60)


def never_restarted(pool: PoolUp, name: str, rank: int = 0) -> None:
    found = steps(pool, name, rank)
    assert found == list(range(1, len(found) + 1))


def holds(pool: PoolUp) -> dict[str, GrantState]:
    return {grant.name: grant.state for grant in control.status(pool.state).grants}


def used(pool: PoolUp) -> int:
    return sum(one.gpu.used_bytes for one in control.status(pool.state).gpus)


def waits_for_its_gpu(pool: PoolUp, name: str) -> None:
    wait_until(lambda: pool.job(name)["waiting"] == "the GPUs it was suspended on are not free")


def freezers(pool: PoolUp) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_text("utf-8")
            if "aliquot.pool.freezer" in words and str(pool.directory) in words:
                found.append(int(path.parent.name))
    return found


def suspend(pool: PoolUp, name: str) -> None:
    pool.ask("suspend", name)
    pool.wait_for(name, "Suspended")


def ends(pool: PoolUp, end: Path, *names: str) -> None:
    end.touch()
    for name in names:
        pool.wait_for(name, "Succeeded")
        never_restarted(pool, name)
        assert pool.job(name)["state"]["retries"] == 0
    pool.leaves_nothing()


class TestFreezing:
    def test_a_frozen_job_has_no_gpus_and_continues_where_it_was(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        train(pool, "one", tmp_path / "end")
        continues(pool, "one")
        before = used(pool)
        suspend(pool, "one")
        assert holds(pool) == {"one.1.1.0": GrantState.PARKED}
        assert used(pool) < before - GIB
        assert all(one.granted_bytes == 0 for one in control.status(pool.state).gpus)
        assert "is on the host" in pool.job("one")["state"]["reason"]
        pool.ask("resume", "one")
        pool.wait_for("one", "Running")
        wait_until(lambda: holds(pool) == {"one.1.1.0": GrantState.ACTIVE})
        continues(pool, "one")
        ends(pool, tmp_path / "end", "one")

    def test_two_jobs_that_do_not_fit_together_take_turns(
        self, down_pool: PoolUp, tmp_path: Path
    ) -> None:
        """With one GPU that no other job has."""
        pool, end = down_pool, tmp_path / "end"
        pool.up()
        pool.submit("--name", "rest", "--workers", "3", "--", "sleep", "1000")
        pool.wait_for("rest", "Running")
        train(pool, "one", end)
        continues(pool, "one")
        train(pool, "two", end)
        for before, after in (("one", "two"), ("two", "one"), ("one", "two")):
            suspend(pool, before)
            pool.ask("resume", after)
            pool.wait_for(after, "Running")
            continues(pool, after)
            pool.ask("resume", before)
            pool.wait_for(before, "Pending")
            waits_for_its_gpu(pool, before)
            pool.ask("suspend", before)
        pool.ask("cancel", "rest")
        pool.ask("resume", "one")
        waits_for_its_gpu(pool, "one")
        end.touch()  # the running job ends and the other gets its GPU back
        pool.wait_for("two", "Succeeded")
        ends(pool, end, "one", "two")

    def test_all_workers_of_a_gang_are_frozen_and_thawed(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        train(pool, "gang", tmp_path / "end", "--workers", "3")
        wait_until(lambda: all(len(steps(pool, "gang", rank)) > 5 for rank in range(3)), 60)
        suspend(pool, "gang")
        assert set(holds(pool).values()) == {GrantState.PARKED}
        pool.ask("resume", "gang")
        pool.wait_for("gang", "Running")
        continues(pool, "gang")
        (tmp_path / "end").touch()
        pool.wait_for("gang", "Succeeded")
        for rank in range(3):
            never_restarted(pool, "gang", rank)
        pool.leaves_nothing()

    def test_a_program_that_calls_cuda_all_the_time_survives_freezing(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        """The driver does not block such calls while the memory is on the host."""
        end = tmp_path / "end"
        pool.submit("--name", "asks", "--", sys.executable, str(CALLS), str(end))
        for _ in range(3):
            continues(pool, "asks")
            suspend(pool, "asks")
            assert holds(pool) == {"asks.1.1.0": GrantState.PARKED}
            pool.ask("resume", "asks")
            pool.wait_for("asks", "Running")
        continues(pool, "asks")
        end.touch()
        pool.wait_for("asks", "Succeeded")
        assert steps(pool, "asks") == sorted(steps(pool, "asks")), "one process said all of it"

    def test_a_job_suspended_during_its_thaw_keeps_its_memory(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        """Another job waits for its GPU all the time; only one of them may use it."""
        end = tmp_path / "end"
        pool.submit("--name", "rest", "--workers", "3", "--", "sleep", "1000")
        train(pool, "one", end)
        continues(pool, "one")
        train(pool, "two", end)
        for _ in range(4):
            pool.ask("suspend", "one")
            pool.ask("resume", "one")
            pool.ask("suspend", "one")
            pool.wait_for("one", "Suspended")
            assert holds(pool)["one.2.1.0"] is GrantState.PARKED
            pool.wait_for("two", "Running")
            continues(pool, "two")
            assert used(pool) < 3 * GIB, "both are there"
            pool.ask("suspend", "two")
            pool.ask("resume", "one")
            pool.wait_for("one", "Running")
            continues(pool, "one")
            pool.wait_for("two", "Suspended")
            pool.ask("resume", "two")
        pool.ask("cancel", "rest")
        ends(pool, end, "one", "two")

    def test_two_processes_of_one_worker_are_thawed_together(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        """With memory for both processes and no more."""
        end, size = tmp_path / "end", 3 * GIB
        one = f"{sys.executable} {COUNTS} {size} {end}"
        pool.submit("--name", "two", "--memory", "8GiB", "--", "sh", "-c", f"{one} & {one}; wait")
        wait_until(lambda: len(pool.log("two").splitlines()) > 20, 60)
        suspend(pool, "two")
        (grant,) = control.status(pool.state).grants
        assert len(grant.processes) == 2
        assert used(pool) < GIB
        pool.ask("resume", "two")
        pool.wait_for("two", "Running")
        continues(pool, "two")
        end.touch()
        pool.wait_for("two", "Succeeded")
        said = steps(pool, "two")
        assert [said.count(step) for step in (1, 2, 3)] == [2, 2, 2], "neither began anew"
        pool.leaves_nothing()


class TestRefusals:
    def test_a_stopped_process_is_not_waited_for(self, pool: PoolUp, tmp_path: Path) -> None:
        train(pool, "one", tmp_path / "end", "--notice", "0.2", "--grace", "0.2")
        continues(pool, "one")
        (worker,) = control.status(pool.state).grants[0].processes
        os.kill(worker.pid, signal.SIGSTOP)
        suspend(pool, "one")
        assert "is stopped, by a signal or a debugger" in pool.job("one")["state"]["reason"]
        pool.leaves_nothing()

    def test_a_worker_with_several_gpus_is_asked_to_save(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        train(pool, "two", tmp_path / "end", "--gpus", "2", "--notice", "0.2")
        continues(pool, "two")
        suspend(pool, "two")
        pool.leaves_nothing()
        assert "cannot be frozen: it has several GPUs" in pool.job("two")["state"]["reason"]
        pool.ask("resume", "two")
        wait_until(lambda: steps(pool, "two").count(1) == 2, 60)
        pool.ask("cancel", "two")
        pool.wait_for("two", "Cancelled")

    def test_a_worker_with_managed_memory_is_asked_to_save(self, pool: PoolUp) -> None:
        args = ("--notice", "0.2", "--memory", "2GiB", "--", sys.executable, "-c", MANAGED)
        pool.submit("--name", "unified", *args)
        wait_until(lambda: "there" in pool.log("unified"), 60)
        suspend(pool, "unified")
        assert "it has used unified memory" in pool.job("unified")["state"]["reason"]
        pool.ask("cancel", "unified")
        pool.wait_for("unified", "Cancelled")
        pool.leaves_nothing()

    def test_if_one_worker_cannot_be_frozen_all_are_thawed_and_asked_to_save(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        end = tmp_path / "end"
        one = f"exec {sys.executable} {COUNTS} {GIB} {end}"
        two = f'exec {sys.executable} -c "{MANAGED}"'
        pool.submit(
            "--name", "gang", "--workers", "2", "--notice", "60", "--",
            "sh", "-c", f"if test $RANK = 0; then {one}; else {two}; fi",
        )  # fmt: skip
        continues(pool, "gang")
        wait_until(lambda: "there" in pool.log("gang", 1), 60)
        pool.ask("suspend", "gang")
        wait_until(lambda: "because it cannot be frozen" in pool.job("gang")["state"]["reason"], 60)
        continues(pool, "gang")
        never_restarted(pool, "gang")
        pool.ask("cancel", "gang")
        pool.wait_for("gang", "Cancelled")
        pool.leaves_nothing()


class TestDying:
    def test_a_killed_frozen_worker_restarts_after_resume(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        train(pool, "one", tmp_path / "end")
        continues(pool, "one")
        suspend(pool, "one")
        (worker,) = control.status(pool.state).grants[0].processes
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(
            lambda: "restarting from its last checkpoint" in pool.job("one")["state"]["reason"]
        )
        pool.leaves_nothing()
        assert pool.phase_of("one") == "Suspended"
        pool.ask("resume", "one")
        wait_until(lambda: steps(pool, "one").count(1) == 2, 60)
        assert pool.job("one")["state"]["retries"] == 0
        pool.ask("cancel", "one")
        pool.wait_for("one", "Cancelled")

    def test_a_cancelled_frozen_job_leaves_nothing(self, pool: PoolUp, tmp_path: Path) -> None:
        train(pool, "one", tmp_path / "end")
        continues(pool, "one")
        suspend(pool, "one")
        pool.ask("cancel", "one")
        pool.wait_for("one", "Cancelled")
        pool.leaves_nothing()
        assert used(pool) < GIB

    def test_a_killed_freezer_is_replaced(self, pool: PoolUp, tmp_path: Path) -> None:
        train(pool, "one", tmp_path / "end")
        continues(pool, "one")
        chance = random.Random(1)  # noqa: S311 - the same each time
        for _ in range(3):
            for wanted, state in (("suspend", "Suspended"), ("resume", "Running")):
                pool.ask(wanted, "one")
                wait_until(lambda: freezers(pool) or pool.phase_of("one") == state)  # noqa: B023
                time.sleep(chance.uniform(0.0, 0.6))  # anywhere in its work
                for pid in freezers(pool):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                pool.wait_for("one", state)
        continues(pool, "one")
        ends(pool, tmp_path / "end", "one")

    @pytest.mark.parametrize("seed", range(2))
    def test_a_pool_killed_anywhere_loses_no_frozen_worker(
        self, down_pool: PoolUp, tmp_path: Path, seed: int
    ) -> None:
        pool, chance = down_pool, random.Random(seed)  # noqa: S311 - the same each time
        pool.up()
        train(pool, "one", tmp_path / "end")
        continues(pool, "one")
        for number in range(6):
            pool.ask("resume" if number % 2 else "suspend", "one")
            pool.kill()
            pool.up(dies_after=int(10 ** chance.uniform(2.0, 4.0)))
            assert pool.process is not None
            assert pool.process.wait(60) == -signal.SIGKILL
            pool.up()
        pool.wait_for("one", "Running")
        continues(pool, "one")
        ends(pool, tmp_path / "end", "one")
