"""A program that compares its GPU memory with what it wrote there, when it is asked to.

    looks_when_asked.py BYTES FILE     compare, and remove FILE, whenever FILE exists

It prints `ready`, and `same` after each comparison. It ends with 1 if a byte differs, and with 0
when FILE.end exists. In between it makes no call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name}: {code}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(size: int, asked: Path) -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    address, pattern = ctypes.c_uint64(), os.urandom(size)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    call("cuMemcpyHtoD_v2", address, pattern, ctypes.c_size_t(size))
    say("ready")
    while not asked.with_suffix(".end").exists():
        time.sleep(0.01)
        if not asked.exists():
            continue
        asked.unlink()
        found = ctypes.create_string_buffer(size)
        call("cuMemcpyDtoH_v2", found, address, ctypes.c_size_t(size))
        if found.raw != pattern:
            sys.exit("some bytes differ")
        say("same")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
