"""Takes all the GPU memory that it is given, says how much, and keeps it. Standard library only.

It prints what NVML says of the GPU's memory, and what it could take, both in bytes.
"""

from __future__ import annotations

import ctypes as c
import sys
import time

PIECE = 64 << 20
OUT_OF_MEMORY = 2


class Memory(c.Structure):
    """nvmlMemory_t."""

    _fields_ = [(name, c.c_ulonglong) for name in ("total", "free", "used")]


def total_by_nvml() -> int:
    nvml, handle, memory = c.CDLL("libnvidia-ml.so.1"), c.c_void_p(), Memory()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(handle)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(handle, c.byref(memory)) == 0
    return int(memory.total)


def fill() -> int:
    cuda, context, address, taken = c.CDLL("libcuda.so.1"), c.c_void_p(), c.c_uint64(), 0
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    while (code := cuda.cuMemAlloc_v2(c.byref(address), c.c_size_t(PIECE))) == 0:
        taken += PIECE
    if code != OUT_OF_MEMORY:
        sys.exit(f"cuMemAlloc: CUDA error {code}")
    return taken


print(total_by_nvml(), fill(), flush=True)
while True:
    time.sleep(60)
