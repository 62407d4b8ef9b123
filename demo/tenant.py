"""A small GPU program: allocates memory and launches kernels by the driver's API, and reports both.

    tenant.py BYTES      allocate that much in steps, then run the commands of standard input
    tenant.py all        allocate until there is no more

    take BYTES           allocate up to that much
    free BYTES           free that much, or a little more
    work                 keep the GPU busy
    rest                 stop working

It knows nothing of Aliquot: it loads libcuda.so.1 as any CUDA program does.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time

STEP = 256 << 20
SMALLEST_STEP = 2 << 20
PAGE = 4 << 10
OUT_OF_MEMORY = 2

KERNEL_NS = 250_000
BATCH = 8  # kernels between two events
AHEAD = 8  # queued batches, so that the GPU never waits for the program
REPORT_SECONDS = 0.02
# Keeps the GPU busy for some time; a simulated GPU knows it by its name.
SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry aliquot_spin(.param .u64 nanoseconds)
{
    .reg .pred %waiting;
    .reg .b64 %now, %end, %length;
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %now, %globaltimer;
    add.u64 %end, %now, %length;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %waiting, %now, %end;
    @%waiting bra again;
    ret;
}
\0"""


class CudaError(Exception):
    """A driver call that failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with code {code}")
        self.code = code


class Cuda:
    """The few driver calls that are needed."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self._device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self._device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxSetCurrent", context)

    def total(self) -> int:
        """The memory of the GPU, as this program sees it."""
        size = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(size), self._device)
        return size.value

    def take(self, size: int) -> ctypes.c_uint64:
        """Allocate memory, and write to its beginning: a simulated GPU's is the machine's own."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", address, 1, ctypes.c_size_t(min(size, PAGE)))
        return address

    def call(self, name: str, *arguments: object) -> None:
        """A driver function by its name."""
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise CudaError(name, code)


class Memory:
    """What this program has allocated."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._pieces: list[tuple[ctypes.c_uint64, int]] = []

    @property
    def held(self) -> int:
        """All of it, in bytes."""
        return sum(size for _, size in self._pieces)

    def take(self, goal: int) -> None:
        """Allocate up to the goal, in steps that get smaller when memory runs out."""
        step = STEP
        while self.held < goal:
            size = min(step, goal - self.held)
            try:
                self._pieces.append((self._cuda.take(size), size))
            except CudaError as error:
                if error.code != OUT_OF_MEMORY or size <= SMALLEST_STEP:
                    say("stopped", bytes=self.held, code=error.code)
                    return
                step //= 2
                continue
            say("holds", bytes=self.held)

    def free(self, size: int) -> None:
        """Free whole pieces, at least `size` bytes."""
        goal = self.held - size
        while self._pieces and self.held > goal:
            address, _ = self._pieces.pop()
            self._cuda.call("cuMemFree_v2", address)


class Work:
    """Kernels, one after the other, with some always queued."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(module), SPIN)
        cuda.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"aliquot_spin")
        self._nanoseconds = ctypes.c_uint64(KERNEL_NS)
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self._nanoseconds))
        self._events = [ctypes.c_void_p() for _ in range(AHEAD)]
        for event in self._events:
            cuda.call("cuEventCreate", ctypes.byref(event), 2)
        self._started = 0

    def start_batch(self) -> None:
        """Launch one more batch, then wait for the oldest one."""
        for _ in range(BATCH):
            self._cuda.call(
                "cuLaunchKernel", self._kernel, 1, 1, 1, 1, 1, 1, 0, None, self._arguments, None
            )
        self._cuda.call("cuEventRecord", self._events[self._started % AHEAD], None)
        self._started += 1
        if self._started >= AHEAD:
            self._cuda.call("cuEventSynchronize", self._events[self._started % AHEAD])

    def until_told(self) -> None:
        """Keep the GPU busy until the next command or the end of standard input."""
        reported = time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            self.start_batch()
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                kernels = max(0, self._started - AHEAD + 1) * BATCH
                say("did", kernels=kernels, at_ns=time.monotonic_ns())
        self._cuda.call("cuCtxSynchronize")


def say(event: str, **values: int) -> None:
    """Report to the program that started this one."""
    print(json.dumps({"event": event, **values}), flush=True)


def next_command() -> list[str]:
    """One line of standard input, read byte by byte, so that `select` sees the next one."""
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(sys.stdin.fileno(), 1)):
            return []
        line += more
    return line.decode().split()


def main(wanted: str) -> None:
    """Allocate memory, then run commands."""
    cuda = Cuda()
    say("sees", bytes=cuda.total())
    memory, work = Memory(cuda), None
    memory.take(sys.maxsize if wanted == "all" else int(wanted))
    say("stays", bytes=memory.held)
    while command := next_command():
        match command:
            case ["take", size]:
                memory.take(int(size))
            case ["free", size]:
                memory.free(int(size))
            case ["work"]:
                work = work or Work(cuda)
                say("works")
                work.until_told()
                say("rests")
                continue
        say("stays", bytes=memory.held)
    say("ends", bytes=memory.held)


if __name__ == "__main__":
    main(sys.argv[1])
