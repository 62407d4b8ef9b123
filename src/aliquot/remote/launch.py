"""Running a command whose GPU is remote: opens a session, and becomes the command.

The connection of the session stays open in the command's process, which does nothing with it, and
in children that inherit its files. When they have ended, in whatever way, the kernel closes the
connection and the server gives the slice back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aliquot import slices
from aliquot.model.errors import InvalidValueError
from aliquot.remote import greeting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PATH = Path(__file__).with_name("path")  # has the sitecustomize
_ISOLATED = frozenset("IES")  # Python's options without PYTHONPATH, or without sitecustomize


def run(
    server: Path,
    memory: str | None,
    percent: int,
    command: Sequence[str],
    environment: Mapping[str, str],
) -> NoReturn:
    """Become the command, with a slice of the server's. Raises AliquotError if there is none."""
    slices.refuse_nested(environment)
    program = slices.find_command(command[0])
    refuse_isolated(command)
    path = server.absolute()
    end, answer = greeting.ask(path, {"open": {"memory": memory, "compute": percent}})
    own = {
        greeting.SOCKET: str(path),
        greeting.SESSION: str(answer["session"]),
        "PYTHONPATH": ":".join(
            part for part in (str(_PATH), environment.get("PYTHONPATH")) if part
        ),
    }
    os.set_inheritable(end.detach(), True)  # noqa: FBT003 - its form
    slices.exec_program(program, command, {**environment, **own})


def refuse_isolated(command: Sequence[str]) -> None:
    """Raise InvalidValueError for a Python that would not load the client."""
    if not Path(command[0]).name.startswith("python"):
        return
    for argument in command[1:]:
        if not argument.startswith("-") or argument in {"-", "-c", "-m"}:
            return
        if not argument.startswith("--") and _ISOLATED & set(argument[1:]):
            raise InvalidValueError(
                f"{command[0]} {argument} ignores PYTHONPATH or sitecustomize, by which the client"
                " of a remote GPU is loaded",
                f"Leave out {argument}.",
            )
