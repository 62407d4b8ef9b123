"""A terminal that a command fills until a key or Ctrl-C ends it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from aliquot.cli.keys import END_KEYS, keyboard
from aliquot.cli.tables import flush, is_terminal, print_text, terminal_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ENTER = "\x1b[?1049h\x1b[?25l"  # the other screen, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """A whole terminal to draw on; without a terminal each drawing is printed below the last.

    Ctrl-C leaves the context like a key that ends it: quietly.
    """

    def __init__(self) -> None:
        self._is_terminal = is_terminal()
        self._kept = ExitStack()
        self._keys: Callable[[float], list[str]]

    def __enter__(self) -> Self:
        self._keys = self._kept.enter_context(keyboard())
        if self._is_terminal:
            print_text(_ENTER)
            self._kept.callback(flush)
            self._kept.callback(print_text, _LEAVE)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._kept.close()
        return kind is not None and issubclass(kind, KeyboardInterrupt)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, as many as there is space for."""
        size = terminal_size()
        if size is None:
            print_text("".join(f"{line}\n" for line in lines))
        else:
            shown = f"{_CLEAR_LINE}\r\n".join(lines[: size.lines])
            print_text(f"{_HOME}{shown}{_CLEAR_LINE}{_CLEAR_REST}")
        flush()

    def keys_within(self, seconds: float) -> list[str]:
        """The keys that are pressed; empty if none is in that time."""
        return self._keys(seconds)

    def ends_within(self, seconds: float) -> bool:
        """Wait for that time; True: the user wants to end it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if END_KEYS & set(self.keys_within(left)):
                return True
        return False
