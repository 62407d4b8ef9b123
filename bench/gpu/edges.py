"""Memory that comes by the less common ways, on a machine with an NVIDIA GPU: is it held as well?

    python bench/gpu/edges.py

Each case runs in a grant of its own and says what it saw; a case fails if that is not what must be.
Prints a table for docs/measured.md; exit code 0 if all cases hold.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

GIB = 1 << 30
MIB = 1 << 20


class RefusedError(Exception):
    """What the driver answered."""


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    result, *values = function(*arguments)
    if int(result) != 0:
        raise RefusedError(result.name)
    return values[0] if len(values) == 1 else values


def begin() -> Any:
    from cuda.bindings import driver

    call(driver.cuInit, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, 0))
    return driver


def is_refused(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        call(function, *arguments)
    except RefusedError as error:
        return "OUT_OF_MEMORY" in str(error)
    return False


def captured(driver: Any, stream: Any, sizes: list[int]) -> Any:
    """An executable graph that allocates, uses and frees so many bytes."""
    call(driver.cuStreamBeginCapture, stream, driver.CUstreamCaptureMode(0))
    pieces = [call(driver.cuMemAllocAsync, size, stream) for size in sizes]
    for piece in pieces:
        call(driver.cuMemsetD8Async, piece, 1, MIB, stream)
        call(driver.cuMemFreeAsync, piece, stream)
    return call(driver.cuGraphInstantiate, call(driver.cuStreamEndCapture, stream), 0)


def graphs() -> tuple[bool, str]:
    driver = begin()
    stream = call(driver.cuStreamCreate, 1)
    refused = is_refused(driver.cuGraphLaunch, captured(driver, stream, [4 * GIB] * 3), stream)
    small = captured(driver, stream, [GIB, GIB])
    call(driver.cuGraphLaunch, small, stream)
    while not is_refused(driver.cuMemAlloc, 256 * MIB):
        pass
    for _ in range(100):
        call(driver.cuGraphLaunch, small, stream)
    call(driver.cuStreamSynchronize, stream)
    seen = "12 GiB refused at the launch" if refused else "12 GiB were launched"
    return refused, f"{seen}; 2 GiB launched 100 times more when the slice was full"


def exported() -> tuple[bool, str]:
    """Made, exported, imported and released, again and again."""
    driver = begin()
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    wanted.requestedHandleTypes = kind
    rounds = 0
    try:
        while rounds < 16:
            handle = call(driver.cuMemCreate, GIB, wanted, 0)
            descriptor = call(driver.cuMemExportToShareableHandle, handle, kind, 0)
            call(driver.cuMemImportFromShareableHandle, descriptor, kind)
            call(driver.cuMemRelease, handle)
            rounds += 1
    except RefusedError as error:
        if "OUT_OF_MEMORY" not in str(error):
            raise
    return rounds < 8, f"stopped after {rounds} rounds of 1 GiB"


def contexts() -> tuple[bool, str]:
    """Processes that do nothing but make a context, in a slice with room for three."""
    made = subprocess.run(
        [sys.executable, __file__, "one-context", "5"], capture_output=True, text=True, check=False
    ).stdout.split()
    return made == ["made"] * 3 + ["refused"] * 2, ", ".join(made)


def one_context() -> None:
    try:
        begin()
        print("made", flush=True)
    except RefusedError:
        print("refused", flush=True)
    if (left := int(sys.argv[2]) - 1) > 0:
        subprocess.run([sys.executable, __file__, "one-context", str(left)], check=False)


def killed() -> tuple[bool, str]:
    """How long after kill -9 the driver and the arbiter have the process's 20 GiB back."""
    took = []
    for _ in range(5):
        holder = subprocess.Popen(
            [sys.executable, __file__, "hold"], stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        start = time.perf_counter()
        holder.send_signal(signal.SIGKILL)
        while used_of_grant():
            pass
        took.append((time.perf_counter() - start) * 1e3)
        holder.wait()
    took.sort()
    return took[-1] < 1000, f"{took[2]:.0f} ms ({took[0]:.0f} to {took[-1]:.0f})"


def hold() -> None:
    driver = begin()
    call(driver.cuMemAlloc, 20 * GIB)
    print("holding", flush=True)
    signal.pause()


def used_of_grant() -> int:
    """What NVML in the grant says is used: the ledger's word."""
    import pynvml

    pynvml.nvmlInit()
    used: int = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used
    return used


CASES: dict[str, tuple[str, Callable[[], tuple[bool, str]]]] = {
    "graphs that allocate, in 8 GiB": ("8GiB", graphs),
    "exported and imported memory, in 8 GiB": ("8GiB", exported),
    "five contexts, in 2 GiB": ("2GiB", contexts),
    "kill -9 of a process with 20 GiB, until it is out of the ledger": ("24GiB", killed),
}


def main() -> int:
    print("| case | what was seen | held |\n|---|---|---|")
    all_held = True
    for name, (memory, _) in CASES.items():
        command = [sys.executable, "-m", "aliquot", "run", "--memory", memory, "--"]
        environment = {**os.environ, "EDGES_CASE": name}
        ended = subprocess.run(
            [*command, sys.executable, __file__, "case"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        failed = (False, ended.stderr.strip()[-300:])
        held, seen = json.loads(ended.stdout) if ended.returncode == 0 else failed
        all_held &= held
        print(f"| {name} | {seen} | {'yes' if held else 'NO'} |", flush=True)
    return 0 if all_held else 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["case"]:
            print(json.dumps(CASES[os.environ["EDGES_CASE"]][1]()))
        case ["one-context", _]:
            one_context()
        case ["hold"]:
            hold()
        case _:
            sys.exit(main())
