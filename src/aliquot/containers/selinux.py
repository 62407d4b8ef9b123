"""SELinux labels of the folders that containers get parts of.

Where SELinux is on, a container may open only files of its own type. The agent gives that type to
its folders when it starts, with all that is in them; what is made there later inherits it. The
agent itself runs as `spc_t` (the chart says so), which may do that.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LABEL = b"system_u:object_r:container_file_t:s0\0"
ATTRIBUTE = "security.selinux"

_log = logging.getLogger(__name__)


def is_on(filesystems: Path = Path("/proc/filesystems")) -> bool:
    """Whether the kernel enforces or logs by SELinux: only then it knows that file system."""
    try:
        return "selinuxfs" in filesystems.read_text("ascii").split()
    except OSError:
        return False


def label_for_containers(folders: Iterable[Path]) -> None:
    """Label these folders and all that is in them. What cannot be labelled is logged."""
    for folder in folders:
        try:
            _label(folder)
        except OSError as error:
            _log.warning("cannot set the SELinux label of %s: %s", folder, error.strerror)
            continue
        for place, inner, files in os.walk(folder):
            for name in (*inner, *files):
                with suppress(OSError):  # it may have ended meanwhile
                    _label(Path(place, name))


def _label(path: Path) -> None:
    """Of a link, its own: tenants might choose where it leads."""
    os.setxattr(path, ATTRIBUTE, LABEL, follow_symlinks=False)
