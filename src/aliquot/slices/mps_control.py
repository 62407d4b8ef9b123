"""Commands to the MPS control daemon, through NVIDIA's program `nvidia-cuda-mps-control`.

A simulated machine has a program of its own in its place (`mps_simulated`).
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import MpsError
from aliquot.slices.bounded_command import run_bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.devices import Driver

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"

_ANSWER_SECONDS = 60.0  # also on a machine with too much to do
_LONGEST_PID = 7  # decimal digits
_FAULTED = {"FAULT", "FAULTED", "FAILED"}
_PLACES = "/usr/bin:/bin:/usr/local/bin:/run/nvidia/driver/usr/bin:/home/kubernetes/bin/nvidia/bin"


def control_program(driver: Driver) -> list[str]:
    """The control program of a driver; MpsError if there is none."""
    if driver.shape is not None:
        return [sys.executable, "-P", "-m", "aliquot.slices.mps_simulated"]
    found = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=_PLACES)
    if found is None:
        raise MpsError(
            f"there is no program {PROGRAM} on this machine",
            "Install it: it is part of NVIDIA's driver (Debian's package nvidia-cuda-mps, or the"
            " compute utilities of the driver). Or use --isolation soft.",
        )
    return [found]


@dataclass(frozen=True, slots=True)
class Control:
    """The control daemon with these directories.

    With `owner`, the user and group whose it is, commands have their rights and get nothing of this
    process's environment: what answers there is theirs.
    """

    program: Sequence[str]
    pipes: Path
    logs: Path
    owner: tuple[int, int] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs in its environment to find the daemon."""
        return {PIPES: str(self.pipes), LOGS: str(self.logs)}

    def environment(self) -> dict[str, str]:
        """Of the daemon and of its commands: this process's, without what is meant for tenants."""
        if self.owner is not None:
            return {"PATH": _PLACES, **self.variables}
        kept = {
            key: value
            for key, value in os.environ.items()
            if key not in {"LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"}
            and not key.startswith("CUDA_MPS_")
        }
        return {**kept, **self.variables}

    def ask(self, command: str, seconds: float = _ANSWER_SECONDS) -> str:
        """The answer to one command; MpsError if there is none."""
        try:
            done = run_bounded(
                self.program, seconds, f"{command}\n", env=self.environment(), **self._rights()
            )
        except OSError as error:
            raise MpsError(
                f"the MPS control daemon does not answer {command!r}: {error}"
            ) from error
        if done.code:
            raise MpsError(f"the MPS control daemon refuses {command!r}: {done.said}")
        return done.output.strip()

    def _rights(self) -> dict[str, Any]:
        if self.owner is None:
            return {}
        user, group = self.owner
        return {"user": user, "group": group, "extra_groups": [], "cwd": "/"}

    def servers(self, seconds: float = _ANSWER_SECONDS) -> list[int]:
        """The pids of its servers."""
        return _numbers(self.ask("get_server_list", seconds))

    def clients(self, server: int, seconds: float = _ANSWER_SECONDS) -> list[int]:
        """The pids of a server's clients."""
        return _numbers(self.ask(f"get_client_list {server}", seconds))

    def has_faulted(self, server: int) -> bool:
        """Whether a client of the server has failed, and the server accepts no new ones."""
        return bool(_FAULTED & set(self.ask(f"get_server_status {server}").upper().split()))

    def start_server(self, uid: int) -> None:
        """Start the server of a user; it is in `servers` a moment later."""
        self.ask(f"start_server -uid {uid}")

    def terminate(self, server: int, client: int, seconds: float = _ANSWER_SECONDS) -> None:
        """End the GPU work of a client, so that its process can be killed without harm."""
        self.ask(f"terminate_client {server} {client}", seconds)

    def quit(self) -> None:
        """End the daemon and its servers."""
        self.ask("quit")


def _numbers(answer: str) -> list[int]:
    """The pids of an answer; what cannot be one is left out."""
    words = (word for word in answer.split() if word.isascii() and word.isdecimal())
    return [int(word) for word in words if len(word) <= _LONGEST_PID]
