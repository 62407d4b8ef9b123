"""The environment of a program in a grant, and the exec into it.

The process that made the grant execs the command. So exit code and signals are the command's own,
and the owner of the grant lives exactly as long as the command.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aliquot.model.errors import CommandNotExecutableError, CommandNotFoundError, NestedGrantError
from aliquot.slices.library import driver_directory
from aliquot.slices.visible_devices import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.devices import Driver

GRANT = "ALIQUOT_GRANT"
DRIVER_DIRECTORY = "ALIQUOT_DRIVER_DIR"
CONTAINER_GRANT = Path("/run/aliquot/grant")  # where a container sees its grant

# AddressSanitizer ends a program in which anything is loaded before it, as a preload is. With this
# it starts, and its functions still come before those of the C library.
_ASAN_OPTIONS, _ANY_ORDER = "ASAN_OPTIONS", "verify_asan_link_order=0"


def is_inside_grant(environment: Mapping[str, str]) -> bool:
    """Whether this process runs in a grant, of `aliquot run` or of a container."""
    return bool(environment.get(GRANT)) or CONTAINER_GRANT.is_dir()


def refuse_nested(environment: Mapping[str, str]) -> None:
    """Raise NestedGrantError inside a grant: a nested grant would count the same memory twice."""
    if is_inside_grant(environment):
        grant = environment.get(GRANT)
        name = Path(grant.partition("#")[0]).name if grant else "of this container"
        raise NestedGrantError(
            f"already inside the grant {name}",
            "Run the command without `aliquot run`: the limits of that grant apply to it.",
        )


def find_command(command: str) -> str:
    """The path of the program that a command name refers to.

    A program that runs with other rights than its user's is refused: the dynamic linker ignores the
    stand-ins there, and the program would use the whole GPU.
    """
    if found := shutil.which(command):
        if _changes_rights(Path(found)):
            raise CommandNotExecutableError(
                f"{command} runs with other rights than yours (setuid, or file capabilities): it"
                " would use the GPU outside the slice",
                "Get the rights first and make the slice then, for example: sudo aliquot run",
            )
        return found
    if os.sep in command and Path(command).is_dir():
        raise CommandNotExecutableError(f"{command} is a folder", "Name a program in it.")
    if shutil.which(command, os.F_OK) is None:
        here = os.sep not in command and Path(command).is_file()
        file = f"For the file of that name in this folder, write ./{command}"
        hint = file if here else "Write the command after -- as you would in a shell."
        raise CommandNotFoundError(f"{command}: command not found", hint)
    raise CommandNotExecutableError(
        f"{command}: permission denied",
        f"Make it executable with: chmod +x {shutil.which(command, os.F_OK)}",
    )


def tenant_environment(
    environment: Mapping[str, str], library: Path, driver: Driver, grant: str | None
) -> dict[str, str]:
    """The environment in which the linker finds the stand-ins before the driver.

    Libraries that the user preloads stay in front: they may replace functions of the driver, or of
    the C library, and find the next ones in the stand-in. `grant` is None for a test run outside
    any grant.
    """
    result = {**environment, **driver.variables}
    result.pop(VISIBLE, None)  # it names GPUs of the machine, not slices
    result["LD_LIBRARY_PATH"] = _joined(str(library), environment.get("LD_LIBRARY_PATH"))
    result["LD_PRELOAD"] = _joined(environment.get("LD_PRELOAD"), str(library / "libcuda.so.1"))
    result[_ASAN_OPTIONS] = _joined(_ANY_ORDER, environment.get(_ASAN_OPTIONS))
    result[DRIVER_DIRECTORY] = str(driver_directory(library, driver))
    if grant is not None:
        result[GRANT] = grant
    return result


def exec_program(program: str, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command, with the signals that Python ignores set to default."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, list(command), dict(environment))
    except OSError as error:
        if error.errno == errno.ENOENT:  # a script whose interpreter is missing
            raise CommandNotFoundError(
                f"{program}: {error.strerror}",
                "Its interpreter may be missing: see its first line.",
            ) from error
        raise CommandNotExecutableError(
            f"{program}: {error.strerror}", "A script needs a first line such as #!/bin/sh."
        ) from error


def _joined(*parts: str | None) -> str:
    return ":".join(part for part in parts if part)


def _changes_rights(program: Path) -> bool:
    """Whether the kernel starts it in secure mode (AT_SECURE), where the linker takes no advice."""
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        return False
    found = program.stat()
    return (
        bool(found.st_mode & stat.S_ISUID and found.st_uid != os.geteuid())
        or bool(found.st_mode & stat.S_ISGID and found.st_gid != os.getegid())
        or (os.geteuid() != 0 and "security.capability" in os.listxattr(program))
    )
