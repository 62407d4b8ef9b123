"""The workloads' shapes on a simulated GPU: the one kernel that takes as long as it is told.

Nothing is measured with these: they show that a benchmark's own logic works where there is no GPU.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ptx import SPIN, Cuda

MICROSECOND = 1000
FOREVER_NANOSECONDS = 3600 * 10**9


@dataclass(frozen=True)
class Shape:
    """A step: so many kernels of that length on each of so many streams, then a wait."""

    kernels: int
    microseconds: int
    streams: int = 1
    units: int = 1  # each kernel counts one; 0: the whole step does


SHAPES = {
    "mm": Shape(20, 180),
    "mm2": Shape(2, 180),
    "train": Shape(40, 500, units=0),
    "decode": Shape(8, 600),
    "tiny": Shape(40, 10),
    "four": Shape(5, 180, streams=4),
    "forty": Shape(1, 180, streams=40),
    "memory": Shape(8, 450),
    "gather": Shape(8, 450),
    "latency": Shape(1, 600),
}


class Spin:
    version = "simulated"

    def __init__(self, shape: Shape) -> None:
        self.shape, self.cuda = shape, Cuda()
        self.kernel = self.cuda.kernel(SPIN, "aliquot_spin")
        self.streams = [self.cuda.stream() for _ in range(shape.streams)]

    def step(self) -> int:
        for _ in range(self.shape.kernels):
            for stream in self.streams:
                self.cuda.launch(self.kernel, self.shape.microseconds * MICROSECOND, stream)
        self.cuda.synchronize()
        return self.shape.kernels * self.shape.streams if self.shape.units else 1

    def finish(self) -> int:
        return 0

    def right(self) -> bool:
        return True

    def illegal(self) -> str:
        """The simulated GPU has no address that is wrong: the program ends as if it had."""
        signal.raise_signal(signal.SIGABRT)
        return ""

    def forever(self) -> None:
        self.cuda.launch(self.kernel, FOREVER_NANOSECONDS)
        self.cuda.synchronize()


def make(name: str) -> Spin:
    return Spin(SHAPES[name])
