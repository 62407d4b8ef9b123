"""The same training on the host and in a pod with the whole GPU, in turn: what a pod costs.

    sudo ALIQUOT_TORCH=/path/to/python .venv/bin/python bench/kubernetes/pod_overhead.py

Both programs live through the whole run and work one after the other, so that neither has a warmer
GPU. Each pair gives a ratio; the median and the interval of the middle 90 percent are printed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from cluster.gpu.gpu_node import GpuNode, gpu_node  # noqa: E402
from cluster.tenants import limits  # noqa: E402

BENCH = ROOT / "bench" / "gpu"


def wait_for(path: Path, seconds: float = 180) -> str:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path} did not appear within {seconds:.0f} s")
        time.sleep(0.001)
    return path.read_text("ascii")


def burst(folder: Path, number: int) -> float:
    wait_for(folder / f"ready-{number}")
    (folder / f"go-{number}").touch()
    return float(wait_for(folder / f"done-{number}"))


def measure(node: GpuNode, folder: Path, pairs: int, steps: int) -> list[float]:
    """The time of each burst in the pod as a multiple of that of the one before it on the host."""
    assert node.torch
    host, pod = folder / "host", folder / "pod"
    for one in (host, pod):
        one.mkdir()
    node.create(
        "measured", ["/bench/work_bursts.py", "/exchange", str(steps)], limits(gpu=1), exchange=pod
    )
    wait_for(pod / "ready-1")
    command = [str(node.torch.program), str(BENCH / "work_bursts.py"), str(host), str(steps)]
    with subprocess.Popen(command) as program:
        wait_for(host / "ready-1")
        ratios = []
        for number in range(1, pairs + 1):
            alone = burst(host, number)
            ratios.append(burst(pod, number) / alone)
            print(f"{number}: {alone:.3f} s on the host, {ratios[-1]:.4f} times as long in the pod")
        program.kill()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    with gpu_node() as node, tempfile.TemporaryDirectory() as folder:
        if not node.is_real:
            sys.exit("this machine has no GPU")
        ratios = sorted(measure(node, Path(folder), options.pairs, options.steps))
    low, high = (ratios[round(part * (len(ratios) - 1))] for part in (0.05, 0.95))
    print(f"median {statistics.median(ratios):.4f}, {low:.4f} to {high:.4f}, {len(ratios)} pairs")


if __name__ == "__main__":
    main()
