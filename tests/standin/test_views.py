"""What a program sees: its slice as the GPU, its grant as the machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from standin.conftest import MakeMachine
from standin.machine import CONTEXT, GIB, MIB, Grant, Machine
from support import wait_until

NOT_FOUND = 6

LOOK = """
import json, os, pynvml as n
n.nvmlInit()
def look(index):
    h = n.nvmlDeviceGetHandleByIndex(index)
    memory, second = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
    return dict(
        uuid=n.nvmlDeviceGetUUID(h), index=n.nvmlDeviceGetIndex(h), name=n.nvmlDeviceGetName(h),
        total=memory.total, used=memory.used, free=memory.free,
        second=[second.total, second.used, second.free, second.reserved],
        processes={p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h)},
        graphics=[p.pid for p in n.nvmlDeviceGetGraphicsRunningProcesses(h)],
        busy=n.nvmlDeviceGetUtilizationRates(h).gpu,
    )
print(json.dumps([look(i) for i in range(n.nvmlDeviceGetCount())]))
"""

REFUSED = """
import json, sys, pynvml as n
n.nvmlInit()
def ask(function, *arguments):
    try:
        function(*arguments)
        return 0
    except n.NVMLError as error:
        return error.value
print(json.dumps([
    *[ask(n.nvmlDeviceGetHandleByUUID, uuid.encode()) for uuid in sys.argv[1].split(",")],
    *[ask(n.nvmlDeviceGetHandleByPciBusId, bus.encode()) for bus in sys.argv[2].split(",")],
    ask(n.nvmlDeviceGetHandleByIndex, 1),
]))
"""


def look(machine: Machine, grant: Grant) -> list[dict[str, Any]]:
    return list(machine.python(grant, LOOK))


def test_the_driver_reports_the_slice_as_the_gpu(machine: Machine) -> None:
    tenant = machine.tenant(machine.grant(8 * GIB)).start()
    assert tenant("total", 0) == [0, 8 * GIB]
    code, free, total = tenant("info")
    assert (code, total) == (0, 8 * GIB)
    assert 8 * GIB - CONTEXT - 64 * MIB <= free <= 8 * GIB - CONTEXT
    pointer = tenant.ok("alloc", GIB)
    assert tenant("info")[1:] == [free - GIB, 8 * GIB]
    tenant.does("free", pointer)
    assert tenant("info")[1:] == [free, 8 * GIB]


def test_memory_reported_as_free_can_be_allocated(machine: Machine) -> None:
    tenant = machine.tenant(machine.grant(8 * GIB)).start()
    free = tenant("info")[1]
    tenant.ok("alloc", free // (2 * MIB) * (2 * MIB))


def test_a_monitor_sees_the_slices_as_gpus(make_machine: MakeMachine) -> None:
    machine = make_machine("h100:4")
    grant = machine.grant(8 * GIB, 16 * GIB, on=(2, 1))
    first, second = look(machine, grant)
    uuids = machine.uuids()
    assert [first["uuid"], second["uuid"]] == [uuids[2], uuids[1]]
    assert [first["index"], second["index"]] == [0, 1]
    assert [first["total"], second["total"]] == [8 * GIB, 16 * GIB]
    assert first["second"] == [8 * GIB, 0, 8 * GIB, 0]
    assert first["processes"] == second["processes"] == {}


def test_a_monitor_sees_the_grants_own_processes_and_what_they_use(machine: Machine) -> None:
    ours, theirs = machine.grant(8 * GIB, name="ours"), machine.grant(8 * GIB, name="theirs")
    one, two, other = (machine.tenant(g).start() for g in (ours, ours, theirs))
    one.ok("alloc", GIB)
    other.ok("alloc", 3 * GIB)
    (gpu,) = look(machine, ours)
    processes = {int(pid): used for pid, used in gpu["processes"].items()}
    assert set(processes) == {one.pid, two.pid}
    assert CONTEXT + GIB <= processes[one.pid] <= CONTEXT + GIB + 4 * MIB
    assert CONTEXT <= processes[two.pid] <= CONTEXT + 4 * MIB
    assert gpu["used"] == sum(processes.values())
    assert gpu["used"] + gpu["free"] == gpu["total"]
    assert gpu["graphics"] == []
    (gpu,) = look(machine, theirs)
    assert [int(pid) for pid in gpu["processes"]] == [other.pid]


def test_a_monitor_can_name_the_processes(machine: Machine) -> None:
    grant = machine.grant(8 * GIB)
    tenant = machine.tenant(grant).start()
    code = (
        "import json, sys, pynvml as n; n.nvmlInit();"
        "print(json.dumps(n.nvmlSystemGetProcessName(int(sys.argv[1]))))"
    )
    done = machine.run(grant, sys.executable, "-c", code, str(tenant.pid))
    assert "python" in json.loads(done.stdout)


def test_a_monitor_joins_no_grant_and_uses_no_memory(machine: Machine) -> None:
    grant = machine.grant(8 * GIB)
    look(machine, grant)
    assert machine.grant_status(grant)["processes"] == []
    assert grant.counted() == 0


def test_gpus_outside_the_grant_are_refused(make_machine: MakeMachine) -> None:
    machine = make_machine("h100:2")
    grant = machine.grant(8 * GIB, on=(1,))
    uuids = machine.uuids()
    buses = [gpu["pci_bus_id"] for gpu in machine.status()["gpus"]]
    done = machine.run(grant, sys.executable, "-c", REFUSED, ",".join(uuids), ",".join(buses))
    invalid_argument = 2
    assert json.loads(done.stdout) == [NOT_FOUND, 0, NOT_FOUND, 0, invalid_argument]


def test_utilisation_is_that_of_the_grant(machine: Machine) -> None:
    idle, busy = machine.grant(8 * GIB, name="idle"), machine.grant(8 * GIB, name="busy")
    quiet, worker = machine.tenant(idle).start(), machine.tenant(busy).start()
    module = worker.ok("load_spin")

    def seen() -> tuple[int, int]:
        worker.tell("spin", module, 50_000_000, 40)  # works while both are looked at
        in_busy, in_idle = look(machine, busy)[0]["busy"], look(machine, idle)[0]["busy"]
        assert worker.answer() == [0]
        return in_idle, in_busy

    wait_until(lambda: seen()[1] > 20)
    assert seen()[0] == 0
    assert quiet("count") == [0, 1]


def test_gpustat_shows_the_slice(machine: Machine) -> None:
    grant = machine.grant(8 * GIB)
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", GIB)
    done = machine.run(grant, tool("gpustat"), "--json")
    assert done.returncode == 0, done.stderr
    (gpu,) = json.loads(done.stdout)["gpus"]
    assert gpu["memory.total"] == 8192
    assert 1024 + 518 <= gpu["memory.used"] <= 1024 + 522
    assert [process["pid"] for process in gpu["processes"]] == [tenant.pid]


def test_nvitop_shows_the_slice(machine: Machine) -> None:
    grant = machine.grant(8 * GIB)
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", GIB)
    done = machine.run(grant, tool("nvitop"), "--once", "--colorful", TERM="xterm", COLUMNS="140")
    assert done.returncode == 0, done.stderr
    assert re.search(r"15\d\dMiB / 8192MiB|1\.5\dGiB / 8(192M|\.00G|G)iB", done.stdout), done.stdout
    assert str(tenant.pid) in done.stdout


def test_nvidias_own_bindings_see_the_slice(machine: Machine) -> None:
    code = """
