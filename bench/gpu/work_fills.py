"""Fills memory and says what it finds there: python work_fills.py STEPS SEED MIB.

It stands for a training (work_losses.py) where there is no PyTorch, such as on a simulated GPU: it
needs the driver alone. Its memory is in pieces of 16 MiB. Each step fills one of them with a number
that depends on the seed and on what another one had, and prints its number and what it read.
"""

from __future__ import annotations

import ctypes
import sys

PIECE = 16 << 20
WORDS = PIECE // 4

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name}: {code}")


def main(steps: int, seed: int, mib: int) -> None:
    device, context, found = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint32()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    pieces = [ctypes.c_uint64() for _ in range(max(2, (mib << 20) // PIECE))]
    for number, piece in enumerate(pieces):
        call("cuMemAlloc_v2", ctypes.byref(piece), ctypes.c_size_t(PIECE))
        call("cuMemsetD32_v2", piece, ctypes.c_uint32(seed + number), ctypes.c_size_t(WORDS))
    for step in range(1, steps + 1):
        last = pieces[(step * 7) % len(pieces)].value + PIECE - 4
        call("cuMemcpyDtoH_v2", ctypes.byref(found), ctypes.c_uint64(last), ctypes.c_size_t(4))
        value = (found.value * 31 + step) % (1 << 32)
        where = pieces[(step * 3) % len(pieces)]
        call("cuMemsetD32_v2", where, ctypes.c_uint32(value), ctypes.c_size_t(WORDS))
        call("cuCtxSynchronize")
        print(step, found.value, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
