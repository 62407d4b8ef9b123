"""A tenant that loads its GPUs, on whatever `libcuda.so.1` it finds: standard library only.

    python -S -m credit.load KIND [OPTION=NUMBER ...]

It prints `ready` when its context exists, and then obeys one command a line on stdin: `go` starts
the load, `pause` stops it after the current burst, `count` prints how many bursts are done, `end`
ends. A call that fails ends the load with `failed NAME CODE`; the process stays.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry aliquot_spin(.param .u64 n) { ret; }
.visible .entry aliquot_wait(.param .u64 a, .param .u64 v) { ret; }
.visible .entry aliquot_set(.param .u64 a, .param .u64 v) { ret; }
.visible .entry aliquot_fault() { ret; }
"""
NON_BLOCKING = 1
NEVER = 1 << 62
RELAXED = 2
HOST_MAPPED = 3  # portable and mapped


class CallError(Exception):
    """A driver call that failed."""


class Gpu:
    """One device with its context, its module and some streams."""

    def __init__(self, library: c.CDLL, index: int, streams: int) -> None:
        self.library = library
        self.context = c.c_void_p()
        self.module = c.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", c.byref(self.context), index)
        self.enter()
        self.call("cuModuleLoadData", c.byref(self.module), PTX)
        self.streams = [self._stream() for _ in range(streams)]

    def call(self, name: str, *arguments: object) -> None:
        code = self.library[name](*arguments)
        if code:
            raise CallError(f"{name} {code}")

    def enter(self) -> None:
        self.call("cuCtxSetCurrent", self.context)

    def _stream(self) -> c.c_void_p:
        stream = c.c_void_p()
        self.call("cuStreamCreate", c.byref(stream), NON_BLOCKING)
        return stream

    def function(self, name: str) -> c.c_void_p:
        found = c.c_void_p()
        self.call("cuModuleGetFunction", c.byref(found), self.module, name.encode())
        return found

    def words(self, count: int) -> int:
        address = c.c_uint64()
        self.call("cuMemAlloc_v2", c.byref(address), c.c_size_t(8 * count))
        self.call("cuMemsetD8_v2", address, 0, c.c_size_t(8 * count))
        return address.value

    def launch(self, function: c.c_void_p, stream: c.c_void_p | None, *values: int) -> None:
        arguments = [c.c_uint64(value) for value in values]
        pointers = (c.c_void_p * len(arguments))(*(c.addressof(one) for one in arguments))
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")


Burst = Callable[[], None]


