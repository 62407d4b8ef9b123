"""How soon an idle notebook whose memory has left the GPU computes again.

    python bench/gpu/parking.py [--memory 40] [--cells 5] [--two]

Needs an NVIDIA GPU and PyTorch. A program (work_notebook.py) has that many GiB on the GPU, in a
slice with --swap and --park-after, and waits for input like a notebook. When its memory has left
the GPU it gets a cell: a sum over one of its tensors. Said is the time from the cell to its result,
with the memory's return, and the time of the same cell while the memory is on the GPU. At the end
the program compares every byte. With `--two` a second one of the same size wants the GPU by turns,
and the GPU has room for one: each cell waits until the other's memory has left. Exit code 0: all
bytes were right.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from aliquot.slices import control

HERE = Path(__file__).parent
ALIQUOT = (sys.executable, "-m", "aliquot")
GIB = 1 << 30
PARK_SECONDS = 2
BESIDE_GIB = 4  # a notebook's context, and what it compares with
SPARE_GIB = 6  # the mover's context, and the context of the notebook that is parked
WAIT_SECONDS = 120.0


class Notebook:
    """A program that computes a cell for each line it gets."""

    def __init__(self, name: str, memory: int, ending: ExitStack, options: list[str]) -> None:
        self.name = name
        program = [sys.executable, str(HERE / "work_notebook.py"), str(memory)]
        size = ["--memory", f"{memory + BESIDE_GIB}GiB", "--swap", *options]
        self._process = subprocess.Popen(
            [*ALIQUOT, "run", "--name", name, *size, "--", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ending.callback(self._process.wait)
        ending.callback(self._process.kill)
        self._answer()

    def cell(self, text: str = "sum") -> float:
        """Seconds from the line to its result."""
        assert self._process.stdin is not None
        begin = time.monotonic()
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        self._answer()
        return time.monotonic() - begin

    def _answer(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != "right\n":
            sys.exit(f"{self.name}: {line or 'has ended'}")


def parked(state: Path) -> set[str]:
    return {grant.name for grant in control.status(state).grants if grant.is_idle_parked}


def until_parked(state: Path, name: str) -> None:
    begin = time.monotonic()
    while name not in parked(state):
        assert time.monotonic() - begin < WAIT_SECONDS, f"{name} is not parked"
        time.sleep(0.01)


def until_host_is_ready(state: Path, gib: int) -> float:
    """Seconds until the host has memory for all that may leave the GPU, at least so much."""
    begin = time.monotonic()
    while True:
        mover = control.status(state).answer["gpus"][0]["mover"]
        if mover["ready_bytes"] >= max(gib * GIB, mover["wanted_bytes"]):
            return time.monotonic() - begin
        assert time.monotonic() - begin < WAIT_SECONDS, mover
        time.sleep(0.05)


def show(what: str, seconds: list[float]) -> None:
    spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
    print(f"{what}: {median(seconds):.3f} s ({spread}, {len(seconds)} cells)", flush=True)


def one(state: Path, memory: int, cells: int, ending: ExitStack) -> None:
    """Where there is room."""
    notebook = Notebook("one", memory, ending, ["--park-after", f"{PARK_SECONDS}s,always"])
    ready = until_host_is_ready(state, memory)
    print(f"the host's memory was ready after {ready:.1f} s", flush=True)
    back, here = [], []
    for _ in range(cells):
        until_parked(state, "one")
        back.append(notebook.cell())
        here.append(notebook.cell())
    show("a cell of a parked notebook", back)
    show("the same cell while its memory is on the GPU", here)
    notebook.cell("all")


def two(state: Path, memory: int, cells: int, ending: ExitStack) -> None:
    """Where another must go."""
    total = control.status(state).gpus[0].gpu.memory_bytes
    rest = total - (memory + BESIDE_GIB + SPARE_GIB) * GIB
    occupy = [*ALIQUOT, "run", "--name", "rest", "--memory", str(rest), "--", "sleep", "3600"]
    filler = subprocess.Popen(occupy)
    ending.callback(filler.wait)
    ending.callback(filler.kill)
    idle = ["--park-after", f"{PARK_SECONDS}s", "--wait"]
    first = Notebook("one", memory, ending, idle)
    second = Notebook("two", memory, ending, idle)
    ready = until_host_is_ready(state, 2 * memory)
    print(f"the host's memory was ready after {ready:.1f} s", flush=True)
    back = []
    for turn in range(cells):
        asks, leaves = (first, second) if turn % 2 == 0 else (second, first)
        until_parked(state, asks.name)
        time.sleep(2 * PARK_SECONDS)  # so that the other is idle by its own rule
        assert leaves.name not in parked(state), "it left before anybody wanted its memory"
        back.append(asks.cell())
    show("a cell of a parked notebook while another must leave", back)
    for notebook in (first, second):
        notebook.cell("all")


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--memory", type=int, default=40, help="GiB of a notebook")
    options.add_argument("--cells", type=int, default=5)
    options.add_argument("--two", action="store_true", help="a second notebook must leave")
    chosen = options.parse_args()
    with ExitStack() as ending:
        state = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        os.environ["ALIQUOT_STATE"] = str(state)
        log = ending.enter_context((state / "up.log").open("wb"))
        config = state / "pool.toml"  # while two change places the host has both
        config.write_text(f'[swap]\nhost_memory = "{2 * chosen.memory + SPARE_GIB}GiB"\n')
        up = subprocess.Popen([*ALIQUOT, "up", "--config", str(config)], stdout=log, stderr=log)
        ending.callback(up.wait)
        ending.callback(up.terminate)
        while subprocess.run([*ALIQUOT, "jobs"], capture_output=True, check=False).returncode:
            assert up.poll() is None, (state / "up.log").read_text()
            time.sleep(0.05)
        (two if chosen.two else one)(state, chosen.memory, chosen.cells, ending)
    print("every byte was right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
