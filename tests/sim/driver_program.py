"""The program of test_driver.py: cuda-bindings on the simulated driver, one call a line.

Results have the driver's error codes; an address identifies an allocation.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from typing import Any

from cuda.bindings import driver

from sim.pages import PAGE, PAGES
from sim.program import serve

PTX = b"""
.version 8.0
.target sm_75
.address_size 64
// .entry in_a_comment()
.visible .global .align 8 .b8 table[64];
.visible .entry aliquot_spin(
    .param .u64 nanoseconds
)
{
    ret;
}
.visible .entry aliquot_wait(.param .u64 address, .param .u64 value) { ret; }
.visible .entry aliquot_set(.param .u64 address, .param .u64 value) { ret; }
.visible .entry aliquot_fault() { ret; }
.visible .entry mixed(.param .u64 .ptr .global a, .param .u32 b, .param .align 8 .b8 c[24])
.maxntid 256, 1, 1
{
    .shared .align 4 .b8 tile[128];
    ret;
}
\0"""
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL

NON_BLOCKING = 1

kept: dict[str, Any] = {}


def plain(value: Any) -> Any:
    """A result for JSON: handles, addresses and enumerations are numbers."""
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if isinstance(value, bytes):
        return value.rstrip(b"\0 ").decode()
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return int(value)


def call(name: str, *arguments: Any) -> Any:
    """A driver function by its name: [code, results...]; strings "$x" name what `keep` kept."""
    real = [kept[a[1:]] if isinstance(a, str) and a.startswith("$") else a for a in arguments]
    real = [a.encode() if isinstance(a, str) else a for a in real]
    code, *results = getattr(driver, name)(*real)
    return [int(code), *(plain(result) for result in results)]


def keep(key: str, name: str, *arguments: Any) -> Any:
    """As `call`, and stores the result under a name."""
    real = [kept[a[1:]] if isinstance(a, str) and a.startswith("$") else a for a in arguments]
    real = [a.encode() if isinstance(a, str) else a for a in real]
    code, *results = getattr(driver, name)(*real)
    if results:
        kept[key] = results[0]
    return int(code)


def done(result: tuple[Any, ...]) -> Any:
    assert int(result[0]) == 0, result
    return result[1] if len(result) > 1 else None


def begin(device: int = 0) -> int:
    """A primary context on the device, current in this thread."""
    done(driver.cuInit(0))
    kept["context"] = done(driver.cuDevicePrimaryCtxRetain(device))
    done(driver.cuCtxSetCurrent(kept["context"]))
    return 0


def load() -> int:
    kept["module"] = done(driver.cuModuleLoadData(PTX))
    for name in ("spin", "wait", "set", "fault"):
        function = driver.cuModuleGetFunction(kept["module"], f"aliquot_{name}".encode())
        kept[name] = done(function)
    return 0


def launch(name: str, stream: str | None = None, *words: int | str) -> int:
    """Launch a kernel that `load` found; "page+8" is an address in a page."""
    target = kept[stream] if stream else 0
    values = tuple(_address(word) if isinstance(word, str) else word for word in words)
    arguments = (values, (ctypes.c_uint64,) * len(values)) if values else 0
    return int(driver.cuLaunchKernel(kept[name], 1, 1, 1, 1, 1, 1, 0, target, arguments, 0)[0])


def _address(place: str) -> int:
    key, _, offset = place.partition("+")
    return int(kept[key]) + int(offset or 0)


def attribute(number: int) -> int:
    return int(done(driver.cuDeviceGetAttribute(driver.CUdevice_attribute(number), 0)))


def spin(nanoseconds: int, stream: str | None = None, times: int = 1) -> int:
    target = kept[stream] if stream else 0
    arguments = ((nanoseconds,), (ctypes.c_uint64,))
    for _ in range(times):
        done(driver.cuLaunchKernel(kept["spin"], 1, 1, 1, 1, 1, 1, 0, target, arguments, 0))
    return 0


def pass_by() -> int:
    """Run a kernel in a separate context to its end: by then everything that can run has run."""
    context = done(driver.cuCtxCreate(None, 0, 0))
    module = done(driver.cuModuleLoadData(PTX))
    function = done(driver.cuModuleGetFunction(module, b"mixed"))
    arguments = ((0, 0, 0, 0, 0), (ctypes.c_uint64, ctypes.c_uint32, *[ctypes.c_uint64] * 3))
    done(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0))
    done(driver.cuCtxSynchronize())
    done(driver.cuCtxDestroy(context))
    return 0


def spin_timed(nanoseconds: int, times: int) -> list[float]:
    """Run spins to their end; the host's time of submission and end."""
    start = time.monotonic()
    spin(nanoseconds, None, times)
    done(driver.cuCtxSynchronize())
    return [start, time.monotonic()]


