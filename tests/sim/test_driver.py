"""The simulated driver: cuda-bindings runs on it unmodified and gets the real driver's answers.

The codes and figures are those of an H200 with driver 580 (CUDA 13.0).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.conftest import Start
from sim.program import Program
from support import wait_until

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_PTX = 100, 101, 201, 218
INVALID_HANDLE, NOT_FOUND, NOT_READY, CONTEXT_IS_DESTROYED = 400, 500, 600, 709
NOT_SUPPORTED, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_IMPLICIT = 801, 900, 901, 906
MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 518
NON_BLOCKING = 1
SYMBOLS = Path(__file__).resolve().parents[2] / "native" / "sim" / "cuda" / "symbols.txt"


@pytest.fixture
def driver(start: Start) -> Program:
    """A program with a context on a simulated H200."""
    program = start("driver", shape="h200:1")
    program("begin")
    return program


@pytest.fixture
def nvml(start: Start, driver: Program) -> Program:
    program = start("nvml", shape="h200:1")
    program("call", "nvmlInit")
    return program


class Took:
    """How many MiB a process took since the last call."""

    def __init__(self, nvml: Program, driver: Program) -> None:
        self._nvml, self._pid = nvml, str(driver.pid)
        self._before = self.all()

    def all(self) -> int:
        return int(self._nvml("processes", 0).get(self._pid, 0))

    def __call__(self) -> int:
        now, before = self.all(), self._before
        self._before = now
        return now - before


@pytest.fixture
def took(nvml: Program, driver: Program) -> Took:
    return Took(nvml, driver)


def allocate(program: Program, size: int) -> int:
    code, address = program("call", "cuMemAlloc", size)
    assert code == SUCCESS
    return int(address)


def test_without_a_simulated_machine_there_is_no_device(start: Start) -> None:
    assert start("driver", ALIQUOT_SIMULATE="")("call", "cuInit", 0) == [NO_DEVICE]
    assert start("driver", ALIQUOT_SIMULATE_STATE="")("call", "cuInit", 0) == [NO_DEVICE]


def test_before_init_nothing_works(start: Start) -> None:
    program = start("driver")
    assert program("call", "cuDeviceGetCount")[0] == NOT_INITIALIZED
    assert program("call", "cuMemAlloc", 10)[0] == NOT_INITIALIZED
    assert program("call", "cuDriverGetVersion") == [SUCCESS, 13000]
    assert program("call", "cuInit", 1) == [INVALID_VALUE]


def test_a_device_has_the_properties_of_its_model(start: Start, driver: Program) -> None:
    assert driver("call", "cuDeviceGetName", 64, 0) == [SUCCESS, "NVIDIA H200"]
    assert driver("call", "cuDeviceTotalMem", 0) == [SUCCESS, (143771 * 1024 - 629824) * 1024]
    assert driver("call", "cuDeviceGetPCIBusId", 13, 0) == [SUCCESS, "0000:18:00.0"]
    assert driver("call", "cuDeviceGet", 1)[0] == INVALID_DEVICE


@pytest.mark.parametrize(
    ("visible", "code", "count"),
    [
        ("0", SUCCESS, 1),
        ("1,0", SUCCESS, 2),
        ("0,7", SUCCESS, 1),
        ("7,0", NO_DEVICE, 0),
        ("0,0", INVALID_DEVICE, 0),
        ("-1", NO_DEVICE, 0),
        ("", NO_DEVICE, 0),
        (" 0", SUCCESS, 1),
        ("0x1", SUCCESS, 1),
        ("+1", SUCCESS, 1),
        ("0;1", SUCCESS, 1),
        ("0,", SUCCESS, 1),
        (",", NO_DEVICE, 0),
        ("NoDevFiles", NO_DEVICE, 0),
        ("GPU-", NO_DEVICE, 0),
        ("MIG-x", NO_DEVICE, 0),
        ("{uuid}", SUCCESS, 1),
        ("{prefix}", SUCCESS, 1),
        ("{lower}", NO_DEVICE, 0),
        ("{uuid},{uuid}", INVALID_DEVICE, 0),
        ("{uuid},7", SUCCESS, 1),
        ("{uuid},0", SUCCESS, 2),
    ],
)
def test_visible_devices(start: Start, visible: str, code: int, count: int) -> None:
    nvml = start("nvml", shape="h100:2")
    nvml("call", "nvmlInit")
    uuid = nvml("of", 1, "nvmlDeviceGetUUID")
    visible = visible.format(uuid=uuid, prefix=uuid[:12], lower=uuid.lower())
    program = start("driver", shape="h100:2", CUDA_VISIBLE_DEVICES=visible)
    assert program("call", "cuInit", 0) == [code]
    expected = [SUCCESS, count] if count else [NOT_INITIALIZED, None]
    assert program("call", "cuDeviceGetCount") == expected


def test_calls_without_a_context(start: Start) -> None:
    program = start("driver")
    program("call", "cuInit", 0)
    assert program("call", "cuMemAlloc", 10)[0] == INVALID_CONTEXT
    assert program("call", "cuMemAlloc", 0)[0] == INVALID_CONTEXT
    assert program("call", "cuMemGetInfo")[0] == INVALID_CONTEXT
    assert program("call", "cuMemFree", 0x7F0000000000) == [INVALID_VALUE]
    assert program("call", "cuMemFree", 0) == [SUCCESS]


def test_a_forked_child_has_no_driver(driver: Program) -> None:
    for call in (["cuMemAlloc", 10], ["cuInit", 0], ["cuDeviceGetCount"]):
        assert driver("in_forked_child", *call) == NOT_INITIALIZED


def test_allocations_take_whole_pages(driver: Program, took: Took) -> None:
    assert took.all() == CONTEXT
    sizes = [1, 1, 512, MIB, 2 * MIB, 2 * MIB + 1, 3 * MIB, 100 * MIB]
    taken = []
    for size in sizes:
        allocate(driver, size)
        taken.append(took())
    assert taken == [2, 0, 0, 0, 2, 4, 4, 100]


def test_invalid_sizes_and_frees_are_refused(driver: Program) -> None:
    assert driver("call", "cuMemAlloc", 0)[0] == INVALID_VALUE
    assert driver("call", "cuMemAlloc", 1 << 50)[0] == OUT_OF_MEMORY
    assert driver("call", "cuMemAlloc", (1 << 64) - 1)[0] == OUT_OF_MEMORY
    address = allocate(driver, 10 * MIB)
    codes = [
        driver("call", "cuMemFree", at)[0]
        for at in (address + 512, address, address, 0xDEAD0000, 0)
    ]
    assert codes == [INVALID_VALUE, SUCCESS, INVALID_VALUE, INVALID_VALUE, SUCCESS]


@pytest.mark.parametrize(
    ("asked", "code", "pitch"),
    [
        ((100, 10, 4), SUCCESS, 512),
        ((513, 100, 4), SUCCESS, 1024),
        ((1000000, 3, 16), SUCCESS, 1000448),
        ((0, 1, 4), INVALID_VALUE, None),
        ((1, 0, 4), INVALID_VALUE, None),
        ((10, 10, 3), INVALID_VALUE, None),
        ((10, 10, 1), INVALID_VALUE, None),
    ],
)
def test_pitched_memory(
    driver: Program, asked: tuple[int, int, int], code: int, pitch: int | None
) -> None:
    got, *results = driver("call", "cuMemAllocPitch", *asked)
    assert (got, results[-1]) == (code, pitch)


def test_copies_return_the_same_bytes(driver: Program) -> None:
    for size in (1, 4096, 3 * MIB):
        assert driver("round_trip", allocate(driver, size), size)
    address = allocate(driver, 4096)
    assert driver("call", "cuMemsetD32", address, 0x04030201, 1024) == [SUCCESS]
    assert driver("read", address, 6) == [1, 2, 3, 4, 1, 2]
    assert driver("call", "cuMemsetD8", address + 1, 0, 4096) == [INVALID_VALUE]


def test_an_allocation_fails_when_the_gpu_is_full(start: Start, driver: Program) -> None:
    other = start("driver", shape="h200:1")
    other("begin")
    allocate(other, 100 * GIB)
    assert driver("call", "cuMemAlloc", 40 * GIB)[0] == OUT_OF_MEMORY
    _, free, total = driver("call", "cuMemGetInfo")
    assert total - free == 100 * GIB + 2 * CONTEXT * MIB + 3328 * 1024
    allocate(driver, free // (2 * MIB) * 2 * MIB)
    assert other("call", "cuMemAlloc", 2 * MIB)[0] == OUT_OF_MEMORY


def test_memory_of_a_killed_process_is_free_at_once(start: Start, driver: Program) -> None:
    for _ in range(3):
        other = start("driver", shape="h200:1")
        other("begin")
        allocate(other, 130 * GIB)
        other.kill()
        address = allocate(driver, 130 * GIB)
        assert driver("call", "cuMemFree", address) == [SUCCESS]


def test_processes_killed_anywhere_leave_no_memory_in_use(
    start: Start, nvml: Program, driver: Program
) -> None:
    for calls in (0, 5, 60, 300):
        programs = [start("driver", shape="h200:1") for _ in range(4)]
        for program in programs:
            program.ask("begin")
        for program in programs[1:]:
            program.answer()
            for number in range(calls):
                program.ask("call", "cuMemAlloc", 1 + number * 100_000)
        for program in programs:
            program.kill()
        assert nvml("processes", 0) == {str(driver.pid): CONTEXT}
    _, free, total = driver("call", "cuMemGetInfo")
    assert total - free == CONTEXT * MIB + 3328 * 1024


def test_managed_memory_counts_for_the_gpu_but_for_no_process(
    driver: Program, nvml: Program, took: Took
) -> None:
    used = nvml("memory", 0)[2]
    assert driver("call", "cuMemAllocManaged", 256 * MIB, 1)[0] == SUCCESS
    assert took() == 0
    assert nvml("memory", 0)[2] - used == 256
    assert driver("call", "cuMemAllocManaged", MIB, 0)[0] == INVALID_VALUE


def test_pools_grow_by_32_mib_and_shrink_after_a_wait(driver: Program, took: Took) -> None:
    addresses, reserved = [], []
    for mib in (1, 2, 20, 31, 32, 33, 100, 127, 500):
        addresses.append(driver("call", "cuMemAllocAsync", mib * MIB, 0)[1])
        reserved.append(driver("pool_figures")[0] // MIB)
    assert reserved == [32, 32, 32, 64, 96, 128, 224, 352, 864]
    assert took() == 864
    for address in addresses:
        assert driver("call", "cuMemFreeAsync", address, 0) == [SUCCESS]
    assert driver("pool_figures") == [864 * MIB, 0]
    driver("call", "cuStreamSynchronize", 0)
    assert driver("pool_figures") == [0, 0]
    assert took() == -864
    assert driver("call", "cuMemFreeAsync", addresses[0], 0) == [INVALID_VALUE]
    assert driver("call", "cuMemFreeAsync", 0, 0) == [SUCCESS]
    assert driver("call", "cuMemAllocAsync", 1 << 50, 0)[0] == OUT_OF_MEMORY


def test_two_mappings_of_one_memory_show_the_same_bytes(driver: Program, took: Took) -> None:
    assert driver("physical", "memory", 64 * MIB) == SUCCESS
    assert took() == 64
    _, base = driver("call", "cuMemAddressReserve", 256 * MIB, 0, 0, 0)
    second = base + 64 * MIB
    assert driver("call", "cuMemMap", base, 64 * MIB, 0, "$memory", 0) == [SUCCESS]
    assert driver("call", "cuMemMap", second, 64 * MIB, 0, "$memory", 0) == [SUCCESS]
    assert driver("call", "cuMemsetD8", base, 5, 16) == [INVALID_VALUE]
    assert driver("allow", base, 128 * MIB) == SUCCESS
    assert driver("call", "cuMemsetD8", base, 5, 16) == [SUCCESS]
    assert driver("read", second, 2) == [5, 5]
    assert driver("call", "cuMemRelease", "$memory") == [SUCCESS]
    assert took() == 0
    assert driver("call", "cuMemUnmap", base, 32 * MIB) == [INVALID_VALUE]
    assert driver("call", "cuMemUnmap", base, 128 * MIB) == [SUCCESS]
    assert took() == -64
    assert driver("call", "cuMemAddressFree", base, 256 * MIB) == [SUCCESS]


def test_memory_of_the_host_is_mapped_beside_the_gpus(driver: Program, took: Took) -> None:
    assert driver("physical", "gpu", 2 * MIB) == SUCCESS
    assert driver("physical", "host", 64 * MIB, "HOST_NUMA") == SUCCESS
    assert took() == 2
    _, base = driver("call", "cuMemAddressReserve", 66 * MIB, 0, 0, 0)
    assert driver("call", "cuMemMap", base, 2 * MIB, 0, "$gpu", 0) == [SUCCESS]
    assert driver("call", "cuMemMap", base + 2 * MIB, 64 * MIB, 0, "$host", 0) == [SUCCESS]
    assert driver("allow", base, 66 * MIB) == SUCCESS
    border = base + 2 * MIB - 8
    assert driver("call", "cuMemsetD8", border, 5, 16) == [SUCCESS]
    assert driver("read", border, 16) == [5] * 16
    assert driver("call", "cuMemUnmap", base, 66 * MIB) == [SUCCESS]
    assert driver("call", "cuMemRelease", "$host") == [SUCCESS]
    assert driver("call", "cuMemRelease", "$gpu") == [SUCCESS]
    assert took() == -2
    assert driver("physical", "none", 2 * MIB, "HOST_NUMA", 1) == INVALID_VALUE


def test_invalid_physical_sizes_are_refused(driver: Program) -> None:
    sizes = (MIB, 0, 1 << 46)
    assert [driver("physical", "odd", size) for size in sizes] == [1, 1, 2]


def test_the_end_of_a_context_frees_everything_in_it(driver: Program, took: Took) -> None:
    assert driver("keep", "second", "cuCtxCreate", None, 0, 0) == SUCCESS
    assert took() == CONTEXT
    allocate(driver, 64 * MIB)
    assert took() == 64
    assert driver("call", "cuCtxDestroy", "$second") == [SUCCESS]
    assert took() == -CONTEXT - 64
    assert driver("call", "cuCtxDestroy", "$second") == [INVALID_CONTEXT]
    allocate(driver, 50 * MIB)
    assert driver("call", "cuDevicePrimaryCtxReset", 0) == [SUCCESS]
    assert took.all() == 0
    assert driver("call", "cuMemAlloc", 10)[0] == CONTEXT_IS_DESTROYED
    assert driver("call", "cuDevicePrimaryCtxRetain", 0)[0] == SUCCESS
    assert driver("call", "cuMemAlloc", 10)[0] == SUCCESS


def test_kernels_are_read_from_ptx(driver: Program) -> None:
    driver("load")
    assert driver("keep", "mixed", "cuModuleGetFunction", "$module", "mixed") == SUCCESS
    info = [driver("call", "cuFuncGetParamInfo", "$mixed", index) for index in range(4)]
    assert info == [[0, 0, 8], [0, 8, 4], [0, 16, 24], [INVALID_VALUE, None, None]]
    assert driver("call", "cuModuleGetFunctionCount", "$module") == [SUCCESS, 5]
    assert driver("call", "cuModuleGetGlobal", "$module", "table")[2] == 64
    assert driver("keep", "none", "cuModuleGetFunction", "$module", "nope") == NOT_FOUND
    assert driver("call", "cuModuleLoadData", ".version 8.0\n\0")[0] == INVALID_PTX


def test_a_spin_takes_exactly_its_time(driver: Program) -> None:
    driver("load")
    for event in ("before", "after"):
        driver("keep", event, "cuEventCreate", 0)
    driver("spin", 200_000_000)  # until everything below is submitted
    driver("call", "cuEventRecord", "$before", 0)
    driver("spin", 5_000_000, None, 3)
    driver("call", "cuEventRecord", "$after", 0)
    driver("call", "cuEventSynchronize", "$after")
    code, elapsed = driver("call", "cuEventElapsedTime", "$before", "$after")
    assert (code, elapsed) == (SUCCESS, pytest.approx(15.0))


def test_a_stream_that_waits_for_a_value_does_not_block_others(driver: Program) -> None:
    driver("load")
    driver("words", "page")
    for stream in ("gated", "free"):
        driver("keep", stream, "cuStreamCreate", NON_BLOCKING)
    assert driver("wait_word", "gated", "page", 0, 7) == SUCCESS
    driver("spin", 1_000_000, "gated")
    driver("write_word", "gated", "page", 1, 9)
    driver("spin", 1_000_000, "free")
    assert driver("call", "cuStreamSynchronize", "$free") == [SUCCESS]
    assert driver("call", "cuStreamQuery", "$gated") == [NOT_READY]
    assert driver("word", "page", 1) == 0
    driver("word", "page", 0, 7)
    assert driver("call", "cuStreamSynchronize", "$gated") == [SUCCESS]
    assert driver("word", "page", 1) == 9


def test_the_default_stream_waits_for_the_others(driver: Program) -> None:
    driver("load")
    driver("words", "page")
    driver("keep", "blocking", "cuStreamCreate", 0)
    driver("wait_word", "blocking", "page", 0, 1)
    driver("spin", 1000)
    assert driver("call", "cuStreamQuery", 0) == [NOT_READY]
    driver("word", "page", 0, 1)
    assert driver("call", "cuStreamSynchronize", 0) == [SUCCESS]
    assert driver("call", "cuStreamQuery", "$blocking") == [SUCCESS]


def test_host_functions_run_in_order(driver: Program) -> None:
    driver("load")
    driver("keep", "stream", "cuStreamCreate", NON_BLOCKING)
    assert driver("host_order", "stream") == [0, 1, 2]


def test_a_captured_graph_can_be_launched_repeatedly(driver: Program, nvml: Program) -> None:
    driver("load")
    for stream in ("first", "second"):
        driver("keep", stream, "cuStreamCreate", NON_BLOCKING)
    driver("keep", "fork", "cuEventCreate", 0)
    driver("keep", "join", "cuEventCreate", 0)
    assert driver("capture", "first") == SUCCESS
    driver("spin", 2_000_000, "first")
    driver("call", "cuEventRecord", "$fork", "$first")
    driver("call", "cuStreamWaitEvent", "$second", "$fork", 0)
    driver("spin", 3_000_000, "second")
    driver("spin", 1_000_000, "first")
    driver("call", "cuEventRecord", "$join", "$second")
    driver("call", "cuStreamWaitEvent", "$first", "$join", 0)
    driver("spin", 4_000_000, "first")
    assert driver("end_capture", "first", "graph") == [SUCCESS, 4, 4]
    assert nvml("busy_ms", 0, driver.pid) == 0
    assert driver("keep", "exec", "cuGraphInstantiate", "$graph", 0) == SUCCESS
    for _ in range(3):
        assert driver("call", "cuGraphLaunch", "$exec", "$first") == [SUCCESS]
    driver("call", "cuStreamSynchronize", "$first")
    assert nvml("busy_ms", 0, driver.pid) == 30


def test_a_capture_forbids_unsafe_calls(driver: Program) -> None:
    driver("keep", "stream", "cuStreamCreate", NON_BLOCKING)
    driver("capture", "stream", "global")
    assert driver("call", "cuMemAlloc", 10)[0] == CAPTURE_UNSUPPORTED
    assert driver("end_capture", "stream", "graph") == [CAPTURE_INVALIDATED]
    driver("capture", "stream")
    allocate(driver, 10)
    assert driver("call", "cuStreamSynchronize", "$stream") == [CAPTURE_UNSUPPORTED]


def test_a_record_that_a_capture_forbids_leaves_the_event_as_it_was(driver: Program) -> None:
    driver("keep", "stream", "cuStreamCreate", 0)
    driver("keep", "event", "cuEventCreate", 0)
    driver("capture", "stream")
    assert driver("call", "cuEventRecord", "$event", 0) == [CAPTURE_IMPLICIT]
    assert driver("end_capture", "stream", "graph") == [CAPTURE_INVALIDATED]
    assert driver("call", "cuEventQuery", "$event") == [0]
    assert driver("call", "cuEventSynchronize", "$event") == [0]


def test_all_processes_share_one_engine(start: Start, driver: Program, nvml: Program) -> None:
    other = start("driver", shape="h200:1")
    other("begin")
    programs = [driver, other]
    for program in programs:
        program("load")
    for program in programs:
        program.ask("spin_timed", 2_000_000, 25)
    times = [program.answer() for program in programs]
    assert max(end for _, end in times) - min(begin for begin, _ in times) >= 0.1
    assert [nvml("busy_ms", 0, program.pid) for program in programs] == [50, 50]


def test_a_killed_process_leaves_the_engine(start: Start, driver: Program, nvml: Program) -> None:
    other = start("driver", shape="h200:1")
    other("begin")
    other("load")
    other("spin", 3600 * 10**9)
    wait_until(lambda: nvml("of", 0, "nvmlDeviceGetUtilizationRates")["gpu"] > 0)
    driver("load")
    driver("spin", 1_000_000)
    other.kill()
    assert driver("call", "cuCtxSynchronize") == [SUCCESS]


def test_many_processes_that_start_together_do_not_delay_each_other(start: Start) -> None:
    """Compared with the same processes one by one, so a busy machine slows both sides down."""
    program = start("driver", shape="h200:1")
    rounds = [[program("start_many", 128, size) for size in (128, 1)] for _ in range(3)]
    together, one_by_one = (min(times) for times in zip(*rounds, strict=True))
    assert together < 2 * one_by_one, rounds


def test_the_library_exports_exactly_the_driver_functions(driver: Program) -> None:
    names = [line for line in SYMBOLS.read_text().split("\n") if re.match(r"cu\w+$", line)]
    assert len(names) == 682
    assert driver("exported", names) == names
    assert driver("exported", ["cuFuncGetParamCount", "cuGraphGetId", "cuNope"]) == []


@pytest.mark.parametrize(
    ("name", "version", "flags", "answer"),
    [
        ("cuMemAlloc", 13000, 0, [0, 0, "cuMemAlloc_v2"]),
        ("cuMemAlloc", 3010, 0, [0, 0, "cuMemAlloc"]),
        ("cuMemcpyHtoD", 13000, 2, [0, 0, "cuMemcpyHtoD_v2_ptds"]),
        ("cuMemcpyHtoD", 4000, 2, [0, 2, None]),
        ("cuStreamBeginCapture", 10000, 2, [0, 0, "cuStreamBeginCapture_ptsz"]),
        ("cuCtxCreate", 13000, 0, [0, 0, "cuCtxCreate_v4"]),
        ("cuMemAllocAsync", 11010, 0, [0, 2, None]),
        ("cuMemAlloc_v2", 13000, 0, [0, 1, None]),
        ("cuNope", 13000, 0, [0, 1, None]),
        ("cuInit", 14000, 0, [1, None, None]),
        ("cuInit", 13000, 64, [1, None, None]),
    ],
)
def test_look_ups(
    driver: Program, name: str, version: int, flags: int, answer: list[object]
) -> None:
    assert driver("look_up", name, version, flags) == answer


def test_functions_that_are_not_simulated_return_not_supported(driver: Program) -> None:
    assert driver("call", "cuIpcGetEventHandle", 0)[0] == NOT_SUPPORTED
