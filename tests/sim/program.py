"""A program on the simulated machine, which a test controls line by line.

The program is `driver_program.py`, `nvml_program.py` or `checkpoint_program.py`: a loop that reads
a call as JSON, makes it and writes the result. So a test can control several processes, and end
each when it wants to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

TESTS = Path(__file__).resolve().parents[1]


class Program:
    """One process of the simulated machine, started by itself or by the command `inside`."""

    def __init__(self, kind: str, env: dict[str, str], inside: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*inside, sys.executable, "-m", f"sim.{kind}_program"],
            env={**env, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, call: str, *arguments: object) -> None:
        """Send a call without waiting for its answer."""
        pipe = _open(self._process.stdin)
        pipe.write(json.dumps([call, *arguments]) + "\n")
        pipe.flush()

    def answer(self) -> Any:
        line = _open(self._process.stdout).readline()
        assert line, "the program has ended"
        return json.loads(line)

    def __call__(self, call: str, *arguments: object) -> Any:
        self.ask(call, *arguments)
        return self.answer()

    def ended(self) -> int:
        """Wait until it ends; its return code."""
        return self._process.wait(60)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()
        _open(self._process.stdin).close()
        _open(self._process.stdout).close()


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def serve(calls: dict[str, Any]) -> None:
    """The program's side: answer calls until the test closes the pipe."""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(calls[name](*arguments)) + "\n")
        sys.stdout.flush()
