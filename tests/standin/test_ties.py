"""Ties to other processes or to the host are recorded for as long as the process lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standin.changed import changed_driver
from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, Grant, Machine, Tenant, fitted_library
from support import wait_until

FROM_OTHERS = {
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemImportFromShareableHandle",
    "cuMemPoolImportPointer",
    "cuMemPoolImportFromShareableHandle",
    "cuImportExternalMemory",
}
IPC = [
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcGetEventHandle",
    "cuIpcOpenEventHandle",
]
SHARED = [
    "cuMemImportFromShareableHandle",
    "cuMemGetHandleForAddressRange",
    "cuMemPoolExportToShareableHandle",
    "cuMemPoolExportPointer",
    "cuMemPoolImportPointer",
]
CODE_VARIABLE = "TEST_CODE"
OBLIGING = """
#include <stdlib.h>
static int code(void)
{
	return atoi(getenv("TEST_CODE"));
}
"""


def ties(machine: Machine, grant: Grant) -> list[list[str]]:
    """The ties of the grant's processes, in the order of their slots."""
    processes: list[dict[str, Any]] = machine.grant_status(grant)["processes"]
    return [one["ties"] for one in processes]


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(8 * GIB)


@pytest.fixture
def tenant(machine: Machine, grant: Grant) -> Tenant:
    return machine.tenant(grant).start()


def test_plain_memory_makes_no_tie(machine: Machine, grant: Grant, tenant: Tenant) -> None:
    tenant.ok("alloc", MIB)
    tenant.ok("create_physical", 2 * MIB)
    tenant.ok("create_pool")
    assert ties(machine, grant) == [[]]


def test_managed_memory_makes_a_tie_that_outlives_it(
    machine: Machine, grant: Grant, tenant: Tenant
) -> None:
    code, _ = tenant("alloc_managed", 80 * GIB)
    assert code != 0
    assert ties(machine, grant) == [[]]  # there is none
    tenant.does("free", tenant.ok("alloc_managed", MIB))
    assert ties(machine, grant) == [["managed"]]


def test_exported_memory_makes_a_tie(machine: Machine, grant: Grant, tenant: Tenant) -> None:
    handle = tenant.ok("create_shareable", 2 * MIB)
    assert ties(machine, grant) == [[]]
    tenant.ok("export_physical", handle)
    assert ties(machine, grant) == [["shared"]]
    tenant.ok("alloc_managed", MIB)
    assert ties(machine, grant) == [["managed", "shared"]]


def test_ties_belong_to_the_process(machine: Machine, grant: Grant, tenant: Tenant) -> None:
    other = machine.tenant(grant).start()
    other.ok("alloc_managed", MIB)
    assert ties(machine, grant) == [[], ["managed"]]
    other.kill()
    wait_until(lambda: ties(machine, grant) == [[]])
    machine.tenant(grant).start()
    assert ties(machine, grant) == [[], []]  # in the same slot
    tenant.ok("alloc_managed", MIB)
    tenant.tell("become_new")
    assert tenant("init") == [0]
    assert ties(machine, grant) == [[], []]  # another program


@pytest.fixture(scope="module")
def obliging(native_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A driver with calls that the simulated one lacks, and stand-ins fitted to it."""
    folder = tmp_path_factory.mktemp("obliging")
    names = IPC + SHARED
    own = OBLIGING + "".join(f"int {name}(void)\n{{\n\treturn code();\n}}\n" for name in names)
    driver = changed_driver(folder / "driver", native_dir / "sim", own, defined=names)
    return driver, fitted_library(folder / "fitted", native_dir, driver)


@pytest.mark.parametrize(
    ("name", "tie"), [*((name, "ipc") for name in IPC), *((name, "shared") for name in SHARED)]
)
def test_memory_shared_between_processes_makes_a_tie(
    make_machine: MakeMachine, obliging: tuple[Path, Path], name: str, tie: str
) -> None:
    driver, fitted = obliging
    machine = make_machine(driver=driver, fitted=fitted)
    grant = machine.grant(8 * GIB)
    refused = [tie] if name in FROM_OTHERS else []  # those tie before it is known
    for code, expected in ((801, refused), (0, [tie])):
        tenant = machine.tenant(grant, **{CODE_VARIABLE: str(code)}).start()
        assert tenant("call_with_nothing", name) == [code]
        assert ties(machine, grant)[-1] == expected