def spins_took(nanoseconds: int, times: int) -> float:
    """GPU time in ms of `times` spins back to back, which start when all are submitted."""
    kept["timed"] = done(driver.cuStreamCreate(NON_BLOCKING))
    words("gate")
    wait_word("timed", "gate", 0, 1)
    before, after = (done(driver.cuEventCreate(0)) for _ in range(2))
    done(driver.cuEventRecord(before, kept["timed"]))
    spin(nanoseconds, "timed", times)
    done(driver.cuEventRecord(after, kept["timed"]))
    word("gate", 0, 1)
    done(driver.cuEventSynchronize(after))
    return float(done(driver.cuEventElapsedTime(before, after)))


def round_trip(address: int, size: int) -> bool:
    """Whether random bytes are the same after a copy to the GPU and back."""
    sent, got = bytearray(os.urandom(size)), bytearray(size)
    done(driver.cuMemcpyHtoD(address, sent, size))
    done(driver.cuMemcpyDtoH(got, address, size))
    return sent == got


def read(address: int, size: int) -> list[int]:
    got = bytearray(size)
    done(driver.cuMemcpyDtoH(got, address, size))
    return list(got)


def physical(key: str, size: int, location: str = "DEVICE", node: int = 0) -> int:
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = getattr(driver.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{location}")
    prop.location.id = node
    code, kept[key] = driver.cuMemCreate(size, prop, 0)
    return int(code)


def allow(address: int, size: int) -> int:
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return int(driver.cuMemSetAccess(address, size, [access], 1)[0])


def pool_figures() -> list[int]:
    """Bytes that the default pool has reserved, and that are in use."""
    pool = done(driver.cuDeviceGetDefaultMemPool(0))
    which = driver.CUmemPool_attribute
    reserved = which.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    used = which.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    return [int(done(driver.cuMemPoolGetAttribute(pool, item))) for item in (reserved, used)]


def words(key: str, kind: str = "pinned") -> int:
    """Allocate a page of a kind in PAGES, for values that the GPU waits for and writes."""
    code, kept[key], kept[f"{key} here"] = PAGES[kind]()
    return code


def word(key: str, index: int, value: int | None = None) -> int:
    """Read a value in a page; write it first if `value` is given."""
    view = (ctypes.c_uint64 * (PAGE // 8)).from_address(kept[f"{key} here"])
    if value is not None:
        view[index] = value
    return view[index]


def wait_until_word(key: str, index: int, value: int) -> int:
    """Wait for a value that the GPU writes."""
    deadline = time.monotonic() + 60
    while word(key, index) != value:
        assert time.monotonic() < deadline, (key, index, word(key, index))
        time.sleep(0.0001)
    return 0


def open_after(key: str, nanoseconds: int) -> float:
    """Set a page's first value to 1 after at least that time; the seconds that it took."""
    begun = time.monotonic()
    while time.monotonic() - begun < nanoseconds / 1e9:
        pass
    waited = time.monotonic() - begun
    word(key, 0, 1)
    return waited


def wait_word(stream: str, key: str, index: int, value: int) -> int:
    flags = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
    return int(
        driver.cuStreamWaitValue64(kept[stream], int(kept[key]) + 8 * index, value, flags)[0]
    )


def write_word(stream: str, key: str, index: int, value: int) -> int:
    return int(driver.cuStreamWriteValue64(kept[stream], int(kept[key]) + 8 * index, value, 0)[0])


def operate(symbol: str, stream: str | None, place: str, value: int) -> int:
    """An exported stream memory operation by its symbol; a wait is for at least the value."""
    flags = 0
    wide = ctypes.c_uint64 if "64" in symbol else ctypes.c_uint32
    function = getattr(ctypes.CDLL("libcuda.so.1"), symbol)
    target = ctypes.c_void_p(int(kept[stream])) if stream else None
    return int(function(target, ctypes.c_uint64(_address(place)), wide(value), flags))


def batch(symbol: str, stream: str, *operations: tuple[str, str, int]) -> int:
    """("wait64" or "write32"..., place, value), ... in one call."""
    kinds = {"wait32": 1, "write32": 2, "wait64": 4, "write64": 5}
    packed = b"".join(
        struct.pack("<IxxxxQQIxxxxQ8x", kinds[kind], _address(place), value, 0, 0)
        for kind, place, value in operations
    )
    function = getattr(ctypes.CDLL("libcuda.so.1"), symbol)
    return int(function(ctypes.c_void_p(int(kept[stream])), len(operations), packed, 0))


def gate_delays(stream: str, times: int) -> list[float]:
    """Seconds from the write of each of `times` values until the GPU's answer to it."""
    words("delays")
    delays = []
    for number in range(1, times + 1):
        wait_word(stream, "delays", 0, number)
        write_word(stream, "delays", 1, number)
        opened = time.monotonic()
        word("delays", 0, number)
        while word("delays", 1) != number:
            pass
        delays.append(time.monotonic() - opened)
    return delays


def capture(stream: str, mode: str = "relaxed") -> int:
    return int(
        driver.cuStreamBeginCapture(kept[stream], GLOBAL if mode == "global" else RELAXED)[0]
    )


def end_capture(stream: str, key: str) -> list[int]:
    """The code, and the number of nodes and edges of the captured graph."""
    code, graph = driver.cuStreamEndCapture(kept[stream])
    if int(code):
        return [int(code)]
    kept[key] = graph
    return [0, driver.cuGraphGetNodes(graph, 0)[-1], driver.cuGraphGetEdges(graph, 0)[-1]]


def look_up(name: str, version: int, flags: int) -> list[Any]:
    """cuGetProcAddress: the code, the status and which export it is."""
    code, address, status = driver.cuGetProcAddress(name.encode(), version, flags)
    if not address:
        return [int(code), plain(status), None]
    library = ctypes.CDLL("libcuda.so.1")
    ends = ("", "_v2", "_v3", "_v4", "_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds", "_v3_ptsz")
    for end in ends:
        export = getattr(library, name + end, None)
        if export and ctypes.cast(export, ctypes.c_void_p).value == int(address):
            return [int(code), plain(status), name + end]
    return [int(code), plain(status), "?"]


def exported(names: list[str]) -> list[str]:
    """The names that the library exports."""
    library = ctypes.CDLL("libcuda.so.1")
    return [name for name in names if hasattr(library, name)]


def in_forked_child(name: str, *arguments: Any) -> int:
    """The result of a driver call in a forked child."""
    pid = os.fork()
    if not pid:
        os._exit(int(getattr(driver, name)(*arguments)[0]))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def start_many(count: int, at_a_time: int) -> float:
    """Seconds until `count` forked processes have contexts, so many started at a time."""
    reader, writer = os.pipe()
    hold_reader, hold_writer = os.pipe()
    begun = time.monotonic()
    children = []
    ready = 0
    for number in range(1, count + 1):
        pid = os.fork()
        if not pid:
            os.close(hold_writer)
            begin()
            os.write(writer, b"x")
            os.read(hold_reader, 1)
            os._exit(0)
        children.append(pid)
        while number % at_a_time == 0 and ready < number:
            ready += len(os.read(reader, count))
    seconds = time.monotonic() - begun
    for pipe in (reader, writer, hold_reader, hold_writer):
        os.close(pipe)
    for pid in children:
        os.waitpid(pid, 0)
    return seconds


def host_order(stream: str) -> list[int]:
    """Launch three host functions, each after a spin; the order in which they ran."""
    seen: list[int] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    functions = [kind(lambda _, number=number: seen.append(number)) for number in range(3)]
    for function in functions:
        spin(100_000, stream)
        address = ctypes.cast(function, ctypes.c_void_p).value
        done(driver.cuLaunchHostFunc(kept[stream], address, 0))
    done(driver.cuStreamSynchronize(kept[stream]))
    return seen


CALLS = (
    call, keep, begin, load, launch, attribute, spin, pass_by, spin_timed, spins_took, round_trip,
    read, physical, allow, pool_figures, words, word, wait_until_word, open_after, wait_word,
    write_word, operate, batch, gate_delays, capture, end_capture, look_up, exported,
    in_forked_child, start_many, host_order,
)  # fmt: skip

if __name__ == "__main__":
    serve({function.__name__: function for function in CALLS})
