"""`aliquot arbiter` and `aliquot restart`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import print_sentence
from aliquot.devices import check_version, parse_shape
from aliquot.model import Admission, format_count, parse_host_memory
from aliquot.model.errors import InvalidValueError
from aliquot.pool.arbiter_limits import write_limits
from aliquot.pool.policy import FILE, PolicyFile
from aliquot.slices import arbiter_process, control
from aliquot.slices.share_problems import lost_shares

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.slices.arbiter_process import ArbiterSettings

_UUID = "GPU(-[0-9A-Fa-f]+){5}"


def serve(simulate: str | None, asked: ArbiterSettings, host_memory: str | None) -> None:
    """Become the arbiter of this machine, or of a simulated one.

    What `asked` and `host_memory` leave open is as in pool.toml, if a pool admits.
    """
    state = slices.locate(parse_shape(simulate) if simulate else None)
    driver = state.driver()
    if state.shape is None:
        check_version(driver)
    slices.prepare(state)
    if asked.mps is not None:
        _check_gpus(asked.mps)
    if host_memory is not None:
        asked = replace(asked, host_bytes=parse_host_memory(host_memory, "--host-memory"))
    slices.serve(state.directory, driver, _with_policy(state.directory, asked))


def _with_policy(directory: Path, asked: ArbiterSettings) -> ArbiterSettings:
    if asked.admission is not Admission.POOL:
        return asked
    policy = PolicyFile(FILE if FILE.exists() else None).policy
    return replace(
        asked,
        users=write_limits(directory, policy) if asked.users is None else asked.users,
        host_bytes=policy.host_bytes if asked.host_bytes is None else asked.host_bytes,
        overcommit=policy.overcommit if asked.overcommit is None else asked.overcommit,
    )


def _check_gpus(allowed: str) -> None:
    """Raise InvalidValueError for what the arbiter would not understand as --mps."""
    if allowed not in {"all", "none"} and not re.fullmatch(f"{_UUID}(,{_UUID})*", allowed):
        raise InvalidValueError(
            f"{allowed!r} names no GPUs",
            "Write all, none, or UUIDs separated by commas, as aliquot gpus shows them.",
        )


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
