"""Whether compute shares hold on a GPU: what its driver offers, and what programs found.

Shares need the GPU itself to wait for a word in memory: the driver's stream memory operations, in
64 bits. Each program tries them before its first launch; what it found stands in the arbiter's
status. Before that, the driver can be asked whether it has them at all.
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
    from aliquot.slices.control import Status

WITHOUT = (
    "Memory limits hold; programs share compute time as the GPU itself shares it, and"
    " --policy hard is refused. docs/support.md says where shares work."
)

_ASK_SECONDS = 30
# In a process of its own: a driver that hangs or dies takes nobody with it. 122 is
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
_SAID = {
    1: "invalid value",
    2: "out of memory",
    500: "not found",
    719: "launch failed",
    800: "not permitted",
    801: "not supported",
    999: "unknown error",
}


def driver_words(code: int) -> str:
    """What a driver's code means for a person."""
    return f"the driver said {code} ({_SAID[code]})" if code in _SAID else f"the driver said {code}"


def tried(seen: Status) -> dict[str, ComputeUse]:
    """What programs found, by GPU; where they differ, that of one whose gates do not work."""
    places = {one.gpu.uuid: str(one.gpu) for one in seen.gpus}
    found: dict[str, ComputeUse] = {}
    for grant in seen.grants:
        for part, compute in zip(grant.slices, grant.compute, strict=True):
            place = places.get(part.gpu_uuid, part.gpu_uuid)
            known = found.get(place)
            if compute.gates is not Gates.UNTRIED and not (known and known.gates is Gates.FAIL):
                found[place] = compute
    return dict(sorted(found.items()))


def offered(driver: Driver) -> list[bool] | None:
    """For each GPU by index whether its driver has the operations; None where it does not say."""
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
