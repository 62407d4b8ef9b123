"""A program that compares what it has in GPU memory with what it wrote there.

    keeps_a_pattern.py BYTES FILE     write a pattern, and read it back until FILE exists

It prints `same` after each comparison, and ends with 1 if a byte differs. The pattern is in a large
allocation, in small ones and in one with a pitch. It does not use Aliquot's API.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1")
SMALL = (1, 1000, 70_000, (2 << 20) + 1)


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name}: {code}")


def allocated(size: int) -> ctypes.c_uint64:
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return address


def allocated_with_pitch(size: int) -> ctypes.c_uint64:
    address, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    width, rows = ctypes.c_size_t(size), ctypes.c_size_t(3)
    out = ctypes.byref(address), ctypes.byref(pitch)
    call("cuMemAllocPitch_v2", *out, width, rows, ctypes.c_uint(4))
    return address


def main(size: int, end: Path) -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    parts = [(allocated(one), one) for one in (size, *SMALL)] + [(allocated_with_pitch(999), 999)]
    written = []
    for address, length in parts:
        pattern = os.urandom(length)
        call("cuMemcpyHtoD_v2", address, pattern, ctypes.c_size_t(length))
        written.append((address, pattern))
    while not end.exists():
        for address, pattern in written:
            found = ctypes.create_string_buffer(len(pattern))
            call("cuMemcpyDtoH_v2", found, address, ctypes.c_size_t(len(pattern)))
            if found.raw != pattern:
                sys.exit(f"{len(pattern)} bytes at {address.value:#x} differ")
        sys.stdout.write("same\n")
        sys.stdout.flush()
        time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
