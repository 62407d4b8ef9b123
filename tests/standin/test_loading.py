"""However a program loads, closes and loads again the driver's libraries, it meets the stand-ins.

`preloaded` is a program of `aliquot run`; `mounted` is one in a container, where the stand-in has
the driver's name and nothing is preloaded.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import support
from aliquot.devices import CUDA, NVML
from standin.machine import GIB, MIB, SYSTEM_NOT_READY, Grant, Machine, fitted_library
from support import wait_until

SOURCE = Path(__file__).with_name("loads.c")
LIMIT = 2 * GIB


def build(path: Path, *flags: str, compiler: str = "gcc") -> Path:
    """The program of loads.c."""
    command = [compiler, "-std=gnu11", "-O1", "-g", str(SOURCE), "-o", str(path), "-ldl", *flags]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("loads") / "loads")


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(LIMIT)


@dataclass
class Loads:
    """Runs the program's steps in the grant. Returns the lines that it prints."""

    machine: Machine
    grant: Grant
    program: Path
    changes: dict[str, str | None]

    def run(self, *steps: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run(self.grant, str(self.program), *steps, **self.changes)

    def __call__(self, *steps: str) -> list[str]:
        done = self.run(*steps)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def preloaded(machine: Machine, grant: Grant, program: Path) -> Loads:
    return Loads(machine, grant, program, {})


@pytest.fixture
def mounted(machine: Machine, grant: Grant, program: Path) -> Loads:
    return Loads(machine, grant, program, {"LD_PRELOAD": None})


@pytest.fixture(params=["preloaded", "mounted"])
def loads(request: pytest.FixtureRequest) -> Loads:
    found: Loads = request.getfixturevalue(request.param)
    return found


def is_limited(taken: str) -> bool:
    return 0 < int(taken) * MIB < LIMIT


@pytest.mark.parametrize("name", [CUDA, "libcuda.so"])
def test_a_driver_that_is_closed_and_opened_again_is_the_stand_in(loads: Loads, name: str) -> None:
    opened = (f"open:{name}", "take", "close")
    first, taken, second, again, _, by_address = loads(
        *opened, *opened, f"open:{CUDA}", "take-by-address"
    )
    assert first == second
    assert is_limited(taken)
    assert taken == again == by_address


def test_nvml_that_is_closed_and_opened_again_is_the_stand_in(loads: Loads) -> None:
    opened = (f"open:{NVML}", "memory", "close")
    lines = loads(*opened, *opened)
    assert lines[1::2] == [str(LIMIT >> 20)] * 2


@pytest.mark.parametrize("way", ["open", "deep", "global"])
@pytest.mark.parametrize("take", ["take", "take-by-address"])
def test_every_flag_of_dlopen_leads_to_the_stand_in(loads: Loads, way: str, take: str) -> None:
    _, taken, found, again = loads(f"{way}:{CUDA}", take, f"noload:{CUDA}", take)
    assert Path(found).parent == loads.machine.library
    assert is_limited(taken)
    assert again == taken


def test_a_driver_that_is_not_loaded_is_not_found_by_noload(mounted: Loads) -> None:
    assert mounted(f"noload:{CUDA}") == ["not found"]


def test_the_program_itself_has_the_stand_ins_functions(loads: Loads) -> None:
    *_, taken = loads(f"global:{CUDA}", "main", "take")
    assert is_limited(taken)


def test_no_function_has_a_version(loads: Loads) -> None:
    """As in the driver, so a program that asks for one finds what it finds without a slice."""
    steps = (f"open:{CUDA}", "take-by-version")
    environment = loads.machine.bare()
    command = [str(loads.program), *steps]
    bare = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert loads(*steps)[1:] == bare.stdout.splitlines()[1:]


def test_a_namespace_of_its_own_has_the_stand_in(loads: Loads) -> None:
    (_, taken) = loads(f"new:{CUDA}", "take")
    assert is_limited(taken)


def test_a_namespace_of_its_own_does_not_bring_the_driver_into_another(loads: Loads) -> None:
    """The stand-in's driver has the SONAME that the program asks for next."""
    done = loads.run(f"new:{CUDA}", "take", f"open:{CUDA}", "take")
    _, taken, path, second = done.stdout.splitlines()
    assert is_limited(taken)
    assert path == str(loads.machine.library / CUDA)
    assert second == f"error {SYSTEM_NOT_READY}"
    assert "two copies of the driver library" in done.stderr


@pytest.mark.parametrize("way", ["open", "global", "new", "deep"])
def test_in_a_program_of_aliquot_run_the_drivers_path_leads_to_the_stand_in(
    preloaded: Loads, way: str
) -> None:
    path, taken = preloaded(f"{way}:{preloaded.machine.driver / CUDA}", "take")
    assert Path(path).parent == preloaded.machine.library
    assert is_limited(taken)


def test_the_stand_in_answers_when_its_file_is_gone(
    machine: Machine, grant: Grant, native_dir: Path, tmp_path: Path
) -> None:
    """A daemon that tidies up may delete the folder while programs run."""
    machine.library = fitted_library(tmp_path / "fitted", native_dir, machine.driver)
    code = """
import ctypes, json, shutil, sys
shutil.rmtree(sys.argv[1])
driver, size = ctypes.CDLL(sys.argv[2]), ctypes.c_size_t()
driver.cuInit(0)
driver.cuDeviceTotalMem_v2(ctypes.byref(size), 0)
print(size.value)
"""
    path = machine.driver / CUDA
    done = machine.run(grant, sys.executable, "-c", code, str(machine.library), str(path))
    assert done.stdout == f"{LIMIT}\n", done.stderr


def test_opencl_which_has_no_limits_is_not_found(preloaded: Loads, tmp_path: Path) -> None:
    """A loader of OpenCL platforms opens the library that is named in /etc/OpenCL/vendors."""
    name = "libnvidia-opencl.so.1"
    path = support.compile_library(tmp_path, name, "int clGetPlatformIDs(void) { return 0; }")
    preloaded.changes["LD_LIBRARY_PATH"] = f"{preloaded.machine.library}:{tmp_path}"
    done = preloaded.run(f"open:{name}", f"open:{path}")
    assert done.stdout.splitlines() == ["not found", "not found"]
    (said,) = done.stderr.splitlines()
    assert "OpenCL" in said


def test_a_program_that_a_program_starts_has_the_same_limit(loads: Loads) -> None:
    lines = loads(f"open:{CUDA}", "take", "again", f"open:{CUDA}", "take")
    assert is_limited(lines[1])
    assert is_limited(lines[3])


def test_a_static_program_that_opens_the_libraries_by_name_has_the_stand_ins(
    preloaded: Loads, tmp_path: Path
) -> None:
    """Nothing can be preloaded into it. By its path it opens the driver itself."""
    preloaded.program = build(tmp_path / "static", "-static")
    opened = (f"open:{NVML}", "memory", "close", f"open:{CUDA}", "close")
    library = preloaded.machine.library
    expected = [str(library / NVML), str(LIMIT >> 20), str(library / CUDA)]
    assert preloaded(*opened, *opened) == expected * 2


def test_a_copy_of_the_driver_that_a_program_brings_is_reported(
    preloaded: Loads, tmp_path: Path
) -> None:
    """It cannot be held: NVML lists the process, and no grant knows it."""
    machine, own = preloaded.machine, tmp_path / "own"
    shutil.copytree(machine.driver, own)
    (own / CUDA).rename(own / "libmine.so")
    process = subprocess.Popen(
        [str(preloaded.program), f"open:{own / 'libmine.so'}", "take", "wait"],
        env=machine.inside(preloaded.grant),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    process.stdout.readline()
    assert int(process.stdout.readline()) * MIB > LIMIT
    wait_until(
        lambda: [one["pid"] for one in machine.status()["gpus"][0]["strangers"]] == [process.pid]
    )
    process.communicate()
