"""A program that holds memory and waits for input, with the driver alone: work_hold.py GIB [MIB].

Its memory is in pieces of 256 MiB, or of that many MiB, each filled with a number of its own. It
writes a line when all are there. For each line it reads it looks at one piece ("look") or at 4 KiB
of every 2 MiB of all pieces ("all"), and writes whether that was right.
"""

from __future__ import annotations

import ctypes
import sys

MIB = 1 << 20
SAMPLE, EVERY = 4096, 2 * MIB

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name}: {code}")


def number_of(piece: int) -> int:
    return (piece * 2654435761 + 12345) % (1 << 32)


def is_right(at: int, piece: int) -> bool:
    found = (ctypes.c_uint32 * (SAMPLE // 4))()
    call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(at), ctypes.c_size_t(SAMPLE))
    return bytes(found) == number_of(piece).to_bytes(4, "little") * (SAMPLE // 4)


def main(gib: int, piece_mib: int) -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    size = piece_mib * MIB
    pieces = [ctypes.c_uint64() for _ in range(gib * 1024 // piece_mib)]
    for number, piece in enumerate(pieces):
        call("cuMemAlloc_v2", ctypes.byref(piece), ctypes.c_size_t(size))
        words = ctypes.c_size_t(size // 4)
        call("cuMemsetD32_v2", piece, ctypes.c_uint32(number_of(number)), words)
    call("cuCtxSynchronize")
    print("right", flush=True)
    for turn, line in enumerate(sys.stdin):
        which = range(len(pieces)) if line.strip() == "all" else [turn % len(pieces)]
        right = all(
            is_right(pieces[number].value + at, number)
            for number in which
            for at in range(0, size, EVERY if len(which) > 1 else size)
        )
        print("right" if right else "WRONG", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 256)
