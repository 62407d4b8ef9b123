"""Waiting for a time or a key, whichever comes first."""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_END_KEYS = (b"q", b"Q", b"\x04")


@contextmanager
def waiting() -> Iterator[Callable[[float], bool]]:
    """A function that waits for some seconds and returns whether the user pressed q meanwhile.

    Inside the context the terminal delivers each key at once and does not echo it.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield _sleep
        return
    import termios  # noqa: PLC0415 - imported when needed
    import tty  # noqa: PLC0415

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield lambda seconds: _key_within(keyboard, seconds)
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _key_within(keyboard: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        if select.select([keyboard], [], [], remaining)[0]:
            typed = os.read(keyboard, 64)
            if not typed or any(key in typed for key in _END_KEYS):
                return True
    return False
