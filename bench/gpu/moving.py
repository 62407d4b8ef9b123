"""What a slice whose memory can leave the GPU costs while nothing moves (`aliquot run --swap`).

    python bench/gpu/moving.py --out DIR [--only speed,allocation] [--quick]

    speed        the same program in a slice with and without --swap, by turns (overhead.py)
    gather       the same with reads at random places in 64 GiB, which fill the GPU
    allocation   cuMemAlloc and cuMemFree of 2 MiB and more, in both, by turns

Writes DIR/moving.json after every case and prints each figure against its bar; exit code 0 if all
are met. `--list` says what there is and how long it takes; `--simulate h200:1` tries the logic.
How long memory takes to leave and to return: suspend.py --swap.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from cases import Case, run_benchmark
from overhead import PAIRS, QUICK_PAIRS, compare_case
from programs import SWAP, Spec

WORKLOADS = ("train", "latency", "decode")
SIZES = ("2", "20", "64", "256")  # MiB
ALLOCATION_MOST_PERCENT = 10.0


def all_cases(quick: bool) -> list[Case]:  # noqa: FBT001 - a callback's form
    pairs = QUICK_PAIRS if quick else PAIRS

    def case(group: str, spec: Spec, **most: float) -> Case:
        swapped = replace(spec, where=SWAP)
        return compare_case(group, swapped, spec, pairs, **most)

    speed = [case("speed", Spec(workload)) for workload in WORKLOADS]
    allocation = [
        case("allocation", Spec(size, framework="allocate"), most=ALLOCATION_MOST_PERCENT)
        for size in SIZES
    ]
    return [*speed, *allocation, case("gather", Spec("gather"))]


if __name__ == "__main__":
    sys.exit(run_benchmark("moving", __doc__, all_cases))
