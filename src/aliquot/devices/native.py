"""Where the compiled parts of Aliquot are.

They are in `aliquot/_native`, next to the Python files or, in an editable install, in the
environment's copy of the package.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from aliquot.model.errors import InstallationError

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"


@cache
def native_dir() -> Path:
    """The folder with `bin`, `lib` and `sim`."""
    for parent in sys.modules["aliquot"].__path__:
        if (folder := Path(parent) / "_native").is_dir():
            return folder
    raise InstallationError(
        "the compiled part of Aliquot is not installed",
        "Build it in the checkout: make setup",
    )


def native_file(*parts: str) -> Path:
    """One compiled file, by its path in the folder; InstallationError if it is missing."""
    path = native_dir().joinpath(*parts)
    if not path.is_file():
        raise InstallationError(
            f"{path} is missing", "Install Aliquot again (in a checkout: make clean setup)."
        )
    return path
