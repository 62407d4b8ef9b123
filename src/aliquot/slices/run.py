"""Becoming the tenant: the environment of a program that runs in a grant, and the exec.

The process that made the grant becomes the command. So its exit code and its signals are the
command's own, and the grant's owner lives exactly as long as the command.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aliquot.model.errors import CommandNotExecutableError, CommandNotFoundError, NestedGrantError
from aliquot.slices.library import driver_directory
from aliquot.slices.visible import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.devices import Driver

GRANT = "ALIQUOT_GRANT"
DRIVER_DIRECTORY = "ALIQUOT_DRIVER_DIR"
SHOWN_GRANT = Path("/run/aliquot/grant")  # a container's own


def is_inside_grant(environment: Mapping[str, str]) -> bool:
    """Whether programs are held to a grant: one that `aliquot run` made, or a container's own."""
    return bool(environment.get(GRANT)) or SHOWN_GRANT.is_dir()


def refuse_nested(environment: Mapping[str, str]) -> None:
    """A grant inside a grant would hold what the outer one already holds."""
    if is_inside_grant(environment):
        grant = environment.get(GRANT)
        name = Path(grant.partition("#")[0]).name if grant else "of this container"
        raise NestedGrantError(
            f"already inside the grant {name}",
            "Run the command as it is: it is held to that grant's limits.",
        )


def find_command(command: str) -> str:
    """The program file that a command's name means."""
    if found := shutil.which(command):
        return found
    if os.sep in command and Path(command).is_dir():
        raise CommandNotExecutableError(f"{command} is a folder")
    if shutil.which(command, os.F_OK) is None:
        raise CommandNotFoundError(f"{command}: command not found")
    raise CommandNotExecutableError(f"{command}: permission denied")


def tenant_environment(
    environment: Mapping[str, str], library: Path, driver: Driver, grant: str | None
) -> dict[str, str]:
    """The environment in which the stand-ins are found first; without a grant, for a look only."""
    result = {**environment, **driver.variables}
    result.pop(VISIBLE, None)  # it spoke of the machine's GPUs
    result["LD_LIBRARY_PATH"] = _before(str(library), environment.get("LD_LIBRARY_PATH"))
    result["LD_PRELOAD"] = _before(str(library / "libcuda.so.1"), environment.get("LD_PRELOAD"))
    result[DRIVER_DIRECTORY] = str(driver_directory(library, driver))
    if grant is not None:
        result[GRANT] = grant
    return result


def become(program: str, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Become the command. What Python ignores by itself, the command does not have to."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, list(command), dict(environment))
    except OSError as error:
        if error.errno == errno.ENOENT:  # a script whose interpreter is missing
            raise CommandNotFoundError(f"{program}: {error.strerror}") from error
        raise CommandNotExecutableError(f"{program}: {error.strerror}") from error


def _before(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first
