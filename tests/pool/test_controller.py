"""The pool's controller goes on, whatever happens to one job."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from aliquot.model import Request
from aliquot.model.errors import ArbiterError, InvalidValueError
from aliquot.model.job import Dependency, Job, JobPhase
from aliquot.model.job_state import JobState, ObservedJob
from aliquot.model.owner import Owner
from aliquot.placement.elastic.resize import Rules
from aliquot.pool import controller as controllers
from aliquot.pool.access import Caller
from aliquot.pool.controller import PoolController
from aliquot.pool.directory import PoolDirectory
from aliquot.pool.encoding import Submission
from aliquot.pool.new_jobs import MOST_DEPENDENCIES, MOST_NAMES
from aliquot.pool.policy import PolicyFile
from aliquot.pool.spawner import Spawned
from aliquot.pool.store import JobStore
from aliquot.slices import StateDirectory
from support import GIB, make_grant, make_shared

if TYPE_CHECKING:
    from aliquot.model import Grant
    from aliquot.pool.store import StoredJob
    from aliquot.pool.workers import LocalWorkers
    from aliquot.slices.arbiter_status import Status

OWNER = Owner(4001, 4001, "alice")
CALLER = Caller(OWNER, frozenset(), admin=False)


class Workers:
    """Workers of which the first job's cannot be observed."""

    def __init__(self, *grants: Grant) -> None:
        self.observed: list[str] = []
        self.grants = grants

    def reap(self) -> None:
        """There are no processes."""

    def limit_processes(self, _most: int | None) -> None:
        """There are no processes."""

    def arbiter_status(self) -> Status:
        gpu = make_shared(granted=8 * GIB * len(self.grants))
        return cast("Status", SimpleNamespace(gpus=(gpu,), grants=self.grants))

    def observe(self, stored: StoredJob, _status: Status) -> ObservedJob:
        self.observed.append(stored.job.name)
        if stored.job.name == "first":
            raise OverflowError("a number that nobody expected")
        return ObservedJob({}, frozenset())


def make_controller(
    folder: Path, store: JobStore, workers: Workers, said: list[str]
) -> PoolController:
    directory = PoolDirectory(folder, StateDirectory(folder))
    known = cast("LocalWorkers", workers)
    return PoolController(directory, store, known, Rules(), PolicyFile(None), said.append)


def test_a_surprise_in_one_job_stops_no_other_job(tmp_path: Path) -> None:
    store, workers, said = JobStore(tmp_path / "pool.sqlite"), Workers(), list[str]()
    for name in ("first", "second"):
        job = Job(0, name, ("true",), Request())
        store.add(Submission(OWNER, job, "/bin/true", "/"), JobState())
    controller = make_controller(tmp_path, store, workers, said)
    controller.round()
    controller.round()
    assert workers.observed[:2] == ["first", "second"]
    (line,) = (line for line in said if "will retry" in line)
    assert line.startswith("first (1): will retry: Traceback")
    assert "OverflowError: a number that nobody expected" in line


def test_the_name_of_a_grant_charges_nobody_but_its_owner(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "pool.sqlite")
    victim = Job(0, "first", ("true",), Request())
    store.add(Submission(OWNER, victim, "/bin/true", "/"), JobState())
    grant = replace(make_grant("4002:first.1.1.0", gpu0=8 * GIB), owner_uid=4002)
    controller = make_controller(tmp_path, store, Workers(grant), [])
    controller.round()
    assert set(store.past_use()) == {4002}


def submission(name: str, *after: Dependency) -> Submission:
    return Submission(OWNER, Job(0, name, ("true",), Request(), after=after), "/bin/true", "/")


def test_a_leftover_of_one_finished_job_stops_no_other_job(tmp_path: Path) -> None:
    store, said = JobStore(tmp_path / "pool.sqlite"), list[str]()
    store.add(submission("first"), JobState(phase=JobPhase.SUCCEEDED))
    store.add(submission("second"), JobState())
    workers = Workers(replace(make_grant("4001:first.1.1.0", gpu0=8 * GIB), owner_uid=4001))
    make_controller(tmp_path, store, workers, said).round()
    assert workers.observed == ["first", "second"]
    assert [line.partition(":")[0] for line in said] == ["first (1)"]


def test_two_submissions_at_once_get_different_names(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "pool.sqlite")
    both, names_like = threading.Barrier(2), store.names_like

    def slow_names_like(uid: int, base: str) -> set[str]:
        found = set(names_like(uid, base))
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return found

    store.names_like = slow_names_like  # type: ignore[method-assign]
    controller = make_controller(tmp_path, store, Workers(), [])
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: controller.submit(CALLER, submission("")), range(2)))
    assert sorted(one.job.name for added in found for one in added) == ["true-1", "true-2"]


def test_dependencies_that_are_looked_up_are_bounded(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "pool.sqlite")
    controller = make_controller(tmp_path, store, Workers(), [])
    controller.submit(CALLER, submission("first"))
    again = [Dependency("first")] * 10_000
    (stored,) = controller.submit(CALLER, submission("second", *again))
    assert [one.job for one in stored.job.after] == ["1"]
    many = [Dependency(f"job-{number}") for number in range(MOST_NAMES + 1)]
    with pytest.raises(InvalidValueError, match=str(MOST_NAMES + 1)):
        controller.submit(CALLER, submission("third", *many))
    spelled = [Dependency("1".zfill(19) + str(number)) for number in range(MOST_DEPENDENCIES + 1)]
    with pytest.raises(InvalidValueError, match=str(MOST_DEPENDENCIES + 1)):
        controller.submit(CALLER, submission("third", *spelled))


def test_a_job_that_started_after_a_large_array_is_submitted_again(tmp_path: Path) -> None:
    """Its dependencies are the numbers of all jobs of the array."""
    store = JobStore(tmp_path / "pool.sqlite")
    controller = make_controller(tmp_path, store, Workers(), [])
    array = controller.submit(CALLER, submission("sweep"), range(MOST_NAMES + 1))
    (stored,) = controller.submit(CALLER, submission("then", Dependency("sweep")))
    assert len(stored.job.after) == len(array)
    (again,) = controller.submit(CALLER, submission("again", *stored.job.after))
    assert again.job.after == stored.job.after


def test_limits_that_the_arbiter_did_not_take_are_published_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [ArbiterError("the arbiter does not answer"), None]

    def publish(*_: object) -> None:
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(controllers, "publish_limits", publish)
    controller = make_controller(tmp_path, JobStore(tmp_path / "pool.sqlite"), Workers(), [])
    controller._publish_policy = True
    with pytest.raises(ArbiterError):
        controller.round()
    controller.round()
    assert answers == []


def test_a_worker_with_a_large_descriptor_is_seen_to_end() -> None:
    """select(2) takes none from 1024 on, and a busy pool has more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as worker:
            low = os.pidfd_open(worker.pid)
            spawned = Spawned(fcntl.fcntl(low, fcntl.F_DUPFD, 1024), time.monotonic() - 60)
            assert spawned.busy
            worker.communicate()
        assert not spawned.busy
        spawned.close()
        os.close(low)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
