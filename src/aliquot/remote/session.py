"""The first process of a session, in its grant: starts an executor for each process of the program.

It gets connections from the server over a socket and hands each to a new executor. When that socket
ends, it ends them all; when it or the server dies, the kernel does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

READY = b"r"  # what it sends when it runs, which it does in its grant
_SET_PARENT_DEATH_SIGNAL = 1
_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")


def command(python: str, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package with another Python."""
    return [python, str(_BOOTSTRAP), module, *arguments]


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Serve the control socket of this number with executors on this device."""
    die_with_parent()
    control = socket.socket(fileno=int(arguments[0]))
    device = arguments[1]
    executors: list[subprocess.Popen[bytes]] = []
    with contextlib.suppress(OSError):
        control.sendall(READY)
        while True:
            message, ends, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                break
            for end in ends:
                run = command(sys.executable, "executor", str(end), device)
                executors.append(subprocess.Popen(run, pass_fds=(end,), stdin=subprocess.DEVNULL))
                os.close(end)
            executors = [one for one in executors if one.poll() is None]
    for one in executors:
        one.kill()
    os._exit(0)
