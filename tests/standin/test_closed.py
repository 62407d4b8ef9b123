"""Failing closed: without a grant, an arbiter or valid pages there is no GPU, and stderr says why.

Whoever runs already keeps its limits and goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import pytest

from standin.gated import Gated
from standin.machine import (
    GIB,
    MIB,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    SYSTEM_NOT_READY,
    Grant,
    Machine,
    Tenant,
)
from support import wait_until

LIMIT = 2 * GIB
PIECE = 64 * MIB
VERSION_AT, SIZE_AT, SLICE_COUNT_AT, LIMIT_AT = 8, 12, 80, 16 + 64 + 16 + 16 + 16 + 32 + 8


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(LIMIT)


def refused(machine: Machine, tenant: Tenant) -> str:
    """Assert that no call gets a GPU, and the GPU shows no process. Returns the stderr text."""
    before = machine.status()["gpus"] if machine.arbiter else None
    assert tenant("init") == [SYSTEM_NOT_READY]
    for call in (("retain",), ("create_context",), ("alloc", PIECE), ("create_physical", PIECE)):
        assert tenant(*call)[0] != 0
    for call in (("count",), ("info",), ("synchronize",)):
        assert tenant(*call)[0] == 3
    if before:
        assert machine.status()["gpus"] == before
    return tenant.end()


def test_without_a_grant_there_is_no_gpu(machine: Machine) -> None:
    said = refused(machine, machine.tenant(None))
    assert "aliquot run" in said


def test_a_missing_grant_gives_no_gpu(machine: Machine, tmp_path: Path) -> None:
    said = refused(machine, machine.tenant(Grant("gone", tmp_path / "gone")))
    assert str(tmp_path / "gone") in said
    assert "has ended" in said


def test_a_later_grant_of_the_same_name_gives_no_gpu(machine: Machine, grant: Grant) -> None:
    earlier = Grant(grant.name, grant.directory, f"{grant.directory}#1234")
    tenant = machine.tenant(earlier)
    assert tenant("init") == [SYSTEM_NOT_READY]
    assert tenant("alloc", PIECE)[0] == NOT_INITIALIZED
    assert "has ended" in tenant.end()


def test_without_an_arbiter_there_is_no_gpu(machine: Machine, grant: Grant) -> None:
    machine.stop_arbiter(signal.SIGKILL)
    said = refused(machine, machine.tenant(grant))
    assert "no arbiter answers" in said
    assert "aliquot doctor" in said


def test_signals_of_the_program_do_not_prolong_the_wait_for_a_silent_arbiter(
    machine: Machine, tmp_path: Path
) -> None:
    code = """
