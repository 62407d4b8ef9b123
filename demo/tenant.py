"""A small GPU program: takes memory by the driver's API and says what happens, a line at a time.

    tenant.py BYTES      take that much, in steps, then stay until standard input ends
    tenant.py all        take until there is no more

It knows nothing of Aliquot: it loads libcuda.so.1 as any CUDA program does.
"""

from __future__ import annotations

import ctypes
import json
import sys

STEP = 256 << 20
SMALLEST_STEP = 2 << 20
PAGE = 4 << 10
OUT_OF_MEMORY = 2


class CudaError(Exception):
    """A driver call that failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with code {code}")
        self.code = code


class Cuda:
    """The few driver calls that are needed."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        self._device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def total(self) -> int:
        """The memory of the GPU, as this program sees it."""
        size = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(size), self._device)
        return size.value

    def take(self, size: int) -> None:
        """Allocate memory, and write to its beginning: a simulated GPU's is the machine's own."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", address, 1, ctypes.c_size_t(min(size, PAGE)))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise CudaError(name, code)


def say(event: str, **values: int) -> None:
    """Tell whoever started this program."""
    print(json.dumps({"event": event, **values}), flush=True)


def take(cuda: Cuda, goal: int) -> int:
    """Take memory up to the goal, in steps that get smaller where there is no more; what it got."""
    held, step = 0, STEP
    while held < goal:
        size = min(step, goal - held)
        try:
            cuda.take(size)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY or size <= SMALLEST_STEP:
                say("stopped", bytes=held, code=error.code)
                break
            step //= 2
            continue
        held += size
        say("holds", bytes=held)
    return held


def main(wanted: str) -> None:
    """Take memory, then stay."""
    cuda = Cuda()
    say("sees", bytes=cuda.total())
    held = take(cuda, sys.maxsize if wanted == "all" else int(wanted))
    say("stays", bytes=held)
    sys.stdin.read()
    say("ends", bytes=held)


if __name__ == "__main__":
    main(sys.argv[1])
