"""Processes in separate pid namespaces, as in containers, on one simulated machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sim.conftest import Start
from sim.program import Program
from support import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces")

GIB, CONTEXT = 1 << 30, 518
ALONE = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"]
# Without ALIQUOT_SIMULATE*: the machine is mounted where a container has it.
SHOW = """
mount -t tmpfs none /run && mkdir -p /run/aliquot/machine || exit
[ -z "$MEETING_PLACE" ] || mount --bind "$MEETING_PLACE" /run/aliquot/machine || exit
exec "$@"
"""
CONTAINED = [*ALONE, "--mount", "sh", "-c", SHOW, "sh"]
UNNAMED = {"ALIQUOT_SIMULATE": "", "ALIQUOT_SIMULATE_STATE": ""}


@pytest.fixture
def place(sim_env: dict[str, str]) -> str:
    return sim_env["ALIQUOT_SIMULATE_STATE"]


def inner(program: Program) -> int:
    """The pid of the child that a wrapper program started, in this namespace."""
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    wait_until(lambda: children.read_text().split())
    return int(children.read_text().split()[0])


def test_processes_with_the_same_pid_are_distinguished(start: Start, nvml: Program) -> None:
    programs = [start("driver", inside=ALONE) for _ in range(2)]
    for number, program in enumerate(programs, start=1):
        program("begin")
        assert program("call", "cuMemAlloc", number * GIB)[0] == 0
    one, two = (str(inner(program)) for program in programs)
    assert nvml("processes", 0) == {one: CONTEXT + 1024, two: CONTEXT + 2048}
    programs[0].kill()
    wait_until(lambda: nvml("processes", 0) == {two: CONTEXT + 2048})


def test_kernels_of_two_namespaces_share_the_engine(start: Start, nvml: Program) -> None:
    programs = [start("driver", inside=ALONE) for _ in range(2)]
    for program in programs:
        program("begin")
        program("load")
        program.ask("spin", 20_000_000, None, 5)
    for program in programs:
        program.answer()
        program("call", "cuCtxSynchronize")
    for program in programs:
        assert nvml("busy_ms", 0, inner(program)) == 100


def test_processes_killed_anywhere_leave_no_memory_in_use(start: Start, nvml: Program) -> None:
    """Their threads have the same ids, so thread ids cannot name the holder of the file's lock."""
    stays = start("driver", inside=ALONE)
    stays("begin")
    for calls in (0, 5, 60, 300):
        programs = [start("driver", inside=ALONE) for _ in range(4)]
        for program in programs:
            program.ask("begin")
        for program in programs[1:]:
            program.answer()
            for number in range(calls):
                program.ask("call", "cuMemAlloc", 1 + number * 100_000)
        for program in programs:
            program.kill()
        wait_until(lambda: nvml("processes", 0) == {str(inner(stays)): CONTEXT})
    _, free, total = stays("call", "cuMemGetInfo")
    assert total - free == (CONTEXT << 20) + 3328 * 1024


def test_a_process_is_locked_by_its_pid_in_the_callers_namespace(
    start: Start, nvml: Program
) -> None:
    """In their own namespaces both have pid 1."""
    inside = [start("checkpoint", inside=ALONE) for _ in range(2)]
    caller = start("checkpoint")
    for program in (*inside, caller):
        program("begin")
    one, two = (inner(program) for program in inside)
    assert caller("lock", one) == 0
    assert caller("checkpoint", one) == 0
    assert nvml("processes", 0) == {str(pid): CONTEXT for pid in (two, caller.pid)}
    assert caller("call", "cuCheckpointProcessGetRestoreThreadId", one) == [0, one]
    assert inside[1]("lock", 1) == 0
    assert [caller("state", pid) for pid in (one, two)] == [[0, 2], [0, 1]]
    assert inside[1]("state", caller.pid)[0] == 304  # a process outside of its namespace


def test_a_mounted_machine_needs_no_environment(start: Start, nvml: Program, place: str) -> None:
    program = start("driver", inside=CONTAINED, MEETING_PLACE=place, **UNNAMED)
    program("begin")
    assert nvml("processes", 0) == {str(inner(program)): CONTEXT}
    monitor = start("nvml", inside=CONTAINED, MEETING_PLACE=place, **UNNAMED)
    monitor("call", "nvmlInit")
    assert "H100" in monitor("of", 0, "nvmlDeviceGetName")
    uuid = "nvmlDeviceGetUUID"
    assert monitor("of", 0, uuid) == nvml("of", 0, uuid)
    assert list(monitor("processes", 0).values()) == [CONTEXT]


def test_without_a_mounted_machine_there_is_no_gpu(start: Start, place: str) -> None:
    program = start("nvml", inside=CONTAINED, MEETING_PLACE="", **UNNAMED)
    assert program("call", "nvmlInit").startswith("error")
    half_named = {**UNNAMED, "ALIQUOT_SIMULATE": "h100:1"}
    program = start("nvml", inside=CONTAINED, MEETING_PLACE=place, **half_named)
    assert program("call", "nvmlInit").startswith("error")
