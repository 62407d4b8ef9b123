"""Brings a pool up: its directory, database and API, then its controller until stopped."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.model import Admission, format_count
from aliquot.model.errors import ArbiterError
from aliquot.pool import api, pool_cgroup
from aliquot.pool.admission import RunAdmission
from aliquot.pool.arbiter_limits import write_limits
from aliquot.pool.controller import PoolController
from aliquot.pool.directory import directory_of, lock_directory, prepare
from aliquot.pool.policy import FILE, PolicyFile
from aliquot.pool.runs import RunDesk
from aliquot.pool.spawner import Spawner
from aliquot.pool.store import JobStore
from aliquot.pool.workers import LocalWorkers, prepare_runtime
from aliquot.slices import control, state_directory
from aliquot.slices.arbiter_process import ArbiterSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.placement.elastic.resize import Rules
    from aliquot.slices import StateDirectory


def bring_up(
    state: StateDirectory,
    rules: Rules,
    policy: Path | None,
    say: Callable[[str], None],
    when_up: Callable[[], None] | None = None,
) -> None:
    """Run the pool of this machine until SIGTERM or SIGINT. Jobs keep running after that.

    `when_up` is called when the pool answers.

    `policy` is the file of its queues and limits; by default `policy.FILE`, for root's pool and if
    it exists.
    """
    check_may_bring_up(state)
    directory = directory_of(state)
    if policy is None and directory.is_system and FILE.exists():
        policy = FILE
    prepare(directory)
    lock = lock_directory(directory)
    runtime = prepare_runtime(directory)
    cgroups = pool_cgroup.settle()
    # Before the first thread.
    spawner = Spawner({**os.environ, **runtime.driver.variables}, cgroups)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for connections of all users
    try:
        policies = PolicyFile(policy)
        if directory.shared and policy is not None:
            _choose_limits(state, policies)
        _choose_swap(state, policies, say)
        pool = PoolController(
            directory,
            JobStore(directory.database),
            LocalWorkers(directory, runtime, spawner, cgroups),
            rules,
            policies,
            say,
        )
        _serve(pool, say, when_up)
    finally:
        spawner.close()
        cgroups.release()
        os.close(lock)


def check_may_bring_up(state: StateDirectory) -> None:
    """Raise ArbiterError if the machine is root's, and this process another user's."""
    if state_directory.belongs_to_root(state.directory):
        raise ArbiterError(
            f"the arbiter of this machine, in {state.directory}, belongs to root",
            "Only root can bring up a pool here. Without a pool use: aliquot run",
        )


def _choose_limits(state: StateDirectory, policies: PolicyFile) -> None:
    """Let the next arbiter use the limits of the policy, unless it is told to use others."""
    settings = ArbiterSettings.of(state.directory)
    if settings.users is None and not control.answers(state.directory):
        users = write_limits(state.directory, policies.policy)
        replace(settings, users=users).store(state.directory)


def _choose_swap(state: StateDirectory, policies: PolicyFile, say: Callable[[str], None]) -> None:
    """Let the next arbiter move memory as the policy says, if it does."""
    settings, wanted = ArbiterSettings.of(state.directory), policies.policy
    if wanted.host_bytes is not None:
        settings = replace(settings, host_bytes=wanted.host_bytes)
    if wanted.overcommit is not None:
        settings = replace(settings, overcommit=wanted.overcommit)
    if settings != ArbiterSettings.of(state.directory):
        settings.store(state.directory)
    if not control.answers(state.directory):
        return
    has = control.status(state.directory).answer
    if wanted.host_bytes not in (None, has.get("host_memory_bytes")):
        say("swap.host_memory holds from the next start of the arbiter on: it runs already")
    if wanted.overcommit not in (None, has.get("overcommit_percent", 100) / 100):
        say("swap.overcommit holds from the next start of the arbiter on: it runs already")


def _serve(
    pool: PoolController, say: Callable[[str], None], when_up: Callable[[], None] | None
) -> None:
    status = pool.workers.arbiter_status()
    desk = _run_desk(pool)
    where, default = pool.directory.state.directory, pool.policies.swap_default
    pool.runs = RunAdmission(desk, where, pool.store, default)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pool.stop())
    desk.serve()
    server = api.serve(pool)
    gpus = format_count(len(status.gpus), "GPU")
    jobs = format_count(len(pool.store.all(unfinished=True)), "job")
    say(f"up on {pool.directory}: {gpus}, {jobs}; {pool.directory.path}")
    if pool.directory.shared and status.admission is Admission.USERS:
        say(
            "users can get GPUs past this pool: its arbiter runs with --admission users."
            " The services of aliquot install have one with --admission pool"
        )
    if pool.directory.shared and (why := pool.workers.unlimited):
        say(f"a worker can start as many processes as it likes: {why}")
    if when_up is not None:
        when_up()
    try:
        pool.run()
    finally:
        pool.directory.socket.unlink(missing_ok=True)
        desk.close()
        server.shutdown()
        left = [one for one in pool.store.all(unfinished=True) if one.state.slots]
        pool.store.close()
        if left:
            jobs = format_count(len(left), "job")
            say(f"down; still running: {jobs}; aliquot up continues them")


def _run_desk(pool: PoolController) -> RunDesk:
    """Where `aliquot run` asks for grants: of all users, or of the pool's own."""
    directory = pool.directory
    mode = 0o666 if directory.shared else 0o600
    return RunDesk(directory.runs, mode, pool.admit_run, pool.wake)
