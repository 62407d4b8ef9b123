"""Starting the arbiter of a state directory when none answers, or becoming it.

The program goes into the background by itself, as nobody's child (the process that starts it goes
on to become a tenant, which must not find a child that it never made), and returns when it listens.
It ends when there has been no grant for a while. Two that start at once are one: its lock decides.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aliquot.devices import native_file
from aliquot.model.errors import ArbiterError
from aliquot.slices import control, state
from aliquot.slices.run import become

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.devices import Driver
    from aliquot.slices.state import State

LOG = "arbiter.log"
LINGER_SECONDS = 60

_LOCKED = 3  # its exit code where another one is in the directory
_START_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.005


def ensure(directory: Path, driver: Driver) -> None:
    """See to it that an arbiter answers in this state directory."""
    if not control.answers(directory):
        start(directory, driver)


def revive(where: State) -> None:
    """Start the arbiter again where it died and left grants of ours; it takes them up."""
    ours = where.directory.is_relative_to(state.own_directory())
    if ours and where.grants and not control.answers(where.directory):
        state.prepare(where)
        start(where.directory, where.driver())


def running() -> Iterator[State]:
    """Every state directory in which an arbiter answers; one that left grants is started again."""
    for where in state.known():
        revive(where)
        if control.answers(where.directory):
            yield where


def serve(directory: Path, driver: Driver) -> NoReturn:
    """Become the arbiter, until it is stopped."""
    if control.answers(directory):
        raise ArbiterError(
            f"an arbiter already serves {directory}",
            "One that `aliquot run` started ends a minute after its last grant: aliquot ps",
        )
    command = [*_command(directory, driver), "--foreground"]
    become(command[0], command, _environment(driver))


def start(directory: Path, driver: Driver, *, linger: int = LINGER_SECONDS) -> None:
    """Start an arbiter and wait until one answers: this one, or one that was quicker.

    It ends so many seconds after its last grant; 0: it stays.
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
        time.sleep(_LOOK_AGAIN_SECONDS)


def _command(directory: Path, driver: Driver) -> list[str]:
    program = str(native_file("bin", "aliquot-arbiter"))
    return [program, "--state", str(directory), "--nvml", str(driver.nvml)]


def _environment(driver: Driver) -> dict[str, str]:
    """Its environment: what is preloaded into programs is not meant for it."""
    kept = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    return {**kept, **driver.variables}


def _not_started(directory: Path, why: str) -> ArbiterError:
    return ArbiterError(f"the arbiter does not start in {directory}: {why}", control.ASK_DOCTOR)
