"""A hundred pods at once on one node with 16 simulated GPUs, beside a hundred without GPUs.

    python bench/kubernetes/hundred.py [--rounds 10] [--json]

On a real Kubernetes (tests/cluster), as root: kube-scheduler with the extender, a kubelet with the
agent. Each round makes a hundred pods with a mix of whole, shared and sliced GPUs, checks the
allocations and what every container sees, deletes them in random order and checks that all came
back; then the same number of pods that ask for nothing. Seconds from the first pod's creation until
all were admitted by the kubelet, and until all were ready.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "tests"))

from cluster import hundred  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, hundred.stage(Path(folder)) as stage:
        rounds = [one_round(stage, seed, talk=not chosen.json) for seed in range(chosen.rounds)]
    ratios = [with_gpus.ready / without.ready for with_gpus, without in rounds]
    figures = {
        "rounds": len(rounds),
        "admitted_most_seconds": max(one.admitted for one, _ in rounds),
        "ready_seconds": [round(one.ready, 2) for one, _ in rounds],
        "ready_without_seconds": [round(one.ready, 2) for _, one in rounds],
        "ready_ratio_median": median(ratios),
        "ready_ratio_range": [min(ratios), max(ratios)],
    }
    print(json.dumps(figures, indent=2))


def one_round(
    stage: hundred.Stage, seed: int, *, talk: bool
) -> tuple[hundred.Times, hundred.Times]:
    """Both kinds of pods, the one that comes first by turns."""
    runs = {}
    for kind in ("gpus", "none") if seed % 2 else ("none", "gpus"):
        namespace = f"{kind}-{seed}"
        stage.cluster.create_namespace(namespace)
        asked = hundred.mix(seed)
        if kind == "none":
            runs[kind] = hundred.run_all(stage, namespace, dict.fromkeys(asked))
            hundred.delete_all(stage, namespace, list(asked), seed)
            continue
        runs[kind] = hundred.run_all(stage, namespace, asked)
        hundred.check_allocations(stage, asked)
        hundred.check_inside(stage, namespace, asked)
        hundred.delete_all(stage, namespace, list(asked), seed)
        hundred.check_empty(stage)
    if talk:
        with_gpus, without = runs["gpus"], runs["none"]
        print(
            f"round {seed}: admitted in {with_gpus.admitted:.1f} s,"
            f" ready in {with_gpus.ready:.1f} s; without GPUs {without.ready:.1f} s",
            flush=True,
        )
    return runs["gpus"], runs["none"]


if __name__ == "__main__":
    main()
