"""Waiting for a time or a key, whichever comes first."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERRUPTED = 130  # a shell's exit code after Ctrl-C
END_KEYS = frozenset({"q", "Q", "\x04"})

_SEQUENCES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home", "\x1b[1~": "home",
    "\x1bOH": "home", "\x1b[F": "end", "\x1b[4~": "end", "\x1bOF": "end", "\x1b": "escape",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace",
}  # fmt: skip
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])?|.", re.DOTALL)


@contextmanager
def keyboard() -> Iterator[Callable[[float], list[str]]]:
    """A function that waits at most some seconds for keys and returns those pressed.

    Keys are characters, or names such as `up`. If the keyboard is closed, it returns `q`. Inside
    the context the terminal delivers each key at once and does not echo it.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield _sleep
        return
    import termios  # noqa: PLC0415 - imported when needed
    import tty  # noqa: PLC0415

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield lambda seconds: _keys_within(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> list[str]:
    time.sleep(max(0.0, seconds))
    return []


def _keys_within(descriptor: int, seconds: float) -> list[str]:
    if not select.select([descriptor], [], [], max(0.0, seconds))[0]:
        return []
    typed = os.read(descriptor, 64).decode("utf-8", "replace")
    return [_SEQUENCES.get(key, key) for key in _KEY.findall(typed)] if typed else ["q"]
