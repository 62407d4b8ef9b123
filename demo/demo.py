"""Several programs on one GPU, each limited to its slice; without a GPU, on a simulated one.

Two acts: memory limits (memory_act.py) and compute shares (compute_act.py). The exit code is 0 only
if all checks pass, by what the programs report and by what the arbiter reports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.model import format_bytes
from aliquot.model.errors import ArbiterError
from aliquot.slices import control
from compute_act import ComputeAct
from memory_act import MemoryAct
from stage import ALIQUOT, PATIENCE, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

SIMULATED = "h100:1"


def play(environment: dict[str, str], simulated: str | None) -> bool:
    """Play both acts; return whether all checks passed."""
    stage = Stage(environment, simulated)
    kind = "a simulated GPU (this machine has none)" if simulated else "this machine's GPU"
    size = format_bytes(stage.gpu["memory_bytes"])
    stage.say(f"On {kind}: {stage.gpu['name']}, {size}")
    MemoryAct(stage).play()
    ComputeAct(stage).play()
    return not stage.failures


def has_gpu() -> bool:
    """Whether this machine has a GPU that Aliquot can use."""
    answer = subprocess.run([*ALIQUOT, "gpus", "--json"], capture_output=True, check=False)
    return answer.returncode == 0


def in_memory() -> str | None:
    """A folder in memory, as /run is on most machines, so that a busy disk delays no turn."""
    folder = Path("/dev/shm")  # noqa: S108 - only a folder of our own is made in it
    return str(folder) if os.access(folder, os.W_OK) else None


@contextmanager
def own_state() -> Iterator[dict[str, str]]:
    """An environment with an arbiter and a pool of its own."""
    folder = Path(tempfile.mkdtemp(prefix="aliquot-demo-", dir=in_memory()))
    try:
        kept = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        yield {**kept, "ALIQUOT_STATE": str(folder)}
    finally:
        for state in (folder, *folder.glob("simulated/*")):
            stop_when_empty(state)
        shutil.rmtree(folder)


def stop_when_empty(state: Path) -> None:
    """End an arbiter as soon as its last grant has ended."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            control.stop(state)
        except control.NoArbiterError:
            return
        except ArbiterError:
            time.sleep(0.01)


def main() -> int:
    """Play on the real GPU if there is one."""
    if "ALIQUOT_SIMULATE" not in os.environ and has_gpu():
        passed = play(dict(os.environ), None)
    else:
        simulated = os.environ.pop("ALIQUOT_SIMULATE", SIMULATED)
        with own_state() as environment:
            passed = play(environment, simulated)
    print("To see GPUs, slices and jobs in a browser: aliquot up, then aliquot console.")
    print("All checks passed." if passed else "Some checks failed: see ✗ above.")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
