"""CUDA_VISIBLE_DEVICES within a grant: indices count the grant's GPUs."""

from __future__ import annotations

import json
import sys

import pytest

from standin.conftest import MakeMachine
from standin.machine import GIB, TESTS, Grant, Machine

NO_DEVICE, INVALID_DEVICE = 100, 101

# The grant holds the GPUs 1, 3 and 2 of a machine of four, in this order.
HELD = (1, 3, 2)

SHOW = (
    "import json; from standin.driver import Driver; d = Driver(); code = d.init()[0];"
    "print(json.dumps([code, [d.uuid(i)[1] for i in range(d.count()[1] if code == 0 else 0)]]))"
)


@pytest.fixture
def machine(make_machine: MakeMachine) -> Machine:
    return make_machine("h100:4")


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(GIB, GIB, GIB, on=HELD)


def shown(machine: Machine, grant: Grant, **changes: str) -> tuple[int, list[int]]:
    """The code of cuInit, and which of the machine's GPUs are visible."""
    done = machine.run(grant, sys.executable, "-S", "-c", SHOW, PYTHONPATH=str(TESTS), **changes)
    assert done.returncode == 0, done.stderr
    code, seen = json.loads(done.stdout)
    plain = [uuid.removeprefix("GPU-").replace("-", "") for uuid in machine.uuids()]
    return code, [plain.index(uuid) for uuid in seen]


def test_without_the_variable_all_gpus_of_the_grant_are_visible(
    machine: Machine, grant: Grant
) -> None:
    assert shown(machine, grant) == (0, [1, 3, 2])


def test_pci_order_sorts_the_gpus_of_the_grant(machine: Machine, grant: Grant) -> None:
    assert shown(machine, grant, CUDA_DEVICE_ORDER="PCI_BUS_ID") == (0, [1, 2, 3])


@pytest.mark.parametrize(
    ("value", "code", "seen"),
    [
        ("0", 0, [1]),
        ("1", 0, [3]),
        ("2,0", 0, [2, 1]),
        ("2,1,0", 0, [2, 3, 1]),
        ("0,1,2", 0, [1, 3, 2]),
        (" 1", 0, [3]),
        ("1 ", 0, [3]),
        ("0x2", 0, [2]),
        ("+1", 0, [3]),
        ("01", 0, [3]),
        ("1;2", 0, [3]),
        ("1,", 0, [3]),
        ("1,3", 0, [3]),  # what follows one that is not there is not seen
        ("0,-1,1", 0, [1]),
        ("0,x,1", 0, [1]),
        ("3", NO_DEVICE, []),
        ("3,0", NO_DEVICE, []),
        ("-1", NO_DEVICE, []),
        ("", NO_DEVICE, []),
        (",", NO_DEVICE, []),
        (",0", NO_DEVICE, []),
        ("none", NO_DEVICE, []),
        ("MIG-x", NO_DEVICE, []),
        ("0,0", INVALID_DEVICE, []),
        ("0,1,0", INVALID_DEVICE, []),
        ("0,1,2,1", INVALID_DEVICE, []),
    ],
)
def test_an_index_counts_the_gpus_of_the_grant(
    machine: Machine, grant: Grant, value: str, code: int, seen: list[int]
) -> None:
    assert shown(machine, grant, CUDA_VISIBLE_DEVICES=value) == (code, seen)


def test_an_index_counts_in_pci_order_if_the_program_asks_for_it(
    machine: Machine, grant: Grant
) -> None:
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert shown(machine, grant, CUDA_VISIBLE_DEVICES="1,2", **order) == (0, [2, 3])


def test_a_uuid_or_its_beginning_names_a_gpu_of_the_grant(machine: Machine, grant: Grant) -> None:
    uuids = machine.uuids()
    cases: list[tuple[str, int, list[int]]] = [
        (uuids[2], 0, [2]),
        (uuids[3][:12], 0, [3]),
        (f"{uuids[3]},{uuids[1]}", 0, [3, 1]),
        (f"{uuids[3]},0", 0, [3, 1]),
        (f"{uuids[2]},{uuids[2]}", INVALID_DEVICE, []),
        (f"0,{uuids[1]}", INVALID_DEVICE, []),
        (uuids[0], NO_DEVICE, []),  # of the machine, not of the grant
        (f"{uuids[1]},{uuids[0]},{uuids[2]}", 0, [1]),
        (uuids[1].lower(), NO_DEVICE, []),
        (uuids[1].replace("GPU-", "PU-"), NO_DEVICE, []),
        (uuids[1] + "0", NO_DEVICE, []),
        ("GPU-", NO_DEVICE, []),
    ]
    for value, code, seen in cases:
        assert shown(machine, grant, CUDA_VISIBLE_DEVICES=value) == (code, seen), value


def test_the_only_gpu_of_a_grant_has_index_zero(machine: Machine) -> None:
    grant = machine.grant(GIB, on=(2,), name="single")
    assert shown(machine, grant, CUDA_VISIBLE_DEVICES="0") == (0, [2])
    assert shown(machine, grant, CUDA_VISIBLE_DEVICES="2") == (NO_DEVICE, [])


def test_the_programs_own_value_is_restored(machine: Machine, grant: Grant) -> None:
    code = (
        "import ctypes, json; libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p;"
        "cuda = ctypes.CDLL('libcuda.so.1'); code = cuda.cuInit(0);"
        "value = libc.getenv(b'CUDA_VISIBLE_DEVICES');"
        "print(json.dumps([code, value and value.decode()]))"
    )
    assert machine.python(grant, code, CUDA_VISIBLE_DEVICES="2,0") == [0, "2,0"]
    assert machine.python(grant, code) == [0, None]


def test_memory_limits_follow_the_visible_gpus(machine: Machine) -> None:
    grant = machine.grant(GIB, 2 * GIB, 3 * GIB, name="sizes")
    tenant = machine.tenant(grant, CUDA_VISIBLE_DEVICES="2,0")
    tenant.does("init")
    assert [tenant.ok("total", device) for device in (0, 1)] == [3 * GIB, GIB]
    tenant.start(1).ok("alloc", 64 << 20)
    assert [grant.counted(index) > 0 for index in range(3)] == [True, False, False]
