"""A program that does nothing wrong, and says whether anybody disturbed it: standard library only.

    python -S -m storm.honest

It prints `ready` when its context exists. Then each round it reads a number from GPU memory, runs a
kernel of a millisecond, writes the next number and allocates and frees some memory. When stdin ends
it prints the rounds, the number that the GPU has, and the longest round in nanoseconds.
"""

from __future__ import annotations

import ctypes as c
import select
import sys
import time

from credit.load import Gpu

KERNEL_NS = 1_000_000
MIB = 1 << 20


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def step(gpu: Gpu, counter: int, kernel: c.c_void_p) -> None:
    """One more in GPU memory, after a kernel and beside an allocation."""
    value, spare = c.c_uint32(), c.c_uint64()
    gpu.call("cuMemAlloc_v2", c.byref(spare), c.c_size_t(4 * MIB))
    gpu.call("cuMemcpyDtoH_v2", c.byref(value), c.c_uint64(counter), c.c_size_t(4))
    gpu.launch(kernel, None, KERNEL_NS)
    gpu.call("cuMemsetD32_v2", c.c_uint64(counter), value.value + 1, c.c_size_t(1))
    gpu.synchronize()
    gpu.call("cuMemFree_v2", spare)


def main() -> None:
    library = c.CDLL("libcuda.so.1")
    if library.cuInit(0):
        sys.exit("cuInit failed")
    gpu = Gpu(library, 0, 0)
    kernel, counter = gpu.function("aliquot_spin"), gpu.words(1)
    say("ready")
    rounds = longest = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        begin = time.monotonic_ns()
        step(gpu, counter, kernel)
        longest = max(longest, time.monotonic_ns() - begin)
        rounds += 1
    value = c.c_uint32()
    gpu.call("cuMemcpyDtoH_v2", c.byref(value), c.c_uint64(counter), c.c_size_t(4))
    say(f"{rounds} {value.value} {longest}")


if __name__ == "__main__":
    main()