class Ahead:
    """Keeps one burst in the streams while the next is launched: the GPU always has work.

    So the GPU stays busy if the machine does not run the program for a moment.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.streams: list[c.c_void_p | None] = [*gpu.streams] or [None]
        self.events = [[self._event() for _ in self.streams] for _ in range(2)]
        self.bursts = 0

    def _event(self) -> c.c_void_p:
        event = c.c_void_p()
        self.gpu.call("cuEventCreate", c.byref(event), 0)
        return event

    def wait(self) -> None:
        """After a burst was launched: wait for the one before it."""
        for event, stream in zip(self.events[self.bursts % 2], self.streams, strict=True):
            self.gpu.call("cuEventRecord", event, stream)
        self.bursts += 1
        for event in self.events[self.bursts % 2] if self.bursts > 1 else []:
            self.gpu.call("cuEventSynchronize", event)


def spin(library: c.CDLL, options: dict[str, int]) -> Burst:
    """Kernels of `ns`, `burst` of them over `streams` (0: the default one)."""
    gpu = Gpu(library, 0, options.get("streams", 0))
    function, ahead = gpu.function("aliquot_spin"), Ahead(gpu)
    ns, burst = options.get("ns", 200_000), options.get("burst", 100)

    def once() -> None:
        gpu.enter()
        for number in range(burst):
            stream = gpu.streams[number % len(gpu.streams)] if gpu.streams else None
            gpu.launch(function, stream, ns)
        ahead.wait()

    return once


def graph(library: c.CDLL, options: dict[str, int]) -> Burst:
    """A captured graph of `nodes` kernels of `ns`, launched `burst` times."""
    gpu = Gpu(library, 0, 1)
    ahead = Ahead(gpu)
    function, stream = gpu.function("aliquot_spin"), gpu.streams[0]
    made, executable = c.c_void_p(), c.c_void_p()
    gpu.call("cuStreamBeginCapture_v2", stream, RELAXED)
    for _ in range(options.get("nodes", 5)):
        gpu.launch(function, stream, options.get("ns", 200_000))
    gpu.call("cuStreamEndCapture", stream, c.byref(made))
    gpu.call("cuGraphInstantiateWithFlags", c.byref(executable), made, c.c_ulonglong(0))

    def once() -> None:
        gpu.enter()
        for _ in range(options.get("burst", 10)):
            gpu.call("cuGraphLaunch", executable, stream)
        ahead.wait()

    return once


def memset(library: c.CDLL, options: dict[str, int]) -> Burst:
    """Fills between kernels, on the default stream."""
    gpu = Gpu(library, 0, 0)
    function, size = gpu.function("aliquot_spin"), options.get("bytes", 4096)
    ahead = Ahead(gpu)
    address = gpu.words(size // 8)

    def once() -> None:
        gpu.enter()
        for _ in range(options.get("burst", 100)):
            gpu.call("cuMemsetD8Async", c.c_uint64(address), 1, c.c_size_t(size), None)
            gpu.launch(function, None, options.get("ns", 200_000))
        ahead.wait()

    return once


def pair(library: c.CDLL, options: dict[str, int]) -> Burst:
    """Kernels on two GPUs that wait for each other, like those of a collective."""
    gpus = [Gpu(library, index, 1) for index in (0, 1)]
    words, functions, aheads, steps = [], [], [], [0]
    for gpu in gpus:
        gpu.enter()
        words.append(gpu.words(1))
        functions.append([gpu.function(f"aliquot_{name}") for name in ("spin", "set", "wait")])
        aheads.append(Ahead(gpu))

    def once() -> None:
        for _ in range(options.get("burst", 50)):
            steps[0] += 1
            for gpu, (work, arrive, meet), mine, other in zip(
                gpus, functions, words, reversed(words), strict=True
            ):
                gpu.enter()
                gpu.launch(work, gpu.streams[0], options.get("ns", 200_000))
                gpu.launch(arrive, gpu.streams[0], mine, steps[0])
                gpu.launch(meet, gpu.streams[0], other, steps[0])
        for gpu, ahead in zip(gpus, aheads, strict=True):
            gpu.enter()
            ahead.wait()

    return once


def meet(library: c.CDLL, options: dict[str, int]) -> Burst:
    """Kernels that wait for those of another process: `rank` 0 and 1, words in a shared file."""
    gpu = Gpu(library, 0, 1)
    with Path(os.environ["ALIQUOT_TEST_MEETING"]).open("r+b") as file:
        page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    first, address = c.c_char.from_buffer(page), c.c_uint64()
    host = c.c_void_p(c.addressof(first))
    gpu.call("cuMemHostRegister_v2", host, c.c_size_t(mmap.PAGESIZE), HOST_MAPPED)
    gpu.call("cuMemHostGetDevicePointer_v2", c.byref(address), host, 0)
    mine, other = (address.value + 8 * (number ^ options["rank"]) for number in (0, 1))
    work, arrive, wait = (gpu.function(f"aliquot_{name}") for name in ("spin", "set", "wait"))
    steps, kept = [0], (page, first)

    def once() -> None:
        assert kept  # the GPU writes to it
        gpu.enter()
        for _ in range(options.get("burst", 5)):
            steps[0] += 1
            gpu.launch(work, gpu.streams[0], options.get("ns", 200_000))
            gpu.launch(arrive, gpu.streams[0], mine, steps[0])
            gpu.launch(wait, gpu.streams[0], other, steps[0])
        gpu.synchronize()

    return once


def fault(library: c.CDLL, options: dict[str, int]) -> Burst:
    """Works for `after` bursts, then makes an illegal access."""
    gpu = Gpu(library, 0, 0)
    work, faulty = gpu.function("aliquot_spin"), gpu.function("aliquot_fault")
    left = [options.get("after", 5)]

    def once() -> None:
        gpu.enter()
        left[0] -= 1
        for _ in range(options.get("burst", 20)):
            gpu.launch(work, None, options.get("ns", 200_000))
        if left[0] < 0:
            gpu.launch(faulty, None)
        gpu.synchronize()

    return once


def never(library: c.CDLL, options: dict[str, int]) -> Burst:
    """Works for `after` bursts, then launches a kernel that does not end."""
    gpu = Gpu(library, 0, 0)
    work, stuck = gpu.function("aliquot_spin"), gpu.function("aliquot_wait")
    word = gpu.words(1)
    left = [options.get("after", 5)]

    def once() -> None:
        gpu.enter()
        left[0] -= 1
        for _ in range(options.get("burst", 20)):
            gpu.launch(work, None, options.get("ns", 200_000))
        if left[0] < 0:
            gpu.launch(stuck, None, word, NEVER)
        gpu.synchronize()

    return once


def request(library: c.CDLL, options: dict[str, int]) -> Burst:
    """One short kernel, waited for, and then nothing for a while: an inference service."""
    gpu = Gpu(library, 0, 0)
    function, pause = gpu.function("aliquot_spin"), threading.Event()

    def serve() -> None:
        gpu.enter()
        gpu.launch(function, None, options.get("ns", 500_000))
        gpu.synchronize()
        pause.wait(options.get("every_ms", 10) / 1000)

    return serve


KINDS = {f.__name__: f for f in (spin, graph, memset, pair, meet, fault, never, request)}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Load:
    """A thread that runs bursts while `may` is set."""

    def __init__(self, burst: Burst) -> None:
        self.burst = burst
        self.may = threading.Event()
        self.count = 0
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            while self.may.wait():
                self.burst()
                self.count += 1
        except CallError as error:
            say(f"failed {error}")


def main() -> None:
    kind, *words = sys.argv[1:]
    options = {key: int(value) for key, _, value in (word.partition("=") for word in words)}
    library = c.CDLL("libcuda.so.1")
    if code := library.cuInit(0):
        raise SystemExit(f"cuInit {code}")
    load = Load(KINDS[kind](library, options))
    say("ready")
    for line in sys.stdin:
        match line.strip():
            case "go":
                load.may.set()
            case "pause":
                load.may.clear()
            case "count":
                say(str(load.count))
            case "end":
                break


if __name__ == "__main__":
    main()
