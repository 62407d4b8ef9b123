"""How `aliquot run --wait` shows its place in the queue."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass

from aliquot.cli.tables import cut

_CLEAR = "\r\x1b[K"


@dataclass
class WaitDisplay:
    """One line that changes on a terminal; otherwise a line for each change."""

    shown: str = ""

    def show(self, text: str) -> None:
        """Show what has changed."""
        if text == self.shown:
            return
        self.shown = text
        with suppress(OSError):
            if sys.stderr.isatty():
                width = os.get_terminal_size(sys.stderr.fileno()).columns
                sys.stderr.write(f"{_CLEAR}{cut(f'aliquot: {text}', max(20, width - 1))}")
            else:
                sys.stderr.write(f"aliquot: {text}\n")
            sys.stderr.flush()

    def end(self) -> None:
        """Clear the line."""
        with suppress(OSError):
            if self.shown and sys.stderr.isatty():
                sys.stderr.write(_CLEAR)
                sys.stderr.flush()
        self.shown = ""
