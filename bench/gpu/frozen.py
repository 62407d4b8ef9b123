"""Calls to the driver while their program is frozen: does it live, and go on?

    python bench/gpu/frozen.py

Needs an NVIDIA GPU with a driver from R570 on. For each function a program in a grant of its own
calls it again and again, is frozen for two seconds and thawed. A case holds if the program lives
and goes on. Exit code 0 if all cases hold.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FROZEN_SECONDS = 2.0
WAIT_SECONDS = 60.0
SPARE = 20_000  # things to be destroyed, one at a time
DISABLE_TIMING, NON_BLOCKING = 2, 1
USED_MEMORY = 5  # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
PIECE = ctypes.c_size_t(4096)


class Program:
    """The driver, and something of each kind to call it with."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.call("cuCtxSetCurrent", self.made("cuDevicePrimaryCtxRetain", 0))
        self.memory = self.made("cuMemAlloc_v2", PIECE)
        self.stream = self.made("cuStreamCreate", NON_BLOCKING)
        self.begin, self.end = (self.made("cuEventCreate", 0) for _ in range(2))
        self.pool = self.made("cuDeviceGetDefaultMemPool", 0)
        graph = self.made("cuGraphCreate", 0)
        self.graph = self.made("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
        self.function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
        self.answer = ctypes.byref(ctypes.create_string_buffer(64))
        for event in (self.begin, self.end):
            self.call("cuEventRecord", event, self.stream)
        self.call("cuCtxSynchronize")

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            sys.exit(f"{name}: {code}")

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def spare(self, name: str, count: int, *arguments: Any) -> list[ctypes.c_void_p]:
        return [self.made(name, *arguments) for _ in range(count)]

    def for_ever(self, name: str) -> None:
        ask = CASES[name](self)
        print("begins", flush=True)
        while True:
            ask()
            time.sleep(0.0005)
            print(".", end="", flush=True)


def plain(name: str, *what: str) -> Callable[[Program], Callable[[], None]]:
    """A call with things of the program's."""

    def prepare(program: Program) -> Callable[[], None]:
        arguments = [getattr(program, one) for one in what]
        return lambda: program.call(name, *arguments)

    return prepare


def destroying(name: str, maker: str, *arguments: Any) -> Callable[[Program], Callable[[], None]]:
    def prepare(program: Program) -> Callable[[], None]:
        there = program.spare(maker, SPARE if maker == "cuEventCreate" else SPARE // 10, *arguments)
        return lambda: program.call(name, there.pop()) if there else None

    return prepare


def from_pool(program: Program) -> Callable[[], None]:
    def ask() -> None:
        piece = program.made("cuMemAllocAsync", PIECE, program.stream)
        program.call("cuMemFreeAsync", piece, program.stream)

    return ask


CASES: dict[str, Callable[[Program], Callable[[], None]]] = {
    "cuStreamQuery": plain("cuStreamQuery", "stream"),
    "cuStreamSynchronize": plain("cuStreamSynchronize", "stream"),
    "cuEventQuery": plain("cuEventQuery", "end"),
    "cuEventSynchronize": plain("cuEventSynchronize", "end"),
    "cuCtxSynchronize": plain("cuCtxSynchronize"),
    "cuMemGetInfo": plain("cuMemGetInfo_v2", "answer", "answer"),
    "cuEventElapsedTime": plain("cuEventElapsedTime", "answer", "begin", "end"),
    "cuEventRecord": plain("cuEventRecord", "begin", "stream"),
    "cuEventDestroy": destroying("cuEventDestroy_v2", "cuEventCreate", DISABLE_TIMING),
    "cuStreamDestroy": destroying("cuStreamDestroy_v2", "cuStreamCreate", NON_BLOCKING),
    "cuStreamIsCapturing": plain("cuStreamIsCapturing", "stream", "answer"),
    "cuMemFree": destroying("cuMemFree_v2", "cuMemAlloc_v2", PIECE),
    "cuMemAllocAsync": from_pool,
    "cuMemPoolTrimTo": lambda program: (
        lambda: program.call("cuMemPoolTrimTo", program.pool, ctypes.c_size_t(0))
    ),
    "cuMemPoolGetAttribute": lambda program: (
        lambda: program.call("cuMemPoolGetAttribute", program.pool, USED_MEMORY, program.answer)
    ),
    "cuMemcpyDtoH": lambda program: (
        lambda: program.call("cuMemcpyDtoH_v2", program.answer, program.memory, ctypes.c_size_t(64))
    ),
    "cuStreamWaitEvent": lambda program: (
        lambda: program.call("cuStreamWaitEvent", program.stream, program.end, 0)
    ),
    "cuLaunchHostFunc": lambda program: (
        lambda: program.call("cuLaunchHostFunc", program.stream, program.function, None)
    ),
    "cuGraphLaunch": plain("cuGraphLaunch", "graph", "stream"),
    "cuCtxGetLimit": lambda program: lambda: program.call("cuCtxGetLimit", program.answer, 0),
}


class Case:
    """One program in its grant."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._said = name, folder / name
        words = ["run", "--name", name, "--memory", "2GiB", "--", sys.executable, __file__, name]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "aliquot", *words], stdout=said, stderr=said
            )

    def until_it_goes_on(self) -> bool:
        """Whether it asks again, and again; it may end instead."""
        there, deadline = self._said.stat().st_size, time.monotonic() + WAIT_SECONDS
        while self._said.stat().st_size < there + 20:
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def run_all(folder: Path) -> int:
    from aliquot import slices
    from aliquot.slices.checkpoint import Checkpoints, freeze, thaw

    state = slices.locate(None)
    cases = [Case(name, folder) for name in CASES]
    try:
        driver = Checkpoints(state.driver())
        began = [case.until_it_goes_on() for case in cases]
        for case in cases:
            freeze(driver, state.directory, case.name)
        time.sleep(FROZEN_SECONDS)
        for case in cases:
            thaw(driver, state.directory, case.name)
        held = [case.until_it_goes_on() for case in cases]
    finally:
        for case in cases:
            case.process.kill()
            case.process.wait()
    good = [before and after for before, after in zip(began, held, strict=True)]
    for case, well in zip(cases, good, strict=True):
        print(f"{case.name:24} {'lives, and goes on' if well else 'DOES NOT GO ON'}")
    return 0 if all(good) else 1


def main() -> int:
    if len(sys.argv) > 1:
        Program().for_ever(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ALIQUOT_STATE"] = folder
        return run_all(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
