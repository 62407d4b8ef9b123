"""A program that counts in GPU memory and saves nothing, to try freezing a job.

    aliquot submit --simulate h100:4 --name counts -- python3 examples/counts_on_gpu.py

It does not use Aliquot's API, needs only Python, and works the same on a simulated GPU. It reads
each number that it prints from the GPU: a restarted program begins at 1.
"""

from __future__ import annotations

import ctypes
import sys
import time

NUMBERS = 3600  # an hour
BYTES = 256 << 20

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    """Call the driver; its errors end the program."""
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name}: error {code}")


def main() -> None:
    """Count, once a second."""
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(BYTES))
    call("cuMemsetD32_v2", address, 0, ctypes.c_size_t(1))
    number = ctypes.c_uint32()
    for _ in range(NUMBERS):
        call("cuMemcpyDtoH_v2", ctypes.byref(number), address, ctypes.c_size_t(4))
        print(number.value + 1, flush=True)
        call("cuMemsetD32_v2", address, number.value + 1, ctypes.c_size_t(1))
        time.sleep(1)


if __name__ == "__main__":
    main()
