"""A simulated machine with a GPU in MIG mode, and a program that says what it sees of it."""

from __future__ import annotations

import json
import sys
from typing import Any

from conftest import Cli
from sim.program import Program

MIB = 1 << 20
HALF = 9  # the id of the profile 3g.40gb
SHAPE = "h100:2"
SEES = """
import json, pynvml
from cuda.bindings import driver
driver.cuInit(0)
count = driver.cuDeviceGetCount()[1]
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
free, total = driver.cuMemGetInfo()[1:]
fits = [int(driver.cuMemAlloc(gib << 30)[0]) for gib in (4, 8)]
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({
    "count": count, "total": total, "fits": fits,
    "nvml": [pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetUUID(device),
             pynvml.nvmlDeviceGetMemoryInfo(device).total,
             pynvml.nvmlDeviceGetPciInfo(device).busId],
    "name": pynvml.nvmlDeviceGetName(device),
}))
"""


def instance(mig: Program, place: int) -> str:
    """A new instance of half of GPU 0: its UUID."""
    mig("make", f"half {place}", 0, HALF, place)
    return str(mig("divide", f"half {place}", f"whole {place}", 3))


def destroy(mig: Program, place: int) -> None:
    assert mig("destroy", "nvmlComputeInstanceDestroy", f"whole {place}") == 0
    assert mig("destroy", "nvmlGpuInstanceDestroy", f"half {place}") == 0


def listed(cli: Cli, command: str = "gpus") -> list[dict[str, Any]]:
    done = cli(command, "--json", "--simulate", SHAPE)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["gpus"])


def run(cli: Cli, *options: str) -> dict[str, Any]:
    done = cli("run", "--simulate", SHAPE, *options, "--", sys.executable, "-c", SEES)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
