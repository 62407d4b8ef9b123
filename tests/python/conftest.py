"""A simulated machine for programs that import aliquot, and programs that say what they see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

import support

if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPE = "h100:4"
# Fails as a training with an invalid argument does; prints how large its GPU is.
TRAIN = """
import sys
rate = float(sys.argv[1]) if sys.argv[1:] else 0.1
from cuda.bindings import driver as cuda
cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
print(f"a GPU of {round(cuda.cuMemGetInfo()[2] / 2**30)} GiB")
"""


class Python(Protocol):
    """Runs a program that imports aliquot, in a folder with `train.py`."""

    def __call__(
        self, program: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def python_env(cli_env: dict[str, str]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{cli_env['PATH']}"
    return support.merged(cli_env, {"ALIQUOT_SIMULATE": SHAPE, "PATH": path})


@pytest.fixture
def python(python_env: dict[str, str], tmp_path: Path) -> Python:
    (tmp_path / "train.py").write_text(TRAIN)

    def run(program: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**python_env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
