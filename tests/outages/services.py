"""A service manager: it starts a unit's command again 100 ms after it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import support

if TYPE_CHECKING:
    from collections.abc import Sequence

RESTART_SECONDS = 0.1  # RestartSec of the units


class Service:
    """A command that runs always. What it writes goes to a file."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.command, self._env = list(command), env
        self.log = log
        self._ends = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart(self) -> None:
        """End it by SIGTERM, as `systemctl restart` does."""
        self._process.terminate()

    def replace(self, command: Sequence[str], env: dict[str, str]) -> None:
        """Restart it by another command: an upgrade."""
        self.command, self._env = list(command), env
        self._process.terminate()

    def stop(self) -> None:
        """End it for good."""
        self._ends.set()
        self._process.terminate()
        self._thread.join(60)
        assert not self._thread.is_alive(), self.log.read_text()

    def _start(self) -> subprocess.Popen[bytes]:
        self.started = time.monotonic()
        with self.log.open("ab") as log:
            return subprocess.Popen(self.command, env=self._env, stdout=log, stderr=log)

    def _run(self) -> None:
        while True:
            self._process.wait()
            if self._ends.wait(RESTART_SECONDS):
                return
            self._process = self._start()


def kill_at_once(*pids: int) -> None:
    """Kill processes so that none of them sees another one die or stop.

    A process that watches others comes before them.
    """
    for pid in pids[:-1]:
        _stop(pid)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGKILL)


def _stop(pid: int) -> None:
    """Stop a process, and wait until the kernel has stopped it."""
    os.kill(pid, signal.SIGSTOP)
    support.wait_until(lambda: _state_of(pid) == "T")


def _state_of(pid: int) -> str:
    """The letter of a process's state."""
    return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
