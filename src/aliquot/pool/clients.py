"""Making a worker's command a client of its user's MPS server, and ending its work before a kill.

In root's pool the server is the job's user's: what starts it runs with that user's rights.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.devices import Driver, parse_shape
from aliquot.pool.account import become
from aliquot.pool.processes import python_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.pool.account import Account, Surroundings

_START_SECONDS = 240.0


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
    try:
        done = subprocess.run(
            python_module(
                "aliquot.slices.mps", launch["state"], wanted["gpu"], wanted["priority"], *simulate
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
            preexec_fn=None if account is None else lambda: become(account, inherited),
        )
        if done.returncode:
            raise ServerError(done.stderr.strip() or "its MPS server cannot be joined")
        launch["environment"].update(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ServerError(f"its MPS server cannot be joined: {error}") from error


def end_work(launch: dict[str, Any], pids: Sequence[int]) -> None:
    """End the GPU work of those that are clients, so that killing them harms no other client."""
    wanted = launch.get("mps")
    if wanted is None:
        return
    from aliquot.slices import mps  # noqa: PLC0415 - keeps the start of the worker fast

    shape = None if wanted["simulate"] is None else parse_shape(wanted["simulate"])
    driver = launch["driver"]
    mps.end_clients(pids, Driver(Path(driver["cuda"]), Path(driver["nvml"]), shape))
