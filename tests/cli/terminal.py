"""A command on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import termios
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


def on_terminal(
    command: Sequence[str], env: Mapping[str, str], columns: int, rows: int = 50
) -> list[str]:
    """The lines that a command shows on a terminal of that width; it must succeed."""
    terminal = Terminal(command, env, columns, rows)
    try:
        assert terminal.end() == 0, terminal.shown
        return terminal.shown.splitlines()
    finally:
        terminal.close()


class Terminal:
    """Runs a command on a terminal; its output and its keyboard."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], columns: int = 160, rows: int = 50
    ) -> None:
        self._keyboard, inner = pty.openpty()
        termios.tcsetwinsize(inner, (rows, columns))
        self.process = subprocess.Popen(
            command,
            env={"TERM": "xterm", **env, "COLUMNS": str(columns)},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self._shown = bytearray()

    @property
    def raw(self) -> str:
        """All output so far."""
        return self._shown.decode(errors="replace")

    @property
    def shown(self) -> str:
        """All output so far, without colours and cursor movements."""
        return _ESCAPE.sub("", self._shown.decode(errors="replace"))

    def wait_for(self, words: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} is not shown within {seconds} s: {self.shown}"
            assert self._read(left), f"it ended without {words!r}: {self.shown}"

    def read(self) -> bool:
        """Read what it has shown meanwhile; False: it has ended."""
        return self._read(0.05)

    def press(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def end(self, seconds: float = 60.0) -> int:
        """Read to the end; its exit code."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            assert time.monotonic() < deadline, f"it does not end: {self.shown}"
        return self.process.wait(seconds)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._keyboard)

    def _read(self, seconds: float) -> bool:
        """Whether there was more."""
        if not select.select([self._keyboard], [], [], max(0.0, seconds))[0]:
            return True
        try:
            more = os.read(self._keyboard, 1 << 16)
        except OSError:  # so Linux says that nobody holds the other end
            return False
        self._shown += more
        return bool(more)
