"""Files below a folder whose owner may mean harm: a container's root.

A path is walked name by name, each in the folder that was opened before it, and links are meant as
they are there: an absolute one begins at the container's root, and nothing leads out of it. No
folder is listed, and a path that leads on and on ends. What a file system that answers to nobody
does to the caller cannot be helped here (`aside`).
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MOST_STEPS = 64  # names on the way, those of links too: each is an open file meanwhile
_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def exists_below(root: Path, path: str) -> bool:
    """Whether there is anything at a path, as processes see it whose root this is."""
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
