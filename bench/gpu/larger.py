"""A program of 1.2 times its slice, or its GPU: how fast it goes over all its memory.

    python bench/gpu/larger.py [--slice 40GiB] [--spill 30GiB] [--times 1.2] [--passes 5]

Needs an NVIDIA GPU, PyTorch, and as much free memory of the host as `--spill` names and a tenth of
the host beside. Without `--slice` the slice is a whole GPU. The program (work_larger.py) allocates
`--times` the slice in chunks, so that the last ones are on the host, and goes over all of it with
one kernel for each chunk: it reads every word, or adds 1 to it.

The bound of a pass: bytes of the host that it touches ÷ 50 GB/s, and bytes of the GPU at the speed
that the program reaches on a chunk there. A pass that changes memory touches each byte twice. Said
are seconds, bound and their ratio, and whether the sums of all chunks are right. Exit code 0: they
are, and the median of each kind is 80 % of its bound or better. `--simulate h200:1` tries the
logic with small sizes; no speed is judged there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from aliquot.model import format_bytes, parse_amount
from aliquot.slices import control

HERE = Path(__file__).parent
ALIQUOT = [sys.executable, "-m", "aliquot"]
MIB, GIB = 1 << 20, 1 << 30
HOST_BYTES_PER_SECOND = 50e9
BAR = 0.80


class Program:
    """The program in its slice."""

    def __init__(self, asked: argparse.Namespace, slice_bytes: int, chunk: int) -> None:
        options = ["--simulate", asked.simulate] if asked.simulate else []
        options += ["--memory", asked.slice] if asked.slice else []
        total = int(slice_bytes * asked.times)
        words = [
            str(total),
            str(chunk),
            str(asked.passes),
            *(["--plain"] if asked.simulate else []),
        ]
        command = [*ALIQUOT, "run", *options, "--spill", asked.spill, "--name", "larger", "--"]
        command += [sys.executable, str(HERE / "work_larger.py"), *words]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> dict[str, Any] | None:
        """None: it has ended."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else None

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def gpu_bytes(simulate: str | None) -> int:
    options = ["--simulate", simulate] if simulate else []
    told = subprocess.run([*ALIQUOT, "gpus", "--json", *options], check=True, capture_output=True)
    return int(json.loads(told.stdout)["gpus"][0]["memory_bytes"])


def judge(told: dict[str, Any], chunk: int, all_bytes: int, on_host: int) -> float:
    """Print a pass; its bound by its time."""
    touches = 1 if told["kind"] == "read" else 2
    on_gpu = (all_bytes - on_host) / (chunk / told["chunk_seconds"])
    bound = touches * on_host / HOST_BYTES_PER_SECOND + on_gpu
    ratio = bound / told["seconds"]
    right = "right" if told["right"] else "WRONG"
    print(
        f"{told['kind']:6} {told['seconds']:7.3f} s, bound {bound:7.3f} s ({on_gpu:.3f} s of it on"
        f" the GPU): {ratio:4.0%}, sums {right}",
        flush=True,
    )
    return ratio


def run(asked: argparse.Namespace, state: Path) -> bool:
    chunk = 32 * MIB if asked.simulate else GIB
    slice_bytes = gpu_bytes(asked.simulate)
    if asked.slice:
        slice_bytes = parse_amount(asked.slice).of(slice_bytes)
    program = Program(asked, slice_bytes, chunk)
    begun = program.line()
    assert begun, "the program ended"
    places = [state / "simulated" / asked.simulate.replace(":", "-")] if asked.simulate else [state]
    (grant,) = control.status(places[0]).grants
    on_host = grant.on_host_bytes
    print(
        f"slice {format_bytes(slice_bytes)}, program {format_bytes(begun['bytes'])}, on the host"
        f" {format_bytes(on_host)}, allocated and filled in {begun['seconds']:.1f} s"
    )
    program.go_on()
    ratios: dict[str, list[float]] = {}
    right = True
    while (told := program.line()) is not None:
        ratios.setdefault(told["kind"], []).append(judge(told, chunk, begun["bytes"], on_host))
        right = right and told["right"]
    code = program.process.wait()
    for kind, found in ratios.items():
        met = "" if asked.simulate else (" (met)" if median(found) >= BAR else " (NOT met)")
        print(f"{kind}: median {median(found):.0%} of the bound, bar {BAR:.0%}{met}")
    fast = asked.simulate or all(median(found) >= BAR for found in ratios.values())
    return bool(code == 0 and on_host and right and fast and len(ratios) == 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slice")
    parser.add_argument("--spill", default="30GiB")
    parser.add_argument("--times", type=float, default=1.2)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--simulate")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aq-") as folder:
        os.environ["ALIQUOT_STATE"] = folder
        return 0 if run(asked, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
