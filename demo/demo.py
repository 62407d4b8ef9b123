"""Programs on one GPU, each held to its slice; on a simulated GPU where there is no real one.

Two acts: the memory of a slice (memory_act.py) and its share of compute time (compute_act.py). Ends
with exit code 0 only if all was as it should be, by the programs' own words and by the arbiter's.
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
    """Play both acts; whether all was as it should be."""
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
    """A folder that no disk is behind, as /run is on most machines: a busy disk stops no turn."""
    folder = Path("/dev/shm")  # noqa: S108 - only a folder of our own is made in it
    return str(folder) if os.access(folder, os.W_OK) else None


@contextmanager
def own_state() -> Iterator[dict[str, str]]:
    """An environment whose simulated machine is nobody else's."""
    folder = Path(tempfile.mkdtemp(prefix="aliquot-demo-", dir=in_memory()))
    try:
        kept = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        yield {**kept, "ALIQUOT_STATE": str(folder)}
    finally:
        for state in folder.glob("simulated/*"):
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
        well = play(dict(os.environ), None)
    else:
        simulated = os.environ.pop("ALIQUOT_SIMULATE", SIMULATED)
        with own_state() as environment:
            well = play(environment, simulated)
    print("All is as it should be." if well else "Something is not as it should be: see ✗ above.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
