"""A FUSE file system that never answers, as a user's own mount would be."""

from __future__ import annotations

import ctypes
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEVICE = Path("/dev/fuse")
_MNT_DETACH = 2


@contextmanager
def silent_mount(path: Path, uid: int) -> Iterator[None]:
    """Mount it over a folder or a file of that user. A process that enters it waits for ever."""
    if not _DEVICE.exists():
        pytest.skip("this machine has no FUSE")
    libc = ctypes.CDLL(None, use_errno=True)
    kind = stat.S_IFMT(path.lstat().st_mode)
    device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode={kind:o},user_id={uid},group_id={uid},allow_other"
    try:
        if libc.mount(b"silent", os.fsencode(path), b"fuse", 0, options.encode()):
            pytest.skip(f"FUSE cannot be used here: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            libc.umount2(os.fsencode(path), _MNT_DETACH)
    finally:
        os.close(device)  # whoever still waits gets an error
