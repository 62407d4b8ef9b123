"""Arbiter, its parent and the pool are restarted and killed, alone and together.

Two busy jobs have 60 and 40 %. Two seconds after the new process has started the shares hold, the
screen says so, and the jobs have noticed nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import support
from aliquot.model.errors import AliquotError
from aliquot.slices import control
from credit.measuring import PATIENCE_SECONDS
from outages.conftest import SHARES, wait_until_clock
from outages.services import kill_at_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from credit.measuring import Shares
    from outages.conftest import MakeShared, SharedMachine

pytestmark = [pytest.mark.shares, pytest.mark.timeout(300)]

SETTLED_SECONDS = 2.0
ARBITER = ("serving_pid",)
PARENT = ("pid",)
GUARD = ("guard_pid",)


def kill(*keys: str, pool: bool = False) -> Callable[[SharedMachine], None]:
    """Kills these processes of the arbiter, as `status` names them and those that watch others
    first, and the pool."""

    def do(shared: SharedMachine) -> None:
        status = control.status(shared.state).answer
        pids = [status[key] for key in keys]
        kill_at_once(*([shared.pool.pid] if pool else []), *pids)

    return do


def restart(*, arbiter: bool = False, pool: bool = False) -> Callable[[SharedMachine], None]:
    def do(shared: SharedMachine) -> None:
        if arbiter:
            shared.arbiter.restart()
        if pool:
            shared.pool.restart()

    return do


CASES = {
    "kill the arbiter": kill(*ARBITER),
    "kill the parent": kill(*PARENT),
    "kill arbiter and parent": kill(*PARENT, *ARBITER),
    "kill arbiter, parent and guard": kill(*GUARD, *PARENT, *ARBITER),
    "kill the pool": kill(pool=True),
    "kill arbiter and pool": kill(*ARBITER, pool=True),
    "kill parent and pool": kill(*PARENT, pool=True),
    "kill all": kill(*GUARD, *PARENT, *ARBITER, pool=True),
    "restart the arbiter": restart(arbiter=True),
    "restart the pool": restart(pool=True),
    "restart both": restart(arbiter=True, pool=True),
}


def serving(shared: SharedMachine) -> tuple[int, int] | None:
    """The pids of the arbiter that serves and of the pool that answers; None: not yet."""
    with suppress(AliquotError):
        status = control.status(shared.state).answer
        if status["pid"] == shared.arbiter.pid and shared.pool_answers():
            return int(status["serving_pid"]), shared.pool.pid
    return None


def check_screen(shared: SharedMachine) -> None:
    """What people see: both jobs run, with their shares, and nothing is wrong."""
    doctor = shared.ask("doctor")
    assert doctor.returncode == 0, doctor.stdout
    shown = shared.grant_list()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "takes no turns" in shown and time.monotonic() < deadline:
        shown = shared.grant_list()  # this machine stood still, and a program was late three times
    assert "takes no turns" not in shown
    assert all(f"{name}." in shown and f"{share}%" in shown for name, share in SHARES.items())
    jobs = shared.ask("jobs").stdout
    assert jobs.count("Running") == 2, jobs
    grants = shared.grants()
    assert {name: one.slices[0].compute_percent for name, one in grants.items()} == SHARES
    assert all(process.ungated is None for one in grants.values() for process in one.processes)


def hold(shares: Shares) -> bool:
    """Whether each job has its share, by the arbiter's clock and by the GPU's."""
    asked = [*SHARES.values()]
    return shares.is_near(asked, 3) and (
        not shares.kept_busy or shares.gpu == pytest.approx(asked, abs=4)
    )


def check_that_jobs_notice_nothing(
    shared: SharedMachine, outage: Callable[[SharedMachine], None]
) -> None:
    before = {name: shared.running(name) for name in SHARES}
    old, slow = serving(shared), support.on_this_machine(1.0)
    outage(shared)
    begun = time.monotonic()
    support.wait_until(lambda: serving(shared) not in {None, old})
    answered = time.monotonic()
    begun = max(begun, *(service.started for service in shared.services))
    # A busy machine starts the new process late, and runs the programs late.
    slow = max(slow, support.on_this_machine(1.0))
    assert answered - begun < slow * SETTLED_SECONDS, slow
    wait_until_clock(begun + slow * SETTLED_SECONDS)
    shares = shared.shares(hold)
    turns = [(one.compute[0].turn, one.compute[0].fallbacks) for one in shared.grants().values()]
    assert hold(shares), (shares, turns)
    check_screen(shared)
    for name in SHARES:
        after = shared.running(name)
        assert (after.pid, after.history) == (before[name].pid, before[name].history)
        assert after.bursts > before[name].bursts


@pytest.mark.parametrize("case", CASES)
def test_shares_hold_again_and_no_job_notices(shared: SharedMachine, case: str) -> None:
    check_that_jobs_notice_nothing(shared, CASES[case])


UPGRADES = {
    "the arbiter": {"arbiter": True},
    "the pool": {"pool": True},
    "both": {"arbiter": True, "pool": True},
}


@pytest.mark.parametrize("what", UPGRADES)
def test_an_upgrade_keeps_shares_and_jobs(make_shared: MakeShared, older: Path, what: str) -> None:
    shared = make_shared(older)
    check_that_jobs_notice_nothing(shared, lambda one: one.upgrade(**UPGRADES[what]))
