"""The program of test_checkpoint*.py: driver calls, calls in threads, and checkpoint steps."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from typing import Any

from cuda.bindings import driver

from sim import driver_program
from sim.driver_program import call, done, keep, kept, wait_until_word
from sim.program import serve

FILE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def state(pid: int) -> list[int]:
    """The code, and the state if there is one."""
    code, found = driver.cuCheckpointProcessGetState(pid)
    return [int(code), int(found)] if not int(code) else [int(code)]


def lock(pid: int, milliseconds: int | None = None) -> int:
    """Lock a process; None: without arguments, so without a timeout."""
    arguments = None
    if milliseconds is not None:
        arguments = driver.CUcheckpointLockArgs()
        arguments.timeoutMs = milliseconds
    return int(driver.cuCheckpointProcessLock(pid, arguments)[0])


def checkpoint(pid: int) -> int:
    return int(driver.cuCheckpointProcessCheckpoint(pid, None)[0])


def restore(pid: int) -> int:
    return int(driver.cuCheckpointProcessRestore(pid, None)[0])


def unlock(pid: int) -> int:
    return int(driver.cuCheckpointProcessUnlock(pid, None)[0])


def with_words(step: str, pid: int, words: dict[str, int]) -> int:
    """A step with eight argument words, which are 0 except at the given positions."""
    arguments = (ctypes.c_uint64 * 8)()
    for place, value in words.items():
        arguments[int(place)] = value
    function = getattr(ctypes.CDLL("libcuda.so.1"), f"cuCheckpointProcess{step}")
    return int(function(pid, ctypes.byref(arguments)))


def onto_itself(pid: int) -> int:
    """A restore that maps a GPU to itself."""
    pair = driver.CUcheckpointGpuPair()
    pair.oldUuid = pair.newUuid = done(driver.cuDeviceGetUuid(0))
    arguments = driver.CUcheckpointRestoreArgs()
    arguments.gpuPairs = [pair]
    arguments.gpuPairsCount = 1
    return int(driver.cuCheckpointProcessRestore(pid, arguments)[0])


def try_to_begin() -> int:
    """Retain a primary context; the driver's code."""
    done(driver.cuInit(0))
    code, kept["context"] = driver.cuDevicePrimaryCtxRetain(0)
    if not int(code):
        done(driver.cuCtxSetCurrent(kept["context"]))
    return int(code)


def step_forever(pids: list[int]) -> None:
    """All steps on all processes, ignoring the results."""
    while True:
        for pid in pids:
            driver.cuCheckpointProcessLock(pid, None)
            driver.cuCheckpointProcessCheckpoint(pid, None)
            driver.cuCheckpointProcessRestore(pid, None)
            driver.cuCheckpointProcessUnlock(pid, None)


def in_thread(key: str, name: str, *arguments: Any) -> int:
    """As `call`, in a new thread; `answer_of` returns the result."""
    begun = threading.Event()

    def body() -> None:
        begun.set()
        done(driver.cuCtxSetCurrent(kept["context"]))
        kept[key] = call(name, *arguments)

    kept[key] = None
    threading.Thread(target=body, daemon=True).start()
    begun.wait()
    return 0


def answer_of(key: str) -> Any:
    """The result of a call in a thread; None: it has not returned."""
    return kept[key]


def by_symbol(symbol: str, *keys: str) -> int:
    """Call an exported function by its symbol, with handles that `keep` stored."""
    handles = [ctypes.c_void_p(int(kept[key])) for key in keys]
    return int(getattr(ctypes.CDLL("libcuda.so.1"), symbol)(*handles))


def query_forever(stream: str) -> None:
    """Query a stream in a loop, in a new thread."""
    query, handle = ctypes.CDLL("libcuda.so.1").cuStreamQuery, ctypes.c_void_p(int(kept[stream]))

    def body() -> None:
        while True:
            query(handle)

    threading.Thread(target=body, daemon=True).start()


def redirect_stderr(path: str) -> None:
    """Redirect standard error to a file."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), sys.stderr.fileno())


def ignore_sigsegv() -> None:
    """Ignore and block SIGSEGV."""
    signal.signal(signal.SIGSEGV, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGSEGV])


def hold_up(stream: str, key: str) -> int:
    """Launch a host function that returns when the page's first value is 1."""

    def stand(_: object) -> None:
        wait_until_word(key, 0, 1)

    kept[f"{key} stands"] = function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(stand)
    address = ctypes.cast(function, ctypes.c_void_p).value
    return int(driver.cuLaunchHostFunc(kept[stream], address, 0)[0])


def share(key: str) -> int:
    """Create and export memory; the file descriptor."""
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.requestedHandleTypes = FILE
    kept[key] = done(driver.cuMemCreate(2 << 20, prop, 0))
    return int(done(driver.cuMemExportToShareableHandle(kept[key], FILE, 0)))


def borrow(key: str, path: str) -> int:
    """Import memory that another process exported, by the path of its file."""
    return int(keep(key, "cuMemImportFromShareableHandle", os.open(path, os.O_RDWR), FILE))


CALLS = (
    *driver_program.CALLS, state, lock, checkpoint, restore, unlock, with_words, onto_itself,
    try_to_begin, step_forever, in_thread, answer_of, by_symbol, query_forever,
    redirect_stderr, ignore_sigsegv, hold_up, share, borrow,
)  # fmt: skip

if __name__ == "__main__":
    serve({function.__name__: function for function in CALLS})
