"""Allocating and freeing memory by the driver's own calls: make("20") with pieces of 20 MiB."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass, field

from ptx import Cuda

MOST, MOST_BYTES = 16, 1 << 30  # at a time


@dataclass(frozen=True)
class Allocate:
    """A step: allocate a few, then free them; each counts one."""

    size: int
    cuda: Cuda = field(default_factory=Cuda)
    version: str = "driver"

    def step(self) -> int:
        pointers = [c.c_uint64() for _ in range(max(1, min(MOST, MOST_BYTES // self.size)))]
        for pointer in pointers:
            self.cuda.call("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(self.size))
        for pointer in pointers:
            self.cuda.call("cuMemFree_v2", pointer)
        return len(pointers)

    def finish(self) -> int:
        return 0

    def right(self) -> bool:
        return True

    def illegal(self) -> str:
        return "it launches no kernels"

    def forever(self) -> None:
        """It launches no kernels."""


def make(name: str) -> Allocate:
    return Allocate(int(name) << 20)
