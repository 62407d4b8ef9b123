"""The program of test_checkpoint*.py: the driver's, calls in threads, and what locks others."""

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
    """None: with no arguments, which is no limit."""
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
    """A step with arguments by their places: eight words that are 0 but for those named."""
    arguments = (ctypes.c_uint64 * 8)()
    for place, value in words.items():
        arguments[int(place)] = value
    function = getattr(ctypes.CDLL("libcuda.so.1"), f"cuCheckpointProcess{step}")
    return int(function(pid, ctypes.byref(arguments)))


def onto_itself(pid: int) -> int:
    """A restore that names a GPU and the same one again as the one to go to."""
    pair = driver.CUcheckpointGpuPair()
    pair.oldUuid = pair.newUuid = done(driver.cuDeviceGetUuid(0))
    arguments = driver.CUcheckpointRestoreArgs()
    arguments.gpuPairs = [pair]
    arguments.gpuPairsCount = 1
    return int(driver.cuCheckpointProcessRestore(pid, arguments)[0])


def try_to_begin() -> int:
    """A primary context, if there is room for it: the driver's code."""
    done(driver.cuInit(0))
    code, kept["context"] = driver.cuDevicePrimaryCtxRetain(0)
    if not int(code):
        done(driver.cuCtxSetCurrent(kept["context"]))
    return int(code)


def step_for_ever(pids: list[int]) -> None:
    """All steps on all of them, whatever they answer."""
    while True:
        for pid in pids:
            driver.cuCheckpointProcessLock(pid, None)
            driver.cuCheckpointProcessCheckpoint(pid, None)
            driver.cuCheckpointProcessRestore(pid, None)
            driver.cuCheckpointProcessUnlock(pid, None)


def in_thread(key: str, name: str, *arguments: Any) -> int:
    """As `call`, in a thread of its own that has begun; `answer_of` says what it answered."""
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
    """None: it stands in the call."""
    return kept[key]


def by_symbol(symbol: str, *keys: str) -> int:
    """A function by its name in the library, with handles that `keep` kept."""
    handles = [ctypes.c_void_p(int(kept[key])) for key in keys]
    return int(getattr(ctypes.CDLL("libcuda.so.1"), symbol)(*handles))


def look_for_ever(stream: str) -> None:
    """Ask for a stream without a pause, in a thread of its own."""
    query, handle = ctypes.CDLL("libcuda.so.1").cuStreamQuery, ctypes.c_void_p(int(kept[stream]))

    def body() -> None:
        while True:
            query(handle)

    threading.Thread(target=body, daemon=True).start()


def complain_to(path: str) -> None:
    """Standard error goes to a file from now on."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), sys.stderr.fileno())


def shut_out_faults() -> None:
    """As a program that wants to live on after each."""
    signal.signal(signal.SIGSEGV, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGSEGV])


def hold_up(stream: str, key: str) -> int:
    """A host function that stands until the page's first word is 1."""

    def stand(_: object) -> None:
        wait_until_word(key, 0, 1)

    kept[f"{key} stands"] = function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(stand)
    address = ctypes.cast(function, ctypes.c_void_p).value
    return int(driver.cuLaunchHostFunc(kept[stream], address, 0)[0])


def share(key: str) -> int:
    """Memory that is exported; the file's number."""
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.requestedHandleTypes = FILE
    kept[key] = done(driver.cuMemCreate(2 << 20, prop, 0))
    return int(done(driver.cuMemExportToShareableHandle(kept[key], FILE, 0)))


def borrow(key: str, path: str) -> int:
    """Import what another process exported, by the path of its file."""
    return int(keep(key, "cuMemImportFromShareableHandle", os.open(path, os.O_RDWR), FILE))


CALLS = (
    *driver_program.CALLS, state, lock, checkpoint, restore, unlock, with_words, onto_itself,
    try_to_begin, step_for_ever, in_thread, answer_of, by_symbol, look_for_ever,
    complain_to, shut_out_faults, hold_up, share, borrow,
)  # fmt: skip

if __name__ == "__main__":
    serve({function.__name__: function for function in CALLS})
