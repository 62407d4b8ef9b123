"""`aliquot arbiter` and `aliquot restart`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import console
from aliquot.devices import check_version, parse_shape
from aliquot.model import format_count
from aliquot.slices import arbiter_process, control
from aliquot.slices.share_problems import lost_shares

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.model import Unjoined


def serve(simulate: str | None, users: Path | None, unjoined: Unjoined) -> None:
    """Become the arbiter of this machine, or of a simulated one."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    driver = state.driver()
    if state.shape is None:
        check_version(driver)
    slices.prepare(state)
    slices.serve(state.directory, driver, users, unjoined)


def restart(simulate: str | None) -> bool:
    """Replace the running arbiter by one of this version; whether it adopted all programs."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    pid = arbiter_process.restart(state.directory, state.driver())
    status = control.status(state.directory)
    problems = list(lost_shares(status))
    console().print(f"restarted: pid {pid}, {format_count(len(status.grants), 'grant')}")
    for problem in problems:
        console().print(problem)
    return not problems