import ctypes, signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
print(ctypes.CDLL("libcuda.so.1").cuInit(0))
"""
    silent = Grant("silent", tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as arbiter:
        arbiter.bind(str(tmp_path / "socket"))
        arbiter.listen()
        done = machine.run(silent, sys.executable, "-c", code)
    assert done.stdout == f"{SYSTEM_NOT_READY}\n"
    assert "no arbiter answers" in done.stderr


def test_without_its_socket_there_is_no_gpu(machine: Machine, grant: Grant) -> None:
    (grant.directory / "socket").unlink()
    assert "aliquot doctor" in refused(machine, machine.tenant(grant))


def test_a_silent_socket_gives_no_gpu(machine: Machine, tmp_path: Path) -> None:
    """A folder with a socket that nobody answers."""
    for name in ("limits", "usage", "socket"):
        (tmp_path / name).touch()
    assert "aliquot doctor" in refused(machine, machine.tenant(Grant("made-up", tmp_path)))


def damage(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGE = {
    "limits of no layout": ("limits", 0, b"\0" * 8),
    "limits of another version": ("limits", VERSION_AT, struct.pack("<I", 2)),
    "limits of another size": ("limits", SIZE_AT, struct.pack("<I", 99)),
    "limits of no slices": ("limits", SLICE_COUNT_AT, struct.pack("<I", 0)),
    "limits of too many slices": ("limits", SLICE_COUNT_AT, struct.pack("<I", 17)),
    "limits with a name that does not end": ("limits", 16, b"x" * 64),
    "usage of no layout": ("usage", 0, b"junk"),
    "usage of another version": ("usage", VERSION_AT, struct.pack("<I", 2)),
    "usage of another size": ("usage", SIZE_AT, struct.pack("<I", 0)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_invalid_pages_of_the_arbiter_give_no_gpu(gated: Gated, what: str) -> None:
    name, at, data = DAMAGE[what]
    page = gated.arbiter.limits if name == "limits" else gated.arbiter.usage
    page.memory[at : at + len(data)] = data
    said = refused(gated.machine, gated.newcomer())
    assert "aliquot doctor" in said
    assert name in said


def test_damaged_limits_are_written_anew_when_a_process_joins(
    machine: Machine, grant: Grant
) -> None:
    for name, at, data in DAMAGE.values():
        if name == "limits":
            damage(grant.directory / name, at, data)
    tenant = machine.tenant(grant).start()
    assert tenant.ok("total", 0) == LIMIT


@pytest.mark.parametrize("name", ["limits", "usage"])
@pytest.mark.parametrize("size", [0, 64])
def test_truncated_pages_give_no_gpu(machine: Machine, grant: Grant, name: str, size: int) -> None:
    os.truncate(grant.directory / name, size)
    assert "aliquot doctor" in refused(machine, machine.tenant(grant))


@pytest.mark.parametrize("what", ["limits of another version", "usage of no layout"])
def test_a_monitor_with_invalid_pages_sees_no_gpu(
    machine: Machine, grant: Grant, what: str
) -> None:
    name, at, data = DAMAGE[what]
    damage(grant.directory / name, at, data)
    code = "import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
    assert machine.python(grant, code) != 0


def test_a_tenant_cannot_write_its_limits(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    maps = Path(f"/proc/{tenant.pid}/maps").read_text("ascii")
    modes = [line.split()[1] for line in maps.splitlines() if line.endswith("/limits")]
    assert modes
    assert all(mode == "r--s" for mode in modes)


def test_a_tenant_keeps_its_limit_while_the_arbiter_is_dead(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    first = tenant.ok("alloc", PIECE)
    machine.stop_arbiter(signal.SIGKILL)
    count, code = tenant("fill_up", PIECE)
    assert code == OUT_OF_MEMORY
    assert (count + 1) * PIECE <= LIMIT
    tenant.does("free", first)
    tenant.ok("alloc", PIECE)
    assert tenant("alloc", PIECE)[0] == OUT_OF_MEMORY
    tenant.does("release")
    tenant.start()
    assert tenant("fill_up", PIECE)[1] == OUT_OF_MEMORY


def test_a_restarted_arbiter_recovers_all_state(machine: Machine, grant: Grant) -> None:
    stays, dies = machine.tenant(grant).start(), machine.tenant(grant).start()
    stays.ok("alloc", PIECE)
    dies.ok("alloc", 4 * PIECE)
    counted = grant.counted()
    machine.stop_arbiter(signal.SIGKILL)
    stays.ok("alloc", PIECE)
    dies.kill()
    machine.start_arbiter()
    wait_until(lambda: grant.counted() < counted)
    wait_until(lambda: len(machine.grant_status(grant)["processes"]) == 1)
    newcomer = machine.tenant(grant).start()
    newcomer.ok("alloc", PIECE)
    assert {p["pid"] for p in machine.grant_status(grant)["processes"]} == {
        stays.pid,
        newcomer.pid,
    }
    for tenant in (newcomer, stays):
        tenant.kill()
    wait_until(lambda: grant.counted() == 0)


def test_new_programs_wait_while_the_arbiter_restarts(machine: Machine, grant: Grant) -> None:
    """The parent restarts the arbiter; a program that joins meanwhile is not refused."""
    stays = machine.tenant(grant).start()
    newcomers = [machine.tenant(grant) for _ in range(4)]
    for tenant in newcomers:
        os.kill(machine.status()["serving_pid"], signal.SIGKILL)
        assert tenant("init") == [0]
    stays.ok("alloc", PIECE)


def test_a_tenant_that_waits_for_a_stopped_arbiter_continues(
    machine: Machine, grant: Grant
) -> None:
    """Near the limit a program asks for figures, and must not hang without an answer."""
    tenant = machine.tenant(grant).start()
    with machine.stopped_arbiter():
        assert tenant("fill_up", PIECE * 4)[1] == OUT_OF_MEMORY


def test_a_hung_arbiter_does_not_stop_its_tenants(machine: Machine, grant: Grant) -> None:
    """A tenant that asked at every refusal would take five seconds longer than with an arbiter."""
    tenant = machine.tenant(grant).start()
    tenant("fill_up", PIECE)

    def refusals_took() -> float:
        began = time.monotonic()
        for _ in range(100):
            assert tenant("alloc", PIECE)[0] == OUT_OF_MEMORY
        return time.monotonic() - began

    before = refusals_took()
    with machine.stopped_arbiter():
        hung = refusals_took()
    assert hung < 2 + 2 * max(before, refusals_took())


WHAT_IS_WRONG = """
import ctypes, json
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlErrorString.restype = ctypes.c_char_p
nvml.nvmlInit_v2()
print(json.dumps(nvml.nvmlErrorString(12).decode()))
"""


def test_nvml_error_texts_work_without_a_driver(machine: Machine, grant: Grant) -> None:
    assert machine.python(grant, WHAT_IS_WRONG, ALIQUOT_DRIVER_DIR=None)
