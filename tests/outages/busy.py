"""A program that keeps its GPU busy and prints a number for every burst of work."""

from __future__ import annotations

import ctypes
import itertools
import sys

from credit.load import spin

library = ctypes.CDLL("libcuda.so.1")
if code := library.cuInit(0):
    raise SystemExit(f"cuInit {code}")
burst = spin(library, {"burst": 100})  # 200 ms: a busy machine may not run it for a while
for number in itertools.count():
    burst()
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()
