"""`aliquot arbiter` and `aliquot restart`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import print_sentence
from aliquot.devices import check_version, parse_shape
from aliquot.model import Admission, format_count, parse_host_memory
from aliquot.pool.arbiter_limits import write_limits
from aliquot.pool.policy import FILE, PolicyFile
from aliquot.slices import arbiter_process, control
from aliquot.slices.share_problems import lost_shares

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.model import Unjoined


def serve(
    simulate: str | None,
    users: Path | None,
    unjoined: Unjoined,
    admission: Admission,
    host_memory: str | None,
    overcommit: float | None,
) -> None:
    """Become the arbiter of this machine, or of a simulated one."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    driver = state.driver()
    if state.shape is None:
        check_version(driver)
    slices.prepare(state)
    host_bytes = None if host_memory is None else parse_host_memory(host_memory, "--host-memory")
    if admission is Admission.POOL:
        policy = PolicyFile(FILE if FILE.exists() else None).policy
        users = write_limits(state.directory, policy) if users is None else users
        host_bytes = policy.host_bytes if host_bytes is None else host_bytes
        overcommit = policy.overcommit if overcommit is None else overcommit
    settings = arbiter_process.ArbiterSettings(
        users, unjoined, admission, host_bytes=host_bytes, overcommit=overcommit or 1.0
    )
    slices.serve(state.directory, driver, settings)


def restart(simulate: str | None) -> bool:
    """Replace the running arbiter by one of this version; whether it adopted all programs."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    pid = arbiter_process.restart(state.directory, state.driver())
    status = control.status(state.directory)
    problems = list(lost_shares(status))
    print_sentence(f"restarted: pid {pid}, {format_count(len(status.grants), 'grant')}")
    for problem in problems:
        print_sentence(problem)
    return not problems
