"""Mounting a folder of this machine in a container that is being created.

The runtime has made the container's mounts, and has not changed its root yet. So the container's
files are below a path of its own mount namespace, and a link in its image may lead outside of them.
The kernel resolves the target inside the root (openat2), and it must be a folder that the runtime
has mounted there for this purpose.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from aliquot.model.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path, PurePath

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# The same numbers on all architectures that are supported.
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE = 1
_RDONLY, _NOSUID, _NODEV = 1, 2, 4
_FROM_EMPTY, _TO_EMPTY = 0x4, 0x40
_RESOLVE_IN_ROOT = 0x10
_CLONE_NEWNS = 0x20000


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def mount_in_container(
    pid: int, root: Path, source: Path, target: PurePath, placeholder: Path
) -> None:
    """Mount `source` read-only over `target` below `root`, as the process `pid` sees them.

    StateError unless `target` is a mount of the folder `placeholder` there.
    """
    with ExitStack() as opened:

        def keep(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        try:
            tree = keep(_open_tree(source))
            own = keep(os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            other = keep(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            wanted = placeholder.stat()
            if os.path.samestat(os.fstat(own), os.fstat(other)):
                raise StateError(f"process {pid} has no mount namespace of its own")
            _enter(other)
            try:
                folder = keep(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
                place = keep(_open_below(folder, target))
                if not os.path.samestat(os.fstat(place), wanted):
                    raise StateError(
                        f"the runtime has not mounted {placeholder} at {target} of the container"
                    )
                _move(tree, place)
            finally:
                _enter(own)
        except OSError as error:
            raise StateError(
                f"{source} cannot be mounted in the container: {error.strerror}"
            ) from error


def _open_tree(source: Path) -> int:
    """A mount of the folder that is attached nowhere yet."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    tree = _call(_OPEN_TREE, ctypes.c_int(_AT_FDCWD), os.fsencode(source), ctypes.c_uint(flags))
    attributes = _MountAttributes(set=_RDONLY | _NOSUID | _NODEV)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    try:
        _call(
            *(_MOUNT_SETATTR, ctypes.c_int(tree), b"", ctypes.c_uint(_AT_EMPTY_PATH)),
            *(ctypes.byref(attributes), size),
        )
    except OSError:
        os.close(tree)
        raise
    return tree


def _open_below(folder: int, target: PurePath) -> int:
    how = _OpenHow(os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    path = os.fsencode(str(target).lstrip("/"))
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return _call(_OPENAT2, ctypes.c_int(folder), path, ctypes.byref(how), size)


def _move(tree: int, place: int) -> None:
    flags = ctypes.c_uint(_FROM_EMPTY | _TO_EMPTY)
    _call(_MOVE_MOUNT, ctypes.c_int(tree), b"", ctypes.c_int(place), b"", flags)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNS):
        raise _error()


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _error()
    return result


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
