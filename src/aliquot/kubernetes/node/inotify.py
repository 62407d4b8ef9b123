"""What happens to the files of a folder, as the kernel tells it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CREATED, MOVED_HERE, DELETED, MOVED_AWAY = 0x100, 0x80, 0x200, 0x40
_ONLY_FOLDER = 0x01000000
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16


class Folder:
    """A folder that is watched: names that come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), path)
        mask = CREATED | MOVED_HERE | DELETED | MOVED_AWAY | _ONLY_FOLDER
        try:
            _checked(libc.inotify_add_watch(self._fd, os.fsencode(path), mask), path)
        except OSError:
            os.close(self._fd)
            raise
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._news.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def forget(self) -> None:
        """What happened until now is of no interest."""
        with suppress(BlockingIOError):
            while os.read(self._fd, _BUFFER):
                pass

    async def changes(self) -> list[tuple[str, bool]]:
        """What happened since the last look: names, and whether each came or went; waits for it."""
        while True:
            self._news.clear()
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                await self._news.wait()
                continue
            return list(_parsed(data))


def _parsed(data: bytes) -> Iterator[tuple[str, bool]]:
    at = 0
    while at < len(data):
        _, mask, _, size = _EVENT.unpack_from(data, at)
        name = data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0")
        at += _EVENT.size + size
        yield os.fsdecode(name), bool(mask & (CREATED | MOVED_HERE))


def _checked(result: int, path: Path) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return result
