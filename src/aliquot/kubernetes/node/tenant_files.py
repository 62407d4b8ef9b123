"""Looking at the untrusted files of a tenant: the root file system of a container.

- `exists_below` walks a path name by name, each in the folder that it opened before. Links are
  resolved as in the container: an absolute link begins at its root, and nothing leads out of it. No
  folder is listed, and a path that leads on and on ends.
- The file system itself may never answer. A system call on it cannot be ended, and neither can its
  thread, so `BoundedCalls` abandons such a thread: its caller goes on after a second, and the
  process ends without it. The thread keeps its slot until it returns. Each tenant has one slot, and
  there is a limit for all, so a stuck call blocks only calls of the same tenant.
- `is_musl` tells whether an image's C library is one for which there is no driver.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 1.0
SLOTS = 16

_MOST_STEPS = 64  # names on the way, those of links too: each is an open file meanwhile
_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MUSL_LOADERS = ("ld-musl-x86_64.so.1", "ld-musl-aarch64.so.1")
_GLIBC_LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
_LOADER_FOLDERS = (
    *("lib", "lib64", "usr/lib", "usr/lib64", "usr/glibc-compat/lib"),
    *("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"),
)

T = TypeVar("T")


class BoundedCalls:
    """Runs calls that may never return, each in a thread that nobody waits for."""

    def __init__(self, *, seconds: float = SECONDS, slots: int = SLOTS) -> None:
        self._seconds = seconds
        self._slots = slots
        self._busy: set[str] = set()  # tenants with a call that has not returned

    async def call(self, tenant: str, function: Callable[[], T]) -> T | None:
        """What it returns; None if there is no free slot, or it takes too long."""
        if tenant in self._busy or len(self._busy) >= self._slots:
            return None
        self._busy.add(tenant)
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # it cannot be cancelled

        def run() -> None:
            try:
                try:
                    got = function()
                finally:
                    self._busy.discard(tenant)
                answer.set_result(got)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                answer.set_exception(error)

        threading.Thread(target=run, name=f"bounded-{tenant}", daemon=True).start()
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            return None


def is_musl(root: Path) -> bool:
    """Whether programs below a container's root use musl as their C library, and not glibc.

    No driver can be loaded there; the stand-in tells a program that asks for one.
    """
    if not any(exists_below(root, f"lib/{name}") for name in _MUSL_LOADERS):
        return False
    places = (f"{folder}/{name}" for folder in _LOADER_FOLDERS for name in _GLIBC_LOADERS)
    return not any(exists_below(root, place) for place in places)


def exists_below(root: Path, path: str) -> bool:
    """Whether a path exists for processes whose root this is."""
    walked: list[int] = []  # the folders from the root to here, so that `..` finds its way back
    try:
        walked.append(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        return _walk(walked, path.split("/"))
    except OSError:
        return False
    finally:
        for folder in walked:
            os.close(folder)


def _walk(walked: list[int], steps: list[str]) -> bool:
    for _ in range(_MOST_STEPS):
        if not steps:
            return True
        step, *steps = steps
        if step == "..":
            _go_back(walked, max(1, len(walked) - 1))
        elif step not in {"", "."}:
            walked.append(os.open(step, _FLAGS, dir_fd=walked[-1]))
            if stat.S_ISLNK(os.fstat(walked[-1]).st_mode):
                target = os.readlink("", dir_fd=walked[-1])
                _go_back(walked, 1 if target.startswith("/") else len(walked) - 1)
                steps = [*target.split("/"), *steps]
    return False


def _go_back(walked: list[int], to: int) -> None:
    while len(walked) > to:
        os.close(walked.pop())
