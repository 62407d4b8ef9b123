"""Programs built with a newer CUDA than the driver: NVIDIA's forward-compatibility package.

Its driver library is in a folder `compat`, which such a program has in its search path. Then the
stand-in stands before that library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.devices import CUDA, NVML, Driver, find_driver
from aliquot.slices.library import prepare_library
from aliquot.slices.tenant import tenant_environment
from standin.changed import changed_driver
from standin.machine import GIB, Grant, Machine

NEWER = 99000
COMPAT_NOT_SUPPORTED, DRIVER_MISMATCH = 804, 803
USUAL = "h100:1"

LIBRARY = """
#include <stdlib.h>
int cuDriverGetVersion(int *version)
{
	*version = %d;
	return 0;
}
int cuInit(unsigned flags)
{
	int (*real)(unsigned) = simulated("cuInit");
	if (getenv("TEST_RESULT"))
		return atoi(getenv("TEST_RESULT"));
	setenv("ALIQUOT_SIMULATE", "%s", 1); /* a real driver needs no variable */
	return real(flags);
}
"""

ASK = """
import ctypes, json
driver, number, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
result = driver.cuInit(0)
driver.cuDriverGetVersion(ctypes.byref(number))
driver.cuDeviceTotalMem_v2(ctypes.byref(size), 0)
print(json.dumps([result, number.value, size.value]))
"""


@pytest.fixture
def compat(native_dir: Path, tmp_path: Path) -> Path:
    """A forward-compatibility package: CUDA's library, and no NVML."""
    folder = tmp_path / "cuda-99.0" / "compat"
    own = LIBRARY % (NEWER, USUAL)
    changed_driver(folder, native_dir / "sim", own, defined=["cuDriverGetVersion", "cuInit"])
    (folder / NVML).unlink()
    return folder


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(GIB)


@pytest.mark.parametrize("order", ["{library}:{compat}", "{compat}:{library}", "{compat}"])
def test_a_compat_library_in_the_search_path_is_the_driver(
    machine: Machine, grant: Grant, compat: Path, order: str
) -> None:
    path = order.format(library=machine.library, compat=compat)
    found = machine.python(grant, ASK, LD_LIBRARY_PATH=path, ALIQUOT_SIMULATE=None)
    assert found == [0, NEWER, GIB]


def test_a_simulated_driver_is_not_replaced(machine: Machine, grant: Grant, compat: Path) -> None:
    path = f"{machine.library}:{compat}"
    result, version, _ = machine.python(grant, ASK, LD_LIBRARY_PATH=path)
    assert result == 0
    assert version != NEWER


def test_aliquot_run_takes_the_compat_library_of_its_search_path(
    machine: Machine, grant: Grant, compat: Path, tmp_path: Path
) -> None:
    """With NVML of the machine's own driver, in another folder."""
    before = machine.bare(LD_LIBRARY_PATH=f"{compat}:{machine.driver}", ALIQUOT_SIMULATE=None)
    driver = find_driver(before)
    assert driver == Driver(cuda=compat / CUDA, nvml=machine.driver / NVML)
    assert driver.is_compat
    (tmp_path / "home").mkdir()
    folder = prepare_library(driver, tmp_path / "home")
    environment = tenant_environment(before, folder, driver, grant.marked)
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [0, NEWER, GIB]


@pytest.mark.parametrize("code", [COMPAT_NOT_SUPPORTED, DRIVER_MISMATCH])
def test_a_compat_library_that_does_not_fit_the_machine_is_named(
    machine: Machine, grant: Grant, compat: Path, code: int
) -> None:
    changes = {"LD_LIBRARY_PATH": str(compat), "ALIQUOT_SIMULATE": None, "TEST_RESULT": str(code)}
    done = machine.run(grant, sys.executable, "-c", ASK, **changes)
    assert json.loads(done.stdout)[0] == code
    assert str(compat / CUDA) in done.stderr
    assert "LD_LIBRARY_PATH" in done.stderr
