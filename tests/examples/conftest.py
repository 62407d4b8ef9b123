"""A pool for the examples, and the Python that runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pool.conftest import PoolUp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from conftest import Cli

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("ALIQUOT_EXAMPLES_PYTHON", sys.executable)

_MISSING = (
    "import sys; from importlib.util import find_spec as find;"
    " print(*(name for name in sys.argv[1:] if find(name) is None))"
)


@pytest.fixture
def torch() -> None:
    """Skip if the examples' Python lacks the module."""
    _need("torch")


@pytest.fixture
def transformers() -> None:
    """Skip if the examples' Python lacks what a Trainer needs."""
    _need("torch", "transformers", "accelerate")


@pytest.fixture
def cli(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A pool in the repository's folder with the examples' Python."""
    monkeypatch.chdir(ROOT)
    own = {
        "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }

    def run(
        *args: str, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return cli(*args, env={**own, **(env or {})}, timeout=timeout)

    return run


@pytest.fixture
def pool(cli: Cli, cli_env: dict[str, str], aliquot_state: Path) -> Iterator[PoolUp]:
    pool = PoolUp(cli, cli_env, aliquot_state)
    pool.up()
    yield pool
    pool.clean_up()


def _need(*names: str) -> None:
    found = subprocess.run(
        [PYTHON, "-c", _MISSING, *names], capture_output=True, text=True, check=True, timeout=60
    )
    if missing := found.stdout.split():
        pytest.skip(f"{PYTHON} has no {' and no '.join(missing)} (make test-examples)")
