"""A program that calls the CUDA driver all the time, one thread for each kind of call.

    calls_cuda_forever.py FILE     until FILE exists; it prints the number of calls

It ends at the first error.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1")
context, event = ctypes.c_void_p(), ctypes.c_void_p()
calls = 0


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.stderr.write(f"{name}: {code}\n")
        os._exit(1)


def call_forever(name: str, *arguments: object) -> None:
    global calls  # noqa: PLW0603 - a count of all threads
    call("cuCtxSetCurrent", context)
    while True:
        call(name, *arguments)
        calls += 1
        time.sleep(0.001)


def main(end: Path) -> None:
    memory = ctypes.c_size_t()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuEventCreate", ctypes.byref(event), 2)
    call("cuEventRecord", event, None)
    call("cuCtxSynchronize")
    for name, *arguments in (
        ("cuStreamQuery", None),
        ("cuStreamSynchronize", None),
        ("cuEventQuery", event),
        ("cuEventSynchronize", event),
        ("cuCtxSynchronize",),
        ("cuMemGetInfo_v2", ctypes.byref(memory), ctypes.byref(memory)),
    ):
        threading.Thread(target=call_forever, args=(name, *arguments), daemon=True).start()
    printed = 0
    while not end.exists():
        if calls > printed:
            printed = calls
            sys.stdout.write(f"{printed}\n")
            sys.stdout.flush()
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)
