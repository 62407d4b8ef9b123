"""gpu_time.py knows the layout of the machine's file, and reads the engine's figures."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from sim import gpu_time
from sim.conftest import Start
from support import wait_until

SIM = Path(__file__).resolve().parents[2] / "native" / "sim" / "machine"
MS = 1_000_000
STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "sim_history": gpu_time.History,
    "sim_usage": gpu_time.Usage,
    "sim_process": gpu_time.Process,
    "sim_ended": gpu_time.Ended,
    "sim_seat": gpu_time.Seat,
    "sim_request": gpu_time.Request,
    "sim_gpu": gpu_time.Engine,
    "sim_share": gpu_time.Share,
    "sim_instance": gpu_time.Instance,
    "sim_compute": gpu_time.Compute,
    "sim_map": gpu_time.Map,
}


@pytest.fixture
def place(sim_env: dict[str, str]) -> Path:
    return Path(sim_env["ALIQUOT_SIMULATE_STATE"])


def members(structure: type[ctypes.Structure]) -> list[str]:
    """Those of the structures that it begins with, then its own."""
    kinds = reversed(structure.__mro__)
    return [member[0] for kind in kinds for member in vars(kind).get("_fields_", ())]


def layout(name: str) -> list[str]:
    """A structure's size and the offsets of its members, as C expressions."""
    places = [f"offsetof(struct {name}, {member})" for member in members(STRUCTURES[name])]
    return [f"sizeof(struct {name})", *places]


def test_the_layout_is_that_of_the_simulation(tmp_path: Path) -> None:
    expressions = [text for name in STRUCTURES for text in layout(name)]
    expressions += ["(size_t)SIM_MAGIC", "(size_t)SIM_VERSION", "(size_t)SIM_QUEUED"]
    prints = "".join(f'printf("%zu\\n", {text});' for text in expressions)
    source = f"""
        #include "machine.h"
        #include <stddef.h>
        #include <stdio.h>
        int main(void) {{ {prints} return 0; }}
    """
    program = tmp_path / "layout"
    command = ["gcc", f"-I{SIM}", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source, text=True, check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    expected: list[int] = []
    for structure in STRUCTURES.values():
        expected.append(ctypes.sizeof(structure))
        expected += [getattr(structure, member).offset for member in members(structure)]
    expected += [gpu_time.MAGIC, gpu_time.VERSION, gpu_time.QUEUED]
    assert dict(zip(expressions, map(int, found), strict=True)) == dict(
        zip(expressions, expected, strict=True)
    )


def test_the_time_of_each_process_and_gpu_is_read(start: Start, place: Path) -> None:
    first, second = (start("driver", shape="h100:2") for _ in range(2))
    for program, device in ((first, 0), (second, 1)):
        program("begin", device)
        program("load")
        program("spin_timed", 3 * MS, 5 + device)
    assert gpu_time.busy_ns(place) == {(first.pid, 0): 15 * MS, (second.pid, 1): 18 * MS}
    assert gpu_time.read(place).gpus == {0: 15 * MS, 1: 18 * MS}


def test_a_running_kernel_counts_up_to_now(start: Start, place: Path) -> None:
    program = start("driver")
    program("begin")
    program("load")
    program("spin", 3600 * 1000 * MS)
    wait_until(lambda: gpu_time.busy_ns(place).get((program.pid, 0), 0) > 20 * MS)
    earlier = gpu_time.read(place)
    wait_until(lambda: gpu_time.read(place).gpus[0] > earlier.gpus[0])


def test_processes_that_ended_are_still_listed(start: Start, place: Path) -> None:
    program = start("driver")
    program("begin")
    program("load")
    program("spin_timed", 3 * MS, 5)
    program.kill()
    for _ in range(2):
        other = start("driver")
        other("begin")
        other("call", "cuMemGetInfo")  # clears entries of dead processes
        other("load")
        other("spin_timed", MS, 1)
        assert gpu_time.busy_ns(place)[program.pid, 0] == 15 * MS
    found = gpu_time.read(place)
    assert found.gpus[0] == sum(found.processes.values()) == 17 * MS


def test_a_process_killed_in_a_kernel_keeps_its_time(start: Start, place: Path) -> None:
    program, other = start("driver"), start("driver")
    for each in (program, other):
        each("begin")
        each("load")
    program("spin", 3600 * 1000 * MS)
    wait_until(lambda: gpu_time.read(place).gpus[0] > 10 * MS)
    program.kill()
    other("spin_timed", MS, 3)
    found = gpu_time.read(place)
    assert found.processes[other.pid, 0] == 3 * MS
    assert found.processes[program.pid, 0] > 10 * MS
    assert found.gpus[0] == sum(found.processes.values())
