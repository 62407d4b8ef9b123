"""Do compute shares hold? Run on a machine with an NVIDIA GPU and PyTorch.

    python bench/gpu/shares.py --out DIR [--only accuracy,latency] [--budget SECONDS] [--quick]

    accuracy    the share each program gets, by two witnesses; hard caps; odd programs
    conserved   what sharing costs against one alone and the GPU's own time-slicing; idle and back
    latency     an inference step beside a training, by every way of sharing the GPU
    overhead    what a program pays when it is alone; what the arbiter costs
    faults      what one program's fault does to its neighbour

Writes DIR/shares.json after every case and prints each figure against its bar; exit code 0 if all
are met. `--list` says what there is and how long it takes; `--simulate h200:1` tries the logic.
"""

from __future__ import annotations

import sys

import accuracy
import conserve
import faults
import latency
import overhead
from cases import Case, run_benchmark


def all_cases(quick: bool) -> list[Case]:  # noqa: FBT001 - a callback's form
    parts = (accuracy, conserve, latency, overhead, faults)
    return [case for part in parts for case in part.cases(quick=quick)]


if __name__ == "__main__":
    sys.exit(run_benchmark("shares", __doc__, all_cases))
