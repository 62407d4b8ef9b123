"""A program that is larger than its slice: it reads and changes all its memory, again and again.

    python bench/gpu/work_larger.py BYTES CHUNK PASSES [--plain]

Prints a line of JSON when all memory is allocated and filled, waits for a line on stdin, and prints
one for each pass: its kind, seconds, the seconds of a chunk that was allocated first and so is on
the GPU, and whether every sum is right. With `--plain` it makes plain driver calls in place of
PyTorch's kernels, for simulated GPUs.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from ptx import Cuda

WORD = 8
RANGE = 1 << 64
ENDS = 4096


@dataclass
class TorchChunk:
    """Consecutive numbers in a tensor."""

    count: int
    first: int

    def __post_init__(self) -> None:
        import torch

        self.tensor = torch.empty(self.count, dtype=torch.int64, device="cuda")
        torch.arange(self.first, self.first + self.count, out=self.tensor)

    def read(self) -> Any:
        return self.tensor.sum()

    def change(self) -> None:
        self.tensor.add_(1)
        self.first += 1

    def is_right(self, told: Any) -> bool:
        expected = self.count * self.first + self.count * (self.count - 1) // 2
        return int(told.item()) % RANGE == expected % RANGE

    @staticmethod
    def wait() -> None:
        import torch

        torch.cuda.synchronize()


@dataclass
class PlainChunk:
    """The same byte everywhere; both ends are looked at."""

    count: int
    first: int
    cuda = None

    def __post_init__(self) -> None:
        PlainChunk.cuda = PlainChunk.cuda or Cuda()
        self.pointer, self.bytes = c.c_uint64(), self.count * WORD
        self._call("cuMemAlloc_v2", c.byref(self.pointer), c.c_size_t(self.bytes))
        self._fill()

    def read(self) -> bytes:
        told = b""
        for place in (0, self.bytes - ENDS):
            data, at = c.create_string_buffer(ENDS), c.c_uint64(self.pointer.value + place)
            self._call("cuMemcpyDtoH_v2", data, at, c.c_size_t(ENDS))
            told += data.raw
        return told

    def change(self) -> None:
        self.first += 1
        self._fill()

    def is_right(self, told: bytes) -> bool:
        return told == bytes([self.first % 256]) * (2 * ENDS)

    def wait(self) -> None:
        self._call("cuCtxSynchronize")

    def _fill(self) -> None:
        value = c.c_ubyte(self.first % 256)
        self._call("cuMemsetD8_v2", self.pointer, value, c.c_size_t(self.bytes))

    def _call(self, name: str, *arguments: object) -> None:
        assert PlainChunk.cuda
        PlainChunk.cuda.call(name, *arguments)


def timed(chunks: list[Any], kind: str) -> tuple[float, list[Any]]:
    chunks[0].wait()
    begin = time.perf_counter()
    told = [chunk.read() if kind == "read" else chunk.change() for chunk in chunks]
    chunks[0].wait()
    return time.perf_counter() - begin, told


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    total, size, passes = (int(word) for word in sys.argv[1:4])
    make = PlainChunk if "--plain" in sys.argv else TorchChunk
    begin, count = time.perf_counter(), size // WORD
    chunks = [make(count, number * count) for number in range(total // size)]
    chunks[0].wait()
    say(chunks=len(chunks), bytes=len(chunks) * size, seconds=time.perf_counter() - begin)
    sys.stdin.readline()
    for kind in ("read", "change"):
        timed(chunks[:1], kind)  # the kernel is loaded
        for _ in range(passes):
            one = min(timed(chunks[:1], kind)[0] for _ in range(5))
            seconds, _ = timed(chunks, kind)
            _, sums = timed(chunks, "read")
            right = all(chunk.is_right(told) for chunk, told in zip(chunks, sums, strict=True))
            say(kind=kind, seconds=seconds, chunk_seconds=one, right=right)


if __name__ == "__main__":
    main()
