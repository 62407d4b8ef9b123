"""Opening and removing files that a user may own, in folders of the pool's, without ever waiting.

A user can mount a file system of its own (FUSE) over a folder or a file that it owns, and never
answer. A process that looks at it then waits for ever. So the pool resolves such paths by
openat2(2), which refuses to enter a mount (EXDEV) and to follow a link, from a folder that only the
pool can change. Before Linux 5.6 there is no such call, and only links are refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import struct
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OPENAT2 = 437  # on every architecture; it has no function in the C library
_HOW = struct.Struct("=QQQ")  # flags, mode, how to resolve
_NO_XDEV, _NO_SYMLINKS = 0x01, 0x04
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_MOST_MOUNTS = 1000  # one over the other

_libc = ctypes.CDLL(None, use_errno=True)


def open_in(folder: Path, inner: str, flags: int, mode: int = 0) -> int:
    """Open the file `inner` of a folder of the pool's; OSError if a mount or a link is in the way.

    Does not wait for a pipe, nor for a lease (fcntl(2)) that the user has on it: BlockingIOError.
    """
    with _opened(folder) as above:
        return _open_at(above, inner, flags | os.O_NONBLOCK, mode)


def stat_in(folder: Path, inner: str) -> os.stat_result:
    """What `inner` of a folder of the pool's is, opened as `open_in` does."""
    with _opened(folder) as above:
        handle = _open_at(above, inner, os.O_PATH)
    try:
        return os.fstat(handle)
    finally:
        os.close(handle)


def remove_tree(folder: Path) -> None:
    """Remove a folder of the pool's with all that users have put there, in bounded depth.

    Folders in it are moved up to `folder` before they are emptied. Root takes off the mounts that
    are over them, and closes them to their users, who could add files meanwhile.
    """
    with suppress(FileNotFoundError), _opened(folder) as top:
        waiting = ["."]
        while waiting:
            name = waiting.pop()
            waiting += _empty(top, name)
            if name != ".":
                os.rmdir(name, dir_fd=top)
        folder.rmdir()


def _empty(top: int, name: str) -> list[str]:
    """Remove the files of a folder in `top`, and move its folders there; their names."""
    inner = _open_at(top, name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.geteuid() == 0:
            os.fchown(inner, 0, 0)
        os.fchmod(inner, 0o700)
        found = []
        for entry in os.listdir(inner):  # noqa: PTH208 - of an open folder
            try:
                _without_mounts(inner, entry, partial(os.unlink, entry, dir_fd=inner))
            except IsADirectoryError:
                found.append(f".removed-{secrets.token_hex(8)}")
                move = partial(os.rename, entry, found[-1], src_dir_fd=inner, dst_dir_fd=top)
                _without_mounts(inner, entry, move)
        return found
    finally:
        os.close(inner)


def _without_mounts(folder: int, name: str, change: Callable[[], None]) -> None:
    """Change an entry of a folder, without the mounts over it, which the kernel says are there."""
    for _ in range(_MOST_MOUNTS):
        try:
            return change()
        except OSError as error:
            path = os.fsencode(f"/proc/self/fd/{folder}/{name}")
            if error.errno != errno.EBUSY or _libc.umount2(path, _MNT_DETACH | _UMOUNT_NOFOLLOW):
                raise
    return change()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _open_at(folder: int, inner: str, flags: int, mode: int = 0) -> int:
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if flags & os.O_PATH:
        flags &= ~os.O_NONBLOCK
    if not _is_supported():
        return os.open(inner, flags, mode, dir_fd=folder)
    return _openat2(folder, inner, flags, mode)


def _openat2(folder: int, inner: str, flags: int, mode: int) -> int:
    how = _HOW.pack(flags, mode if flags & os.O_CREAT else 0, _NO_XDEV | _NO_SYMLINKS)
    handle = _libc.syscall(_OPENAT2, folder, os.fsencode(inner), how, len(how))
    if handle < 0:
        raise _error(inner)
    return int(handle)


@lru_cache(maxsize=1)
def _is_supported() -> bool:
    with _opened(Path("/")) as root:
        try:
            os.close(_openat2(root, ".", os.O_PATH | os.O_CLOEXEC, 0))
        except OSError:
            return False
    return True


def _error(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), name)
