"""Jobs that have GPUs and use none: reported, ended, and counted less, as their queue says."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from aliquot.model import ComputeUse, Grant, Life, Request
from aliquot.model.job import Job, JobPhase
from aliquot.model.job_state import JobState, ObservedJob, ObservedWorker, Slot, WorkerPhase
from aliquot.model.owner import Owner
from aliquot.placement.elastic.resize import Rules
from aliquot.pool import past_use
from aliquot.pool.controller import PoolController
from aliquot.pool.directory import PoolDirectory
from aliquot.pool.encoding import Submission
from aliquot.pool.policy import PolicyFile, read_policy
from aliquot.pool.store import JobStore
from aliquot.pool.workers import grant_name
from aliquot.slices import StateDirectory
from aliquot.slices.arbiter_status import Status
from support import GIB, make_grant, make_shared, wait_until

if TYPE_CHECKING:
    from aliquot.pool.store import StoredJob
    from aliquot.pool.workers import LocalWorkers
    from pool.conftest import PoolUp

WORKS = (sys.executable, str(Path(__file__).with_name("counts_in_gpu_memory.py")), "4096")
REPORTS = '[queues.default]\nidle_after = "1s"\n'
WAITS = ("sh", "-c", "trap 'echo saved; exit 0' TERM; echo runs; while :; do sleep 0.1; done")


@pytest.fixture
def settings(short_tmp: Path) -> Path:
    return short_tmp / "pool.toml"


def reasons(pool: PoolUp, job: str) -> list[str]:
    return [one["reason"] for one in pool.job(job)["events"]]


def test_a_job_that_uses_no_gpu_is_reported_to_its_owner(down_pool: PoolUp, settings: Path) -> None:
    settings.write_text(REPORTS)
    down_pool.up("--config", str(settings))
    down_pool.submit("--name", "waits", "--", *WAITS)
    told = "idle: it has used no GPU for 1 s"
    wait_until(lambda: down_pool.job("waits")["state"]["reason"] == told)
    assert reasons(down_pool, "waits")[-2:] == ["running with 1 worker", told]
    ran, reported = down_pool.job("waits")["events"][-2:]
    assert reported["at"] - ran["at"] >= 1
    assert told in down_pool.ask("describe", "waits").stdout
    assert told in down_pool.ask("jobs", "--no-trunc").stdout
    assert f"waits (1): {told}" in down_pool.output.read_text()
    down_pool.down()
    down_pool.up("--config", str(settings))
    down_pool.submit("--name", "next", "--", "true")
    down_pool.wait_for("next", "Succeeded")
    assert reasons(down_pool, "waits").count(told) == 1, "also the next pool reports it once"
    assert down_pool.phase_of("waits") == "Running"


def test_a_queue_ends_jobs_that_use_no_gpu(down_pool: PoolUp, settings: Path) -> None:
    ends = 'idle_after = "0.5s"\nidle_action = "end"\nidle_grace = "0.5s"\n'
    settings.write_text(f"[queues.default]\n[queues.lab]\n{ends}")
    down_pool.up("--config", str(settings))
    down_pool.submit("--name", "kept", "--", *WAITS)
    down_pool.submit("--name", "ended", "--queue", "lab", "--notice", "0.1", "--", *WAITS)
    answer = down_pool.ask("wait", "ended")
    assert answer.returncode == 124, answer
    assert ": queue lab ends jobs that use no GPU for 1 s" in answer.stdout
    assert any("; queue lab ends it in" in one for one in reasons(down_pool, "ended"))
    assert down_pool.log("ended").splitlines()[-1] == "saved", "it was asked to end"
    assert down_pool.phase_of("kept") == "Running", "its queue has no such rule"


def test_a_job_is_idle_until_it_uses_its_gpu(
    down_pool: PoolUp, settings: Path, short_tmp: Path
) -> None:
    settings.write_text(REPORTS)
    down_pool.up("--config", str(settings))
    go, end = short_tmp / "go", short_tmp / "end"
    works = shlex.join([*WORKS, str(end)])
    script = f"until test -e {go}; do sleep 0.1; done; exec {works}"
    down_pool.submit("--name", "works", "--memory", "10%", "--", "sh", "-c", script)
    told = "idle: it has used no GPU for 1 s"
    wait_until(lambda: down_pool.job("works")["state"]["reason"] == told)
    go.touch()
    again = "running with 1 worker: it uses its GPUs again"
    wait_until(lambda: down_pool.job("works")["state"]["reason"] == again)
    steps = len(down_pool.log("works").split())
    wait_until(lambda: len(down_pool.log("works").split()) > steps + 200)  # 2 s
    assert reasons(down_pool, "works")[-2:] == [told, again]
    end.touch()
    down_pool.wait_for("works", "Succeeded")


class Workers:
    """Workers that run, in grants that an arbiter says this of."""

    def __init__(self, *grants: Grant) -> None:
        self.grants = grants

    def reap(self) -> None:
        """There are no processes."""

    def limit_processes(self, _most: int | None) -> None:
        """There are no processes."""

    def arbiter_status(self) -> Status:
        gpus = tuple(make_shared(index) for index in range(3))
        return Status(pid=1, gpus=gpus, grants=self.grants, answer={})

    def observe(self, stored: StoredJob, _status: Status) -> ObservedJob:
        alive = ObservedWorker(WorkerPhase.ALIVE)
        return ObservedJob(dict.fromkeys(stored.state.slots, alive), frozenset(stored.state.slots))


def worker_grant(job: StoredJob, gpu: int, idle_seconds: float | None) -> Grant:
    name = grant_name(job, job.state.slots[0])
    made = make_grant(name, **{f"gpu{gpu}": 80 * GIB})
    compute = (ComputeUse(idle_seconds=idle_seconds),)
    uid = job.owner.uid
    return replace(made, owner_uid=uid, owner_pid=None, life=Life.KEPT, compute=compute)


@pytest.mark.parametrize(
    ("fair_share", "idle_counts"), [("", 1.0), ("idle_weight = 0.5", 0.5), ("idle_weight = 3", 3.0)]
)
def test_an_idle_grant_counts_in_fair_share_as_the_file_says(
    settings: Path, monkeypatch: pytest.MonkeyPatch, fair_share: str, idle_counts: float
) -> None:
    monkeypatch.setattr(past_use, "SAVE_SECONDS", 0.0)
    settings.write_text(f'[queues.default]\nidle_after = "10m"\n[fair_share]\n{fair_share}\n')
    store = JobStore(settings.parent / "pool.sqlite")
    state = JobState(phase=JobPhase.RUNNING, generation=1, slots=(Slot(1, 0),))
    jobs = [
        store.add(Submission(owner, Job(0, "a", ("true",), Request()), "/bin/true", "/"), state)
        for owner in (Owner(4001, 4001, "idle"), Owner(4002, 4002, "works"), Owner(4003, 4003, "?"))
    ]
    seconds = (600.0, 599.0, None)
    pairs = enumerate(zip(jobs, seconds, strict=True))
    workers = Workers(*(worker_grant(job, gpu, idle) for gpu, (job, idle) in pairs))
    directory = PoolDirectory(settings.parent, StateDirectory(settings.parent))
    known, policies = cast("LocalWorkers", workers), PolicyFile(None)
    policies.policy = read_policy(settings)
    pool = PoolController(directory, store, known, Rules(), policies, lambda _text: None)
    pool.round()
    pool.round()
    used = {uid: one.gpu_seconds for uid, one in store.past_use().items()}
    assert used[4002] > 0
    assert used[4001] == pytest.approx(idle_counts * used[4002])
    assert used[4003] == used[4002], "what is not known is not idle"
