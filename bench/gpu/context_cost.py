"""What a second context of a process costs: GPU memory and time, beside the first one.

    python bench/gpu/context_cost.py [--rounds 5] [--json]

A mover with a context of its own inside the program needs one (docs/architecture.md). Each round is
a process of its own. The free memory of the GPU is read before and after, so nothing else may use
the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import subprocess
import sys
import time
from statistics import median

from vmm import MIB, Driver

KINDS = ("second", "third")


def measure() -> dict[str, float]:
    """MiB and milliseconds of each further context of this process."""
    driver = Driver()
    result = {}
    for kind in KINDS:
        free, begin, context = driver.free_bytes(), time.perf_counter(), c.c_void_p()
        driver.call("cuCtxCreate_v2", c.byref(context), 0, 0)
        result[f"{kind}_ms"] = (time.perf_counter() - begin) * 1000
        driver.wait_for(driver.make_stream())
        result[f"{kind}_mib"] = (free - driver.free_bytes()) / MIB
    return result


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", action="store_true")
    options.add_argument("--round", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.round:
        print(json.dumps(measure()))
        return 0
    command = [sys.executable, __file__, "--round"]
    rounds = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(chosen.rounds)
    ]
    if chosen.json:
        print(json.dumps(rounds))
        return 0
    for figure in rounds[0]:
        values = sorted(one[figure] for one in rounds)
        print(f"{figure:12} {median(values):8.1f} ({values[0]:.1f} to {values[-1]:.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