import json
from cuda.bindings import driver as d
assert d.cuInit(0)[0] == 0
_, device = d.cuDeviceGet(0)
_, context = d.cuDevicePrimaryCtxRetain(device)
d.cuCtxSetCurrent(context)
total = d.cuDeviceTotalMem(device)[1]
_, pointer = d.cuMemAlloc(1 << 30)
refused = int(d.cuMemAlloc(4 << 30)[0])
info = d.cuMemGetInfo()
print(json.dumps([total, int(d.cuMemFree(pointer)[0]), refused, info[2]]))
"""
    assert machine.python(machine.grant(2 * GIB), code) == [2 * GIB, 0, 2, 2 * GIB]


@pytest.mark.parametrize("command", ["gpustat", "nvitop"])
def test_monitors_started_by_aliquot_run_show_the_slice(
    cli_env: dict[str, str], command: str
) -> None:
    flags = {"gpustat": ["--no-color"], "nvitop": ["--once"]}[command]
    options = ["run", "--simulate", "h100:1", "--memory", "8GiB"]
    done = subprocess.run(
        [tool("aliquot"), *options, "--", tool(command), *flags],
        env={**cli_env, "TERM": "xterm", "COLUMNS": "140"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"8192 ?M|8\.00GiB|8GiB", done.stdout), done.stdout


def tool(name: str) -> str:
    path = Path(sys.executable).with_name(name)
    assert os.access(path, os.X_OK), f"{path} is not installed"
    return str(path)
