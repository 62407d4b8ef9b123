"""Whether compute shares work on a GPU: what the driver supports, and what programs found.

Compute shares need gates: the GPU itself waits for a word in memory, by the driver's 64-bit stream
memory operations. Each program tests them before its first launch, and the arbiter's status has the
result. Before that, only the driver can be asked whether it supports them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from aliquot.model import Gates

if TYPE_CHECKING:
    from aliquot.devices import Driver
    from aliquot.model import ComputeUse
    from aliquot.slices.arbiter_status import Status

WITHOUT = (
    "Memory limits work; the GPU itself divides compute time between programs, and"
    " --policy hard is refused. docs/support.md lists where compute shares work."
)

_ASK_SECONDS = 30
# In a separate process, because a driver may hang or crash. 122 is
# CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS.
_ASK = """
import ctypes, json, sys
cuda = ctypes.CDLL(sys.argv[1])
def check(code):
    if code: sys.exit(f"error {code}")
count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
check(cuda.cuInit(0))
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
found = []
for index in range(count.value):
    check(cuda.cuDeviceGet(ctypes.byref(device), index))
    check(cuda.cuDeviceGetAttribute(ctypes.byref(value), 122, device))
    found.append(bool(value.value))
print(json.dumps(found))
"""
_MEANINGS = {
    1: "invalid value",
    2: "out of memory",
    500: "not found",
    600: "not ready: the GPU was too busy for the self-test",
    719: "launch failed",
    800: "not permitted",
    801: "not supported",
    999: "unknown error",
}


def error_text(code: int) -> str:
    """A CUDA error code with its meaning, for a person."""
    return f"CUDA error {code} ({_MEANINGS[code]})" if code in _MEANINGS else f"CUDA error {code}"


def found_by_programs(status: Status) -> dict[str, ComputeUse]:
    """What programs found, by GPU; if they differ, a result where gates work.

    One program can fail alone, or lie. `share_problems` names each slice for which gates fail.
    """
    places = {one.gpu.uuid: str(one.gpu) for one in status.gpus}
    found: dict[str, ComputeUse] = {}
    for grant in status.grants:
        for part, compute in zip(grant.slices, grant.compute, strict=True):
            place = places.get(part.gpu_uuid, part.gpu_uuid)
            known = found.get(place)
            tried = compute.gates in (Gates.WORK, Gates.FAIL)
            if tried and not (known and known.gates is Gates.WORK):
                found[place] = compute
    return dict(sorted(found.items()))


def supported_by_driver(driver: Driver) -> list[bool] | None:
    """For each GPU by index whether the driver supports gates; None if it does not answer."""
    environment = {**os.environ, **driver.variables, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    for name in ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD"):
        environment.pop(name, None)
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _ASK, str(driver.cuda)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    found: list[bool] | None = json.loads(answer.stdout) if answer.returncode == 0 else None
    return found
