"""A program whose only state is in GPU memory.

    counts_in_gpu_memory.py BYTES FILE     allocate BYTES and count steps there until FILE exists

It prints each step that it reads back from the GPU, so a restarted program would begin at 1. It
does not use Aliquot's API.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name}: {code}")


def main(size: int, end: Path) -> None:
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    call("cuMemsetD32_v2", address, 0, ctypes.c_size_t(1))
    step = ctypes.c_uint32(0)
    while not end.exists():
        call("cuMemcpyDtoH_v2", ctypes.byref(step), address, ctypes.c_size_t(4))
        call("cuMemsetD32_v2", address, step.value + 1, ctypes.c_size_t(1))
        call("cuCtxSynchronize")
        sys.stdout.write(f"{step.value + 1}\n")
        sys.stdout.flush()
        time.sleep(0.01)
    call("cuMemFree_v2", address)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
