"""The simulated NVML: nvidia-ml-py and monitoring tools show the machine correctly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sim.conftest import Start
from sim.program import Program
from support import wait_until

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED = 1, 2, 3, 6, 9
CONTEXT, BASELINE = 518, 3
SINGLE, NODE, SYSTEM = 10, 40, 50
GIB = 1 << 30


def nvml_of(start: Start, shape: str) -> Program:
    program = start("nvml", shape=shape)
    program("call", "nvmlInit")
    return program


def test_without_a_simulated_machine_there_is_no_driver(start: Start) -> None:
    assert start("nvml", ALIQUOT_SIMULATE="")("call", "nvmlInit") == f"error {DRIVER_NOT_LOADED}"


def test_an_unknown_model_is_refused(start: Start) -> None:
    for shape in ("h9000:1", "h100:0", "h100:17", "h100:x", ":1"):
        assert start("nvml", shape=shape)("call", "nvmlInit") == f"error {DRIVER_NOT_LOADED}"


def test_a_state_folder_holds_one_machine(start: Start, nvml: Program) -> None:
    other = start("nvml", shape="h200:2")
    assert other("call", "nvmlInit") == f"error {DRIVER_NOT_LOADED}"


def test_init_and_shutdown_are_counted(start: Start) -> None:
    program = start("nvml")
    assert program("call", "nvmlDeviceGetCount") == f"error {UNINITIALIZED}"
    for _ in range(2):
        program("call", "nvmlInit")
    program("call", "nvmlShutdown")
    assert program("call", "nvmlDeviceGetCount") == 1
    program("call", "nvmlShutdown")
    assert program("call", "nvmlDeviceGetCount") == f"error {UNINITIALIZED}"


def test_versions(nvml: Program) -> None:
    assert nvml("call", "nvmlSystemGetDriverVersion").startswith("580.")
    assert nvml("call", "nvmlSystemGetNVMLVersion").startswith("13.580.")
    assert nvml("call", "nvmlSystemGetCudaDriverVersion") == 13000


@pytest.mark.parametrize(
    ("model", "name", "memory_mib", "capability"),
    [
        ("h200", "NVIDIA H200", 143771, [9, 0]),
        ("h100", "NVIDIA H100 80GB HBM3", 81559, [9, 0]),
        ("a100", "NVIDIA A100-SXM4-80GB", 81920, [8, 0]),
        ("l40s", "NVIDIA L40S", 46068, [8, 9]),
        ("l4", "NVIDIA L4", 23034, [8, 9]),
        ("t4", "Tesla T4", 15360, [7, 5]),
    ],
)
def test_every_model_has_its_properties(
    start: Start, model: str, name: str, memory_mib: int, capability: list[int]
) -> None:
    program = nvml_of(start, f"{model}:1")
    assert program("of", 0, "nvmlDeviceGetName") == name
    assert program("memory", 0)[0] == memory_mib
    assert program("of", 0, "nvmlDeviceGetCudaComputeCapability") == capability


def test_devices_are_found_by_index_uuid_bus_and_serial(start: Start) -> None:
    program = nvml_of(start, "h100:8")
    uuids = [program("of", index, "nvmlDeviceGetUUID") for index in range(8)]
    assert len(set(uuids)) == 8
    pci = program("of", 3, "nvmlDeviceGetPciInfo")
    assert (pci["busId"], pci["busIdLegacy"]) == ("00000000:5D:00.0", "0000:5D:00.0")
    assert "error" not in program("call", "nvmlDeviceGetHandleByUUID", uuids[3])
    assert "error" not in program("call", "nvmlDeviceGetHandleByPciBusId", "0000:5D:00.0")
    assert program("call", "nvmlDeviceGetHandleByUUID", "GPU-nope") == f"error {NOT_FOUND}"
    assert program("call", "nvmlDeviceGetHandleByIndex", 8) == f"error {INVALID_ARGUMENT}"
    assert program("of", 3, "nvmlDeviceGetMinorNumber") == 3


def test_uuids_are_the_same_in_every_process(start: Start, nvml: Program) -> None:
    again = nvml_of(start, "h100:1")
    assert nvml("of", 0, "nvmlDeviceGetUUID") == again("of", 0, "nvmlDeviceGetUUID")


def test_memory_and_processes_show_what_each_took(start: Start, nvml: Program) -> None:
    total, reserved, used, free = nvml("memory", 0)
    assert (used, nvml("processes", 0)) == (BASELINE, {})
    assert total - reserved - used - 1 <= free <= total - reserved - used
    first, second = start("driver"), start("driver")
    first("begin")
    second("begin")
    second("call", "cuMemAlloc", GIB)
    assert nvml("processes", 0) == {str(first.pid): CONTEXT, str(second.pid): CONTEXT + 1024}
    assert nvml("memory", 0)[2] == BASELINE + 2 * CONTEXT + 1024
    assert sys.executable in nvml("call", "nvmlSystemGetProcessName", second.pid)


def test_a_killed_process_disappears_at_once(start: Start, nvml: Program) -> None:
    program = start("driver")
    program("begin")
    program("call", "cuMemAlloc", 20 * GIB)
    program.kill()
    assert nvml("processes", 0) == {}
    assert nvml("memory", 0)[2] == BASELINE


def test_utilization_is_the_time_of_kernels(start: Start, nvml: Program) -> None:
    program = start("driver")
    program("begin")
    program("load")
    assert nvml("of", 0, "nvmlDeviceGetUtilizationRates")["gpu"] == 0
    program("spin_timed", 25_000_000, 4)
    assert nvml("busy_ms", 0, program.pid) == 100
    program("spin", 3600 * 10**9)
    wait_until(lambda: nvml("of", 0, "nvmlDeviceGetUtilizationRates")["gpu"] == 100)
    [sample] = nvml("of", 0, "nvmlDeviceGetProcessUtilization", 0)
    assert (sample["pid"], sample["smUtil"]) == (program.pid, 100)


def test_a_machine_with_switches(start: Start) -> None:
    program = nvml_of(start, "h100:8")
    ancestor = "nvmlDeviceGetTopologyCommonAncestor"
    assert [program("of", 0, ancestor, f"#{i}") for i in (1, 2, 4)] == [SINGLE, NODE, SYSTEM]
    remote = program("links", 0)
    assert len(remote) == 18
    assert remote == program("links", 7)
    assert program("of", 0, "nvmlDeviceGetP2PStatus", "#7", 2) == 0


def test_a_machine_with_pairs(start: Start) -> None:
    program = nvml_of(start, "a100:4")
    bus_ids = [program("of", index, "nvmlDeviceGetPciInfo")["busId"] for index in range(4)]
    assert program("links", 0) == [bus_ids[1]] * 12
    assert program("links", 3) == [bus_ids[2]] * 12


def test_a_machine_with_no_links(start: Start) -> None:
    program = nvml_of(start, "t4:8")
    assert program("links", 0) == []
    assert program("of", 0, "nvmlDeviceGetNvLinkState", 0) == f"error {NOT_SUPPORTED}"
    assert program("of", 0, "nvmlDeviceGetMigMode") == f"error {NOT_SUPPORTED}"


def test_units_the_gpu_lacks_are_not_supported(nvml: Program) -> None:
    for name in ("nvmlDeviceGetFanSpeed", "nvmlDeviceGetBridgeChipInfo"):
        assert nvml("of", 0, name) == f"error {NOT_SUPPORTED}"


@pytest.mark.parametrize("command", [["nvitop", "-1", "--no-unicode"], ["gpustat", "--no-color"]])
def test_monitors_show_the_machine(
    sim_env: dict[str, str], start: Start, command: list[str]
) -> None:
    program = start("driver")
    program("begin")
    program("call", "cuMemAlloc", 10 * GIB)
    tool = Path(sys.executable).with_name(command[0])
    shown = subprocess.run(
        [tool, *command[1:]], env=sim_env, capture_output=True, text=True, check=True
    )
    assert "H100" in shown.stdout
    assert str(10 * 1024 + CONTEXT + BASELINE) in shown.stdout or "10.51GiB" in shown.stdout
