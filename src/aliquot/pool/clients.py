"""Making a worker's command a client of its user's MPS server, and ending its work before a kill.

In root's pool the server is the job's user's: what starts it runs with that user's rights.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.devices import Driver, parse_shape
from aliquot.pool.account import become
from aliquot.pool.processes import python_module
from aliquot.slices.bounded_command import run_bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.pool.account import Account, Surroundings

_START_SECONDS = 240.0
_LONGEST_REASON = 1000


class ServerError(Exception):
    """There is no MPS server that accepts the command."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def join_server(launch: dict[str, Any], account: Account | None, inherited: Surroundings) -> None:
    """Add to the command's environment what makes it a client, if the job asks for that."""
    wanted = launch.get("mps")
    if wanted is None:
        return
    if wanted["gpu"] is None:
        raise ServerError("its grant has no GPU")
    simulate = [] if wanted["simulate"] is None else ["--simulate", wanted["simulate"]]
    module = "aliquot.slices.mps"
    command = python_module(module, launch["state"], wanted["gpu"], wanted["priority"], *simulate)
    try:
        done = run_bounded(
            command,
            _START_SECONDS,
            preexec_fn=None if account is None else lambda: become(account, inherited),
        )
        if done.code:
            why = done.said[:_LONGEST_REASON]
            raise ServerError(why or "its MPS server cannot be joined")
        launch["environment"].update(_variables(done.output))
    except (OSError, ValueError, RecursionError, subprocess.SubprocessError) as error:
        raise ServerError(f"its MPS server cannot be joined: {error}") from error


def _variables(output: str) -> dict[str, str]:
    """The variables of a client, from what a process of the job's user has written."""
    from aliquot.slices import mps  # noqa: PLC0415 - keeps the start of the worker fast

    found = json.loads(output)
    if not isinstance(found, dict) or not found.keys() <= mps.CLIENT_VARIABLES:
        raise ValueError("it does not say how")
    if not all(isinstance(value, str) and "\0" not in value for value in found.values()):
        raise ValueError("it does not say where")
    return found


def end_work(launch: dict[str, Any], pids: Sequence[int]) -> None:
    """End the GPU work of those that are clients, so that killing them harms no other client.

    Whatever fails here, they are killed: an upgrade may have replaced what is imported only now.
    """
    wanted = launch.get("mps")
    if wanted is None:
        return
    with suppress(Exception):
        from aliquot.slices import mps  # noqa: PLC0415 - keeps the start of the worker fast

        shape = None if wanted["simulate"] is None else parse_shape(wanted["simulate"])
        driver = launch["driver"]
        mps.end_clients(pids, Driver(Path(driver["cuda"]), Path(driver["nvml"]), shape))
