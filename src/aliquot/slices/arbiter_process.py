"""Starting the arbiter of a state directory, or becoming it.

The arbiter goes into the background by itself and the start returns when it listens. It is not a
child of the process that started it: that process becomes a tenant, which must not find a child
that it never made. The arbiter ends when there has been no grant for a while. If two start at the
same time, a lock decides which one stays.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aliquot.devices import native_file
from aliquot.model.errors import ArbiterError
from aliquot.slices import control, state_directory
from aliquot.slices.tenant import exec_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.devices import Driver
    from aliquot.slices.state_directory import StateDirectory

LOG = "arbiter.log"
LINGER_SECONDS = 60

_LOCKED = 3  # its exit code if another arbiter has the directory
_START_SECONDS = 30.0
_POLL_SECONDS = 0.005


def ensure(directory: Path, driver: Driver) -> None:
    """Start an arbiter in this state directory unless one answers."""
    if not control.answers(directory):
        start(directory, driver)


def revive(where: StateDirectory) -> None:
    """Restart the arbiter if it died and left grants of this user; it recovers them."""
    ours = where.directory.is_relative_to(state_directory.own_directory())
    if ours and where.grants and not control.answers(where.directory):
        state_directory.prepare(where)
        start(where.directory, where.driver())


def running() -> Iterator[StateDirectory]:
    """Every state directory with an arbiter; one that died and left grants is restarted."""
    for where in state_directory.all_directories():
        revive(where)
        if control.answers(where.directory):
            yield where


def serve(directory: Path, driver: Driver) -> NoReturn:
    """Become the arbiter; it runs until somebody stops it."""
    if control.answers(directory):
        raise ArbiterError(
            f"an arbiter already runs in {directory}",
            "One that `aliquot run` started ends a minute after its last grant. See: aliquot ps",
        )
    command = [*_command(directory, driver), "--foreground"]
    exec_program(command[0], command, _environment(driver))


def start(directory: Path, driver: Driver, *, linger: int = LINGER_SECONDS) -> None:
    """Start an arbiter and wait until one answers: this one, or another that was faster.

    It ends `linger` seconds after its last grant; 0: it does not end by itself.
    """
    command = [*_command(directory, driver), "--linger", str(linger)]
    deadline = time.monotonic() + _START_SECONDS
    try:
        done = subprocess.run(
            command,
            env=_environment(driver),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_started(directory, str(error)) from error
    if done.returncode not in {0, _LOCKED}:
        raise _not_started(directory, done.stderr.strip().removeprefix("aliquot-arbiter: "))
    while not control.answers(directory):
        if time.monotonic() > deadline:
            raise _not_started(directory, f"it does not answer; see {directory / LOG}")
        time.sleep(_POLL_SECONDS)


def _command(directory: Path, driver: Driver) -> list[str]:
    program = str(native_file("bin", "aliquot-arbiter"))
    return [program, "--state", str(directory), "--nvml", str(driver.nvml)]


def _environment(driver: Driver) -> dict[str, str]:
    """The environment without LD_PRELOAD, which is meant for other programs."""
    kept = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    return {**kept, **driver.variables}


def _not_started(directory: Path, why: str) -> ArbiterError:
    return ArbiterError(f"the arbiter does not start in {directory}: {why}", control.ASK_DOCTOR)
