"""The console that `aliquot up` starts beside the pool: a process of its own, kept alive.

The pool never waits for it. If it ends, it is started again, less and less often.
"""

from __future__ import annotations

import subprocess
import threading
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aliquot.pool.processes import python_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.slices import StateDirectory

OFF = "off"
HOW_TO_SIGN_IN = "to sign in: aliquot console"

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 300.0


class ConsoleChild:
    """Starts the console of a machine, and starts it again, until `stop`."""

    def __init__(self, address: str, state: StateDirectory, say: Callable[[str], None]) -> None:
        self._address, self._state, self._say = address, state, say
        self._ends = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in the background, if its packages are installed."""
        if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
            self._say("no console: its packages are not installed (aliquot[console])")
            return
        threading.Thread(target=self._keep, daemon=True).start()

    def stop(self) -> None:
        """Let it end; it does so when its standard input is closed."""
        self._ends.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _keep(self) -> None:
        pause, last = _FIRST_PAUSE, ""
        while not self._ends.is_set():
            said = self._run_once(last)
            if said.startswith("http"):
                pause, last = _FIRST_PAUSE, said
            elif said != last:
                last = said
                self._say(f"no console: {said}")
            self._ends.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _run_once(self, last: str) -> str:
        """Its address, or why it did not start; returns when it has ended."""
        shape = self._state.shape
        arguments = [self._address, *([] if shape is None else [str(shape)])]
        command = python_module("aliquot.console", *arguments)
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            self._process = process
            assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
            address = process.stdout.readline().decode("utf-8", "replace").strip()
            if address and address != last:
                self._say(f"console: {address} ({HOW_TO_SIGN_IN})")
            # Until it ends. The pool keeps one line, however much the console has to say.
            errors = deque((one for one in process.stderr if one.strip()), maxlen=1)
        said = errors[0].decode("utf-8", "replace").strip() if errors else ""
        return address or said or f"it ended with code {process.returncode}"
